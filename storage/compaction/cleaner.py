"""The log cleaner: every `log.cleaner.backoff.ms` it chooses the dirtiest compacted log and cleans it.

It cleans one log at a time, as long as one is dirty enough. Reading and writing run slice by slice in a thread (cleaning.py),
no faster than `log.cleaner.io.max.bytes.per.second`; between two slices the loop checks that the log still exists, swaps in
finished segments (segment_swap.py) and keeps the checkpoint. A log that can't be cleaned is uncleanable until a restart. No
cleaning begins while the wall clock can't be trusted (wall_clock.py). All state belongs to the loop's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from barnabas.runtime.interface import Runtime, Timer
from barnabas.runtime.slices import in_slices
from barnabas.storage.compaction import log_to_clean
from barnabas.storage.compaction.checkpoint import CleanerCheckpoint
from barnabas.storage.compaction.log_to_clean import LogToClean
from barnabas.storage.disk.disk import Disk
from barnabas.storage.errors import StorageError, is_transient
from barnabas.storage.log.log import Log
from barnabas.storage.manager.manager import LogManager, LogManagerEvents
from barnabas.storage.segment.segment import Segment
from barnabas.wire.record_batch import RecordBatchError

if TYPE_CHECKING:
    from barnabas.storage.compaction.job import CleaningJob, Outcome

logger = logging.getLogger("barnabas.cleaner")


class CleanerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The broker's `log.cleaner.*`; Kafka's defaults."""

    threads: int = 1
    backoff_ms: int = 15_000
    dedupe_buffer_size: int = 134_217_728
    io_buffer_load_factor: float = 0.9
    io_max_bytes_per_second: float = 1.7976931348623157e308


