"""Share fetches: acquire records for a member, wait where there are none.

A fetch that waits is in the waiter sets of the partitions that it fetches, and in those of their share partitions, whose records
may be released by others. What was read is acquired in the same turn, so that no other fetch can come in between.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.broker.share_partitions.acquisition import Acquire
from barnabas.broker.share_partitions.reader import aborted_ranges, read_batches
from barnabas.storage.errors import StorageError, WouldWait
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.share_fetch import AcquiredRecords
from barnabas.wire.record_batch import RecordBatchError

if TYPE_CHECKING:
    from barnabas.broker.fetch.purgatory import FetchPurgatory, FetchWaiter
    from barnabas.broker.share_partitions.group_settings import ShareGroupSettings
    from barnabas.broker.share_partitions.manager import LedSharePartition
    from barnabas.broker.share_partitions.reader import ReadBatches
    from barnabas.runtime.interface import Runtime
    from barnabas.storage.disk.disk import FileRegion

log = logging.getLogger("barnabas.share_partitions")

TRIES_MAX: Final = (
    16  # pages that a thread has read may be evicted again; after so many tries the loop waits for the disk
)


class Fetched(msgspec.Struct):
    """Of one partition."""

    error: ErrorCode = ErrorCode.NONE
    records: bytes | tuple[FileRegion, ...] = b""
    acquired: list[AcquiredRecords] = []


class ShareFetch(msgspec.Struct, frozen=True):
    """What a member asks for; times in ms."""

    acquire: Acquire
    max_wait_ms: int
    min_bytes: int
    max_bytes: int


class DelayedShareFetch:
    """One fetch, of share partitions of one group. `done(fetched)` is called once, with one Fetched for each, unless it is
    cancelled."""

    def __init__(
        self,
        runtime: Runtime,
        purgatory: FetchPurgatory,
        led: Sequence[LedSharePartition],
        settings: ShareGroupSettings,
        asked: ShareFetch,
        has_session: Callable[[], bool],
        done: Callable[[list[Fetched]], object],
    ) -> None:
        """`has_session`: see PartitionManager; without a session nothing is acquired, as another broker may lead the partitions."""
        self._has_session = has_session
        self._runtime = runtime
        self._purgatory = purgatory
        self._led = led
        self._settings = settings
        self._asked = asked
        self._done = done
        self._deadline = runtime.monotonic() + max(asked.max_wait_ms, 0) / 1000
        self._waiter: FetchWaiter | None = None
        self._tries = 0
        self._is_cancelled = False

    def cancel(self) -> None:
        """The client has disconnected."""
        self._is_cancelled = True
        self._unwatch()

    def serve(self) -> None:
        """Answer, or wait."""
        if self._is_cancelled:
            return
        self._unwatch()
        try:
            reads = self._read_all()
        except WouldWait as cold:
            self._tries += 1
            self._runtime.run_in_thread(partial(_run, cold.prepare), lambda *_: self.serve())
            return
        size = sum(each.size for _, _, each in reads)
        is_over = self._runtime.monotonic() >= self._deadline - 0.0005
        has_failed = all(each.error for each in self._led)
        if (not reads or size < self._asked.min_bytes) and not is_over and not has_failed:
            self._watch()
            return
        fetched = {id(each): Fetched(each.error) for each in self._led}
        missing = self._asked.acquire.records_max
        for led, offset, read in reads:
            if missing <= 0:
                break
            missing -= self._acquire(led, offset, read, missing, fetched[id(led)])
        if missing == self._asked.acquire.records_max and not is_over and not has_failed:
            self._watch()  # others were faster, or all was aborted
            return
        self._done([fetched[id(each)] for each in self._led])

    def _to_read(self) -> list[tuple[LedSharePartition, int]]:
        """Those that may have something to acquire, with the offset of it."""
        found: list[tuple[LedSharePartition, int]] = []
        if not self._has_session():
            return found
        for led in self._led:
            if not led.error and not led.is_valid:
                led.failed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if led.error or led.state is None:
                continue
            state = led.refresh()
            if state.can_acquire(self._settings.limits):
                offset = state.next_fetch_offset()
                if offset < self._end_offset(led):
                    found.append((led, offset))
        return found

    def _end_offset(self, led: LedSharePartition) -> int:
        partition = led.partition
        return partition.last_stable_offset if self._settings.is_read_committed else partition.high_watermark

    def _read_all(self) -> list[tuple[LedSharePartition, int, ReadBatches]]:
        """What can be acquired, one partition after the other until there is enough. WouldWait."""
        room, missing = self._asked.max_bytes, self._asked.acquire.records_max
        reads: list[tuple[LedSharePartition, int, ReadBatches]] = []
        for led, offset in self._to_read():
            if room <= 0 or missing <= 0:
                break
            try:
                read = read_batches(
                    led.partition,
                    offset,
                    room,
                    self._end_offset(led),
                    missing,
                    min_one_batch=not reads,
                    wait=self._tries >= TRIES_MAX,
                )
            except StorageError as error:
                led.failed(error.error)
                continue
            except (OSError, RecordBatchError) as error:
                log.warning("%s can't be read at %d: %s", led.partition.name, offset, error)
                is_corrupt = isinstance(error, RecordBatchError)
                led.failed(ErrorCode.CORRUPT_MESSAGE if is_corrupt else ErrorCode.KAFKA_STORAGE_ERROR)
                continue
            if read.headers:
                reads.append((led, offset, read))
                room -= read.size
                missing -= read.headers[-1].last_offset - offset + 1
        return reads

    def _acquire(
        self, led: LedSharePartition, offset: int, read: ReadBatches, records_max: int, fetched: Fetched
    ) -> int:
        """Returns how many records the member gets."""
        settings = self._settings
        state = led.refresh()
        request = self._asked.acquire._replace(records_max=records_max)
        aborted: list[tuple[int, int]] = []
        if settings.is_read_committed:
            aborted = aborted_ranges(led.partition, offset, read, wait=True)
        acquired = state.acquire(request, settings.limits, offset, read.offsets(), self._runtime.monotonic())
        if aborted and acquired:
            acquired = state.drop_aborted(acquired, aborted)
        if not acquired:
            return 0
        led.acquired()
        fetched.records = read.slice(acquired)
        fetched.acquired = [AcquiredRecords(*each) for each in acquired]
        return sum(each.last - each.first + 1 for each in acquired)

    # -- waiting

    def _watch(self) -> None:
        remaining_s = max(self._deadline - self._runtime.monotonic(), 0)
        waiter = self._waiter = self._purgatory.wait(1, remaining_s, self.serve)
        waiter.committed = self._settings.is_read_committed
        for led in self._led:
            led.waiters[waiter] = None
            led.partition.fetch_waiters[waiter] = None

    def _unwatch(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is None:
            return
        waiter.cancel()
        for led in self._led:
            led.waiters.pop(waiter, None)
            led.partition.fetch_waiters.pop(waiter, None)


def _run(prepare: Callable[[], object]) -> None:
    """In a thread. A read that fails will fail again on the loop, which handles the error."""
    try:
        prepare()
    except (OSError, RecordBatchError):
        pass
