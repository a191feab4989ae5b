"""A disk that can't keep up holds back those who write much, and nobody else.

The kernel takes writes into memory until too much of it waits for the disk; then it lets whoever writes sleep, up
to 200 ms at a time. Here that would be the loop, and with it everybody. So what is too much is decided earlier
and elsewhere: large appends that sleep for long say that the disk below a log directory is behind. From then on, a
large append to a log of which more than `BACKLOG_BYTES` wait for the disk is acknowledged only once a thread has
written back twice as much of the log as has come. A producer has few requests in flight, so it is slowed down to
what the disk takes. Nothing else waits: what was appended is readable at once, and small appends are
acknowledged at once.

It ends when neither an append nor a writing back has been slow for a while, and the log's backlog has gone.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from barnabas.storage.disk.disk import File
from barnabas.storage.disk.write_pressure import SLOW_WRITE_S
from barnabas.storage.log.flusher import Synced
from barnabas.storage.log.log_producers import ProducerLog
from barnabas.storage.segment.segment import Segment

LARGE_APPEND_BYTES: Final = 64 * 1024  # smaller ones are neither timed nor held back
BACKLOG_BYTES: Final = 8 * 1024 * 1024
_STEP_MIN_BYTES: Final = 1024 * 1024
_BLOCK_BYTES: Final = 64 * 1024  # the file's last, unfinished block is about to be written to again


class Pacing:
    """How much of a log's active segment a thread has written back, and who waits for more of it."""

    __slots__ = ("position", "running", "seen", "segment", "waiters")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.position = 0  # what lies in front has been written back
        self.seen = segment.size  # when the last step began
        self.running = False
        self.waiters: list[Synced] = []

    def next_end(self) -> int:
        """Where the next step ends; not behind `position` when there is nothing to do."""
        size = self.segment.size
        end = self.position + max(_STEP_MIN_BYTES, 2 * (size - self.seen))
        self.seen = size
        return min(end, size) // _BLOCK_BYTES * _BLOCK_BYTES


class PacedLog(ProducerLog):
    """The part of `Log` that holds acknowledgements back while the disk is behind. `Log` sets the attribute."""

    __slots__ = ("_pacing",)

    _pacing: Pacing | None  # None: the disk keeps up

    def _write_large(self, file: File, records: memoryview, position: int) -> int:
        """`pwrite`, and note how the disk keeps up."""
        disk, log_dir = self._disk, self.log_dir
        pressure = disk.write_pressure
        started = self._runtime.monotonic()
        waits = disk.waits() if pressure.is_suspected(log_dir, started) else -1
        written = file.pwrite(records, position)
        now = self._runtime.monotonic()
        if now - started > SLOW_WRITE_S:
            pressure.slow(log_dir, now, waited=0 <= waits < disk.waits())
        return written

    def _large_appended(self, segment: Segment) -> bool:
        """After a large append: whether its acknowledgement has to wait."""
        is_on = self._disk.write_pressure.is_on(self.log_dir, self._runtime.monotonic())
        pacing = self._pacing
        if pacing is None:
            if not is_on:
                return False
            pacing = self._pacing = Pacing(segment)
        elif pacing.segment is not segment:  # a thread syncs the one before
            pacing.segment, pacing.position, pacing.seen = segment, 0, 0
        if segment.size - pacing.position > BACKLOG_BYTES:
            return True
        if not is_on and not pacing.running:
            self._pacing = None
        return False

    def when_written_back(self, call: Synced) -> None:
        """Call once a thread has written back as much as an append that `awaits_write_back` has to wait for."""
        pacing = self._pacing
        if pacing is None or self.failure is not None:
            call(self.failure)
            return
        pacing.waiters.append(call)
        if not pacing.running:
            self._write_back(pacing)

    def _write_back(self, pacing: Pacing) -> None:
        segment, start, end = pacing.segment, pacing.position, pacing.next_end()
        waiters, pacing.waiters = pacing.waiters, []
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
            pacing.running = False
            now = self._runtime.monotonic()
            if now - started > SLOW_WRITE_S:
                self._disk.write_pressure.go_on(self.log_dir, now)
            if error is None and pacing.segment is segment:
                pacing.position = max(pacing.position, end)
            self._written_back(waiters, error)
            if pacing.waiters and not pacing.running:
                self._write_back(pacing)

        pacing.running = True
        self._runtime.run_in_thread(partial(file.write_back, start, end - start), done)

    def _written_back(self, waiters: list[Synced], error: BaseException | None) -> None:
        """An error is one of a sync: the kernel may have dropped what it had taken."""
        if error is not None:
            self._sync_failed(error)
        for call in waiters:
            call(self.failure)
