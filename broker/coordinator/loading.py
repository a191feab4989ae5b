"""Reads a partition of a coordinator's log from its start to its end, in steps.

A new leader replays its log in full (compacted_records.py), in slices of the loop, and with a thread where a read would wait
for the disk. Records above the high watermark were appended by a former leader; they are committed after the first fetches of
the followers (CoordinatorLog.when_committed).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from barnabas.storage.errors import StorageError, WouldWait
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.runtime.slices import Steps
    from barnabas.storage.disk.disk import FileRegion
    from barnabas.storage.log.log import Log

READ_BYTES: Final = 1 << 18  # a few of them fit into a slice
TRIES_MAX: Final = (
    16  # pages that a thread has read may be evicted again; after so many tries the loop waits for the disk
)


class Replay(Protocol):
    """The receiver of a partition's batches. Its steps are short; between them requests are served and leadership may end."""

    next_offset: int  # behind the last batch taken

    def take(self, data: bytes) -> Iterator[None]:
        """Take the whole batches at the start of `data`, in their order."""
        ...

    def finish(self) -> Iterator[None]:
        """After the last batch."""
        ...


def replay_partition(
    partition: Partition | None, replay: Replay, is_cancelled: Callable[[], bool]
) -> Steps[None]:
    """Read the partition up to its end and have `replay` take it; ends early once cancelled. StorageError or RecordBatchError,
    as when the log directory is offline, a batch is damaged or the partition is not led here any more."""
    data = b""
    data_offset = -1
    tries = 0
    while True:
        log = _led_log(partition)
        offset = replay.next_offset = max(replay.next_offset, log.log_start_offset)
        if not data or data_offset != offset:  # records may have been deleted while a thread read them
            if offset >= log.log_end_offset:
                break
            found = _read(log, offset, wait=tries >= TRIES_MAX)
            if not isinstance(found, bytes):
                tries += 1
                try:
                    data, data_offset = (yield found) or b"", offset
                except Exception as error:
                    raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, f"it can't be read: {error}") from error
                if is_cancelled():
                    return
                continue
            data = found
        if not data:
            break
        taken, data = data, b""
        tries = 0
        for _ in replay.take(taken):
            yield None
            if is_cancelled():
                return
            _led_log(partition)
        if replay.next_offset == offset:
            raise StorageError(ErrorCode.CORRUPT_MESSAGE, f"no whole batch at {offset}")
    for _ in replay.finish():
        yield None
        if is_cancelled():
            return
        _led_log(partition)


def _led_log(partition: Partition | None) -> Log:
    if partition is None or not partition.is_leader:
        raise StorageError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the partition is not led here")
    if partition.log.offline:
        raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, str(partition.log.failure))
    return partition.log


def _read(log: Log, offset: int, *, wait: bool) -> bytes | Callable[[], Any]:
    """The batches from an offset on, or work for a thread where the disk is needed."""
    try:
        regions = log.read(offset, READ_BYTES, min_one_batch=True, wait=wait).regions
    except WouldWait as cold:
        return partial(_prepare, cold)
    try:
        return b"".join(region.file.pread_now(region.length, region.position) for region in regions)
    except BlockingIOError:
        return partial(_read_all, regions)


def _prepare(cold: WouldWait) -> None:
    cold.prepare()


def _read_all(regions: tuple[FileRegion, ...]) -> bytes:
    return b"".join(region.read() for region in regions)
