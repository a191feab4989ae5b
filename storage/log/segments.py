"""The segments of one log in order, and reading from them.

A read returns regions of segment files; records are decoded only to find a timestamp. The positions of readers at the log's
end are remembered, so following the log costs no search.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import is_
from typing import Protocol, overload

import msgspec

from barnabas.runtime.slices import Steps
from barnabas.storage.disk.disk import FileRegion
from barnabas.storage.log.producers import ProducerEntry
from barnabas.storage.log.timestamps import TimestampOffset, find_max_timestamp, find_timestamp
from barnabas.storage.segment.legacy_format import read_stored_header
from barnabas.storage.segment.segment import Segment
from barnabas.storage.segment.transaction_index import AbortedTransaction
from barnabas.wire.record_batch import HEADER_SIZE, BatchHeader

_RESUME_POINTS_MAX = 32
_HOT_BYTES = 4 * 1024 * 1024  # at the end of the active segment: written a moment ago, so in memory
_NO_READERS: dict[int, int] = {}  # stays empty; shared by all logs that have no reader


class ReadResult(msgspec.Struct, gc=False):
    """Bytes from a batch boundary on, of the segment at `segment_base`, where they begin at `position`; the last batch may be
    cut, as in Kafka."""

    regions: tuple[FileRegion, ...]
    size: int
    segment_base: int = -1
    position: int = 0


NOTHING_READ = ReadResult((), 0)


class LogSegments(Sequence[Segment]):
    """At least one segment, ascending by base offset; the last is the active one.

    `bases` are the base offsets, `last_base_offset` and `last_position` those of the last batch appended (-1: not known). Each
    change of the list leaves one that the next read can use.
    """

    __slots__ = ("_list", "_resume", "active", "bases", "last_base_offset", "last_position")

    def __init__(self, segments: list[Segment]) -> None:
        self._list = segments
        self.bases = [segment.base_offset for segment in segments]
        self.active = segments[-1]
        self.last_base_offset = -1
        self.last_position = 0
        # offset -> position in the active segment, of readers that have reached the end
        self._resume: dict[int, int] = _NO_READERS

    def __len__(self) -> int:
        return len(self._list)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._list)

    @overload
    def __getitem__(self, index: int) -> Segment: ...

    @overload
    def __getitem__(self, index: slice) -> list[Segment]: ...

    def __getitem__(self, index: int | slice) -> Segment | list[Segment]:
        return self._list[index]

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(segment.size for segment in self._list)

    def index_of(self, offset: int) -> int:
        """Index of the segment that holds `offset`, or would; 0 for one before the first."""
        return max(0, bisect_right(self.bases, offset) - 1)

    def holding(self, offset: int) -> Segment:
        return self._list[self.index_of(offset)]

    def reaching_beyond(self, offset: int) -> list[Segment]:
        """The segments that end behind `offset`, and the active one."""
        return [
            segment
            for index, segment in enumerate(self._list)
            if segment is self.active or self.bases[index + 1] > offset
        ]

    def holds(self, segments: Sequence[Segment]) -> bool:
        """Whether these are in the list, one behind the other, and none of them is the active one."""
        first = bisect_left(self.bases, segments[0].base_offset)
        here = self._list[first : first + len(segments)]
        return len(here) == len(segments) and all(map(is_, here, segments)) and here[-1] is not self.active

    # --- changes

    def append(self, segment: Segment) -> None:
        """`segment` becomes the active one."""
        self._list.append(segment)
        self.bases.append(segment.base_offset)
        self.active = segment
        self._resume.clear()

    def remove_below(self, offset: int) -> list[Segment]:
        """Take out the segments whose records all lie below `offset`, never the active one."""
        count = self.index_of(offset)
        removed = self._list[:count]
        del self._list[:count], self.bases[:count]
        return removed

    def remove_beyond(self, offset: int) -> list[Segment]:
        """Take out the segments that begin beyond `offset`; the first one does not."""
        kept = bisect_right(self.bases, offset)
        removed = self._list[kept:]
        del self._list[kept:], self.bases[kept:]
        self.active = self._list[-1]
        return removed

    def restart(self, segment: Segment) -> None:
        """Replace all segments by `segment`."""
        self._list = [segment]
        self.bases = [segment.base_offset]
        self.active = segment

    def replace(self, new: Segment, old: Sequence[Segment]) -> None:
        """Put `new` in the place of `old`, which the list holds."""
        first = bisect_left(self.bases, old[0].base_offset)
        self._list[first : first + len(old)] = [new]
        self.bases[first : first + len(old)] = [new.base_offset]

    def forget_positions(self) -> None:
        """The log has been cut: no remembered position holds any more."""
        self._resume.clear()
        self.last_base_offset = -1

    def release(self) -> None:
        """Close the files as soon as no region waits on them."""
        for segment in self._list:
            segment.release()

    def release_rolled(self) -> None:
        """As `release`, but not the active segment's."""
        for segment in self._list:
            if segment is not self.active:
                segment.release()

    # --- reading

    def read(
        self, offset: int, max_bytes: int, min_one_batch: bool, limit: int, end_offset: int, wait: bool
    ) -> ReadResult:
        """The batches of one segment from the one that holds `offset` on, up to the offset `limit` and `max_bytes`.

        `end_offset` is the log's. OSError, RecordBatchError; without `wait` BlockingIOError where finding the batches would
        wait for the disk.
        """
        bases = self.bases
        for index in range(max(0, bisect_right(bases, offset) - 1), len(self._list)):
            segment = self._list[index]
            start = self._position(segment, offset, wait)
            if start is None:
                continue  # compaction has removed everything from `offset` on
            stop = segment.size
            next_base = bases[index + 1] if index + 1 < len(bases) else end_offset
            if limit < next_base:
                located = segment.locate(limit, wait=wait)
                stop = located[0] if located is not None else stop
            length = stop - start
            if length <= 0:
                return NOTHING_READ
            file = segment.open_for_read()
            is_hot = segment is self.active and start >= segment.size - _HOT_BYTES
            if length > max_bytes:
                read = file.pread if wait or is_hot else file.pread_now
                header = read_stored_header(read(HEADER_SIZE, start))
                first = header.size
                if segment is self.active:  # a reader that reads batch by batch asks for the next one
                    self._remember(header.next_offset, start + first)
                if first <= max_bytes:
                    length = max_bytes
                elif min_one_batch:
                    length = first
                else:
                    return NOTHING_READ
            if is_hot and start + length == segment.size:
                self._remember(end_offset, segment.size)
            return ReadResult((FileRegion(file, start, length, is_hot),), length, segment.base_offset, start)
        return NOTHING_READ

    def preparation(self, offset: int, max_bytes: int, limit: int) -> Callable[[], object]:
        """Work for a thread, after which the same read does not wait. It uses files and indexes only."""
        index = self.index_of(offset)
        return partial(_load, self._list[index : index + 2], offset, max_bytes, limit)

    def _position(self, segment: Segment, offset: int, wait: bool) -> int | None:
        if segment is self.active:
            if offset == self.last_base_offset:
                return self.last_position
            position = self._resume.get(offset)
            if position is not None:
                return position
        if offset <= segment.base_offset:
            return 0 if segment.size else None
        located = segment.locate(offset, wait=wait)
        return located[0] if located is not None else None

    def _remember(self, offset: int, position: int) -> None:
        """A reader will ask for the batch there."""
        resume = self._resume
        if resume is _NO_READERS:
            resume = self._resume = {}
        resume[offset] = position
        if len(resume) > _RESUME_POINTS_MAX:
            del resume[next(iter(resume))]

    def headers(self, offset: int) -> Iterator[BatchHeader]:
        """The header of every batch from the one that holds `offset` on."""
        for index in range(self.index_of(offset), len(self._list)):
            segment = self._list[index]
            for _, header in segment.headers(segment.index_position(offset), 1 << 16):
                if header.last_offset >= offset:
                    yield header

    def lookup(
        self, timestamp: int | None, start_offset: int, tiered: Sequence[Segment] = ()
    ) -> Steps[TimestampOffset | None]:
        """The first record from `start_offset` on that is not older than `timestamp`, or with None the first one that has the
        largest timestamp; `tiered`: segments that come before these."""
        segments = (*tiered, *self._list)
        if timestamp is None:
            return find_max_timestamp(segments, start_offset)
        return find_timestamp(segments, timestamp, start_offset)


