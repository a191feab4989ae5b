"""Writes the checkpoint files of the log directories: at intervals, and soon after some changes.

The offsets are collected on the loop, a few logs a turn; a thread formats, writes and syncs them. Of each file
one version is written at a time, and only when something has changed. The thread writes a file beside the old one, and
the loop renames it: so a write that ends after the broker has stopped, or after a newer version has been written, has
no effect.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

from barnabas.runtime.interface import Runtime
from barnabas.runtime.slices import in_slices
from barnabas.storage.disk.checkpoint_file import format_offsets, write_offsets
from barnabas.storage.disk.disk import Disk
from barnabas.storage.errors import is_transient
from barnabas.storage.log.log import Log
from barnabas.storage.manager.directory import (
    LOG_START_OFFSET_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_OFFSET_FILE,
)

logger = logging.getLogger("barnabas.storage")

Offsets = dict[tuple[str, int], int]
Done = Callable[[], object]

PAUSE_FACTOR: Final = 20  # the pause between two writes because of changes, by the duration of the first

_NEW_SUFFIX = ".new"


def _recovery_point(log: Log) -> int | None:
    return log.flusher.recovery_checkpoint


def _start_offset(log: Log) -> int | None:
    """None while the first segment's synced name says the same, as in Kafka; a tiered log begins before its first segment."""
    if log.checkpointed_start_offset is not None:
        return log.checkpointed_start_offset
    if log.remote is not None:
        return log.log_start_offset
    first = log.segments.bases[0] if log.flusher.names_are_synced else 0
    return log.log_start_offset if log.log_start_offset > first else None


def _high_watermark(log: Log) -> int | None:
    return log.high_watermark


_VALUES: Final[dict[str, Callable[[Log], int | None]]] = {
    RECOVERY_POINT_FILE: _recovery_point,
    LOG_START_OFFSET_FILE: _start_offset,
    REPLICATION_OFFSET_FILE: _high_watermark,
}


class CheckpointFile:
    """One file of offsets, written by at most one thread at a time."""

    def __init__(self, disk: Disk, runtime: Runtime, path: str, failed: Callable[[OSError], object]) -> None:
        self._disk = disk
        self._runtime = runtime
        self._path = path
        self._failed = failed
        self._written: Offsets | None = None
        self._found: list[Offsets] | None = None  # what a start might find there now; None: not written yet
        self._next: Offsets | None = None
        self._busy = False
        self._failing = False
        self._begun = 0  # the version that a thread writes, or has written last
        self._version = 0
        self._waiters: list[Callable[[BaseException | None], object]] = []

    def write(self, offsets: Offsets, done: Callable[[BaseException | None], object] | None = None) -> None:
        """Write these, unless the file has them already; of several that wait, the last. `done` gets None once they, or later
        ones, have been synced, otherwise the error."""
        if done is not None:
            self._waiters.append(done)
        if self._busy:
            self._next = offsets
        elif offsets != self._written:
            self._begin(offsets)
        else:
            self._notify(None)

    @property
    def is_behind(self) -> bool:
        """Whether the file may still hold outdated offsets: a thread is writing it, or has failed."""
        return self._failing or (self._busy and self._version == self._begun)

    def may_hold(self, key: tuple[str, int]) -> bool:
        """Whether a start might find an offset of this (topic, partition) now."""
        return self._found is None or any(key in offsets for offsets in self._found)

    def write_now(self, offsets: Offsets) -> None:
        """Write these, blocking. A write that a thread has begun has no effect. OSError."""
        self._version += 1
        self._next = None
        write_offsets(self._disk, self._path, offsets)
        self._written = offsets
        self._found = [offsets]
        self._failing = False

    def _begin(self, offsets: Offsets) -> None:
        self._busy = True
        self._version += 1
        version = self._begun = self._version
        beside = self._path + _NEW_SUFFIX
        if self._found is not None:
            self._found.append(offsets)

        def written(_: None, error: BaseException | None) -> None:
            if error is None and version == self._version:
                try:
                    self._disk.rename(beside, self._path)
                    self._written = offsets
                except OSError as failure:
                    error = failure
            if error is not None:
                self._end(error)
                return
            directory = self._path.rpartition("/")[0]
            self._runtime.run_in_thread(lambda: self._disk.sync_directory(directory), synced)

        def synced(_: None, error: BaseException | None) -> None:
            if error is None and version == self._version:
                self._found = [offsets]
            self._end(error)

        self._runtime.run_in_thread(lambda: self._disk.write_file(beside, format_offsets(offsets)), written)

    def _end(self, error: BaseException | None) -> None:
        self._busy = False
        self._failing = error is not None
        if error is not None:
            logger.error("%s can't be written: %s", self._path, error)
            if isinstance(error, OSError):
                self._failed(error)
        following, self._next = self._next, None
        if following is not None:
            self.write(following)
        if not self._busy:
            self._notify(error)

    def _notify(self, error: BaseException | None) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter(error)


