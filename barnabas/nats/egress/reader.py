"""Reads the committed records of a partition that is led here, as a consumer with isolation.level=read_committed.

Such a consumer sees records up to the last stable offset, without aborted transactions and control batches. Reads that would
wait for the disk, and large compressed batches, go to a thread.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from barnabas.storage.errors import OffsetOutOfRange, StorageError, WouldWait
from barnabas.storage.segment.transaction_marker import find_marker
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import BatchHeader, RecordBatchError, iterate_whole_headers
from barnabas.wire.records import Record, UnpacksTooLarge, records_of, records_payload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from mmap import mmap

    from barnabas.broker.partitions.partition import Partition
    from barnabas.runtime.interface import Runtime
    from barnabas.storage.disk.disk import FileRegion

T = TypeVar("T")

READ_BYTES: Final = 256 * 1024
UNPACKED_HERE_BYTES: Final = 128 * 1024  # of a compressed batch that is unpacked on the loop
TRIES_MAX: Final = 16  # with little memory what a thread has read may be evicted again: then the loop waits


class CommittedReader:
    """Reads from `next_offset` on. When `take` returns nothing and `is_busy` is set, a thread works, and `ready` is called
    when it is done; otherwise the end is reached, and a listener of the partition learns of more records."""

    def __init__(
        self, partition: Partition, runtime: Runtime, offset: int, ready: Callable[[], object]
    ) -> None:
        self.next_offset = offset  # all records below were returned, or are invisible
        self.is_busy = False
        self.removed = 0  # offsets skipped because retention had removed their records
        self.is_bridged = False  # of the records taken last: see BatchHeader.is_from_extension
        self._partition = partition
        self._runtime = runtime
        self._ready = ready
        self._batches: deque[tuple[BatchHeader, memoryview]] = deque()
        self._records: Iterator[Record] = iter(())
        self._batch_end = -1  # next offset behind the batch of `_records`
        self._batch_is_bridged = False
        self._aborted: deque[tuple[int, int]] = deque()  # (first offset, producer id) within the batches read
        self._aborted_producers: set[int] = set()
        self._tries = 0
        self._generation = 0  # grows with `seek`; results of threads for an earlier one are dropped
        self._failure: Exception | None = None

    def seek(self, offset: int) -> None:
        """Continues at this offset."""
        self.next_offset = offset
        self.is_busy = False
        self._generation += 1
        self._failure = None
        self._forget()

    def take(self, count: int) -> list[Record]:
        """The next records, `count` at most, with the same `is_bridged`. `next_offset` may grow though no record is
        returned, past invisible batches. StorageError or RecordBatchError: the log can't be read at `next_offset`."""
        found: list[Record] = []
        if self.is_busy:
            return found
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        try:
            while len(found) < count and (self._batch_end >= 0 or self._begin_batch()):
                if found and self.is_bridged != self._batch_is_bridged:
                    break
                self.is_bridged = self._batch_is_bridged
                self._take_of_batch(found, count)
        except (StorageError, RecordBatchError) as error:
            self._forget()  # otherwise the rest of the batch would be skipped
            if not found:
                raise
            self._failure = error
        return found

    # -- batches

    def _take_of_batch(self, found: list[Record], count: int) -> None:
        next_offset = self.next_offset
        records = self._records
        for record in records:
            if record.offset >= next_offset:
                found.append(record)
                next_offset = self.next_offset = record.offset + 1
                if len(found) >= count:
                    return
        self.next_offset = max(self._batch_end, next_offset)
        self._batch_end = -1

    def _begin_batch(self) -> bool:
        """Opens the next visible batch; False when it is not in memory."""
        while True:
            if not self._batches and not self._read():
                return False
            header, batch = self._batches[0]
            if header.next_offset <= self.next_offset or not self._is_visible(header, batch):
                self._batches.popleft()
                self.next_offset = max(self.next_offset, header.next_offset)
                continue
            try:
                payload = records_payload(batch, header, UNPACKED_HERE_BYTES)
            except UnpacksTooLarge:
                self._in_thread(partial(records_payload, batch, header), self._unpack)
                return False
            self._unpack(payload)
            return True

    def _unpack(self, payload: bytes | mmap) -> None:
        header, _ = self._batches.popleft()
        self._records = records_of(header, payload)
        self._batch_end = header.next_offset
        self._batch_is_bridged = header.is_from_extension

    def _is_visible(self, header: BatchHeader, batch: memoryview) -> bool:
        """Whether a consumer sees the batch's records. To be called for each batch once, in their order."""
        aborted = self._aborted
        while aborted and aborted[0][0] <= header.last_offset:
            self._aborted_producers.add(aborted.popleft()[1])
        if header.is_control:
            marker = find_marker(batch)
            if marker is not None and not marker.commit:
                self._aborted_producers.discard(header.producer_id)
            return False
        return not (header.is_transactional and header.producer_id in self._aborted_producers)

    def _forget(self) -> None:
        self._batches.clear()
        self._records = iter(())
        self._batch_end = -1
        self._aborted.clear()
        self._aborted_producers.clear()

    # -- the log

    def _read(self) -> bool:
        """Reads the next batches; False when a thread has to, or there are none. StorageError."""
        partition = self._partition
        log = partition.log
        if not partition.is_leader:
            raise StorageError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{log.name} is not led here")
        if self.next_offset < log.log_start_offset:
            self.removed += log.log_start_offset - self.next_offset
            self.next_offset = log.log_start_offset
        offset, end_offset = self.next_offset, partition.last_stable_offset
        if offset >= end_offset:
            return False
        try:
            result = log.read(
                offset, READ_BYTES, min_one_batch=True, end_offset=end_offset, wait=self._tries >= TRIES_MAX
            )
            aborted = log.aborted_within(offset, result)
        except OffsetOutOfRange:
            return False
        except WouldWait as cold:
            self._tries += 1
            self._in_thread(cold.prepare, lambda _: None, remote=cold.is_remote)
            return False
        self._forget()
        self._aborted.extend(sorted((first, producer_id) for producer_id, first in aborted))
        try:
            data = b"".join(each.file.pread_now(each.length, each.position) for each in result.regions)
        except BlockingIOError:
            self._tries += 1
            regions = result.regions
            self._in_thread(partial(_read_all, regions), self._take_data)
            return False
        except OSError as error:
            raise StorageError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"Error while reading {log.name}: {error}"
            ) from error
        self._take_data(data)
        return bool(self._batches)

    def _take_data(self, data: bytes) -> None:
        """Takes the whole batches; one that is cut off at the end is read again."""
        self._tries = 0
        view = memoryview(data)
        for position, header in iterate_whole_headers(view):
            self._batches.append((header, view[position : position + header.size]))
        if data and not self._batches:
            raise StorageError(ErrorCode.CORRUPT_MESSAGE, f"no whole batch at {self.next_offset}")

    def _in_thread(
        self, work: Callable[[], T], taken: Callable[[T], object], *, remote: bool = False
    ) -> None:
        self.is_busy = True
        generation = self._generation

        def done(result: T | None, error: BaseException | None) -> None:
            if generation != self._generation:
                return
            self.is_busy = False
            try:
                if error is not None:
                    raise error
                taken(result)  # type: ignore[arg-type]
            except (StorageError, RecordBatchError) as failure:
                self._failure = failure
            except Exception as failure:  # noqa: BLE001
                self._failure = StorageError(ErrorCode.KAFKA_STORAGE_ERROR, f"it can't be read: {failure}")
            self._ready()

        self._runtime.run_in_thread(work, done, remote=remote)


def _read_all(regions: tuple[FileRegion, ...]) -> bytes:
    return b"".join(region.read() for region in regions)
