"""Taking files away without holding the loop: renamed to `.deleted` at once, removed by a thread later.

The new name takes effect in one step, so a start never mistakes what is being removed for a part of the log;
freeing the blocks of a large file takes long, so a thread does it, after `file.delete.delay.ms`, as Kafka.
What a stop leaves behind is removed when the log is opened again (recovery.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from barnabas.storage.disk import Disk
from barnabas.storage.runtime import Runtime

logger = logging.getLogger("barnabas.storage")

DELETED_SUFFIX = ".deleted"


def set_aside(disk: Disk, runtime: Runtime, paths: Iterable[str], delay_ms: int) -> None:
    """Rename those of the files that exist to `.deleted`; a thread removes them `delay_ms` later.

    OSError when a file can't be renamed; those before it are on their way all the same.
    """
    doomed: list[str] = []
    try:
        for path in paths:
            try:
                disk.rename(path, path + DELETED_SUFFIX)
            except FileNotFoundError:
                continue
            doomed.append(path + DELETED_SUFFIX)
    finally:
        if doomed:
            runtime.call_later(delay_ms / 1000, lambda: _remove(disk, runtime, doomed))


def _remove(disk: Disk, runtime: Runtime, paths: list[str]) -> None:
    def work() -> None:
        for path in paths:
            disk.remove(path)

    def done(_: None, error: BaseException | None) -> None:
        if error is not None:
            logger.warning("%s and what comes with it can't be removed: %s", paths[0], error)

    runtime.run_in_thread(work, done)