class Checkpointer:
    """The checkpoint files of all directories. `failed(log_dir, reason)` is called when a disk is broken."""

    def __init__(
        self,
        disk: Disk,
        runtime: Runtime,
        logs: Mapping[tuple[str, int], Log],
        failed: Callable[[str, str], object],
    ) -> None:
        self._disk = disk
        self._runtime = runtime
        self._logs = logs
        self._failed = failed
        self._files: dict[tuple[str, str], CheckpointFile] = {}
        self._soon: dict[
            tuple[str, str], None
        ] = {}  # (directory, file name) to be written soon, in this order
        self._soon_scheduled = False
        self._pause_until = 0.0  # on the monotonic clock

    def write_recovery_points(self, done: Done) -> None:
        self._write(RECOVERY_POINT_FILE, done)

    def write_start_offsets(self, done: Done) -> None:
        self._write(LOG_START_OFFSET_FILE, done)

    def write_high_watermarks(self, done: Done) -> None:
        self._write(REPLICATION_OFFSET_FILE, done)

    def start_offset_changed(self, log_dir: str) -> None:
        """Start offsets that have moved are written soon, however many at once."""
        self._write_soon(log_dir, LOG_START_OFFSET_FILE)

    def log_removed(self, log_dir: str) -> None:
        """A log has been removed from the directory: a new log of its name must not find its offsets."""
        for name in _VALUES:
            self._write_soon(log_dir, name)

    def settle(self, log_dir: str, key: tuple[str, int]) -> None:
        """Before a log is created in the directory: remove the offsets of an earlier log of its name. Blocking, if that has
        just been removed. OSError."""
        for name in _VALUES:
            file = self._file(log_dir, name)
            if ((log_dir, name) in self._soon or file.is_behind) and file.may_hold(key):
                self._soon.pop((log_dir, name), None)
                self._write_now(log_dir, name)

    def rewrite(self, log_dir: str) -> None:
        """As `log_removed`, blocking. OSError."""
        for name in _VALUES:
            self._write_now(log_dir, name)

    def truncating(self, log: Log, offset: int) -> None:
        """Before the log is truncated to `offset`: no checkpoint may lie beyond, or what is appended there next would be
        trusted without being read, or count as committed, or as below the log's start. Blocking where one does. OSError."""
        claims = {
            RECOVERY_POINT_FILE: log.flusher.recovery_point,
            LOG_START_OFFSET_FILE: log.log_start_offset,
            REPLICATION_OFFSET_FILE: log.high_watermark if log.is_replicated else -1,
        }
        for name, claimed in claims.items():
            if offset < claimed:
                logs = [each for each in self._logs.values() if each.log_dir == log.log_dir]
                offsets = _collect(logs, _VALUES[name])
                offsets[log.topic, log.partition] = offset
                self._file(log.log_dir, name).write_now(offsets)

    def write_lowered(self, log_dirs: Iterable[str], done: Callable[[BaseException | None], object]) -> None:
        """Write the recovery points of these directories in a thread, after some have been lowered because many logs are
        about to be truncated; then call `done`, with the error if there was one."""
        missing = set(log_dirs)
        failure: list[BaseException | None] = [None]

        def written(log_dir: str, error: BaseException | None) -> None:
            missing.discard(log_dir)
            failure[0] = failure[0] or error
            if not missing:
                done(failure[0])

        for log_dir in sorted(missing):
            logs = [each for each in self._logs.values() if each.log_dir == log_dir]
            self._file(log_dir, RECOVERY_POINT_FILE).write(
                _collect(logs, _recovery_point), partial(written, log_dir)
            )

    def write_start(self, log: Log, done: Callable[[BaseException | None], object]) -> None:
        """Have a start find this log's start offset, then call `done`, with the error if there was one."""
        logs = [each for each in self._logs.values() if each.log_dir == log.log_dir]
        self._file(log.log_dir, LOG_START_OFFSET_FILE).write(_collect(logs, _start_offset), done)

    def write_now(self, log_dir: str) -> None:
        """Every file of the directory, blocking. OSError."""
        for name in _VALUES:
            self._write_now(log_dir, name)

    def _write_now(self, log_dir: str, name: str) -> None:
        logs = [log for log in self._logs.values() if log.log_dir == log_dir]
        self._file(log_dir, name).write_now(_collect(logs, _VALUES[name]))

    def _write_soon(self, log_dir: str, name: str) -> None:
        """Write the file on the next turn; after a pause if that was done a moment ago, so that many changes cost little
        more."""
        self._soon[log_dir, name] = None
        if not self._soon_scheduled:
            self._soon_scheduled = True
            pause_s = self._pause_until - self._runtime.monotonic()
            if pause_s > 0:
                self._runtime.call_later(pause_s, self._write_scheduled)
            else:
                self._runtime.call_soon(self._write_scheduled)

    def _write_scheduled(self) -> None:
        wanted, self._soon = self._soon, {}
        began = self._runtime.monotonic()
        missing = dict.fromkeys(name for _, name in wanted)

        def done(name: str) -> None:
            del missing[name]
            if not missing:
                now = self._runtime.monotonic()
                self._pause_until = now + PAUSE_FACTOR * (now - began)
                self._soon_scheduled = False
                for log_dir, name in list(self._soon):
                    self._write_soon(log_dir, name)

        for name in tuple(missing):
            log_dirs = [log_dir for log_dir, each in wanted if each == name]
            self._write(name, partial(done, name), log_dirs)
        if not wanted:
            self._soon_scheduled = False

    def _write(self, name: str, done: Done, log_dirs: Iterable[str] | None = None) -> None:
        found: dict[str, Offsets] = {}
        value = _VALUES[name]

        def steps() -> Iterator[object]:
            for key, log in list(self._logs.items()):
                if log.closed or log.offline:
                    continue
                offsets = found.setdefault(log.log_dir, {})
                offset = value(log)
                if offset is not None:
                    offsets[key] = offset
                yield None

        def collected() -> None:
            offline = {log.log_dir for log in self._logs.values() if log.offline}
            for log_dir in found if log_dirs is None else log_dirs:
                if log_dir not in offline:  # the next start needs what its file has
                    self._file(log_dir, name).write(found.get(log_dir, {}))
            done()

        in_slices(self._runtime, steps(), collected)

    def _file(self, log_dir: str, name: str) -> CheckpointFile:
        file = self._files.get((log_dir, name))
        if file is None:
            file = self._files[log_dir, name] = CheckpointFile(
                self._disk,
                self._runtime,
                f"{log_dir}/{name}",
                lambda error: self._write_failed(log_dir, error),
            )
        return file

    def _write_failed(self, log_dir: str, error: OSError) -> None:
        if not is_transient(error):
            self._failed(log_dir, str(error))


def _collect(logs: Iterable[Log], value: Callable[[Log], int | None]) -> Offsets:
    return {(log.topic, log.partition): offset for log in logs if (offset := value(log)) is not None}
