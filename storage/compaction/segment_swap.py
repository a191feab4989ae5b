"""Replaces segments by a cleaned one, so that after a crash at any step the log has the old segments or the new one.

    1. `.cleaned` files are renamed to `.swap`, and that is synced: from here on a start completes the swap.
    2. The log's list changes; the old files are renamed to `.deleted`, and that is synced.
    3. `.swap` loses its suffix, and that is synced.

Renames that are not synced may survive in any order, so each step waits for the one before; log/recovery.py describes what a
start does in each state. The renames happen on the loop, the syncs in a thread. Readers see the old segments until step 2 and
the new one from then on; regions that wait to be sent keep their files open.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from barnabas.runtime.interface import Runtime
from barnabas.storage.disk.disk import Disk
from barnabas.storage.log.log import Log
from barnabas.storage.segment.segment import SWAP_SUFFIX, Segment

logger = logging.getLogger("barnabas.storage")

Done = Callable[[bool, BaseException | None], object]


class SegmentSwap:
    """One swap. `done(happened, error)` is called once, unless `stop` or `abandon` was called."""

    def __init__(
        self, disk: Disk, runtime: Runtime, log: Log, cleaned: Segment, old: Sequence[Segment], done: Done
    ) -> None:
        self._disk = disk
        self._runtime = runtime
        self._log = log
        self._cleaned = cleaned
        self._old = old
        self._done: Done | None = done
        self.replaced = False  # whether the log has the new segment

    def start(self) -> None:
        if not self._can_replace():
            self._fail(None)
            return
        self._step(lambda: self._cleaned.rename(SWAP_SUFFIX), self._replace)

    def _can_replace(self) -> bool:
        """Whether the log still has the old segments, none of them the active one."""
        log = self._log
        return not log.closed and log.failure is None and log.segments.holds(self._old)

    def _replace(self) -> None:
        if not self._can_replace():
            self._fail(None)
            return
        self.replaced = True
        self._step(lambda: self._log.replace_segments(self._cleaned, self._old), self._take_final_name)

    def _take_final_name(self) -> None:
        self._step(lambda: self._cleaned.rename(""), lambda: self._finish(True, None))

    def _step(self, change: Callable[[], object], following: Callable[[], object]) -> None:
        """Change names, sync the directory, then `following`; deleting the log meanwhile ends the swap."""

        def synced(_: object, error: BaseException | None) -> None:
            if self._done is None:
                return
            if self._log.closed:
                self._finish(False, None)
            elif error is not None:
                self._fail(error)
            else:
                following()

        try:
            change()
        except OSError as error:
            self._fail(error)
            return
        directory = self._log.directory
        self._runtime.run_in_thread(lambda: self._disk.sync_directory(directory), synced)

    def _fail(self, error: BaseException | None) -> None:
        if not self.replaced:
            self._remove()
        self._finish(False, error)

    def _finish(self, happened: bool, error: BaseException | None) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(happened, error)

    def _remove(self) -> None:
        try:
            for path in self._cleaned.files:
                self._disk.remove(path)
        except OSError as error:
            logger.warning("%s can't be removed: %s", self._cleaned.path, error)

    def abandon(self) -> None:
        """The log has been truncated: the cleaned segment must not be swapped in by a start. Blocks. OSError when it might
        be."""
        if self.replaced:
            return
        self._done = None
        for path in self._cleaned.files:
            self._disk.remove(path)
        self._disk.sync_directory(self._log.directory)

    def stop(self) -> None:
        """After the loop has stopped: complete or undo the swap. Blocks. After an OSError the next start does so."""
        self._done = None
        if self._log.closed:
            return
        if self.replaced:
            self._disk.sync_directory(self._log.directory)
            self._cleaned.rename("")
        else:
            self._remove()
        self._disk.sync_directory(self._log.directory)
