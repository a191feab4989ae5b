"""What has been written reaches the disk for good: fsync of rolled segments, flush.messages and flush.ms.

`recovery_point` is the offset below which everything would survive a power failure. Threads do the syncing
that nobody waits for; a failed one ends the log's appends, because the kernel then may have dropped what it
had taken.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from barnabas.storage.disk import Disk
from barnabas.storage.errors import StorageError
from barnabas.storage.log_config import LONG_MAX, LogConfig
from barnabas.storage.log_reader import ReadableLog
from barnabas.storage.runtime import Runtime
from barnabas.storage.segment import Segment
from barnabas.wire.errors import ErrorCode

logger = logging.getLogger("barnabas.storage")


class SyncedLog(ReadableLog):
    """The syncing part of `Log`, which sets these attributes."""

    __slots__ = (
        "_disk",
        "_flush_pending",
        "_new_names",
        "_released",
        "_runtime",
        "_truncations",
        "config",
        "directory",
        "failure",
        "log_dir",
        "recovery_point",
    )

    config: LogConfig
    directory: str
    log_dir: str
    failure: str | None  # set when the disk has lost what it had taken; only a restart heals
    recovery_point: int
    _disk: Disk
    _runtime: Runtime
    _new_names: bool  # whether the directory may hold names that a power failure would take
    _flush_pending: bool
    _released: bool
    _truncations: int  # a sync that began before one says nothing about what was written after

    def _flush_as_configured(self) -> None:
        """flush.messages at once, as its promise is about each acknowledgement; flush.ms by a timer."""
        config = self.config
        if self.log_end_offset - self.recovery_point >= config.flush_messages:
            self.flush()
        elif config.flush_ms != LONG_MAX and not self._flush_pending:
            self._flush_pending = True
            self._runtime.call_later(config.flush_ms / 1000, self._flush_due)

    def _flush_due(self) -> None:
        self._flush_pending = False
        if self._released or self.recovery_point >= self.log_end_offset:
            return
        try:
            file = self._active.open_for_append()
        except OSError as error:
            self._fail(f"{self.name} can't be synced: {error}")
            return
        self._sync_in_thread(file.sync, self._active, self.log_end_offset, lambda: None)

    def flush(self) -> None:
        """Return once everything appended would survive a power failure; KAFKA_STORAGE_ERROR when it might not."""
        if self.recovery_point >= self.log_end_offset:
            return
        try:
            for index, segment in enumerate(self._segments):
                if segment is self._active:
                    segment.open_for_append().sync()
                elif self._bases[index + 1] > self.recovery_point:
                    segment.open_for_append().sync()
                    segment.release()
            if self._new_names:  # a synced file whose name is lost is lost
                self._disk.sync_directory(self.directory)
                self._disk.sync_directory(self.log_dir)
                self._new_names = False
        except OSError as error:
            self._fail(f"{self.name} can't be synced: {error}")
            raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, str(self.failure)) from error
        self.recovery_point = self.log_end_offset

    def _seal(self, segment: Segment, end_offset: int) -> None:
        file = segment.open_for_append()
        segment.release()

        def work() -> None:
            file.sync()
            try:
                segment.save_indexes(sync=True)
            except OSError as error:  # they are rebuilt, should memory be lost
                logger.warning("%s: indexes stay in memory: %s", segment.path, error)

        self._sync_in_thread(work, segment, end_offset, lambda: None)

    def _sync_in_thread(
        self, work: Callable[[], object], segment: Segment, end_offset: int, synced: Callable[[], object]
    ) -> None:
        """Raise the recovery point to `end_offset` when `work` has synced `segment`, all before it being so."""
        truncations = self._truncations

        def done(_: object, error: BaseException | None) -> None:
            if error is not None:
                if not self._released:
                    self._fail(f"{segment.path} can't be synced: {error}")
                return
            if segment.base_offset <= self.recovery_point < end_offset and truncations == self._truncations:
                self.recovery_point = end_offset
            synced()

        self._runtime.run_in_thread(work, done)

    def _fail(self, reason: str) -> None:
        if self.failure is None:
            self.failure = reason
            logger.error("%s: no more appends until a restart: %s", self.name, reason)
