"""The log cleaner: every `log.cleaner.backoff.ms` it looks for the compacted log that is dirtiest and cleans it.

One log at a time, as long as one is dirty enough. Reading and writing run slice by slice in a thread
(cleaning.py), no faster than `log.cleaner.io.max.bytes.per.second`; between two slices the loop looks
whether the log is still there, swaps in what is finished (segment_swap.py) and keeps the checkpoint. A log that
can't be cleaned is not cleaned until a restart; the others go on. None begins while the wall clock can't be trusted
(wall_clock.py). All state belongs to the loop's thread.
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
from barnabas.storage.errors import StorageError, is_passing
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
        self._timer: Timer | None = None
        self._looking = False
        self._job: CleaningJob | None = None
        self._stopped = False
        self._free_at = 0.0  # when the bytes moved so far are paid for, on the monotonic clock

    def start(self) -> None:
        for log_dir in self._manager.log_dirs:
            self._checkpoints[log_dir] = CleanerCheckpoint(self._disk, self._runtime, log_dir)
        self._manager.subscribe(
            LogManagerEvents(
                log_removed=self.log_removed, log_truncated=self.log_truncated, log_replaced=self.log_replaced
            )
        )
        self._wait()

    def stop(self) -> None:
        """Nothing of the logs is touched afterwards. Blocks for a few syncs at most."""
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

    def reconfigure(self, settings: CleanerSettings) -> None:
        """New settings: at once, but for the map of a cleaning that runs."""
        if settings == self._settings:
            return
        self._settings = settings
        if self._timer is not None and not self._stopped:
            self._timer.cancel()
            self._wait()

    # --- what happens to the logs meanwhile

    def log_removed(self, log: Log) -> None:
        """It has been deleted, or set aside."""
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
        """What is in the place of `old` now, maybe in another directory, is as clean as that was."""
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
            if self._uncleanable.get(key) is log or not all(map(_is_settled, log.segments)):
                continue
            checkpoint = self._checkpoints[log.log_dir]
            try:
                candidates.append(
                    log_to_clean.look_at(log, self._first_dirty(log, checkpoint), self._disk, now_ms)
                )
            except (OSError, RecordBatchError) as error:
                self._give_up(log, error)
        self._drop_removed()

    def _first_dirty(self, log: Log, checkpoint: CleanerCheckpoint) -> int:
        key = log.topic, log.partition
        noted = checkpoint.get(key)
        dirty = log_to_clean.first_dirty_offset(log, noted)
        if noted is not None and noted != dirty:
            if not (noted < dirty and "delete" in log.config.cleanup_policy):
                logger.warning("%s: clean up to %d can't be right; cleaning from %d", log.name, noted, dirty)
            checkpoint.set(key, dirty)
        return dirty

    def _drop_removed(self) -> None:
        get = self._manager.get
        self._uncleanable = {key: log for key, log in self._uncleanable.items() if get(*key) is log}

    def _choose(self, candidates: list[LogToClean]) -> None:
        if self._stopped:
            return
        choice = log_to_clean.dirtiest(candidates)
        if choice is None or choice.log.closed:
            self._wait()
            return
        self._clean(choice)

    # --- cleaning

    def _clean(self, choice: LogToClean) -> None:
        from barnabas.storage.compaction.cleaning import plan
        from barnabas.storage.compaction.job import (
            CleaningJob,  # late: a start has no need of all that they import
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
            self._give_up(choice.log, error)
            self._wait()
            return
        self._job = CleaningJob(
            self._disk, self._runtime, choice.log, cleaning, self._pace, partial(self._cleaned, choice)
        )
        self._job.start()

    def _pace(self, byte_count: int) -> float:
        """How many seconds to wait, so that no more bytes are moved than the settings allow."""
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
        """A full disk may have room again; another error of the disk is the directory's; the rest the log's."""
        if isinstance(error, OSError):
            if is_passing(error):
                logger.warning("%s: cleaning is put off: %s", log.name, error)
            else:
                log.io_failed(error)
                self._give_up(log, error)
        else:
            self._give_up(log, error)

    def _give_up(self, log: Log, error: BaseException) -> None:
        self._uncleanable[log.topic, log.partition] = log
        logger.warning("%s can't be cleaned, and is not cleaned until a restart: %s", log.name, error)


def _is_settled(segment: Segment) -> bool:
    """Otherwise the disk has refused its final name, which the next start gives it; until then its files must
    not be mistaken for those of another swap."""
    return segment.has_final_name
