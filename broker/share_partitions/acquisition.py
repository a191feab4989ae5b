"""Which records one request acquires of a share partition, of what was read from the log. Rules of Kafka 4.3.

A batch that was in flight before is acquired as a whole, even beyond the limit of records, unless single records are counted. One
that was delivered too often is handed out in parts, each half as large as the one before, and at the last delivery record by
record: one of its records may be what makes its consumers fail. Records that are new are acquired up to the end of the log's batch
with which there are enough, and are split at batches of the log where there are more than the batch size.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import NamedTuple

import msgspec

from barnabas.broker.share_coordinator.state_batches import ACQUIRED
from barnabas.broker.share_partitions.in_flight import InFlightBatch, Run

_first = itemgetter(0)


class Limits(msgspec.Struct, frozen=True):
    """group.share.delivery.count.limit, group.share.record.lock.duration.ms, group.share.partition.max.record.locks."""

    delivery_count: int = 5
    lock_s: float = 30.0
    locks: int = 2000

    @property
    def throttled_from(self) -> int:
        """The delivery count from which on a batch is handed out in smaller and smaller parts: one of its records may be what
        makes its consumers fail."""
        return max(2, (self.delivery_count + 1) // 2)


class AcquiredRange(NamedTuple):
    first: int
    last: int
    delivery_count: int


class Acquire(NamedTuple):
    """A request for records. `is_record_limit`: the limit counts for single records, otherwise for batches that begin within it."""

    member_id: str
    records_max: int
    batch_size: int
    is_record_limit: bool = False


class Acquisition:
    """The records that one request acquires."""

    def __init__(
        self,
        request: Acquire,
        limits: Limits,
        records_max: int,
        log_batches: Sequence[tuple[int, int]],
        now: float,
        add: Callable[[InFlightBatch], object],
        carve: Callable[[InFlightBatch, int, int], object],
    ) -> None:
        """`records_max`: of this share partition, within its limit of locks. `log_batches`: (first, last) offsets of what was read.
        `add(batch)` puts records in flight, `carve(gap, first, last)` takes them out of a gap."""
        self._add = add
        self._carve = carve
        self._request = request
        self._limits = limits
        self._missing = records_max
        self._log_batches = log_batches
        self._deadline = now + limits.lock_s
        self._is_over = False
        self.acquired: list[AcquiredRange] = []

    @property
    def is_full(self) -> bool:
        return self._is_over or self._missing <= 0

    def take(self, batch: InFlightBatch, first: int, last: int) -> None:
        """What is available of a batch that was acquired before: all of it, unless single records are counted, or the batch has
        been delivered too often."""
        limits, in_batch = self._limits, 0
        available = [
            run for run in batch.runs if run.is_available and run.last >= first and run.first <= last
        ]
        if not available:
            return
        is_throttled = max(run.delivery_count for run in available) >= limits.throttled_from
        if is_throttled and self.acquired:
            self._is_over = True  # it comes alone, next time
            return
        part_max = len(batch)
        is_part_set = False
        for run in available:
            count = run.delivery_count
            is_last_delivery = limits.delivery_count > 2 and count == limits.delivery_count - 1
            if is_last_delivery and in_batch:
                break
            if count >= limits.throttled_from and not is_part_set:
                part_max = max(1, len(batch) >> (count - limits.throttled_from + 1))
                is_part_set = True
            wanted = 1 if is_last_delivery else part_max - in_batch
            if self._request.is_record_limit:
                wanted = min(wanted, self._missing)
            if wanted <= 0:
                break
            low = max(run.first, first)
            in_batch += self._take(batch, low, min(run.last, last, low + wanted - 1))
            if is_last_delivery:
                break
        batch.join()
        self._is_over = self._is_over or (is_throttled and in_batch > 0)

    def take_gap(self, gap: InFlightBatch, first: int, last: int) -> None:
        """Records of which the stored state has said nothing: as new ones. What else is available there comes next time."""
        for run in gap.runs:
            if run.is_available and run.first <= last and run.last >= first:
                first = max(run.first, first)
                last = self._last_of(first, min(run.last, last))
                self._carve(gap, first, last)
                self.take_new(first, last)
                return

    def take_new(self, first: int, last: int) -> None:
        """Records that were not in flight."""
        last = self._last_of(first, last)
        if self._request.is_record_limit or last - first < self._request.batch_size:
            firsts = [first]
        else:
            firsts = self._firsts(first, last)
        for low, following in zip(firsts, [*firsts[1:], last + 1], strict=True):
            batch = InFlightBatch(low, following - 1, [Run(low, following - 1)])
            high = following - 1
            if self._request.is_record_limit:
                high = min(high, low + self._missing - 1)
            self._take(batch, low, high)
            self._add(batch)

    def _take(self, batch: InFlightBatch, first: int, last: int) -> int:
        for run in batch.within(first, last):
            run.state = ACQUIRED
            run.delivery_count += 1
            run.member_id = self._request.member_id
            run.deadline = self._deadline
            previous = self.acquired[-1] if self.acquired else None
            self.acquired.append(AcquiredRange(run.first, run.last, run.delivery_count))
            assert previous is None or previous.last < run.first
        self._missing -= last - first + 1
        return last - first + 1

    def _last_of(self, first: int, last: int) -> int:
        """The end of the batch of the log with which there are enough records."""
        wanted = first + self._missing - 1
        if wanted >= last:
            return last
        index = bisect_right(self._log_batches, wanted, key=_first) - 1
        if index >= 0 and wanted <= self._log_batches[index][1]:
            return min(self._log_batches[index][1], last)
        return wanted

    def _firsts(self, first: int, last: int) -> list[int]:
        """Where to split, at batches of the log, so that parts are not much larger than the batch size."""
        firsts = [first]
        for index in range(bisect_right(self._log_batches, first, key=_first), len(self._log_batches)):
            base, _ = self._log_batches[index]
            if base > last:
                break
            if base - firsts[-1] >= self._request.batch_size:
                firsts.append(base)
        return firsts
