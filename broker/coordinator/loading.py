"""Loads one partition of a coordinator's log: reads it from its start to its end.

A new leader replays its log in full (compacted_records.py). Records above the high watermark were appended by a former
leader; they are committed after the first fetches of the followers (CoordinatorLog.when_committed).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from barnabas.storage.errors import StorageError, WouldWait
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.storage.disk.disk import FileRegion
    from barnabas.storage.log.log import Log

READ_BYTES: Final = 1 << 18  # a few of them fit into a slice
TRIES_MAX: Final = 16  # with little memory what a thread has read may be evicted again: then the loop waits


class Replay(Protocol):
    """The state machine that takes the log. Its steps are short; between them requests are served and leadership may end."""

    next_offset: int  # behind what was taken

    def take(self, data: bytes) -> Iterator[None]:
        """Take the whole batches at the start of `data`, in their order."""
        ...

    def finish(self) -> Iterator[None]:
        """After the last batch."""
        ...


class Loading:
    """One partition being loaded. See CoordinatorLog.load, which goes through `steps` again after each thread."""

    def __init__(
        self,
        partition: Partition | None,
        replay: Replay,
        done: Callable[[Exception | None], object],
    ) -> None:
        self._partition = partition
        self._replay = replay
        self._done = done
        self._data = b""  # read, not replayed,
        self._data_offset = -1  # from here on
        self.for_a_thread: Callable[[], bytes | None] | None = None  # work for a thread, before the next step
        self._tries = 0
        self._error: Exception | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """Stop loading; `done` is not called."""
        self._cancelled = True

    def steps(self) -> Iterator[None]:
        """Read and replay up to the end, a read that needs a thread, or an error."""
        if self._cancelled or self._error is not None:
            return
        try:
            yield from self._replay_all()
        except WouldWait as cold:
            self.for_a_thread = partial(_prepare, cold)
        except Exception as error:  # noqa: BLE001 - whatever it is, this partition can't be loaded; others can
            self._error = error

    def _replay_all(self) -> Iterator[None]:
        replay = self._replay
        while True:
            log = self._led_log()
            offset = replay.next_offset = max(replay.next_offset, log.log_start_offset)
            if offset != self._data_offset:  # its records have been deleted while a thread read them
                self._data = b""
            if not self._data and offset >= log.log_end_offset:
                break
            data = self._data or self._read(log, offset)
            if self.for_a_thread is not None:
                return
            if not data:
                break
            self._data = b""
            self._tries = 0
            yield from self._while_led(replay.take(data))
            if replay.next_offset == offset and not self._cancelled:
                raise StorageError(ErrorCode.CORRUPT_MESSAGE, f"no whole batch at {offset}")
            if self._cancelled:
                return
        yield from self._while_led(replay.finish())

    def _while_led(self, steps: Iterator[None]) -> Iterator[None]:
        for step in steps:
            yield step
            if self._cancelled:
                return
            self._led_log()

    def _led_log(self) -> Log:
        partition = self._partition
        if partition is None or not partition.is_leader:
            raise StorageError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the partition is not led here")
        if partition.log.offline:
            raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, str(partition.log.failure))
        return partition.log

    def _read(self, log: Log, offset: int) -> bytes:
        """The batches from where we are. WouldWait, or b"" with `for_a_thread` set, where the disk is needed."""
        self._data_offset = offset
        result = log.read(offset, READ_BYTES, min_one_batch=True, wait=self._tries >= TRIES_MAX)
        try:
            return b"".join(
                region.file.pread_now(region.length, region.position) for region in result.regions
            )
        except BlockingIOError:
            self.for_a_thread = partial(_read_all, result.regions)
            return b""

    def thread_has_read(self, data: bytes | None, error: BaseException | None) -> None:
        """The result of `for_a_thread`."""
        self.for_a_thread = None
        self._tries += 1
        self._data = data or b""
        if isinstance(error, Exception):
            self._error = StorageError(ErrorCode.KAFKA_STORAGE_ERROR, f"it can't be read: {error}")

    def end(self) -> None:
        """Call `done` with the result."""
        if not self._cancelled:
            self._done(self._error)


def _prepare(cold: WouldWait) -> None:
    cold.prepare()


def _read_all(regions: tuple[FileRegion, ...]) -> bytes:
    return b"".join(region.read() for region in regions)
