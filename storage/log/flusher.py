"""What has been written reaches the disk for good: fsync of rolled segments, flush.messages and flush.ms.

`recovery_point` is the offset below which everything would survive a power failure. Threads do the syncing.
A batch that flush.messages makes durable before it is acknowledged is held back meanwhile: `append` says
`awaits_sync`, `when_synced` calls when it may be acknowledged, and until then the high watermark hides it.
All batches that come while one sync runs share the next (group commit).

A failed sync ends the log's appends, because the kernel then may have dropped what it had taken.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from barnabas.runtime.interface import Runtime
from barnabas.storage.disk.disk import Disk
from barnabas.storage.errors import StorageError, is_passing
from barnabas.storage.log.leader_epochs import LeaderEpochCache
from barnabas.storage.log.log_config import LONG_MAX, LogConfig
from barnabas.storage.log.reader import ReadableLog
from barnabas.storage.manager.directory import PARTITION_METADATA
from barnabas.storage.segment.segment import Segment
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.storage.log.high_watermark import WatermarkedLog

logger = logging.getLogger("barnabas.storage")

EPOCH_FILE = "leader-epoch-checkpoint"
_RETRY_S = 1.0  # until a sync is tried again for which there was no descriptor

Synced = Callable[[str | None], object]  # what went wrong, or None


class LogEvents(Protocol):
    """What a log tells whoever owns it."""

    def start_offset_changed(self, log: SyncedLog) -> None:
        """Records at the log's start can be read no more."""
        ...

    def truncating(self, log: WatermarkedLog, offset: int) -> None:
        """Everything from `offset` on is about to go. OSError when it must not, as it could come back."""
        ...

    def directory_failed(self, log_dir: str, reason: str) -> None:
        """The disk below has failed, in a way that more room or fewer open files will not heal."""
        ...


def _nothing() -> None:
    pass


