"""The reading of one partition of a coordinator's log, from its start to its end.

What the log of a new leader holds is replayed in full. Most of it is below the high watermark; what is above it was
appended by a leader before and will be committed with this one's first word from its followers, which takes a
moment (CoordinatorLog.when_committed).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.storage.errors import StorageError, WouldWait
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.partition import Partition
    from barnabas.storage.disk import FileRegion
    from barnabas.storage.log import Log

READ_BYTES: Final = 1 << 20
TRIES_MAX: Final = 16  # memory so short that what a thread brings in is gone again: then the loop waits


class Loading:
    """One partition being loaded. See CoordinatorLog.load, which goes through `steps` again after each thread."""

    def __init__(
        self,
        partition: Partition | None,
        replay: Callable[[bytes], object],
        done: Callable[[Exception | None], object],
    ) -> None:
        self._partition = partition
        self._replay = replay
        self._done = done
        self._offset = 0
        self._data = b""  # read, not replayed
        self.for_a_thread: Callable[[], bytes | None] | None = None  # what has to be done before it can go on
        self._tries = 0
        self._error: Exception | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """The partition is no longer wanted."""
        self._cancelled = True

    def steps(self) -> Iterator[None]:
        """Read and replay up to the end, or until a thread is needed or something is wrong."""
        try:
            yield from self._replay_all()
        except WouldWait as cold:
            self.for_a_thread = partial(_prepare, cold)
        except Exception as error:  # noqa: BLE001 - whatever it is, this partition can't be loaded; others can
            self._error = error

    def _replay_all(self) -> Iterator[None]:
        while not self._cancelled and self._error is None:
            log = self._led_log()
            self._offset = max(self._offset, log.log_start_offset)
            if not self._data and self._offset >= log.log_end_offset:
                return
            data = self._data or self._read(log)
            if not data:
                return
            self._data = b""
            self._tries = 0
            for batch in self._batches(data):
                self._replay(batch)
                yield
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

    def _read(self, log: Log) -> bytes:
        """The batches from where we are. WouldWait, or b"" with `for_a_thread` set, where the disk is needed."""
        result = log.read(self._offset, READ_BYTES, min_one_batch=True, wait=self._tries >= TRIES_MAX)
        try:
            return b"".join(
                region.file.pread_now(region.length, region.position) for region in result.regions
            )
        except BlockingIOError:
            self.for_a_thread = partial(_read_all, result.regions)
            return b""

    def _batches(self, data: bytes) -> Iterator[bytes]:
        """Cut what was read into batches. StorageError when it goes nowhere."""
        position = 0
        while position + 27 <= len(data):
            size = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
            if position + size > len(data):
                break
            base_offset = int.from_bytes(data[position : position + 8], "big")
            next_offset = base_offset + int.from_bytes(data[position + 23 : position + 27], "big") + 1
            if next_offset <= self._offset:  # or it would be read again and again
                raise StorageError(ErrorCode.CORRUPT_MESSAGE, f"offsets go back at {self._offset}")
            self._offset = next_offset
            yield data[position : position + size]
            position += size
        if position == 0:
            raise StorageError(ErrorCode.CORRUPT_MESSAGE, f"no whole batch at {self._offset}")

    def thread_has_read(self, data: bytes | None, error: BaseException | None) -> None:
        """What came of `for_a_thread`."""
        self.for_a_thread = None
        self._tries += 1
        self._data = data or b""
        if isinstance(error, Exception):
            self._error = StorageError(ErrorCode.KAFKA_STORAGE_ERROR, f"it can't be read: {error}")

    def end(self) -> None:
        """Nothing more is to be read: say how it went."""
        if not self._cancelled:
            self._done(self._error)


def _prepare(cold: WouldWait) -> None:
    cold.prepare()


def _read_all(regions: tuple[FileRegion, ...]) -> bytes:
    return b"".join(region.read() for region in regions)