class AuxState(msgspec.Struct):
    """What a log has to know of the records below `offset`, all of which are tiered, to begin there. `producers`: as of that offset."""

    offset: int
    epochs: list[tuple[int, int]]  # ascending (leader epoch, start offset)
    producers: list[ProducerEntry]


class RemoteReads(Protocol):
    """What a log asks of its tiered part (KIP-405): reading what is in the object store and no longer here; storage/tier has it.

    All offsets lie below the first local segment. StorageError where the store can't be read, OffsetOutOfRange where it has no
    such record; WouldWait (`is_remote`) where something has to be read from it first: nothing waits on the loop."""

    @property
    def tiered_offset(self) -> int:
        """The last offset that is in the object store for certain, or has been and expired; -1 when none is known."""
        ...

    @property
    def is_over_quota(self) -> bool:
        """Whether clients get nothing from the store for now (KIP-956)."""
        ...

    def read(self, offset: int, max_bytes: int, min_one_batch: bool, limit: int) -> ReadResult:
        """As LogSegments.read."""
        ...

    def collect_aborted(
        self, start: int, end: int, found: list[AbortedTransaction], limit: int | None
    ) -> bool:
        """Add the aborted transactions that a reader of [start, end) must leave out; True when no later segment can have more, or
        `found` has `limit`."""
        ...

    def indexed_end(self, read: ReadResult) -> int:
        """An offset behind what was read: that of the next entry of the offset index, or behind the segment."""
        ...

    def aux_state(self, offset: int, leader_epoch: int) -> Steps[AuxState]:
        """Where a follower can begin whose leader, of that epoch, has nothing below `offset` on its disk: behind the tiered segment
        that holds the record before. In steps with threads; ValueError or OSError where that can't be read now."""
        ...

    def leader_has_tiered(self, tiered_offset: int) -> None:
        """This replica follows, and its leader has said what its `tiered_offset` is."""
        ...

    def segments(self, start: int, end: int) -> Steps[Sequence[Segment]]:
        """Those that hold records in [start, end), for a lookup in a thread. In steps, as reading the manifest may have to come
        first."""
        ...


def _load(segments: list[Segment], offset: int, max_bytes: int, limit: int) -> None:
    """Do the lookups of a read from `offset`, and bring what it will send into memory; waits for the disk."""
    for segment in segments:
        located = segment.locate(offset)
        if located is None:
            continue
        segment.locate(limit)
        segment.offset_index.load()
        position, header = located
        segment.open_for_read().load(position, min(max(header.size, max_bytes), _HOT_BYTES))
        return