class SyncedLog(ReadableLog):
    """The syncing part of `Log`, which sets these attributes."""

    __slots__ = (
        "_disk",
        "_epochs",
        "_events",
        "_flush_pending",
        "_held_from",
        "_names_synced",
        "_new_names",
        "_not_indexed",
        "_released",
        "_runtime",
        "_sealing",
        "_sync_to",
        "_sync_waiters",
        "_syncing",
        "_truncations",
        "cleaning",
        "config",
        "directory",
        "failure",
        "log_dir",
        "recovery_point",
    )

    config: LogConfig
    cleaning: bool  # a cleaner works on the segments: retention passes the log over
    directory: str
    log_dir: str
    failure: str | None  # set when the disk has lost what it had taken; only a restart heals
    recovery_point: int
    _disk: Disk
    _epochs: LeaderEpochCache
    _events: LogEvents | None
    _new_names: int  # how often names, or the small files beside the segments, have changed
    _names_synced: int  # how many of these changes a power failure could not undo
    _flush_pending: bool
    _held_from: int  # from here on nothing is shown before it has been synced; -1: all is shown
    _not_indexed: tuple[int, ...]  # base offsets of the segments whose indexes could not be saved
    _released: bool
    _runtime: Runtime
    _sealing: tuple[int, ...]  # base offsets of the segments that a thread is sealing
    _sync_to: int  # how far a sync has been asked for
    _sync_waiters: list[tuple[int, Synced]] | None  # (end offset, to be called once that is synced)
    _syncing: bool
    _truncations: int  # a sync that began before one says nothing about what was written after

    @property
    def closed(self) -> bool:
        """Whether the log has let go of its files for good."""
        return self._released

    def is_sealing(self, segment: Segment) -> bool:
        """Whether a thread is about to write what lies beside the segment."""
        return segment.base_offset in self._sealing

    def _flush_as_configured(self, base_offset: int) -> bool:
        """After an append from `base_offset` on: whether its acknowledgement awaits a sync (flush.messages)."""
        config = self.config
        if self.log_end_offset - max(self.recovery_point, self._sync_to) >= config.flush_messages:
            if self._held_from < 0:
                self._held_from = base_offset
            self._sync()
            return self._held_from >= 0
        if config.flush_ms != LONG_MAX and not self._flush_pending:
            self._flush_pending = True
            self._runtime.call_later(config.flush_ms / 1000, self._flush_due)
        return False

    def awaits_sync(self, offset: int) -> bool:
        """Whether the record at `offset` is not to be acknowledged before `when_synced(offset + 1)`."""
        return 0 <= self._held_from <= offset

    def when_synced(self, offset: int, call: Synced) -> None:
        """Call once everything below `offset` would survive a power failure, or can't be made to."""
        if self.failure is not None:
            call(self.failure)
        elif self.recovery_point >= offset:
            call(None)
        else:
            if self._sync_waiters is None:
                self._sync_waiters = []
            self._sync_waiters.append((offset, call))

    def sync_soon(self) -> None:
        """Have a thread sync everything appended so far; `when_synced` tells."""
        if not self._released and self.failure is None and self.recovery_point < self.log_end_offset:
            self._sync()

    def _flush_due(self) -> None:
        self._flush_pending = False
        self.sync_soon()

    def _sync(self) -> None:
        """Have everything up to the log's end synced by a thread, behind the sync that runs if one does."""
        end = self._sync_to = self.log_end_offset
        if self._syncing:
            return
        truncations = self._truncations
        names = self._new_names
        try:
            work = self._sync_work()
        except OSError as error:
            self._sync_failed(error)
            return

        def done(_: object, error: BaseException | None) -> None:
            self._syncing = False
            if error is not None:
                self._sync_failed(error)
                return
            self._names_synced = max(self._names_synced, names)
            if truncations == self._truncations:
                self._synced(end)
            if self.failure is None and not self._released and self.recovery_point < self._sync_to:
                self._sync()

        self._syncing = True
        self._runtime.run_in_thread(work, done)

    def _sync_work(self) -> Callable[[], None]:
        """The blocking part of a sync of everything that has not been synced. OSError when a file can't be opened."""
        files = [
            segment.open_for_append()
            for index, segment in enumerate(self._segments)
            if segment is self._active or self._bases[index + 1] > self.recovery_point
        ]
        sync_names = self._names_work()

        def work() -> None:
            for file in files:
                file.sync()
            sync_names()

        return work

    def save_epochs(self) -> None:
        """Write the leader epochs that have begun, if they are not in their file. OSError."""
        if self._epochs.unsaved and not self._released:
            self._epochs.save()
            self._new_names += 1

    def _names_work(self) -> Callable[[], object]:
        """The blocking part of bringing the names to the medium: a synced file whose name is lost is lost. OSError when
        the leader epochs, which are to be synced along with them, can't be written."""
        if self._epochs.unsaved:
            self.save_epochs()
        if self._names_synced == self._new_names:
            return _nothing
        disk, directory, log_dir = self._disk, self.directory, self.log_dir

        def work() -> None:
            for name in (EPOCH_FILE, PARTITION_METADATA):
                try:
                    file = disk.open(f"{directory}/{name}")
                except FileNotFoundError:
                    continue
                file.sync()
            disk.sync_directory(directory)
            disk.sync_directory(log_dir)

        return work

    def _synced(self, end: int) -> None:
        """All below `end` is on the medium: show it, and tell who waits for it. Not after another sync has failed: what
        that one has lost, a later one can't know."""
        if self.failure is not None:
            return
        self.recovery_point = max(self.recovery_point, end)
        if self._held_from >= 0:
            # What has been shown stays so: a rolled segment may be synced sooner than what lies in front of this.
            held_from = max(self._held_from, self.recovery_point)
            self._held_from = held_from if self.recovery_point < self._sync_to else -1
        self._call_waiters(self.recovery_point, None)

    def _call_waiters(self, end: int, error: str | None) -> None:
        waiters = self._sync_waiters
        if waiters:
            self._sync_waiters = [waiter for waiter in waiters if waiter[0] > end] or None
            for offset, call in waiters:
                if offset <= end:
                    call(error)

    def flush(self) -> None:
        """Return once everything appended would survive a power failure; KAFKA_STORAGE_ERROR when it might not."""
        if self.failure is not None:  # the kernel may have dropped what a sync that works now would not write
            raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, self.failure)
        if self.recovery_point >= self.log_end_offset:
            return
        names = self._new_names
        try:
            self._sync_work()()
        except OSError as error:
            self._sync_failed(error)
            raise StorageError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name} can't be synced: {error}"
            ) from error
        for segment in self._segments:
            if segment is not self._active:
                segment.release()
        self._names_synced = max(self._names_synced, names)
        self._sync_to = self.log_end_offset
        self._synced(self.log_end_offset)

    def _seal(self, segment: Segment, end_offset: int, write_beside: Callable[[], object]) -> None:
        """Sync a segment that is complete, and its indexes, in a thread; then do `write_beside` there."""
        file = segment.open_for_append()
        segment.release()
        truncations = self._truncations
        names = self._new_names
        sync_names = self._names_work()
        self._sealing = (*self._sealing, segment.base_offset)

        def work() -> bool:
            file.sync()
            if (
                self._released
            ):  # deleted meanwhile: by now its directory may be that of another log of its name
                return True
            sync_names()
            try:
                segment.save_indexes(sync=True)
                write_beside()
            except OSError as error:  # they are rebuilt, should memory be lost
                logger.warning("%s: indexes stay in memory: %s", segment.path, error)
                return False
            return True

        def done(indexed: bool | None, error: BaseException | None) -> None:
            self._sealing = tuple(base for base in self._sealing if base != segment.base_offset)
            if error is not None:
                self._not_indexed = (*self._not_indexed, segment.base_offset)
                self._sync_failed(error)
                return
            self._names_synced = max(self._names_synced, names)
            if not indexed:
                self._not_indexed = (*self._not_indexed, segment.base_offset)
            if segment.base_offset <= self.recovery_point < end_offset and truncations == self._truncations:
                self._synced(end_offset)
            self._after_seal(segment, end_offset)

        self._runtime.run_in_thread(work, done)

    @property
    def sealed_offset(self) -> int:
        """Below it (exclusive) no segment changes any more, nor do its indexes."""
        return min(self._sealing, default=self._active.base_offset)

    @property
    def recovery_checkpoint(self) -> int:
        """Where a start after a crash has to begin reading: the recovery point, but no segment is passed over
        whose indexes may be torn."""
        return min(self.recovery_point, *self._sealing, *self._not_indexed, LONG_MAX)

    @property
    def start_checkpoint(self) -> int | None:
        """The start offset, unless the first segment's name says it and will go on to, as Kafka has it."""
        first = self._bases[0] if self._names_synced == self._new_names else 0
        return self.log_start_offset if self.log_start_offset > first else None

    def _after_seal(self, segment: Segment, end_offset: int) -> None:
        """The segment's indexes have been written, and what lies beside it."""

    def _sync_failed(self, error: BaseException) -> None:
        """Without a descriptor nothing was asked of the disk, so nothing is lost: it is tried again."""
        if self._released:
            return
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            logger.warning("%s is synced later: %s", self.name, error)
            self._runtime.call_later(_RETRY_S, self.sync_soon)
        else:
            self._fail(f"{self.name} can't be synced: {error}", error)

    def _fail(self, reason: str, error: BaseException) -> None:
        """The disk may have lost what it had taken: no more appends."""
        if self.failure is None:
            self.failure = reason
            logger.error("%s: no more appends until a restart: %s", self.name, reason)
        self._call_waiters(LONG_MAX, reason)
        self.io_failed(error)

    def io_failed(self, error: BaseException) -> None:
        """Tell the owner of an error that says that the whole directory has failed. For errors of this log's
        files, wherever they were met. A log that is closed has none: they were deleted, or lie elsewhere."""
        if self._released:
            return
        if self._events is not None and isinstance(error, OSError) and not is_passing(error):
            self._events.directory_failed(self.log_dir, f"{self.name}: {error}")

    def read_failed(self, error: OSError) -> None:
        """A medium that can't be read takes its directory offline, as in Kafka."""
        if error.errno == errno.EIO:
            self.io_failed(error)

    def fail(self, reason: str) -> None:
        """The directory has failed: from now on everything is KAFKA_STORAGE_ERROR. Files are let go."""
        self.failure = self.failure or reason
        self.offline = True
        self._call_waiters(LONG_MAX, reason)
        for segment in self._segments:
            segment.release()
