"""Holding back acknowledgements of large appends while the disk can't keep up.

The kernel takes writes into memory until too much of it waits for the disk; then a write sleeps, up to 200 ms at a time. The
writer is the event loop, so every client would wait. Therefore large appends are held back earlier: large writes that sleep
for long show that the disk below a log directory is behind. From then on a large append to a log of which more than
`BACKLOG_BYTES` wait for the disk is acknowledged only once a thread has written back twice as much of the log as has been
appended. A producer has few requests in flight, so it slows down to the speed of the disk. Nothing else waits: what was
appended is readable at once, and small appends are acknowledged at once.

Pacing ends when no append and no write-back has been slow for a while and the log has no backlog any more.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from barnabas.runtime.interface import Runtime
from barnabas.storage.disk.disk import File
from barnabas.storage.disk.write_pressure import SLOW_WRITE_S
from barnabas.storage.log.flusher import Flusher, Synced
from barnabas.storage.log.partition_directory import PartitionDirectory
from barnabas.storage.segment.segment import Segment

LARGE_APPEND_BYTES: Final = 64 * 1024  # smaller ones are neither timed nor held back
BACKLOG_BYTES: Final = 8 * 1024 * 1024
_STEP_MIN_BYTES: Final = 1024 * 1024
_BLOCK_BYTES: Final = 64 * 1024  # the file's last, unfinished block is about to be written to again


def timed_write(
    directory: PartitionDirectory, runtime: Runtime, file: File, records: memoryview, position: int
) -> int:
    """`pwrite`, noting how long the disk below the log directory takes."""
    disk, log_dir = directory.disk, directory.log_dir
    pressure = disk.write_pressure
    started = runtime.monotonic()
    waits = disk.waits() if pressure.is_suspected(log_dir, started) else -1
    written = file.pwrite(records, position)
    now = runtime.monotonic()
    if now - started > SLOW_WRITE_S:
        pressure.slow(log_dir, now, waited=0 <= waits < disk.waits())
    return written


class Pacing:
    """Writes back a log's active segment while its disk is behind; made when that begins."""

    __slots__ = (
        "_directory",
        "_flusher",
        "_position",
        "_runtime",
        "_seen",
        "_segment",
        "_waiters",
        "is_running",
    )

    def __init__(
        self, directory: PartitionDirectory, runtime: Runtime, flusher: Flusher, segment: Segment
    ) -> None:
        self._directory = directory
        self._runtime = runtime
        self._flusher = flusher
        self._segment = segment
        self._position = 0  # everything before it has been written back
        self._seen = segment.size  # when the last step began
        self._waiters: list[Synced] = []
        self.is_running = False

    def appended(self, segment: Segment) -> bool:
        """After a large append to `segment`: whether its acknowledgement has to wait."""
        if self._segment is not segment:  # a thread syncs the one before
            self._segment, self._position, self._seen = segment, 0, 0
        return segment.size - self._position > BACKLOG_BYTES

    def truncated(self, segment: Segment) -> None:
        """The log has been cut; `segment` is the active one."""
        if self._segment is not segment:
            self._segment, self._position = segment, 0
        self._seen = segment.size
        self._position = min(self._position, self._seen)

    def when_written_back(self, call: Synced) -> None:
        """Call once a thread has written back enough for an append that was held back."""
        self._waiters.append(call)
        if not self.is_running:
            self._write_back()

    def _next_end(self) -> int:
        """Where the next step ends; at `_position` or before it when there is nothing to do."""
        size = self._segment.size
        end = self._position + max(_STEP_MIN_BYTES, 2 * (size - self._seen))
        self._seen = size
        return min(end, size) // _BLOCK_BYTES * _BLOCK_BYTES

    def _write_back(self) -> None:
        segment, start, end = self._segment, self._position, self._next_end()
        waiters, self._waiters = self._waiters, []
        try:
            file = segment.open_for_append() if start < end else None
        except OSError as error:
            self._written_back(waiters, error)
            return
        if file is None:
            self._written_back(waiters, None)
            return

        started = self._runtime.monotonic()

        def done(_: object, error: BaseException | None) -> None:
            self.is_running = False
            now = self._runtime.monotonic()
            if now - started > SLOW_WRITE_S:
                self._directory.disk.write_pressure.extend(self._directory.log_dir, now)
            if error is None and self._segment is segment:
                self._position = max(self._position, end)
            self._written_back(waiters, error)
            if self._waiters and not self.is_running:
                self._write_back()

        self.is_running = True
        self._runtime.run_in_thread(partial(file.write_back, start, end - start), done)

    def _written_back(self, waiters: list[Synced], error: BaseException | None) -> None:
        """An error counts as a failed sync: the kernel may have dropped pages."""
        if error is not None:
            self._flusher.sync_failed(error)
        for call in waiters:
            call(self._flusher.failure)
