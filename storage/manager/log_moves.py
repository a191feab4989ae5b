"""Moving logs from one directory to another while they serve (KIP-113).

Threads copy the segments into `<topic>-<partition>.<unique>-future` in the other directory, a few MB at a time, while the log
grows, until only a little is missing. Then, in one turn of the loop, the log is closed, the rest is copied and synced, the
copy gets the log's name and is opened in its place, and the old directory is renamed for deletion. Readers keep the files that
they have open.

An interruption leaves a complete log: until the copy has the log's name, the old directory is the log, and a start removes the
copy and begins again. From then on both are complete, and a start uses the longer one (manager.py). A partition has at most
one move; a request for another directory ends the one before.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from barnabas.runtime.interface import Runtime
from barnabas.storage.disk.disk import Disk, File
from barnabas.storage.errors import StorageError, is_transient
from barnabas.storage.log.flusher import PARTITION_METADATA
from barnabas.storage.log.log import Log
from barnabas.storage.manager.directory import (
    DELETE_SUFFIX,
    FUTURE_SUFFIX,
    LogDirectories,
    parse_directory_name,
    suffixed_name,
)
from barnabas.storage.segment.segment import CLEANED_SUFFIX, LOG_SUFFIX, SWAP_SUFFIX, Segment
from barnabas.wire.errors import ErrorCode
from barnabas.wire.uuids import random_uuid

logger = logging.getLogger("barnabas.storage")

CHUNK_BYTES: Final = 4 << 20  # what a thread copies at a time
REST_BYTES: Final = 128 << 10  # at most this is missing when the loop copies the rest
_WAIT_S: Final = 0.02  # until a segment that a thread is sealing is checked again
_BUFFER_BYTES: Final = 1 << 20
_NAME_MAX = 255
_FUTURE_NAME_REST = len(".") + 32 + len(FUTURE_SUFFIX)


class _Copied(msgspec.Struct):
    """How much of a segment has been copied, whether all of its files have been, and whether all of them were there."""

    segment: Segment
    size: int = 0
    whole: bool = False
    indexed: bool = False


class LogMove:
    """One move of one log. `failed(move, error)` is called at most once, and not after `cancel`."""

    def __init__(
        self,
        disk: Disk,
        runtime: Runtime,
        log: Log,
        target_dir: str,
        unique: bytes,
        bytes_per_second: Callable[[], float],
        caught_up: Callable[[LogMove], object],
        failed: Callable[[LogMove, BaseException], object],
    ) -> None:
        """`caught_up(self)` is called on the loop when only `finish` is left to do."""
        self.log = log
        self.target_dir = target_dir
        self.directory = f"{target_dir}/{suffixed_name(log.topic, log.partition, unique, FUTURE_SUFFIX)}"
        self.end_offset = log.local_log_start_offset  # of what has been copied
        self._disk = disk
        self._runtime = runtime
        self._bytes_per_second = bytes_per_second
        self._caught_up = caught_up
        self._failed = failed
        self._copied: dict[int, _Copied] = {}
        self._truncations = log.flusher.truncations
        self._cancelled = False

    @property
    def size(self) -> int:
        """Bytes of segments that have been copied."""
        return sum(copied.size for copied in self._copied.values())

    def start(self) -> None:
        """OSError when the directory can't be made."""
        self._disk.make_directory(self.directory)
        self._step()

    def resume(self) -> None:
        """Copy what is missing by now, after `caught_up` could not be acted on."""
        self._step()

    def cancel(self) -> None:
        """Stop copying. A thread may still write to the directory for a moment."""
        self._cancelled = True

    # --- copying

    def _step(self) -> None:
        if self._cancelled:
            return
        if self.log.closed or self.log.offline:
            self._failed(self, OSError("the log is closed"))
            return
        if not all(segment.has_final_name for segment in self.log.segments):
            self._runtime.call_later(_WAIT_S, self._step)
            return
        gone = self._drop_changed()
        for segment in self.log.segments:
            copied = self._copied.setdefault(segment.base_offset, _Copied(segment))
            if copied.whole:
                self.end_offset = max(self.end_offset, segment.base_offset)
                continue
            active = segment is self.log.segments[-1]
            if copied.size < segment.size and not (active and segment.size - copied.size <= REST_BYTES):
                self._copy(copied, gone)
                return
            if active:
                self._sync(copied, gone)
                return
            if self.log.flusher.is_sealing(segment.base_offset):
                self._runtime.call_later(_WAIT_S, self._step)
                return
            self._complete(copied, gone)
            return

    def _drop_changed(self) -> list[str]:
        """The files of copies whose segment retention or compaction has removed since; of all copies after the log has been
        truncated, as what was copied may have been overwritten."""
        cut, self._truncations = (
            self._truncations != self.log.flusher.truncations,
            self.log.flusher.truncations,
        )
        here = {segment.base_offset: segment for segment in self.log.segments}
        gone: list[str] = []
        for base, copied in list(self._copied.items()):
            if cut or here.get(base) is not copied.segment or copied.size > copied.segment.size:
                del self._copied[base]
                gone += [self._path_of(path) for path in copied.segment.files]
        return gone

    def _path_of(self, path: str) -> str:
        return f"{self.directory}/{path.rpartition('/')[2]}"

    def _in_thread(self, work: Callable[[], object], gone: list[str], then: Callable[[], object]) -> None:
        def whole_work() -> None:
            for path in gone:
                self._disk.remove(path)
            work()

        def done(_: None, error: BaseException | None) -> None:
            if self._cancelled:
                return
            if error is not None:
                self._failed(self, error)
            else:
                then()

        self._runtime.run_in_thread(whole_work, done)

    def _copy(self, copied: _Copied, gone: list[str]) -> None:
        try:
            source = copied.segment.open_for_read()
        except OSError as error:
            self._failed(self, error)
            return
        start, stop = copied.size, min(copied.segment.size, copied.size + CHUNK_BYTES)
        target_path = self._path_of(copied.segment.path)

        def then() -> None:
            copied.size = stop
            self.end_offset = max(self.end_offset, self._offset_at(copied.segment, stop))
            pause_s = (stop - start) / max(1.0, self._bytes_per_second())
            self._runtime.call_later(pause_s, self._step)

        self._in_thread(
            lambda: copy_range(source, self._disk.open(target_path, create=True), start, stop), gone, then
        )

    def _offset_at(self, segment: Segment, position: int) -> int:
        """The offset at the position: estimated from the segment's size, exact at its end."""
        later = (other.base_offset for other in self.log.segments if other.base_offset > segment.base_offset)
        end = next(later, self.log.log_end_offset)
        return segment.base_offset + (end - segment.base_offset) * position // max(1, segment.size)

    def _complete(self, copied: _Copied, gone: list[str]) -> None:
        """Sync the copy of a segment that does not grow any more, and copy its other files, if they could be written; else `finish`
        copies them, once the log is closed."""
        copied.indexed = self.log.flusher.is_indexed(copied.segment.base_offset)

        def work() -> None:
            self._disk.open(self._path_of(copied.segment.path), create=True).sync()
            for path in copied.segment.files:
                if not path.endswith(LOG_SUFFIX):
                    self._copy_small(path, sync=True)

        def then() -> None:
            copied.whole = True
            self._step()

        self._in_thread(work, gone, then)

    def _copy_small(self, path: str, *, sync: bool) -> None:
        try:
            content = self._disk.read_file(path)
        except FileNotFoundError:
            return
        self._disk.write_file(self._path_of(path), content, sync=sync)

    def _sync(self, copied: _Copied, gone: list[str]) -> None:
        """Sync the active segment and its copy, so that the loop will have little to sync."""
        path = self._path_of(copied.segment.path)

        def then() -> None:
            segment = self.log.segments[-1]
            uncut = self._truncations == self.log.flusher.truncations
            if uncut and copied.segment is segment and segment.size - copied.size <= REST_BYTES:
                self._caught_up(self)
            else:
                self._step()

        def work() -> None:
            self._disk.open(path, create=True).sync()
            self._copy_small(f"{self.log.directory}/{PARTITION_METADATA}", sync=True)

        def synced(failure: str | None) -> None:
            if self._cancelled:
                return
            if failure is not None:
                self._failed(self, OSError(failure))
            else:
                self._in_thread(work, gone, then)

        self.log.flusher.sync_soon(self.log.log_end_offset)
        self.log.flusher.when_synced(self.log.log_end_offset, synced)

    # --- the last step

    def finish(self) -> None:
        """Blocking: close the log, copy the rest and sync it. After OSError or StorageError the copy is not complete, and the
        log may be closed."""
        self.log.close()
        active = self.log.segments[-1]
        copied = self._copied[active.base_offset]
        target = self._disk.open(self._path_of(active.path), create=True)
        copy_range(self._disk.open(active.path), target, copied.size, active.size)
        target.sync()
        closed = [each for each in self._copied.values() if each.whole]
        done = {path for each in closed if each.indexed for path in each.segment.files}
        # What a tiered log has there can't be found again in its batches, and behind the recovery point it would not be looked for.
        must_sync = self.log.remote is not None or not all(each.indexed for each in closed)
        done.add(f"{self.log.directory}/{PARTITION_METADATA}")
        for name in self._disk.list(self.log.directory):
            path = f"{self.log.directory}/{name}"
            if path not in done and not name.endswith(
                (LOG_SUFFIX, ".deleted", ".tmp", CLEANED_SUFFIX, SWAP_SUFFIX)
            ):
                self._copy_small(path, sync=must_sync)
        self._disk.sync_directory(self.directory)


