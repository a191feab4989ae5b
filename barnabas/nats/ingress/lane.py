"""A lane: the messages for one partition that is led here, gathered while data is parsed and appended as one batch.

Records that the log does not take now (a full disk, a leadership that ends) stay gathered, in their order, and are retried with
the records received since; `held_bytes` counts them, so that reading can stop in time. When the partition has another leader
they are dropped: the new leader has received the messages, too.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from barnabas.nats.ingress.acks import owed_of
from barnabas.nats.pub_ack import NO_ACK
from barnabas.nats.records.batch_builder import Batch, BatchBuilder, TooLarge
from barnabas.runtime.repeated_warnings import RepeatedWarnings
from barnabas.storage.errors import StorageError
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.carrier import CarrierStats
    from barnabas.nats.ingress.acks import Owed, PendingAcks
    from barnabas.nats.ingress.dedup import DedupWindow
    from barnabas.runtime.interface import Runtime, Timer
    from barnabas.storage.log.log import AppendResult

log = logging.getLogger("barnabas.nats")

RETRY_S: Final = 0.1
RETRY_MAX_S: Final = 1.0  # each retry encodes all records that wait
_ANY_SIZE: Final = 1 << 40
_TEMPORARY: Final = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER)

# (tail of a record, error, error in words, callback that answers the message with an error)
OnRefused = Callable[[bytes, ErrorCode, str, Callable[[ErrorCode, str], object]], object]


class Lane:
    """See the module. The encoder appends to `builder.tails`; `owed` are the acknowledgements by place in it."""

    __slots__ = (
        "_counted",
        "_on_held",
        "_on_refused",
        "_retry",
        "_retry_s",
        "_runtime",
        "_stats",
        "_warnings",
        "acks",
        "builder",
        "dedup",
        "epoch",
        "held_bytes",
        "is_held",
        "owed",
        "partition",
    )

    def __init__(
        self,
        partition: Partition,
        runtime: Runtime,
        stats: CarrierStats,
        acks: PendingAcks,
        dedup: DedupWindow,
        on_refused: OnRefused,
        on_held: Callable[[], object],
    ) -> None:
        """`on_refused` is called for a record that the log never takes, `on_held` when `held_bytes` has changed."""
        self.partition = partition
        self.epoch = partition.leader_epoch  # the latest seen
        self.acks = acks
        self.dedup = dedup
        self.builder = BatchBuilder()
        self.owed: list[Owed] = []
        self.held_bytes = 0  # records that wait
        self.is_held = False  # other brokers may have messages that belong before these
        self._on_held = on_held
        self._on_refused = on_refused
        self._runtime = runtime
        self._stats = stats
        self._retry: Timer | None = None
        self._retry_s = RETRY_S
        self._warnings = RepeatedWarnings(runtime, log)
        self._counted = 0  # gathered records that `held_bytes` includes

    def append(self, now_ms: int, now_s: float) -> None:
        """Appends the gathered records, unless they wait."""
        if self.is_holding:
            return
        tails = self.builder.tails.copy()
        timestamps = self.builder.timestamps.copy()
        owed, self.owed = self.owed, []
        results: list[tuple[int, int, AppendResult]] = []
        config = self.partition.log.config
        size_max = min(config.max_message_bytes, config.segment_bytes)
        batches = deque(self.builder.finish(now_ms, size_max))
        while batches:
            batch = batches.popleft()
            if isinstance(batch, TooLarge):
                why = f"the record would take {batch.size} bytes, more than max.message.bytes of the topic"
                self._refuse(batch.tail, owed, batch.first, ErrorCode.MESSAGE_TOO_LARGE, why)
                continue
            count = batch.header.record_count
            try:
                result = self.partition.append(batch.records, batch.header)
            except StorageError as error:
                if error.error in _TEMPORARY:
                    self._settle(results, owed, now_ms, now_s, batch.first)
                    self._hold(tails[batch.first :], timestamps[batch.first :], error)
                    return
                if count == 1:
                    self._refuse(tails[batch.first], owed, batch.first, error.error, str(error))
                else:  # because of one record, such as one without a key in a compacted topic
                    end = batch.first + count
                    batches.extendleft(
                        _one(tails[place], timestamps[place] if timestamps else now_ms, place)
                        for place in range(end - 1, batch.first - 1, -1)
                    )
                continue
            self._stats.appended_bytes += len(batch.records)
            results.append((batch.first, count, result))
        self._retry_s = RETRY_S
        self._settle(results, owed, now_ms, now_s, len(tails))

    def was_perhaps_led_elsewhere(self) -> bool:
        """Whether another broker may have led the partition between two leaderships of this one since the last call."""
        before, self.epoch = self.epoch, self.partition.leader_epoch
        return self.epoch > before + 1 and len(self.partition.state.replicas) > 1

    def close(self) -> None:
        """The partition is not led here any more, or the binding ends: records that wait are dropped."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        self.builder.tails.clear()
        self.builder.timestamps.clear()
        self.acks.fail_all(self.owed, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.owed = []
        self.held_bytes = 0

    def _settle(
        self,
        results: list[tuple[int, int, AppendResult]],
        owed: list[Owed],
        now_ms: int,
        now_s: float,
        end: int,
    ) -> None:
        """Batches have been appended; records from place `end` on wait."""
        dedup = self.dedup
        if len(results) == 1 and results[0][1] == end:
            dedup.appended(results[0][2].base_offset, results[0][2].last_offset + 1, now_ms)
        else:
            _settle_ids(dedup, results, now_ms, end)
        for first, count, result in results:
            self._stats.appended += count
            if owed:
                is_all = len(results) == 1 and count == end
                mine = owed if is_all else owed_of(owed, first, count)
                if mine:
                    self.acks.appended(result, mine, now_s)
        self.owed = owed_of(owed, end, _ANY_SIZE)

    def _refuse(self, tail: bytes, owed: list[Owed], place: int, error: ErrorCode, why: str) -> None:
        mine = [each for each in owed if each[0] == place and each[2] != NO_ACK]

        def answer(error: ErrorCode, why: str) -> None:
            if mine:
                self.acks.fail_all(mine, error, why)

        self._on_refused(tail, error, why, answer)

    # -- records that wait

    def _hold(self, tails: list[bytes], timestamps: list[int], error: StorageError) -> None:
        name = self.partition.log.name
        self._warnings.warn(name, error.error.name, f"{name}: messages from NATS wait: {error}")
        self.builder.tails[:0] = tails
        self.builder.timestamps[:0] = timestamps
        self._retry = self._runtime.call_later(self._retry_s, self._try_again)
        self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
        self._counted = self.held_bytes = 0
        self.count_held()

    def count_held(self) -> None:
        """Updates `held_bytes`: records gathered since wait as well, or none waits any more."""
        tails = self.builder.tails
        if not self.is_holding:
            self._counted = self.held_bytes = 0
        else:
            self.held_bytes += sum(map(len, tails[self._counted :]))
            self._counted = len(tails)
        self._on_held()

    @property
    def is_holding(self) -> bool:
        return self.is_held or self._retry is not None

    def release(self) -> None:
        """Ends a hold."""
        self.is_held = False
        if self._retry is None:
            self._try_again()

    def _try_again(self) -> None:
        self._retry = None
        if self.builder.tails:
            self.append(self._runtime.time_ms(), self._runtime.monotonic())
        self.count_held()


def _one(tail: bytes, timestamp_ms: int, place: int) -> Batch:
    """A batch of one record out of a batch of several."""
    builder = BatchBuilder()
    builder.add(tail)
    (batch,) = builder.finish(timestamp_ms, _ANY_SIZE)
    assert isinstance(batch, Batch)
    batch.first = place
    return batch


def _settle_ids(
    dedup: DedupWindow, results: list[tuple[int, int, AppendResult]], now_ms: int, end: int
) -> None:
    """As `DedupWindow.appended`, for records that were appended in several batches, and perhaps not all of them."""
    opened = dedup.dropped()
    for first, count, result in results:
        for identity, place in opened.items():
            if first <= place < first + count:
                dedup.open(identity, place - first)
        dedup.appended(result.base_offset, result.last_offset + 1, now_ms)
    for identity, place in opened.items():
        if place >= end:
            dedup.open(identity, place - end)
