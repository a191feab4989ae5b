"""Retention: segments that are too old, too many bytes or messages, or below the log's start are removed, oldest first.

The rules are Kafka's (UnifiedLog.deleteOldSegments):
- Only whole segments are removed, from the front, and only below the high watermark.
- By time when the segment's largest record timestamp is older than `retention.ms`; records without a timestamp count with
  the file's modification time; a timestamp in the future keeps its segment and all later ones. Not while the wall clock
  can't be trusted (wall_clock.py).
- By size as long as at least `retention.bytes` remain. Always below the start offset.
- Not Kafka's: by number as long as at least `barnabas.retention.messages` remain, counted as offsets up to the log's end. What
  compaction has removed, markers of transactions and aborted records count as messages.
- The active segment is removed too, after the log has rolled; an empty one stays.
- With a `cleanup.policy` without `delete` only the start offset counts.
- Of a tiered log (KIP-405) only what is in the object store is removed, by local.retention.ms and local.retention.bytes, and the
  log's start stays where it is; retention.* is enforced over both parts by storage/tier. The leader knows
  from its manifest what is in the store, and followers from the leader.

In Kafka every replica does so by itself. Here only the leader deletes by time, size and number, and followers take over its
start offset with their fetches: a follower that deleted by a clock of its own might be the next leader.

Timestamps that have not been read since the start are read by a thread, then the log is checked again. A log that is being
cleaned waits for the next pass.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from barnabas.runtime.interface import Runtime
from barnabas.runtime.slices import in_slices
from barnabas.storage.disk.disk import Disk
from barnabas.storage.errors import StorageError
from barnabas.storage.log.log import Log
from barnabas.storage.segment.segment import Segment
from barnabas.storage.wall_clock import WallClock
from barnabas.wire.record_batch import RecordBatchError

logger = logging.getLogger("barnabas.storage")

SEGMENTS_PER_STEP = 64  # each costs a few renames on the loop
READS_PER_THREAD = 64
MESSAGES = "barnabas.retention.messages"


class TimestampsUnread(Exception):
    """The segment's timestamps must be read before more can be decided."""

    def __init__(self, segment: Segment) -> None:
        super().__init__(segment.path)
        self.segment = segment


def enforce_retention(
    log: Log, disk: Disk, now_ms: int | None, is_led: Callable[[Log], bool] = lambda _: True
) -> Iterator[int]:
    """Remove what the log's settings allow, SEGMENTS_PER_STEP a step, and yield how many segments were removed. If the log is
    not led here, only what lies below its start offset; where `now_ms` is None, nothing by its age.

    TimestampsUnread; StorageError (KAFKA_STORAGE_ERROR).
    """
    while not log.closed:  # nor deleted or moved since the last step
        count, reason = _below_start(log), "below the log start offset"
        if not count and log.is_tiering:
            count, reason = (
                _removable_here(log, disk, now_ms),
                "in remote storage, and beyond local.retention",
            )
            if count:
                yield _remove_here(log, count, reason)
                continue
        elif not count and is_led(log):
            count, reason = _deletable(log, disk, now_ms)
        if count == 0:
            return
        step = min(count, SEGMENTS_PER_STEP)
        segments = tuple(log.segments)
        end = segments[step].base_offset if step < len(segments) else log.log_end_offset
        logger.info(
            "%s: removing %d segments below offset %d: %s (file.delete.delay.ms=%d)",
            log.name,
            step,
            end,
            reason,
            log.config.file_delete_delay_ms,
        )
        if step == len(segments):
            log.roll()
        log.increment_log_start_offset(max(end, log.log_start_offset))
        log.remove_segments_below(end)
        assert log.segments[0] is not segments[0], "otherwise this would never end"
        yield step


def _below_start(log: Log) -> int:
    start = log.log_start_offset
    return _leading(log, lambda _, end: end <= start, but_last=True)


def _deletable(log: Log, disk: Disk, now_ms: int | None) -> tuple[int, str]:
    """How many of the first segments may be removed by size, number or time, and why."""
    if "delete" not in log.config.cleanup_policy:
        return 0, ""
    limit = log.config.retention_bytes
    if limit >= 0:
        spare = log.size - limit
        if spare > 0:
            count = _leading(log, _while_spare(spare))
            if count:
                return count, f"retention.bytes={limit} is exceeded"
    limit = log.config.retention_messages
    if limit >= 0:
        kept_from = log.log_end_offset - limit
        count = _leading(log, lambda _, end: end <= kept_from)
        if count:
            return count, f"{MESSAGES}={limit} is exceeded"
    limit = log.config.retention_ms
    if limit < 0 or now_ms is None:
        return 0, ""
    count = _leading(log, lambda segment, _: now_ms - _newest_ms(segment, disk) > limit)
    return count, f"older than retention.ms={limit}"


