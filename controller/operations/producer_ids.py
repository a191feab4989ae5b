"""Producer ids: handed to brokers in blocks, so that not every producer costs a commit (KIP-730)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from barnabas.controller.decision import Decision
from barnabas.controller.errors import Refusal
from barnabas.controller.image import MetadataImage
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.metadata_records import ProducerIdsRecord

BLOCK_SIZE: Final = 1000
_PRODUCER_ID_MAX: Final = 2**63 - 1


def allocate_block(image: MetadataImage, broker_id: int) -> Decision[range | Refusal]:
    """The next block of producer ids for a registered broker. What a broker leaves of a block is lost."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        return Decision([], Refusal(ErrorCode.STALE_BROKER_EPOCH, f"broker {broker_id} is not registered"))
    first = image.next_producer_id
    if first > _PRODUCER_ID_MAX - BLOCK_SIZE:
        return Decision([], Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, "Exhausted all producerIds"))
    record = ProducerIdsRecord(
        broker_id=broker_id, broker_epoch=broker.broker_epoch, next_producer_id=first + BLOCK_SIZE
    )
    return Decision([record], range(first, first + BLOCK_SIZE))


RunAllocation = Callable[
    [
        Callable[[MetadataImage], Decision[range | Refusal]],
        Callable[[range | Refusal], object],
        Callable[[ErrorCode, str], object],
    ],
    object,
]
Answer = Callable[[int, ErrorCode], object]


class ProducerIdAllocator:
    """This broker's supply of producer ids. A new block is asked for when the current one is used up;
    producers that come meanwhile wait for it."""

    def __init__(self, run: RunAllocation, broker_id: int) -> None:
        """`run` is Controller.run."""
        self._run = run
        self._broker_id = broker_id
        self._block = iter(range(0))
        self._waiting: list[Answer] = []

    def next(self, answer: Answer) -> None:
        """Call `answer(producer id, NONE)`, or `answer(-1, error)`, now or once a block has been committed."""
        producer_id = None if self._waiting else next(self._block, None)
        if producer_id is not None:
            answer(producer_id, ErrorCode.NONE)
            return
        self._waiting.append(answer)
        if len(self._waiting) == 1:
            self._ask()

    def _ask(self) -> None:
        self._run(
            lambda image: allocate_block(image, self._broker_id),
            self._answered,
            lambda error, _: self._refused(error),
        )

    def _answered(self, block: range | Refusal) -> None:
        if isinstance(block, Refusal):
            self._refused(block.error)
            return
        self._block = iter(block)
        waiting, self._waiting = self._waiting[:BLOCK_SIZE], self._waiting[BLOCK_SIZE:]
        for answer, producer_id in zip(waiting, self._block, strict=False):
            answer(producer_id, ErrorCode.NONE)
        if self._waiting:
            self._ask()

    def _refused(self, error: ErrorCode) -> None:
        waiting, self._waiting = self._waiting, []
        for answer in waiting:
            answer(-1, error)
