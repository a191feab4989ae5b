"""Chooses the log that is cleaned next, and its cleanable section, as Kafka's LogCleanerManager does.

A log is, in this order: clean (below the cleaner checkpoint), dirty and cleanable, dirty and not cleanable. The
last begins with the segment that holds the last stable offset, that is younger than `min.compaction.lag.ms`,
or that is active, whichever comes first. Its cleanable ratio is dirty bytes / (clean + dirty bytes).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from barnabas.storage.disk.disk import Disk
from barnabas.storage.log.log import Log
from barnabas.storage.log.log_config import LONG_MAX
from barnabas.storage.segment.segment import Segment


class LogToClean(msgspec.Struct, frozen=True):
    """A log and its cleanable section [first_dirty_offset, first_uncleanable_offset)."""

    log: Log
    first_dirty_offset: int
    first_uncleanable_offset: int
    cleanable_bytes: int
    total_bytes: int
    is_overdue: bool  # by max.compaction.lag.ms

    @property
    def cleanable_ratio(self) -> float:
        return self.cleanable_bytes / self.total_bytes if self.total_bytes else 0.0


def first_dirty_offset(log: Log, checkpoint: int | None) -> int:
    """The checkpoint, or the log's start where there is none or it can't be right."""
    start = log.log_start_offset
    if checkpoint is None or not start <= checkpoint <= log.log_end_offset:
        return start
    return checkpoint


def measure(log: Log, dirty: int, disk: Disk, now_ms: int) -> LogToClean:
    """The cleanable section of `log`, which is clean up to `dirty`. OSError or RecordBatchError when its timestamps can't be
    read."""
    segments = log.segments
    bases = [segment.base_offset for segment in segments]
    config = log.config
    too_young = _first_too_young(log, segments, dirty, disk, now_ms)
    uncleanable = max(dirty, min(log.last_stable_offset, log.flusher.sealed_offset, too_young))
    end = max(0, bisect_right(bases, uncleanable) - 1)  # the segment that holds it is not cleaned either
    first_uncleanable = bases[end]
    clean_end = bisect_left(bases, dirty)
    dirty_start = max(0, bisect_right(bases, min(dirty, first_uncleanable)) - 1)
    clean_bytes = sum(segment.size for segment in segments[:clean_end])
    cleanable_bytes = sum(segment.size for segment in segments[dirty_start:end])
    overdue = config.max_compaction_lag_ms < LONG_MAX and _is_overdue(
        segments[dirty_start:-1], now_ms - config.max_compaction_lag_ms
    )
    return LogToClean(log, dirty, first_uncleanable, cleanable_bytes, clean_bytes + cleanable_bytes, overdue)


def _first_too_young(log: Log, segments: Sequence[Segment], dirty: int, disk: Disk, now_ms: int) -> int:
    """Where the first dirty segment begins that min.compaction.lag.ms protects, or else the active one."""
    lag = log.config.min_compaction_lag_ms
    if lag > 0:
        for segment, following in pairwise(segments):
            if following.base_offset > dirty and _newest_ms(segment, disk) > now_ms - lag:
                return segment.base_offset
    return segments[-1].base_offset


def _newest_ms(segment: Segment, disk: Disk) -> int:
    """As Kafka's LogSegment.largestTimestamp."""
    newest = segment.max_timestamp
    return newest if newest >= 0 else disk.modified_ms(segment.path)


def _is_overdue(dirty: Iterable[Segment], clean_until_ms: int) -> bool:
    stamps = [stamp for segment in dirty if (stamp := segment.first_batch_timestamp) > 0]
    return bool(stamps) and min(stamps) < clean_until_ms


def dirtiest(candidates: Iterable[LogToClean]) -> LogToClean | None:
    """The one with the highest ratio among those that must be cleaned, or are dirty enough to be."""
    due = [
        one
        for one in candidates
        if one.cleanable_bytes
        and (one.is_overdue or one.cleanable_ratio > one.log.config.min_cleanable_dirty_ratio)
    ]
    return max(due, key=lambda one: one.cleanable_ratio, default=None)
