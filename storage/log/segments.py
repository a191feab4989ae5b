"""The segments of a log as a list: rolled at the end, removed at the start; truncation.py cuts it back.

Only this file changes the list; every change leaves a log that could be read by the next line.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from operator import is_

from barnabas.storage.disk.deletion import set_aside
from barnabas.storage.errors import OffsetOutOfRange, StorageError
from barnabas.storage.log.high_watermark import WatermarkedLog
from barnabas.storage.segment.segment import Segment, offset_file_name
from barnabas.wire.errors import ErrorCode

logger = logging.getLogger("barnabas.storage")


class SegmentedLog(WatermarkedLog):
    """The part of `Log` that changes its list of segments. `Log` sets these attributes."""

    __slots__ = ("_roll_after_ms", "_time_ms")

    _time_ms: Callable[[], int]
    _roll_after_ms: int

    def roll(self) -> None:
        """Begin a new segment at the log's end; the old one is synced by a thread. OSError changes nothing."""
        base = self.log_end_offset
        old = self._active
        if base == old.base_offset:
            return
        if old.torn:
            old.cut_torn_tail()
        old.open_for_append()  # here it may fail still
        new = Segment.create(self._disk, self.directory, base, self._time_ms())
        old.add_time_index_entry()
        self._new_names += 1
        self._segments.append(new)
        self._bases.append(base)
        self._active = new
        self._resume.clear()
        self._roll_after_ms = self._next_roll_after_ms()
        self._seal(old, base, self._seal_producers(old.base_offset, base))

    def _next_roll_after_ms(self) -> int:
        jitter = min(self.config.segment_jitter_ms, self.config.segment_ms)
        return self.config.segment_ms - (self._runtime.random.randrange(jitter) if jitter else 0)

    def increment_log_start_offset(self, offset: int) -> None:
        """Make everything below `offset` invisible and remove the segments that hold nothing else.

        Nothing happens when it already is. OffsetOutOfRange beyond the log's end, or a replicated log's high
        watermark.
        """
        limit = self._high_watermark if self._high_watermark >= 0 else self.log_end_offset
        if offset > limit:
            raise OffsetOutOfRange(
                f"Cannot increment the log start offset to {offset} of partition {self.name} since it is "
                f"larger than the high watermark {limit}"
            )
        if offset <= self.log_start_offset:
            return
        if self.offline:
            raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, str(self.failure))
        try:
            if offset == self.log_end_offset and self._active.size:
                self.roll()
            self.log_start_offset = offset
            self._epochs.truncate_from_start(offset)
            self._new_names += 1
            self.remove_segments_below(offset)
        except OSError as error:
            self.io_failed(error)
            raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name}: {error}") from error
        if self._events is not None:
            self._events.start_offset_changed(self)

    def remove_segments_below(self, offset: int) -> int:
        """Remove the segments whose records all lie below `offset`, never the active one; bytes freed.

        OSError when the disk refuses; the log is without them all the same.
        """
        count = bisect_right(self._bases, offset) - 1
        if count <= 0:
            return 0
        removed = self._segments[:count]
        del self._segments[:count], self._bases[:count]
        self._discard(removed)
        return sum(segment.size for segment in removed)

    def _discard(self, segments: Sequence[Segment]) -> None:
        """The files of segments that are in the list no more. Regions that wait to be sent keep theirs open."""
        for segment in segments:
            segment.release()
        files = [file for segment in segments for file in segment.files]
        set_aside(self._disk, self._runtime, files, self.config.file_delete_delay_ms)

    def holds(self, segments: Sequence[Segment]) -> bool:
        """Whether these still stand in the list, one behind the other, and none of them is the active one."""
        if self._released or self.failure is not None:
            return False
        first = bisect_left(self._bases, segments[0].base_offset)
        here = self._segments[first : first + len(segments)]
        return len(here) == len(segments) and all(map(is_, here, segments)) and here[-1] is not self._active

    def replace_segments(self, new: Segment, old: Sequence[Segment]) -> None:
        """Put `new` in the place of `old`, which the log holds, and set their files aside.

        The producer snapshot of the first stays, as it says what lies before. OSError when a file can't be
        renamed; the log has `new` all the same.
        """
        first = bisect_left(self._bases, old[0].base_offset)
        self._segments[first : first + len(old)] = [new]
        self._bases[first : first + len(old)] = [new.base_offset]
        for segment in old:
            segment.release()
        files = [file for segment in old for file in segment.files]
        files.remove(f"{self.directory}/{offset_file_name(new.base_offset, '.snapshot')}")
        set_aside(self._disk, self._runtime, files, self.config.file_delete_delay_ms)

    def _after_seal(self, segment: Segment, end_offset: int) -> None:  # noqa: ARG002
        if segment.base_offset in self._bases or self._released:
            return
        try:
            self._discard([segment])  # gone meanwhile: so must be its new indexes
        except OSError as error:  # the next start finds no log to them and removes them
            logger.warning("%s: indexes of a removed segment are left: %s", segment.path, error)

    def _seal_producers(self, sealed_base: int, base_offset: int) -> Callable[[], object]:
        """What a thread has to write now that the segment at `sealed_base` ends and another begins."""
        raise NotImplementedError
