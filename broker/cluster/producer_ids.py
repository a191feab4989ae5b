"""Allocates producer ids from blocks of a thousand, which the controller gives out (KIP-730).

The next block is requested when nine tenths of the last one are used, so that producers wait neither for it nor for an
election of a controller.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest

if TYPE_CHECKING:
    from barnabas.broker.cluster.controller_channel import ControllerChannel
    from barnabas.controller.metadata.image import MetadataImage

log = logging.getLogger("barnabas.producer_ids")

Answer = Callable[[int, ErrorCode], object]
TakeBlock = Callable[[range, ErrorCode], object]
ALLOCATE_PRODUCER_IDS: Final = 67
TIMEOUT_S: Final = 5.0  # the connection of the producer waits for the answer


def request_block(channel: ControllerChannel, node_id: int, image: MetadataImage, done: TakeBlock) -> None:
    """`done(ids, NONE)`, or `done(range(0), error)`; perhaps before this returns."""

    def answered(response: Any, error: ErrorCode) -> None:
        if response is None or response.error_code:
            done(range(0), error or ErrorCode.of(response.error_code))
        else:
            first = response.producer_id_start
            done(range(first, first + response.producer_id_len), ErrorCode.NONE)

    broker = image.brokers.get(node_id)
    epoch = -1 if broker is None else broker.broker_epoch
    request = AllocateProducerIdsRequest(broker_id=node_id, broker_epoch=epoch)
    channel.send(ALLOCATE_PRODUCER_IDS, request, answered, timeout_s=TIMEOUT_S)


class ProducerIdAllocator:
    """Allocates unique ids. A request that finds none left waits for the next block."""

    def __init__(self, request_block: Callable[[TakeBlock], object]) -> None:
        """`request_block(done)` requests a block from the controller, and calls `done(ids, NONE)` or `done(range(0), error)`,
        perhaps before it returns."""
        self._request_block = request_block
        self._blocks: deque[range] = deque()  # unused ids
        self._is_requested = False
        self._low_count = 0  # a tenth of the last block
        self._waiting: list[Answer] = []

    def next(self, answer: Answer) -> None:
        """Call `answer(producer id, NONE)`, or `answer(-1, error)`, now or when the controller has answered."""
        self._waiting.append(answer)
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._blocks:
            block = self._blocks.popleft()
            if len(block) > 1:
                self._blocks.appendleft(block[1:])
            self._waiting.pop(0)(block[0], ErrorCode.NONE)
        if not self._is_requested and (self._waiting or sum(map(len, self._blocks)) < self._low_count):
            self._is_requested = True
            self._request_block(self._answered)

    def _answered(self, block: range, error: ErrorCode) -> None:
        self._is_requested = False
        if error:
            log.warning("the controller has not given out producer ids: %s", error.name)
            # The producers try again soon; the first of them requests the block again.
            waiting, self._waiting = self._waiting, []
            for answer in waiting:
                answer(-1, error)
            return
        self._low_count = len(block) // 10
        self._blocks.append(block)
        self._serve()
