"""The moves between directories that are under way, of all logs: asked for, followed, ended, begun again.

A partition has one move at most; asking for another directory ends the one before. What a stop interrupts is
found by its directory, `...-future`, and begun again from nothing at the next start.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from barnabas.runtime.interface import Runtime
from barnabas.storage.disk.disk import Disk
from barnabas.storage.errors import StorageError, is_passing
from barnabas.storage.log.log import Log
from barnabas.storage.manager.directory import (
    DELETE_SUFFIX,
    FUTURE_SUFFIX,
    parse_directory_name,
    random_uuid,
    suffixed_name,
)
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.storage.manager.log_move import LogMove

logger = logging.getLogger("barnabas.storage")

_NAME_MAX = 255
_FUTURE_NAME_REST = len(".") + 32 + len(FUTURE_SUFFIX)


def parse_future_name(name: str) -> tuple[str, int] | None:
    """(topic, partition) of `<topic>-<partition>.<unique>-future`; None for anything else."""
    if not name.endswith(FUTURE_SUFFIX):
        return None
    return parse_directory_name(name.removesuffix(FUTURE_SUFFIX).rpartition(".")[0])


class Home(Protocol):
    """The LogManager, as far as moves need it."""

    log_dirs: list[str]
    offline: dict[str, str]

    def get(self, topic: str, partition: int) -> Log | None: ...

    def open_moved(self, log: Log, log_dir: str) -> Log:
        """The log anew, from its copy in another directory. OSError."""
        ...

    def reopen(self, log: Log) -> None:
        """A closed log anew where it was."""
        ...

    def replace(self, old: Log, new: Log) -> None:
        """Have `new` stand for a closed log from now on."""
        ...

    def remove_directory(self, path: str, doomed: str, delay_ms: int) -> None:
        """Rename a directory to `doomed` and remove it later."""
        ...

    def directory_failed(self, log_dir: str, reason: str) -> None: ...


class LogMoves:
    """See the module. All calls on the loop's thread."""

    def __init__(self, manager: Home, disk: Disk, runtime: Runtime) -> None:
        self._manager = manager
        self._disk = disk
        self._runtime = runtime
        self._moves: dict[tuple[str, int], LogMove] = {}
        self.bytes_per_second: Callable[[], float] = lambda: float("inf")  # over which no move goes

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
        target_dir = next((path for path in manager.log_dirs if os.path.abspath(path) == directory), None)
        if target_dir is None:
            raise StorageError(
                ErrorCode.LOG_DIR_NOT_FOUND, f"Log dir {directory} is not found in the config."
            )
        if target_dir in manager.offline:
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
        if manager.offline:
            raise StorageError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"Can not create log for {topic}-{partition} because log directories "
                f"{', '.join(manager.offline)} are offline",
            )
        self._start(log, target_dir)

    def _start(self, log: Log, target_dir: str) -> None:
        from barnabas.storage.manager.log_move import LogMove  # late: few brokers ever move a log

        move = LogMove(
            self._disk,
            self._runtime,
            log,
            target_dir,
            random_uuid(self._runtime),
            lambda: self.bytes_per_second(),
            self._finish,
            self._failed,
        )
        self._moves[log.topic, log.partition] = move
        logger.info("%s: moving from %s to %s", log.name, log.log_dir, target_dir)
        try:
            move.start()
        except OSError as error:
            del self._moves[log.topic, log.partition]
            if not is_passing(error):
                self._manager.directory_failed(target_dir, str(error))
            raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, f"{move.directory}: {error}") from error

    def all(self) -> list[LogMove]:
        return list(self._moves.values())

    def end(self, topic: str, partition: int) -> None:
        """Give up a move, if there is one: the log stays where it is, or goes with its copy."""
        move = self._moves.pop((topic, partition), None)
        if move is not None:
            move.cancel()
            if move.target_dir not in self._manager.offline:
                self._throw_away(move)

    def resume(self, log_dir: str, names: list[str]) -> None:
        """At start, once every log is open: begin again what was interrupted. `names` are what lies in the
        directory."""
        for name in names:
            key = parse_future_name(name)
            if key is None:
                continue
            self._manager.remove_directory(f"{log_dir}/{name}", f"{log_dir}/{self._doomed_name(*key)}", 0)
            log = self._manager.get(*key)
            if log is None or log.log_dir == log_dir or key in self._moves or self._manager.offline:
                continue
            try:
                self._start(log, log_dir)
            except StorageError as error:
                logger.error("%s: the move to %s is not resumed: %s", log.name, log_dir, error)

    def directory_failed(self, log_dir: str) -> None:
        """Moves to and from it are over."""
        for move in list(self._moves.values()):
            if log_dir in (move.target_dir, move.log.log_dir):
                logger.error("%s: the move to %s is over", move.log.name, move.target_dir)
                self.end(move.log.topic, move.log.partition)

    def stop(self) -> None:
        """Go no further; the next start begins again."""
        for move in self._moves.values():
            move.cancel()

    def _failed(self, move: LogMove, error: BaseException) -> None:
        log = move.log
        if self._moves.get((log.topic, log.partition)) is move:
            del self._moves[log.topic, log.partition]
        move.cancel()
        logger.error("%s: the move to %s has failed: %s", log.name, move.target_dir, error)
        self._throw_away(move)

    def _throw_away(self, move: LogMove) -> None:
        log = move.log
        doomed = f"{move.target_dir}/{self._doomed_name(log.topic, log.partition)}"
        self._manager.remove_directory(move.directory, doomed, log.config.file_delete_delay_ms)

    def _doomed_name(self, topic: str, partition: int) -> str:
        return suffixed_name(topic, partition, random_uuid(self._runtime), DELETE_SUFFIX)

    # --- the last turn

    def _finish(self, move: LogMove) -> None:
        """The copy takes the log's place; or, when that fails, the log is opened again where it was."""
        log = move.log
        key = (log.topic, log.partition)
        if self._moves.get(key) is not move:
            return
        if log.cleaning:  # its segments are about to change
            self._runtime.call_later(1.0, lambda: self._finish_later(move))
            return
        final = f"{move.target_dir}/{log.name}"
        started = self._runtime.monotonic()
        try:
            move.finish()
            self._disk.rename(move.directory, final)
            try:
                self._disk.sync_directory(move.target_dir)
                moved = self._manager.open_moved(log, move.target_dir)
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
        doomed = f"{log.log_dir}/{self._doomed_name(*key)}"
        self._manager.remove_directory(log.directory, doomed, log.config.file_delete_delay_ms)
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
