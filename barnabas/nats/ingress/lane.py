"""One partition's share of the messages of a binding: gathered while a piece of data is parsed, appended as one batch.

Records that the log refuses for now (a full disk, a leadership that ends) stay gathered, in their order, and are tried again
with those that have come since; `held_bytes` says how much that is, so that reading can stop in time. When the partition has
another leader they are dropped here: the new leader has received them, too.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from barnabas.nats.pub_ack import NO_ACK
from barnabas.nats.records.batch_builder import Batch, BatchBuilder, TooLarge
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
RETRY_MAX_S: Final = 1.0  # each time all that waits is put together
LOG_AGAIN_S: Final = 60.0
_ANY_SIZE: Final = 1 << 40
_FOR_NOW: Final = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER)

# (tail of a record, what is wrong with it, and in words, to be called with both when it is clear where it is)
OnRefused = Callable[[bytes, ErrorCode, str, Callable[[ErrorCode, str], object]], object]


class Lane:
    """See the module. `builder.tails` is what the encoder appends to; `owed` says who waits for which place of it."""

    __slots__ = (
        "_counted",
        "_log_again_s",
        "_on_held",
        "_on_refused",
        "_retry",
        "_retry_s",
        "_runtime",
        "_stats",
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
        """`on_refused` is called for a record that the log will never take, `on_held` when `held_bytes` has changed."""
        self.partition = partition
        self.epoch = partition.leader_epoch  # the latest that was looked at
        self.acks = acks
        self.dedup = dedup
        self.builder = BatchBuilder()
        self.owed: list[Owed] = []
        self.held_bytes = 0  # what could not be appended yet
        self.is_held = False  # nothing is to be appended: what comes before it may be elsewhere
        self._on_held = on_held
        self._on_refused = on_refused
        self._runtime = runtime
        self._stats = stats
        self._retry: Timer | None = None
        self._retry_s = RETRY_S
        self._log_again_s = -LOG_AGAIN_S
        self._counted = 0  # of the records gathered, those in `held_bytes`

    def append(self, now_ms: int, now_s: float) -> None:
        """Append what `builder` has gathered, received just now."""
        if self.is_holding:
            return  # in its change, when the log takes something again
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
                if error.error in _FOR_NOW:
                    self._settle(results, owed, now_ms, now_s, batch.first)
                    self._hold(tails[batch.first :], timestamps[batch.first :], error, now_s)
                    return
                if count == 1:
                    self._refuse(tails[batch.first], owed, batch.first, error.error, str(error))
                else:  # for one of them, such as one without a key in a compacted topic
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
        """Whether others may have led the partition, without anybody saying so, since this was asked last."""
        before, self.epoch = self.epoch, self.partition.leader_epoch
        return self.epoch > before + 1 and len(self.partition.state.replicas) > 1

    def close(self) -> None:
        """The partition is not led here any more, or the binding ends: what is held has no place to go."""
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
        """These have been appended; who waits for a place from `end` on goes on waiting."""
        dedup = self.dedup
        if len(results) == 1 and results[0][1] == end:
            dedup.appended(results[0][2].base_offset, results[0][2].last_offset + 1, now_ms)
        else:
            _settle_ids(dedup, results, now_ms, end)
        for first, count, result in results:
            self._stats.appended += count
            if owed:
                mine = owed
                if len(results) > 1 or count < end:
                    mine = [
                        (place - first, reply, level, again)
                        for place, reply, level, again in owed
                        if first <= place < first + count
                    ]
                if mine:
                    self.acks.appended(result, mine, now_s)
        self.owed = [
            (place - end, reply, level, again) for place, reply, level, again in owed if place >= end
        ]

    def _refuse(self, tail: bytes, owed: list[Owed], place: int, error: ErrorCode, why: str) -> None:
        mine = [each for each in owed if each[0] == place and each[2] != NO_ACK]

        def answer(error: ErrorCode, why: str) -> None:
            if mine:
                self.acks.fail_all(mine, error, why)

        self._on_refused(tail, error, why, answer)

    # -- what has to wait

    def _hold(self, tails: list[bytes], timestamps: list[int], error: StorageError, now_s: float) -> None:
        if now_s >= self._log_again_s:
            self._log_again_s = now_s + LOG_AGAIN_S
            log.warning("%s: what comes for it from NATS waits: %s", self.partition.log.name, error)
        self.builder.tails[:0] = tails
        self.builder.timestamps[:0] = timestamps
        self._retry = self._runtime.call_later(self._retry_s, self._try_again)
        self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
        self._counted = self.held_bytes = 0
        self.count_held()

    def count_held(self) -> None:
        """What has come since is held as well, or nothing is any more."""
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

    def let_go(self) -> None:
        """It is not held any more."""
        self.is_held = False
        if self._retry is None:
            self._try_again()

    def _try_again(self) -> None:
        self._retry = None
        if self.builder.tails:
            self.append(self._runtime.time_ms(), self._runtime.monotonic())
        self.count_held()


def _one(tail: bytes, timestamp_ms: int, place: int) -> Batch:
    """A batch of a single record, which a batch of several has held."""
    builder = BatchBuilder()
    builder.add(tail)
    (batch,) = builder.finish(timestamp_ms, _ANY_SIZE)
    assert isinstance(batch, Batch)
    batch.first = place
    return batch


def _settle_ids(
    dedup: DedupWindow, results: list[tuple[int, int, AppendResult]], now_ms: int, end: int
) -> None:
    """As `DedupWindow.appended`, of records that went into the log in parts, and perhaps not all of them."""
    opened = dedup.dropped()
    for first, count, result in results:
        for identity, place in opened.items():
            if first <= place < first + count:
                dedup.open(identity, place - first)
        dedup.appended(result.base_offset, result.last_offset + 1, now_ms)
    for identity, place in opened.items():
        if place >= end:
            dedup.open(identity, place - end)
