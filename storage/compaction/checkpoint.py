"""`cleaner-offset-checkpoint` of a log directory: up to where each compacted log is clean, in Kafka's format.

The offsets are kept in memory, and a thread writes the file when one has changed. A late write does no harm: with an offset
that is too low, records are cleaned twice.
"""

from __future__ import annotations

import logging

from barnabas.runtime.interface import Runtime
from barnabas.storage.disk.checkpoint_file import CheckpointError, read_offsets, write_offsets
from barnabas.storage.disk.disk import Disk
from barnabas.storage.manager.directory import CLEANER_OFFSET_FILE

logger = logging.getLogger("barnabas.storage")

Key = tuple[str, int]


class CleanerCheckpoint:
    """The file of one log directory. All calls on the loop's thread but `write_now`, which blocks."""

    def __init__(self, disk: Disk, runtime: Runtime, log_dir: str) -> None:
        """A damaged file counts as none, which is always safe."""
        self._disk = disk
        self._runtime = runtime
        self._path = f"{log_dir}/{CLEANER_OFFSET_FILE}"
        self._writing = False
        self._changed = False
        try:
            self._offsets = read_offsets(disk, self._path)
        except (CheckpointError, OSError) as error:
            logger.warning("%s can't be read (%s) and is ignored", self._path, error)
            self._offsets = {}

    def get(self, key: Key) -> int | None:
        """First dirty offset of (topic, partition); None when it has not been cleaned yet."""
        return self._offsets.get(key)

    def set(self, key: Key, offset: int) -> None:
        if self._offsets.get(key) != offset:
            self._offsets[key] = offset
            self._write()

    def truncate(self, key: Key, offset: int) -> None:
        """Records from `offset` on have been removed; what is appended there is dirty."""
        if self._offsets.get(key, -1) > offset:
            self.set(key, offset)

    def remove(self, key: Key) -> None:
        if self._offsets.pop(key, None) is not None:
            self._write()

    def _write(self) -> None:
        self._changed = True
        if self._writing:
            return
        self._writing = True
        self._changed = False
        offsets = dict(self._offsets)
        self._runtime.run_in_thread(
            lambda: write_offsets(self._disk, self._path, offsets), lambda _, error: self._written(error)
        )

    def _written(self, error: BaseException | None) -> None:
        self._writing = False
        if error is not None:
            self._changed = True  # for the next change, or the stop
            logger.error("%s can't be written: %s", self._path, error)
        elif self._changed:
            self._write()

    def write_now(self) -> None:
        """At a stop: blocks, when something has not been written. OSError when the disk refuses. If a
        thread is writing the file, changes since it began are lost."""
        if self._changed and not self._writing:
            self._changed = False
            write_offsets(self._disk, self._path, self._offsets)
