"""Reads the batches of a partition that is led here, in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from barnabas.runtime.procedures import in_thread
from barnabas.storage.errors import StorageError, WouldWait
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import CODEC_MASK, BatchHeader, RecordBatchError, iterate_whole_headers
from barnabas.wire.records import Record, iterate_records

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.runtime.interface import Runtime
    from barnabas.storage.disk.disk import FileRegion

READ_BYTES: Final = 1 << 20
TRIES_MAX: Final = 8  # with little memory what a thread has read may be evicted again: then the loop waits

FIRST_WINDOW: Final = 512  # offsets
WINDOW_MAX: Final = 1 << 17

T = TypeVar("T")
StoredBatch: TypeAlias = tuple[BatchHeader, bytes]


async def find_last(
    runtime: Runtime,
    partition: Partition,
    needle: bytes,
    read: Callable[[Record], T | None],
    floor: int = 0,
    *,
    end: int | None = None,
    counts: Callable[[BatchHeader], bool] | None = None,
) -> T | None:
    """The result of `read` for the last record between `floor` and `end` for which it returns one. Such records contain
    `needle`. `counts(header)`: whether a batch is searched; None: all are. Raises as `read_in_thread`.

    The log is read in windows of growing size, the last one first."""
    epoch = partition.leader_epoch

    def last_of(start: int, window_end: int, batches: list[StoredBatch]) -> T | None:
        for header, batch in reversed(batches):
            if header.is_control or (counts is not None and not counts(header)):
                continue
            if not header.attributes & CODEC_MASK and needle not in batch:
                continue
            for record in reversed(list(iterate_records(batch))):
                if start <= record.offset < window_end:
                    found = read(record)
                    if found is not None:
                        return found
        return None

    if end is None:
        end = partition.log.log_end_offset
    window = FIRST_WINDOW
    while end > (lowest := max(floor, partition.log.log_start_offset)):
        window_start = start = max(lowest, end - window)
        last: T | None = None
        while start < end:
            part = await read_in_thread(
                runtime,
                partition,
                epoch,
                start,
                end,
                lambda start, batches, end=end: last_of(start, end, batches),  # type: ignore[misc]
            )
            if part is None:
                break
            start, found = part
            last = found or last
        if last is not None:
            return last
        end = window_start
        window = min(2 * window, WINDOW_MAX)
    return None


async def read_in_thread(
    runtime: Runtime,
    partition: Partition,
    epoch: int,
    start: int,
    end: int,
    work: Callable[[int, list[StoredBatch]], T],
) -> tuple[int, T] | None:
    """Reads batches from `start` on and below `end`, about READ_BYTES of them, and calls `work(start, batches)` in a thread.
    Returns the offset behind the batches, and the result; None when there are none. StorageError: the log can't be read, or
    the partition is not led here in this epoch."""
    tries = 0
    while True:
        try:
            start, regions = read_regions(partition, epoch, start, end, READ_BYTES, wait=tries >= TRIES_MAX)
        except WouldWait as cold:
            tries += 1
            await in_thread(runtime, cold.prepare, remote=cold.is_remote)
            continue
        if not regions:
            return None
        result: tuple[int, T] = await in_thread(runtime, partial(_apply, work, start, regions))
        return result


def read_regions(
    partition: Partition, epoch: int, start: int, end: int, size: int, *, wait: bool = False
) -> tuple[int, tuple[FileRegion, ...]]:
    """The first offset (later than `start` where retention has removed records), and the regions with about `size` bytes of
    batches below `end`. Raises WouldWait instead of waiting for the disk, unless `wait` is set."""
    if not partition.is_leader or partition.leader_epoch != epoch:
        raise StorageError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the partition is not led here any more")
    start = max(start, partition.log.log_start_offset)
    if start >= end:
        return start, ()
    return start, partition.log.read(start, size, end_offset=end, wait=wait).regions


def whole_batches(start: int, regions: Iterable[FileRegion]) -> list[StoredBatch]:
    """The batches in the regions, at least one. The last one may be cut off; it is left out."""
    try:
        data = b"".join(region.read() for region in regions)
    except OSError as error:
        raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log can't be read: {error}") from error
    try:
        found = [
            (header, data[position : position + header.size])
            for position, header in iterate_whole_headers(data)
        ]
    except RecordBatchError as error:
        raise StorageError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    if not found or found[-1][0].next_offset <= start:
        raise StorageError(ErrorCode.CORRUPT_MESSAGE, f"no whole batch at {start}")
    return found


def _apply(
    work: Callable[[int, list[StoredBatch]], T], start: int, regions: tuple[FileRegion, ...]
) -> tuple[int, T]:
    batches = whole_batches(start, regions)
    try:
        return batches[-1][0].next_offset, work(start, batches)
    except RecordBatchError as error:
        raise StorageError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
