"""Producer ids: handed to brokers in blocks, so that not every producer costs a commit (KIP-730)."""

from __future__ import annotations

from typing import Final

from barnabas.controller.metadata.decision import ApiError, Decision
from barnabas.controller.metadata.image import MetadataImage
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.metadata_records import ProducerIdsRecord

BLOCK_SIZE: Final = 1000
_PRODUCER_ID_MAX: Final = 2**63 - 1


def allocate_block(image: MetadataImage, broker_id: int, broker_epoch: int) -> Decision[range | ApiError]:
    """The next block of producer ids for a broker that is registered in this epoch. What a broker leaves of a block is
    lost."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.broker_epoch != broker_epoch:
        epoch = "is not registered" if broker is None else f"is registered in epoch {broker.broker_epoch}"
        return Decision([], ApiError(ErrorCode.STALE_BROKER_EPOCH, f"broker {broker_id} {epoch}"))
    first = image.next_producer_id
    if first > _PRODUCER_ID_MAX - BLOCK_SIZE:
        return Decision([], ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "Exhausted all producerIds"))
    record = ProducerIdsRecord(
        broker_id=broker_id, broker_epoch=broker.broker_epoch, next_producer_id=first + BLOCK_SIZE
    )
    return Decision([record], range(first, first + BLOCK_SIZE))
