"""Deferred deletion: files are renamed to `.deleted` at once, and removed by a thread later.

The new name takes effect in one step, so a start never takes a deleted file for a part of the log. Freeing the blocks of a
large file takes long, so a thread does it, after `file.delete.delay.ms`, as in Kafka. Files that are still there after a stop
are removed when the log is opened again (recovery.py).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable

from barnabas.runtime.interface import Runtime
from barnabas.storage.disk.disk import Disk

logger = logging.getLogger("barnabas.storage")

DELETED_SUFFIX = ".deleted"


def delete_later(disk: Disk, runtime: Runtime, paths: Iterable[str], delay_ms: int) -> None:
    """Rename those of the files that exist to `.deleted`; a thread removes them `delay_ms` later.

    OSError when a file can't be renamed; those before it are removed all the same.
    """
    renamed: list[str] = []
    try:
        for path in paths:
            try:
                disk.rename(path, path + DELETED_SUFFIX)
            except FileNotFoundError:
                continue
            renamed.append(path + DELETED_SUFFIX)
    finally:
        if renamed:
            runtime.call_later(delay_ms / 1000, lambda: _remove(disk, runtime, renamed))


def _remove(disk: Disk, runtime: Runtime, paths: list[str]) -> None:
    def work() -> None:
        for path in paths:
            disk.remove(path)

    def done(_: None, error: BaseException | None) -> None:
        if error is not None:
            logger.warning("%s and the files beside it can't be removed: %s", paths[0], error)

    runtime.run_in_thread(work, done)


class DirectoryRemover:
    """Removes directories with all their files, one at a time: a topic of a thousand partitions must not occupy every thread,
    or syncs and cold reads would wait."""

    def __init__(self, disk: Disk, runtime: Runtime) -> None:
        self._disk = disk
        self._runtime = runtime
        self._due: deque[str] = deque()
        self._removing = False
        self._stopped = False

    def remove_later(self, path: str, delay_ms: int) -> None:
        def due() -> None:
            self._due.append(path)
            self._next()

        self._runtime.call_later(delay_ms / 1000, due)

    def stop(self) -> None:
        """Remove no more; the next start removes the rest."""
        self._stopped = True

    def _next(self) -> None:
        if self._removing or self._stopped or not self._due:
            return
        path = self._due.popleft()

        def done(_: None, error: BaseException | None) -> None:
            if error is not None:
                logger.warning("%s can't be removed: %s", path, error)
            self._removing = False
            self._next()

        self._removing = True
        self._runtime.run_in_thread(lambda: self._disk.remove_tree(path), done)