def copy_range(source: File, target: File, start: int, stop: int) -> None:
    """Copy the bytes from `start` to `stop` to the same place. OSError; StorageError when the source is short."""
    while start < stop:
        data = source.pread(min(_BUFFER_BYTES, stop - start), start)
        if not data:
            raise OSError(f"the file ends at {start}, {stop} were expected")
        written = target.pwrite(data, start)
        start += written


# --- the moves of a broker


def parse_future_name(name: str) -> tuple[str, int] | None:
    """(topic, partition) of `<topic>-<partition>.<unique>-future`; None for anything else."""
    if not name.endswith(FUTURE_SUFFIX):
        return None
    return parse_directory_name(name.removesuffix(FUTURE_SUFFIX).rpartition(".")[0])


class LogOwner(Protocol):
    """What moves use of the LogManager."""

    def get(self, topic: str, partition: int) -> Log | None: ...

    def open_again(self, log: Log, log_dir: str) -> Log:
        """Open a closed log again, from its copy in `log_dir`. OSError."""
        ...

    def reopen(self, log: Log) -> None:
        """Open a closed log again where it was."""
        ...

    def replace(self, old: Log, new: Log) -> None:
        """Put `new` in the place of a closed log."""
        ...

    def remove_directory(self, path: str, deleted: str, delay_ms: int) -> None:
        """Rename a directory to `deleted`, and remove it later."""
        ...

    def directory_failed(self, log_dir: str, reason: str) -> None: ...