class LogCleaner:
    """See the module. `start` once, `stop` when the loop has stopped."""

    def __init__(self, manager: LogManager, disk: Disk, runtime: Runtime, settings: CleanerSettings) -> None:
        self._manager = manager
        self._disk = disk
        self._runtime = runtime
        self._settings = settings
        self._checkpoints: dict[str, CleanerCheckpoint] = {}
        self._uncleanable: dict[tuple[str, int], Log] = {}
        self.max_dirty_ratio = 0.0  # of all logs, as of the last look
        self._timer: Timer | None = None
        self._job: CleaningJob | None = None
        self._stopped = False
        self._free_at = 0.0  # when more bytes may be read and written, on the monotonic clock

    def start(self) -> None:
        for log_dir in self._manager.directories.paths:
            self._checkpoints[log_dir] = CleanerCheckpoint(self._disk, self._runtime, log_dir)
        self._manager.subscribe(
            LogManagerEvents(
                log_removed=self.log_removed, log_truncated=self.log_truncated, log_replaced=self.log_replaced
            )
        )
        self._wait()

    def stop(self) -> None:
        """Leave all logs alone from now on. Blocks for a few syncs at most."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        try:
            if self._job is not None:
                self._job.stop()
            for checkpoint in self._checkpoints.values():
                checkpoint.write_now()
        except OSError as error:
            logger.error("the cleaner was not stopped cleanly: %s", error)

    @property
    def uncleanable_count(self) -> int:
        """How many logs can't be cleaned until a restart."""
        return len(self._uncleanable)

    def reconfigure(self, settings: CleanerSettings) -> None:
        """Use new settings at once; a running cleaning keeps its map."""
        if settings == self._settings:
            return
        self._settings = settings
        if self._timer is not None and not self._stopped:
            self._timer.cancel()
            self._wait()

    # --- events of logs

    def log_removed(self, log: Log) -> None:
        """The log has been deleted, or has become a stray."""
        checkpoint = self._checkpoints.get(log.log_dir)
        if checkpoint is not None:
            checkpoint.remove((log.topic, log.partition))

    def log_truncated(self, log: Log, offset: int) -> None:
        """Everything from `offset` on has been removed. Blocks while a swap is undone; OSError when it can't be."""
        checkpoint = self._checkpoints.get(log.log_dir)
        if checkpoint is not None:
            checkpoint.truncate((log.topic, log.partition), offset)
        if self._job is not None and self._job.log is log:
            self._job.abort()

    def log_replaced(self, old: Log, new: Log) -> None:
        """`new` has replaced `old`, perhaps in another directory, and is as clean."""
        key = old.topic, old.partition
        source, target = self._checkpoints.get(old.log_dir), self._checkpoints.get(new.log_dir)
        offset = source.get(key) if source is not None else None
        if source is not None and target is not None and source is not target and offset is not None:
            target.set(key, offset)
            source.remove(key)

    # --- choosing

    def _wait(self) -> None:
        if not self._stopped:
            self._timer = self._runtime.call_later(self._settings.backoff_ms / 1000, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._stopped:
            return
        if self._settings.threads < 1:
            self._wait()
            return
        candidates: list[LogToClean] = []
        in_slices(self._runtime, self._look_at_all(candidates), partial(self._choose, candidates))

    def _look_at_all(self, candidates: list[LogToClean]) -> Iterator[None]:
        now_ms = self._manager.wall_clock.deletion_time_ms()
        if now_ms is None:
            return
        for log in self._manager.logs():
            yield
            if not log.config.is_compacted or log.closed or log.failure is not None:
                continue
            key = log.topic, log.partition
            if self._uncleanable.get(key) is log or not all(map(_has_final_name, log.segments)):
                continue
            checkpoint = self._checkpoints[log.log_dir]
            try:
                candidates.append(
                    log_to_clean.measure(log, self._first_dirty(log, checkpoint), self._disk, now_ms)
                )
            except (OSError, RecordBatchError) as error:
                self._mark_uncleanable(log, error)
        self._drop_removed()

    def _first_dirty(self, log: Log, checkpoint: CleanerCheckpoint) -> int:
        key = log.topic, log.partition
        noted = checkpoint.get(key)
        dirty = log_to_clean.first_dirty_offset(log, noted)
        if noted is not None and noted != dirty:
            if not (noted < dirty and "delete" in log.config.cleanup_policy):
                logger.warning(
                    "%s: the cleaner checkpoint %d is wrong; cleaning from %d", log.name, noted, dirty
                )
            checkpoint.set(key, dirty)
        return dirty

    def _drop_removed(self) -> None:
        get = self._manager.get
        self._uncleanable = {key: log for key, log in self._uncleanable.items() if get(*key) is log}

    def _choose(self, candidates: list[LogToClean]) -> None:
        if self._stopped:
            return
        self.max_dirty_ratio = max((each.cleanable_ratio for each in candidates), default=0.0)
        choice = log_to_clean.dirtiest(candidates)
        if choice is None or choice.log.closed:
            self._wait()
            return
        self._clean(choice)

    # --- cleaning

    def _clean(self, choice: LogToClean) -> None:
        from barnabas.storage.compaction.cleaning import plan
        from barnabas.storage.compaction.job import (
            CleaningJob,  # late: a start does not need what they import
        )

        settings = self._settings
        now_ms = self._manager.wall_clock.deletion_time_ms()
        if now_ms is None:
            self._wait()
            return
        try:
            cleaning = plan(
                choice,
                self._disk,
                now_ms,
                settings.dedupe_buffer_size // settings.threads,
                settings.io_buffer_load_factor,
            )
        except (OSError, RecordBatchError, StorageError) as error:
            self._mark_uncleanable(choice.log, error)
            self._wait()
            return
        self._job = CleaningJob(
            self._disk, self._runtime, choice.log, cleaning, self._pace, partial(self._cleaned, choice)
        )
        self._job.start()

    def _pace(self, byte_count: int) -> float:
        """How many seconds to wait, so that no more bytes are read and written than the settings allow."""
        rate = self._settings.io_max_bytes_per_second
        now = self._runtime.monotonic()
        self._free_at = max(now, self._free_at) + byte_count / rate
        return self._free_at - now

    def _cleaned(self, choice: LogToClean, job: CleaningJob, outcome: Outcome) -> None:
        self._job = None
        log, cleaning = choice.log, job.cleaning
        if outcome.error is not None:
            self._failed(log, outcome.error)
        if not outcome.finished:
            self._wait()
            return
        self._checkpoints[log.log_dir].set((log.topic, log.partition), cleaning.end_offset)
        logger.info(
            "cleaned %s from offset %d to %d: %d of %d records and %d of %d bytes left, map %.1f %% full, %.2f s",
            log.name,
            choice.first_dirty_offset,
            cleaning.end_offset,
            cleaning.records_kept,
            cleaning.records_read,
            cleaning.bytes_written,
            cleaning.bytes_read,
            100 * cleaning.map_utilization,
            job.seconds,
        )
        self._look()

    def _failed(self, log: Log, error: BaseException) -> None:
        """After a transient disk error the log is cleaned later. Any other error makes it uncleanable, and that of a disk is
        reported."""
        if isinstance(error, OSError):
            if is_transient(error):
                logger.warning("%s: cleaning is delayed: %s", log.name, error)
            else:
                log.io_failed(error)
                self._mark_uncleanable(log, error)
        else:
            self._mark_uncleanable(log, error)

    def _mark_uncleanable(self, log: Log, error: BaseException) -> None:
        self._uncleanable[log.topic, log.partition] = log
        logger.warning("%s can't be cleaned, and is uncleanable until a restart: %s", log.name, error)


def _has_final_name(segment: Segment) -> bool:
    """False when renaming its files has failed, which the next start repeats: a log with such a segment is not cleaned, or its
    files could be taken for those of another swap."""
    return segment.has_final_name
