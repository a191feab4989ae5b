"""Share fetches: acquire records for a member, wait where there are none.

A fetch is in the waiter sets of the partitions that it fetches, and in those of their share partitions, whose records may be
released by others. It looks at all of them once, and from then on at those that have changed, in slices: there may be thousands.
What was read is acquired afterwards, as far as no other fetch has come in between.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.broker.fetch.reader import size_of
from barnabas.broker.share_partitions.acquisition import Acquire
from barnabas.broker.share_partitions.reader import mark_aborted, read_batches
from barnabas.runtime.slices import in_slices, run_steps
from barnabas.storage.errors import StorageError, WouldWait
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.share_fetch import AcquiredRecords
from barnabas.wire.record_batch import RecordBatchError

if TYPE_CHECKING:
    from barnabas.broker.fetch.purgatory import FetchPurgatory, FetchWaiter
    from barnabas.broker.partitions.partition import Partition
    from barnabas.broker.share_partitions.group_settings import ShareGroupSettings
    from barnabas.broker.share_partitions.manager import LedSharePartition
    from barnabas.broker.share_partitions.reader import ReadBatches
    from barnabas.runtime.interface import Runtime
    from barnabas.runtime.slices import Steps, TurnQueue
    from barnabas.storage.disk.disk import FileRegion

log = logging.getLogger("barnabas.share_partitions")

TRIES_MAX: Final = (
    16  # pages that a thread has read may be evicted again; after so many tries the loop waits for the disk
)
BATCHES_MAX: Final = (
    4000  # of the log that one fetch reads, and, but for the last partition, ranges that it acquires
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


Fetches = dict["LedSharePartition", Fetched]


class _Reads:
    """What one pass over share partitions has read, and how much more it may read."""

    __slots__ = ("batches_left", "by_led", "records_left", "room")

    def __init__(self, asked: ShareFetch) -> None:
        self.by_led: dict[LedSharePartition, tuple[int, ReadBatches]] = {}  # with the offset
        self.room = asked.max_bytes
        self.records_left = asked.acquire.records_max
        self.batches_left = BATCHES_MAX

    @property
    def is_full(self) -> bool:
        return self.room <= 0 or self.records_left <= 0 or self.batches_left <= 0

    def add(self, led: LedSharePartition, offset: int, read: ReadBatches) -> None:
        self.by_led[led] = offset, read
        self.room -= read.size
        self.records_left -= read.headers[-1].last_offset - offset + 1
        self.batches_left -= len(read.headers)


class DelayedShareFetch:
    """One fetch, of share partitions of one group. `done(fetched)` is called once, unless it is cancelled, with what there is of those
    share partitions that have records or an error."""

    def __init__(
        self,
        runtime: Runtime,
        purgatory: FetchPurgatory,
        turns: TurnQueue,
        led: Sequence[LedSharePartition],
        settings: ShareGroupSettings,
        asked: ShareFetch,
        may_acquire: Callable[[], bool],
        done: Callable[[Fetches], object],
    ) -> None:
        """`may_acquire`: whether the member and this broker have their sessions. Without that of the broker (see PartitionManager)
        another one may lead the partitions."""
        self._may_acquire = may_acquire
        self._runtime = runtime
        self._purgatory = purgatory
        self._turns = turns
        self._led_count = len(led)
        self._settings = settings
        self._asked = asked
        self._done = done
        self._deadline = runtime.monotonic() + max(asked.max_wait_ms, 0) / 1000
        self._waiter: FetchWaiter | None = None  # while it waits
        self._watched: dict[Partition, LedSharePartition] = {}
        self._changed: dict[LedSharePartition, None] = dict.fromkeys(led)  # not looked at since
        self._sizes: dict[LedSharePartition, int] = {}  # bytes that can be acquired, as of the last look
        self._size = 0  # of all
        self._errors: dict[LedSharePartition, ErrorCode] = {}
        self._has_read_error = False
        self._preparing: set[LedSharePartition] = set()  # of which a thread reads from the object store
        self._is_over = False  # answered or cancelled

    def cancel(self) -> None:
        """The client has disconnected."""
        self._is_over = True
        self._unwatch()

    def serve(self) -> None:
        """Answer, or wait."""
        if not self._is_over:
            run_steps(self._runtime, self._steps(), self._looked)

    def _looked(self, fetched: Fetches | None, error: BaseException | None) -> None:
        if self._is_over:
            return
        if error is not None:
            log.error("a share fetch has failed", exc_info=error)
            leds = (*self._watched.values(), *self._changed)
            fetched = {led: Fetched(ErrorCode.UNKNOWN_SERVER_ERROR) for led in leds}
        if fetched is not None:
            self._is_over = True
            self._unwatch()
            self._done(fetched)
        elif self._changed:  # while it looked
            self._runtime.call_soon(self.serve)
        else:
            self._wait()

    def _steps(self) -> Steps[Fetches | None]:
        """Look at what has changed, and acquire if there is enough: None if there is not."""
        reads = _Reads(self._asked)
        changed, self._changed = self._changed, {}
        coming = iter(changed)
        yield from self._look_at(coming, reads)
        self._changed.update(dict.fromkeys(coming))  # where there was enough before
        if self._may_answer(reads):
            yield from self._look_at([led for led in self._sizes if led not in reads.by_led], reads)
        if not self._may_answer(reads) or self._is_over:
            return None
        fetched: Fetches = {}
        records_left, ranges_left = self._asked.acquire.records_max, BATCHES_MAX
        for led, (offset, read) in reads.by_led.items():
            if records_left <= 0 or ranges_left <= 0 or self._is_over:
                break
            found = self._acquire(led, offset, read, records_left)
            if found is not None:
                fetched[led] = found
                records_left -= sum(each.last_offset - each.first_offset + 1 for each in found.acquired)
                ranges_left -= len(found.acquired)
            yield None
        if not fetched and not self._must_answer:
            return None
        return {**{led: Fetched(error) for led, error in self._errors.items()}, **fetched}

    # -- looking

    @property
    def _must_answer(self) -> bool:
        """Whether it answers even if there are no records."""
        is_late = self._runtime.monotonic() >= self._deadline - 0.0005
        return is_late or len(self._errors) == self._led_count or self._has_read_error

    def _may_answer(self, reads: _Reads) -> bool:
        return self._size >= max(self._asked.min_bytes, 1) or reads.is_full or self._must_answer

    def _look_at(self, leds: Iterable[LedSharePartition], reads: _Reads) -> Steps[None]:
        """Read what can be acquired, one share partition after the other until there is enough."""
        for led in leds:
            if self._is_over:
                return
            self._watch(led)
            if led in self._preparing:
                continue
            tries = 0
            while True:
                try:
                    self._look(led, reads, wait=tries >= TRIES_MAX)
                    break
                except WouldWait as cold:
                    if cold.is_remote:
                        self._prepare(led, cold)
                        break
                    tries += 1
                    if self._is_over:
                        return
                    yield partial(_run, cold.prepare)
            yield None
            if reads.is_full:
                return

    def _look(self, led: LedSharePartition, reads: _Reads, *, wait: bool) -> None:
        """WouldWait."""
        self._size -= self._sizes.pop(led, 0)
        self._errors.pop(led, None)
        if not led.error and not led.is_valid:
            led.failed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if led.error:
            self._errors[led] = led.error
            return
        if led.state is None or not self._may_acquire():
            return
        state, limits = led.refresh(), self._settings.limits
        offset, end_offset = state.next_fetch_offset(), self._end_offset(led.partition)
        if not state.can_acquire(limits) or offset >= end_offset:
            return
        if led.partition.log.is_over_remote_quota(offset):
            return
        led.partition.stats.fetch_requests += 1
        try:
            read = read_batches(
                led.partition,
                offset,
                reads.room,
                end_offset,
                min(reads.records_left, state.acquirable(limits)),
                reads.batches_left,
                min_one_batch=not reads.by_led,
                wait=wait,
            )
            if self._settings.is_read_committed:
                mark_aborted(led.partition, offset, read, wait=wait)
        except StorageError as error:
            self._read_failed(led, error.error)
        except (OSError, RecordBatchError) as error:
            log.warning("%s can't be read at %d: %s", led.partition.name, offset, error)
            is_corrupt = isinstance(error, RecordBatchError)
            self._read_failed(led, ErrorCode.CORRUPT_MESSAGE if is_corrupt else ErrorCode.KAFKA_STORAGE_ERROR)
        else:
            size = read.size
            if not read.headers or read.headers[-1].last_offset + 1 < end_offset:
                # It does not wait for what it may not read at once.
                size = max(size, self._asked.min_bytes, 1)
            if read.headers:
                reads.add(led, offset, read)
            self._sizes[led] = size
            self._size += size

    def _prepare(self, led: LedSharePartition, cold: WouldWait) -> None:
        """Have a thread read from the object store, and look again then. The other share partitions and the end of the wait do not
        wait for it."""
        self._preparing.add(led)

        def prepared(_result: object, _error: BaseException | None) -> None:
            self._preparing.discard(led)
            if not self._is_over:
                self.changed(led.partition)

        self._runtime.run_in_thread(partial(_run, cold.prepare), prepared, remote=True)

    def _read_failed(self, led: LedSharePartition, error: ErrorCode) -> None:
        """As in Kafka it is answered at once, and the locks of the share partition stay."""
        led.partition.stats.refused_read(error)
        self._errors[led] = error
        self._has_read_error = True

    def _end_offset(self, partition: Partition) -> int:
        if not self._settings.is_read_committed:
            return partition.high_watermark
        partition.holds_back = partition.last_stable_offset < partition.high_watermark
        return partition.last_stable_offset

    # -- acquiring

    def _acquire(
        self, led: LedSharePartition, offset: int, read: ReadBatches, records_max: int
    ) -> Fetched | None:
        """Acquire records of what was read at `offset`."""
        if led.error or not led.is_valid or not self._may_acquire():
            return None
        state = led.refresh()
        request = self._asked.acquire._replace(records_max=records_max)
        acquired = state.acquire(
            request, self._settings.limits, offset, read.offsets(), self._runtime.monotonic()
        )
        if acquired:
            led.acquired(self._settings.limits.lock_s)
        if read.aborted:
            acquired = state.drop_aborted(acquired, read.aborted)
        if acquired:
            records = read.slice(acquired)
            size = size_of(records)
            led.partition.stats.bytes_out += size
            led.partition.bytes_out += size
            return Fetched(records=records, acquired=[AcquiredRecords(*each) for each in acquired])
        if state.next_fetch_offset() != offset:  # others were faster, or all was aborted
            self._changed[led] = None
        return None

    # -- waiting

    def _wait(self) -> None:
        remaining_s = max(self._deadline - self._runtime.monotonic(), 0)
        missing_bytes = max(self._asked.min_bytes - self._size, 1)
        waiter = self._waiter = self._purgatory.wait(missing_bytes, remaining_s, self._woken)
        waiter.committed = self._settings.is_read_committed

    def _woken(self) -> None:
        self._waiter = None
        self._turns.add(self.serve)

    def _watch(self, led: LedSharePartition) -> None:
        self._watched[led.partition] = led
        led.waiters[self] = None
        led.partition.fetch_waiters[self] = None

    def _unwatch(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.cancel()
        in_slices(self._runtime, self._unwatch_all(), lambda: None)

    def _unwatch_all(self) -> Iterator[None]:
        for led in self._watched.values():
            led.waiters.pop(self, None)
            led.partition.fetch_waiters.pop(self, None)
            yield

    # -- notifications of partitions

    def appended(self, partition: Partition, byte_count: int) -> None:
        """A partition grew."""
        self._changed[self._watched[partition]] = None
        if self._waiter is not None:
            self._waiter.appended(partition, byte_count)

    def changed(self, partition: Partition) -> None:
        """A partition changed in another way, or its share partition did."""
        self._changed[self._watched[partition]] = None
        if self._waiter is not None:
            self._waiter.changed(partition)

    def high_watermark_moved(self, partition: Partition) -> None:
        """Followers wait for this."""


def _run(prepare: Callable[[], object]) -> None:
    """In a thread. A read that fails will fail again on the loop, which handles the error."""
    try:
        prepare()
    except (OSError, RecordBatchError):
        pass