class LogMoves:
    """The moves that run, by partition. All calls on the loop's thread."""

    def __init__(self, manager: LogOwner, directories: LogDirectories, disk: Disk, runtime: Runtime) -> None:
        self._manager = manager
        self._directories = directories
        self._disk = disk
        self._runtime = runtime
        self._moves: dict[tuple[str, int], LogMove] = {}
        self._bytes_per_second = float("inf")  # the limit of each move

    def limit(self, bytes_per_second: float) -> None:
        """Copy no faster from now on, in each move."""
        self._bytes_per_second = bytes_per_second

    def get(self, topic: str, partition: int) -> LogMove | None:
        return self._moves.get((topic, partition))

    def begin(self, topic: str, partition: int, directory: str) -> None:
        """Move a log to the log directory of this path (absolute, or as in log.dirs).

        StorageError: INVALID_TOPIC_EXCEPTION (a name too long for the copy's), LOG_DIR_NOT_FOUND,
        KAFKA_STORAGE_ERROR (a directory is offline), REPLICA_NOT_AVAILABLE.
        """
        manager = self._manager
        if len(f"{topic}-{partition}") + _FUTURE_NAME_REST > _NAME_MAX:
            raise StorageError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic name is too long.")
        target_dir = next(
            (path for path in self._directories.paths if os.path.abspath(path) == directory), None
        )
        if target_dir is None:
            raise StorageError(
                ErrorCode.LOG_DIR_NOT_FOUND, f"Log dir {directory} is not found in the config."
            )
        if target_dir in self._directories.offline:
            raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, f"Log directory {directory} is offline")
        log = manager.get(topic, partition)
        if log is None:
            raise StorageError(ErrorCode.REPLICA_NOT_AVAILABLE, f"{topic}-{partition} is not here")
        if log.offline:
            raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, f"Partition {topic}-{partition} is offline")
        current = self.get(topic, partition)
        if current is not None and current.target_dir == target_dir:
            return
        self.end(topic, partition)
        if target_dir == log.log_dir:
            return
        if self._directories.offline:
            raise StorageError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"Can not create log for {topic}-{partition} because log directories "
                f"{', '.join(self._directories.offline)} are offline",
            )
        self._start(log, target_dir)

    def _start(self, log: Log, target_dir: str) -> None:
        move = LogMove(
            self._disk,
            self._runtime,
            log,
            target_dir,
            random_uuid(self._runtime.random_bytes),
            lambda: self._bytes_per_second,
            self._finish,
            self._failed,
        )
        self._moves[log.topic, log.partition] = move
        logger.info("%s: moving from %s to %s", log.name, log.log_dir, target_dir)
        try:
            move.start()
        except OSError as error:
            del self._moves[log.topic, log.partition]
            if not is_transient(error):
                self._manager.directory_failed(target_dir, str(error))
            raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, f"{move.directory}: {error}") from error

    def all(self) -> list[LogMove]:
        return list(self._moves.values())

    def end(self, topic: str, partition: int) -> None:
        """End a move, if there is one: the log stays where it is."""
        move = self._moves.pop((topic, partition), None)
        if move is not None:
            move.cancel()
            if move.target_dir not in self._directories.offline:
                self._remove_copy(move)

    def resume(self, log_dir: str, names: list[str]) -> None:
        """At start, once every log is open: begin interrupted moves again. `names` are those of the copies in the
        directory."""
        for name in names:
            key = parse_future_name(name)
            if key is None:
                continue
            self._manager.remove_directory(f"{log_dir}/{name}", f"{log_dir}/{self._deleted_name(*key)}", 0)
            log = self._manager.get(*key)
            if log is None or log.log_dir == log_dir or key in self._moves or self._directories.offline:
                continue
            try:
                self._start(log, log_dir)
            except StorageError as error:
                logger.error("%s: the move to %s is not resumed: %s", log.name, log_dir, error)

    def directory_failed(self, log_dir: str) -> None:
        """End the moves to and from it."""
        for move in list(self._moves.values()):
            if log_dir in (move.target_dir, move.log.log_dir):
                logger.error("%s: the move to %s is ended", move.log.name, move.target_dir)
                self.end(move.log.topic, move.log.partition)

    def stop(self) -> None:
        """Stop copying; the next start begins again."""
        for move in self._moves.values():
            move.cancel()

    def _failed(self, move: LogMove, error: BaseException) -> None:
        log = move.log
        if self._moves.get((log.topic, log.partition)) is move:
            del self._moves[log.topic, log.partition]
        move.cancel()
        logger.error("%s: the move to %s has failed: %s", log.name, move.target_dir, error)
        self._remove_copy(move)

    def _remove_copy(self, move: LogMove) -> None:
        log = move.log
        deleted = f"{move.target_dir}/{self._deleted_name(log.topic, log.partition)}"
        self._manager.remove_directory(move.directory, deleted, log.config.file_delete_delay_ms)

    def _deleted_name(self, topic: str, partition: int) -> str:
        return suffixed_name(topic, partition, random_uuid(self._runtime.random_bytes), DELETE_SUFFIX)

    # --- the last step

    def _finish(self, move: LogMove) -> None:
        """Put the copy in the place of the log; when that fails, open the log again where it was."""
        log = move.log
        key = (log.topic, log.partition)
        if self._moves.get(key) is not move:
            return
        if log.cleaning:  # compaction is about to replace its segments
            self._runtime.call_later(1.0, lambda: self._finish_later(move))
            return
        final = f"{move.target_dir}/{log.name}"
        started = self._runtime.monotonic()
        try:
            move.finish()
            self._disk.rename(move.directory, final)
            try:
                self._disk.sync_directory(move.target_dir)
                moved = self._manager.open_again(log, move.target_dir)
            except OSError:
                self._disk.rename(final, move.directory)
                raise
        except (OSError, StorageError) as error:
            self._failed(move, error)
            if log.closed:
                self._manager.reopen(log)
            return
        del self._moves[key]
        self._manager.replace(log, moved)
        deleted = f"{log.log_dir}/{self._deleted_name(*key)}"
        self._manager.remove_directory(log.directory, deleted, log.config.file_delete_delay_ms)
        logger.info(
            "%s: moved from %s to %s; appends waited for %d ms",
            log.name,
            log.log_dir,
            move.target_dir,
            round((self._runtime.monotonic() - started) * 1000),
        )

    def _finish_later(self, move: LogMove) -> None:
        if self._moves.get((move.log.topic, move.log.partition)) is move:
            move.resume()
