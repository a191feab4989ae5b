"""Syncing a log: fsync of rolled segments, flush.messages and flush.ms.

Everything below `recovery_point` survives a power failure. Threads do the syncing. A batch that flush.messages makes durable
before its acknowledgement is held back meanwhile: `appended` returns True, `when_synced` calls when the batch may be
acknowledged, and until then the high watermark hides it. All batches that arrive while one sync runs share the next one
(group commit).

A failed sync ends the log's appends, because the kernel may have dropped the pages that it could not write.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from barnabas.runtime.interface import Runtime
from barnabas.storage.errors import StorageError, is_transient
from barnabas.storage.log.leader_epochs import EPOCH_FILE, LeaderEpochCache
from barnabas.storage.log.log_config import LONG_MAX
from barnabas.storage.log.partition_directory import PartitionDirectory
from barnabas.storage.log.segments import LogSegments
from barnabas.storage.segment.segment import Segment
from barnabas.wire.errors import ErrorCode

logger = logging.getLogger("barnabas.storage")

PARTITION_METADATA = "partition.metadata"  # holds the topic id

_RETRY_S = 1.0  # before a sync that found no free descriptor is tried again

Synced = Callable[[str | None], object]  # gets the reason of a failure, or None


class _NotIndexed(NamedTuple):
    """A closed segment, beside which not all files could be written, and where the next one begins."""

    segment: Segment
    end_offset: int
    write_beside: Callable[[], object]

    def write(self) -> None:
        """Blocking. OSError."""
        self.segment.save_indexes(sync=True)
        self.write_beside()


class Flusher:
    """Syncs one log's segments and names. `directory_failed(log_dir, reason)` is called when an error shows that the whole log
    directory has failed."""

    __slots__ = (
        "_appended_to",
        "_awaiting_names",
        "_directory",
        "_directory_failed",
        "_epochs",
        "_flush_pending",
        "_names_changed",
        "_names_synced",
        "_not_indexed",
        "_removed",
        "_runtime",
        "_sealed_ahead",
        "_sealing",
        "_segments",
        "_sync_to",
        "_syncing",
        "_waiters",
        "closed",
        "failure",
        "held_from",
        "recovery_point",
        "truncations",
    )

    def __init__(
        self,
        directory: PartitionDirectory,
        runtime: Runtime,
        segments: LogSegments,
        epochs: LeaderEpochCache,
        directory_failed: Callable[[str, str], object],
        *,
        recovery_point: int,
        names_synced: bool,
    ) -> None:
        """`names_synced`: a power failure could undo no change of the names in `directory`, nor of the small files there."""
        self._directory = directory
        self._runtime = runtime
        self._segments = segments
        self._epochs = epochs
        self._directory_failed = directory_failed
        self.recovery_point = recovery_point
        self.failure: str | None = (
            None  # set when the disk may have lost what it had accepted; only a restart resets it
        )
        self.closed = False  # the log has released its files
        self.held_from = (
            -1
        )  # records from this offset on are not shown before they are synced; -1: all are shown
        self.truncations = 0  # a sync that began before one does not cover what was written after it
        self._names_changed = 1  # number of changes of names, and of the small files beside the segments
        self._names_synced = (
            1 if names_synced else 0
        )  # number of these changes that a power failure could not undo
        self._awaiting_names = 0  # calls of when_names_synced that wait
        self._not_indexed: tuple[_NotIndexed, ...] = ()
        self._sealing: tuple[int, ...] = ()  # base offsets of the segments that a thread is sealing
        # (base offset, end) of segments that are synced before what precedes them: threads may end in another order
        self._sealed_ahead: tuple[tuple[int, int], ...] = ()
        # (path, end offset) of unsynced segments that are out of the list, and that a start may still find
        self._removed: tuple[tuple[str, int], ...] = ()
        self._flush_pending = False
        self._appended_to = 0  # the log's end at the last append, while flush.ms or flush.messages is set
        self._sync_to = -1  # the end of what a sync has been requested for
        self._syncing = False
        self._waiters: list[tuple[int, Synced]] | None = (
            None  # (end offset, called once everything below it is synced)
        )

    # --- requests

    def awaits_sync(self, offset: int) -> bool:
        """Whether the record at `offset` must not be acknowledged before `when_synced(offset + 1)`."""
        return 0 <= self.held_from <= offset

    def appended(self, base_offset: int, end_offset: int, flush_messages: int, flush_ms: int) -> bool:
        """Flush as configured after an append; whether its acknowledgement awaits a sync (flush.messages)."""
        self._appended_to = end_offset
        if end_offset - max(self.recovery_point, self._sync_to) >= flush_messages:
            if self.held_from < 0:
                self.held_from = base_offset
            self._sync(end_offset)
            return self.held_from >= 0
        if flush_ms != LONG_MAX and not self._flush_pending:
            self._flush_pending = True
            self._runtime.call_later(flush_ms / 1000, self._flush_due)
        return False

    def _flush_due(self) -> None:
        self._flush_pending = False
        self.sync_soon(self._appended_to)

    def sync_soon(self, end_offset: int) -> None:
        """Sync everything below `end_offset`, the log's end, in a thread."""
        if not self.closed and self.failure is None and self.recovery_point < end_offset:
            self._sync(end_offset)

    def when_synced(self, offset: int, call: Synced) -> None:
        """Call once everything below `offset` survives a power failure, or the sync has failed."""
        if self.failure is not None:
            call(self.failure)
        elif self.recovery_point >= offset:
            call(None)
        else:
            if self._waiters is None:
                self._waiters = []
            self._waiters.append((offset, call))

    def flush(self, end_offset: int) -> None:
        """Sync everything below `end_offset`, the log's end. Blocking; KAFKA_STORAGE_ERROR when it fails."""
        if self.failure is not None:  # a sync that works now would not write what the kernel has dropped
            raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, self.failure)
        if self.recovery_point >= end_offset:
            return
        names = self._names_changed
        try:
            self._sync_work()()
        except OSError as error:
            self.sync_failed(error)
            raise StorageError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{self._directory.name} can't be synced: {error}"
            ) from error
        self._segments.release_rolled()
        self._names_synced = max(self._names_synced, names)
        self._sync_to = end_offset
        self._synced(end_offset)

    # --- one sync

    def _sync(self, end_offset: int) -> None:
        """Sync everything below `end_offset` in a thread, after the sync that runs if there is one."""
        self._sync_to = end_offset
        if self._syncing:
            return
        truncations = self.truncations
        names = self._names_changed
        try:
            work = self._sync_work()
        except OSError as error:
            self.sync_failed(error)
            return

        def done(_: object, error: BaseException | None) -> None:
            self._syncing = False
            if error is not None:
                self.sync_failed(error)
                return
            self._names_synced = max(self._names_synced, names)
            if truncations == self.truncations:
                self._synced(end_offset)
            if self.failure is None and not self.closed and self.recovery_point < self._sync_to:
                self._sync(max(self._sync_to, self._appended_to))

        self._syncing = True
        self._runtime.run_in_thread(work, done)

    def _sync_work(self) -> Callable[[], None]:
        """The blocking part of a sync of everything unsynced. OSError when a file can't be opened."""
        files = [segment.open_for_append() for segment in self._segments.reaching_beyond(self.recovery_point)]
        for path, _ in self._removed:
            with suppress(FileNotFoundError):  # renamed meanwhile, which is synced with the names
                files.append(self._directory.disk.open(path))
        sync_names = self.names_work()

        def work() -> None:
            for file in files:
                file.sync()
            sync_names()

        return work

    def _synced(self, end_offset: int) -> None:
        """Everything below `end_offset` is on the disk. Ignored after another sync has failed: a later sync does not
        cover what that one has lost."""
        if self.failure is not None:
            return
        self.recovery_point = max(self.recovery_point, end_offset)
        for base_offset, end in sorted(self._sealed_ahead):
            if base_offset <= self.recovery_point:
                self.recovery_point = max(self.recovery_point, end)
        self._sealed_ahead = tuple(each for each in self._sealed_ahead if each[1] > self.recovery_point)
        self._removed = tuple(each for each in self._removed if each[1] > self.recovery_point)
        if self.held_from >= 0:
            # The end of what is shown never goes back: a rolled segment may be synced sooner than what precedes it.
            held_from = max(self.held_from, self.recovery_point)
            self.held_from = held_from if self.recovery_point < self._sync_to else -1
        self._call_waiters(self.recovery_point, None)

    def _call_waiters(self, end_offset: int, error: str | None) -> None:
        waiters = self._waiters
        if waiters:
            self._waiters = [waiter for waiter in waiters if waiter[0] > end_offset] or None
            for offset, call in waiters:
                if offset <= end_offset:
                    call(error)

    # --- names: a synced file whose name is lost is lost

    def names_changed(self) -> None:
        """A name in the directory has changed, or a small file beside the segments."""
        self._names_changed += 1

    @property
    def names_are_synced(self) -> bool:
        """Whether a power failure could undo no change of the names, and none is about to follow."""
        return self._names_synced == self._names_changed and not self._awaiting_names

    @property
    def awaits_names(self) -> bool:
        """Whether a call of `when_names_synced` waits."""
        return self._awaiting_names > 0

    def save_epochs(self) -> None:
        """Write the leader epochs that are not in their file yet. OSError."""
        if self._epochs.unsaved and not self.closed:
            self._epochs.save()
            self._names_changed += 1

    def names_work(self) -> Callable[[], object]:
        """The blocking part of syncing the names. OSError when the leader epochs, which are synced along with them, can't
        be written."""
        self.save_epochs()
        if self.names_are_synced:
            return _nothing
        directory, disk = self._directory, self._directory.disk

        def work() -> None:
            for name in (EPOCH_FILE, PARTITION_METADATA):
                try:
                    file = disk.open(f"{directory.path}/{name}")
                except FileNotFoundError:
                    continue
                file.sync()
            disk.sync_directory(directory.path)
            disk.sync_directory(directory.log_dir)

        return work

    def when_names_synced(self, call: Callable[[], object]) -> None:
        """Call once a power failure could undo no change of the names until now, or when the disk lacks the room or the
        descriptors to sync them; not if the sync fails otherwise or the log is closed. OSError."""
        if self.names_are_synced:
            call()
            return
        names = self._names_changed
        try:
            work = self.names_work()
        except OSError as error:
            if not is_transient(error):
                raise
            call()
            return

        def done(_: object, error: BaseException | None) -> None:
            self._awaiting_names -= 1
            if error is None:
                self._names_synced = max(self._names_synced, names)
            else:
                self.sync_failed(error)
                if not isinstance(error, OSError) or not is_transient(error):
                    return
            if not self.closed:
                call()

        self._awaiting_names += 1
        self._runtime.run_in_thread(work, done)

    # --- rolled segments

    def seal(
        self,
        segment: Segment,
        end_offset: int,
        write_beside: Callable[[], object],
        sealed: Callable[[], object],
    ) -> None:
        """Sync a segment that is complete, and its indexes, in a thread, and do `write_beside` there; then call `sealed`."""
        file = segment.open_for_append()
        segment.release()
        truncations = self.truncations
        names = self._names_changed
        sync_names = self.names_work()
        this = _NotIndexed(segment, end_offset, write_beside)
        self._sealing = (*self._sealing, segment.base_offset)

        def work() -> bool:
            file.sync()
            if (
                self.closed
            ):  # deleted meanwhile: the directory may belong to another log of the same name by now
                return True
            sync_names()
            try:
                this.write()
            except OSError as error:  # `write_missing` tries again, and a start after a crash rebuilds them
                logger.warning("%s: indexes stay in memory: %s", segment.path, error)
                return False
            return True

        def done(indexed: bool | None, error: BaseException | None) -> None:
            self._sealing = tuple(base for base in self._sealing if base != segment.base_offset)
            if error is not None:
                self._not_indexed = (*self._not_indexed, this)
                self.sync_failed(error)
                return
            self._names_synced = max(self._names_synced, names)
            if not indexed:
                self._not_indexed = (*self._not_indexed, this)
            if self.recovery_point < end_offset and truncations == self.truncations:
                self._sealed_ahead = (*self._sealed_ahead, (segment.base_offset, end_offset))
                if segment.base_offset <= self.recovery_point:
                    self._synced(end_offset)
            sealed()

        self._runtime.run_in_thread(work, done)

    def write_missing(self) -> None:
        """Before a clean stop: write what is missing beside closed segments that are still part of the log. Blocking. OSError."""
        bases = self._segments.bases
        for each in self._not_indexed:
            if each.end_offset in bases and any(each.segment is segment for segment in self._segments):
                each.write()
        self._not_indexed = ()

    def is_indexed(self, base_offset: int) -> bool:
        """Whether the files beside the closed segment at `base_offset` could be written."""
        return all(each.segment.base_offset != base_offset for each in self._not_indexed)

    def is_sealing(self, base_offset: int) -> bool:
        """Whether a thread is writing the files beside the segment at `base_offset`."""
        return base_offset in self._sealing

    def is_sealing_from(self, base_offset: int) -> bool:
        """Whether that holds for a segment at `base_offset` or later."""
        return any(sealing >= base_offset for sealing in self._sealing)

    @property
    def sealed_offset(self) -> int:
        """End (exclusive) of the segments that no longer change, nor do their indexes."""
        return min(self._sealing, default=self._segments.active.base_offset)

    def segments_removed(self, segments: Sequence[Segment]) -> None:
        """These have been removed from the start of the list; their files follow later. Until a power failure could not bring
        them back they are synced like the others: a start that found one torn would cut off all that lies behind it."""
        ends = [*(segment.base_offset for segment in segments[1:]), self._segments.bases[0]]
        self._removed += tuple(
            (segment.path, end)
            for segment, end in zip(segments, ends, strict=True)
            if end > self.recovery_point
        )

    def lower_recovery_point(self, offset: int) -> bool:
        """Claim no more than `offset` from now on, before the log is cut there; whether it claimed more."""
        if offset >= self.recovery_point:
            return False
        self.recovery_point = offset
        return True

    @property
    def recovery_checkpoint(self) -> int:
        """Where a start after a crash has to begin reading: the recovery point, or the first segment whose indexes may be
        torn."""
        not_indexed = (each.segment.base_offset for each in self._not_indexed)
        return min(self.recovery_point, *self._sealing, *not_indexed, LONG_MAX)

    # --- truncation

    def truncated(self, offset: int) -> None:
        """The log ends at `offset` now. `refuse_waiters` follows once the rest of the log is truncated too."""
        self.truncations += 1
        self._sealed_ahead = ()
        self.recovery_point = min(self.recovery_point, offset)
        self._appended_to = min(self._appended_to, offset)
        self._sync_to = min(self._sync_to, offset)
        if offset <= self.held_from:  # everything that was held back is gone
            self.held_from = -1
        self._names_changed += 1

    def restarted(self, offset: int) -> None:
        """The log is empty and begins at `offset`."""
        self.recovery_point = self._sync_to = offset
        self._sealed_ahead = ()

    def refuse_waiters(self, offset: int) -> None:
        """Call the waiters for records from `offset` on with an error."""
        waiters = self._waiters
        if waiters:
            self._waiters = [waiter for waiter in waiters if waiter[0] <= offset] or None
            for end, call in waiters:
                if end > offset:
                    call(f"{self._directory.name} has been cut back to {offset}")

    # --- failure and close

    def sync_failed(self, error: BaseException) -> None:
        """End the log's appends. Without a free descriptor the disk was not asked, so nothing is lost: try again later."""
        if self.closed:
            return
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            logger.warning("%s is synced later: %s", self._directory.name, error)
            self._runtime.call_later(_RETRY_S, lambda: self.sync_soon(self._sync_to))
        else:
            self.fail(f"{self._directory.name} can't be synced: {error}", error)

    def fail(self, reason: str, error: BaseException) -> None:
        """Allow no more appends: the disk may have lost what it had accepted."""
        if self.failure is None:
            self.failure = reason
            logger.error("%s: no more appends until a restart: %s", self._directory.name, reason)
        self._call_waiters(LONG_MAX, reason)
        self.io_failed(error)

    def io_failed(self, error: BaseException) -> None:
        """Report an error of this log's files if it says that the whole directory has failed. A closed log reports none:
        its files were deleted, or are another log's."""
        if not self.closed and isinstance(error, OSError) and not is_transient(error):
            self._directory_failed(self._directory.log_dir, f"{self._directory.name}: {error}")

    def take_offline(self, reason: str) -> None:
        """The directory has failed: everything is KAFKA_STORAGE_ERROR from now on."""
        self.failure = self.failure or reason
        self._call_waiters(LONG_MAX, reason)

    def close(self) -> None:
        """Sync no more. Callers of `when_synced` get an error."""
        self.closed = True
        if self._waiters:
            self._runtime.call_soon(
                lambda: self._call_waiters(LONG_MAX, f"{self._directory.name} has been closed")
            )


def _nothing() -> None:
    pass
