"""Producer ids: brokers get them in blocks, so that not every producer needs a commit (KIP-730)."""

from __future__ import annotations

from typing import Final

from barnabas.controller.metadata.decision import ApiError, Decision
from barnabas.controller.metadata.image import MetadataImage
from barnabas.controller.operations.cluster_view import check_broker_epoch
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.metadata_records import ProducerIdsRecord

BLOCK_SIZE: Final = 1000
_PRODUCER_ID_MAX: Final = 2**63 - 1


def allocate_block(image: MetadataImage, broker_id: int, broker_epoch: int) -> Decision[range | ApiError]:
    """The next block of producer ids for a broker that is registered in this epoch. Ids that a broker does not use are lost."""
    try:
        broker = check_broker_epoch(image, broker_id, broker_epoch)
    except ApiError as api_error:
        return Decision([], api_error)
    first = image.next_producer_id
    if first > _PRODUCER_ID_MAX - BLOCK_SIZE:
        return Decision([], ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "Exhausted all producerIds"))
    record = ProducerIdsRecord(
        broker_id=broker_id, broker_epoch=broker.broker_epoch, next_producer_id=first + BLOCK_SIZE
    )
    return Decision([record], range(first, first + BLOCK_SIZE))