def _removable_here(log: Log, disk: Disk, now_ms: int | None) -> int:
    """How many of the first segments are tiered and need no longer be kept here. An active segment that is too old is rolled, as
    then it can be tiered."""
    config = log.config
    count = 0
    if config.kept_here_bytes >= 0:
        spare = log.size - config.kept_here_bytes
        if spare > 0:
            count = _leading(log, _while_spare(spare))
    if config.kept_here_ms >= 0 and now_ms is not None:
        count = max(
            count,
            _leading(log, lambda segment, _: now_ms - _newest_ms(segment, disk) > config.kept_here_ms),
        )
    if count == len(log.segments):
        log.roll()
    # Of a sealed segment the snapshot of the producers at its end is on the disk: without the segment it can't be made again.
    limit = min(_tiered_offset(log) + 1, log.flusher.recovery_checkpoint)
    return min(count, _leading(log, lambda _, end: end <= limit, but_last=True))


def _tiered_offset(log: Log) -> int:
    assert log.remote is not None
    return log.remote.tiered_offset


def _remove_here(log: Log, count: int, reason: str) -> int:
    count = min(count, SEGMENTS_PER_STEP)
    end = log.segments[count].base_offset
    logger.info("%s: removing %d segments below offset %d: %s", log.name, count, end, reason)
    log.remove_segments_below(end)
    return count


def _leading(log: Log, may_go: Callable[[Segment, int], bool], *, but_last: bool = False) -> int:
    """How many segments from the front `may_go(segment, its end offset)` allows to remove, all below the high watermark."""
    segments = log.segments
    committed = log.high_watermark
    count = 0
    for index, segment in enumerate(segments):
        last = index + 1 == len(segments)
        end = log.log_end_offset if last else segments[index + 1].base_offset
        if end > committed or (last and (but_last or segment.size == 0)) or not may_go(segment, end):
            break
        count += 1
    return count


def _while_spare(spare: int) -> Callable[[Segment, int], bool]:
    def may_go(segment: Segment, _: int) -> bool:
        nonlocal spare
        spare -= segment.size
        return spare >= 0

    return may_go


def _newest_ms(segment: Segment, disk: Disk) -> int:
    if not segment.knows_timestamps:
        raise TimestampsUnread(segment)
    if segment.max_timestamp >= 0:
        return segment.max_timestamp
    try:
        return disk.modified_ms(segment.path)
    except OSError as error:
        logger.warning("%s is kept, its age is unknown: %s", segment.path, error)
        return 1 << 62


class RetentionPass:
    """One pass over every log, in slices of the loop's time; `done()` at its end."""

    def __init__(
        self,
        runtime: Runtime,
        disk: Disk,
        wall_clock: WallClock,
        logs: Iterable[Log],
        done: Callable[[], object],
        is_led: Callable[[Log], bool] = lambda _: True,
    ) -> None:
        """`is_led(log)`: whether this broker leads its partition."""
        self._runtime = runtime
        self._disk = disk
        self._wall_clock = wall_clock
        self._done = done
        self._is_led = is_led
        self._unread: list[tuple[Log, Segment]] = []
        self._look(iter(logs))

    def _look(self, logs: Iterator[Log]) -> None:
        in_slices(self._runtime, self._steps(logs), self._read_the_unread)

    def _steps(self, logs: Iterator[Log]) -> Iterator[object]:
        now_ms = self._wall_clock.deletion_time_ms()
        for log in logs:
            yield None
            if log.closed or log.failure is not None or log.cleaning:
                continue
            try:
                yield from enforce_retention(log, self._disk, now_ms, self._is_led)
            except TimestampsUnread as unread:
                self._unread.append((log, unread.segment))
            except (OSError, RecordBatchError, StorageError) as error:
                logger.error("%s: retention failed: %s", log.name, error)
                log.io_failed(error)

    def _read_the_unread(self) -> None:
        if not self._unread:
            self._done()
            return
        batch, self._unread = self._unread[:READS_PER_THREAD], self._unread[READS_PER_THREAD:]
        self._runtime.run_in_thread(
            lambda: [_find(segment) for _, segment in batch],
            lambda found, error: self._learn(batch, found, error),
        )

    def _learn(
        self,
        batch: list[tuple[Log, Segment]],
        found: list[tuple[int, int] | None] | None,
        error: BaseException | None,
    ) -> None:
        if found is None:
            logger.error("retention could not read timestamps: %s", error)
            self._done()
            return
        again = []
        for (log, segment), timestamps in zip(batch, found, strict=True):
            if timestamps is not None:
                segment.learn_timestamps(timestamps)
                again.append(log)
        self._look(iter(again))


def _find(segment: Segment) -> tuple[int, int] | None:
    """Blocking: the segment's timestamps; None when they can't be read: retention skips the log in this pass."""
    try:
        return segment.find_max_timestamp()
    except (OSError, RecordBatchError, ValueError, IndexError) as error:
        logger.warning("%s: timestamps can't be read: %s", segment.path, error)
        return None
