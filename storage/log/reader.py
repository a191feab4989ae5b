"""Reading a log: by offset, by time, batch by batch. `log.py` adds everything that changes it.

What goes out are regions of segment files; records are looked at only to find a time. Readers at the tail
are remembered, so following the log costs no search.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from barnabas.runtime.slices import Steps, run_through
from barnabas.storage.disk.disk import FileRegion
from barnabas.storage.errors import OffsetOutOfRange, StorageError, WouldWait
from barnabas.storage.log.timestamps import TimestampOffset, find_max_timestamp, find_timestamp
from barnabas.storage.segment.legacy_format import read_stored_header
from barnabas.storage.segment.segment import Segment
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import HEADER_SIZE, BatchHeader, RecordBatchError

_RESUME_POINTS_MAX = 32
_HOT_BYTES = 4 * 1024 * 1024  # at the end of the active segment: written a moment ago, so in memory
NO_READERS: dict[int, int] = {}  # stays empty, and stands for every log that nobody has read


class ReadResult(msgspec.Struct, gc=False):
    """Bytes from a batch boundary on, of the segment at `segment_base`; the last batch may be cut, as Kafka
    cuts it."""

    regions: tuple[FileRegion, ...]
    size: int
    segment_base: int = -1


_NOTHING = ReadResult((), 0)


class ReadableLog:
    """The reading half of `Log`, which sets these attributes.

    Every class of a log has slots: a broker holds 10,000 of them, and a dict in each would be most of its size.
    """

    __slots__ = (
        "_active",
        "_bases",
        "_last_base_offset",
        "_last_position",
        "_resume",
        "_segments",
        "log_end_offset",
        "log_start_offset",
        "offline",
        "partition",
        "topic",
    )

    topic: str
    partition: int
    offline: bool  # the log directory has failed: nothing can be read any more
    log_start_offset: int
    log_end_offset: int
    _segments: list[Segment]  # ascending, never empty
    _bases: list[int]  # their base offsets
    _active: Segment  # the last of them
    _resume: dict[
        int, int
    ]  # offset -> position in the active segment, of readers that reached the end; or NO_READERS
    _last_base_offset: int  # of the last batch appended, -1 when unknown
    _last_position: int

    @property
    def name(self) -> str:
        """`<topic>-<partition>`, for messages."""
        return f"{self.topic}-{self.partition}"

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        min_one_batch: bool = True,
        end_offset: int | None = None,
        wait: bool = True,
    ) -> ReadResult:
        """The batches from the one that holds `offset` on, of one segment, up to `end_offset` and `max_bytes`.

        With `min_one_batch` the first batch comes whole however large it is; without, nothing comes when it
        does not fit. OffsetOutOfRange outside [log_start_offset, log_end_offset]. Without `wait` it raises
        WouldWait where finding the batches would wait for the disk; sending them may, still.
        """
        if self.offline:
            raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log directory of {self.name} is offline")
        end = self.log_end_offset
        if not self.log_start_offset <= offset <= end:
            raise OffsetOutOfRange(
                f"Received request for offset {offset} for partition {self.name}, but we only have log "
                f"segments from offset {self.log_start_offset} up to {end}."
            )
        limit = end if end_offset is None or end_offset > end else end_offset
        if offset >= limit:
            return _NOTHING
        try:
            return self._read(offset, max_bytes, min_one_batch, limit, wait)
        except OSError as error:
            if not wait and isinstance(error, BlockingIOError):
                raise WouldWait(self._preparation(offset, max_bytes, limit)) from None
            self.read_failed(error)
            raise StorageError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"Error while reading {self.name}: {error}"
            ) from error
        except RecordBatchError as error:
            raise StorageError(ErrorCode.CORRUPT_MESSAGE, f"{self.name}: {error}") from error

    def read_failed(self, error: OSError) -> None:
        """The disk could not read. Overridden by who can tell somebody."""

    def _read(self, offset: int, max_bytes: int, min_one_batch: bool, limit: int, wait: bool) -> ReadResult:
        for index in range(max(0, bisect_right(self._bases, offset) - 1), len(self._segments)):
            segment = self._segments[index]
            start = self._position(segment, offset, wait)
            if start is None:
                continue  # compaction has taken everything from `offset` on
            stop = segment.size
            next_base = self._bases[index + 1] if index + 1 < len(self._bases) else self.log_end_offset
            if limit < next_base:
                located = segment.locate(limit, wait=wait)
                stop = located[0] if located is not None else stop
            length = stop - start
            if length <= 0:
                return _NOTHING
            file = segment.open_for_read()
            is_hot = segment is self._active and start >= segment.size - _HOT_BYTES
            if length > max_bytes:
                read = file.pread if wait or is_hot else file.pread_now
                header = read_stored_header(read(HEADER_SIZE, start))
                first = header.size
                if segment is self._active:  # its reader, if it reads batch by batch, comes for the next one
                    self._remember(header.next_offset, start + first)
                if first <= max_bytes:
                    length = max_bytes
                elif min_one_batch:
                    length = first
                else:
                    return _NOTHING
            if is_hot and start + length == segment.size:
                self._remember(self.log_end_offset, segment.size)
            return ReadResult((FileRegion(file, start, length, is_hot),), length, segment.base_offset)
        return _NOTHING

    def _preparation(self, offset: int, max_bytes: int, limit: int) -> Callable[[], object]:
        """What a thread does, so that the same read does not wait. It looks at files and indexes alone."""
        index = max(0, bisect_right(self._bases, offset) - 1)
        return partial(_load, self._segments[index : index + 2], offset, max_bytes, limit)

    def _position(self, segment: Segment, offset: int, wait: bool) -> int | None:
        if segment is self._active:
            if offset == self._last_base_offset:
                return self._last_position
            position = self._resume.get(offset)
            if position is not None:
                return position
        if offset <= segment.base_offset:
            return 0 if segment.size else None
        located = segment.locate(offset, wait=wait)
        return located[0] if located is not None else None

    def _remember(self, offset: int, position: int) -> None:
        """A reader will ask for what comes there."""
        resume = self._resume
        if resume is NO_READERS:
            resume = self._resume = {}
        resume[offset] = position
        if len(resume) > _RESUME_POINTS_MAX:
            del resume[next(iter(resume))]

    def headers(self, offset: int) -> Iterator[BatchHeader]:
        """The header of every batch from the one that holds `offset` on."""
        for index in range(max(0, bisect_right(self._bases, offset) - 1), len(self._segments)):
            segment = self._segments[index]
            for _, header in segment.headers(segment.index_position(offset), 1 << 16):
                if header.last_offset >= offset:
                    yield header

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """The first record at or after `timestamp`; None when all are older."""
        return run_through(self.timestamp_lookup(timestamp))

    def max_timestamp_offset(self) -> TimestampOffset | None:
        """The first record that has the largest timestamp; None in an empty log."""
        return run_through(self.timestamp_lookup(None))

    def timestamp_lookup(self, timestamp: int | None) -> Steps[TimestampOffset | None]:
        """What `offset_for_timestamp`, or with None `max_timestamp_offset`, does, in steps: it may wait for the disk and
        unpack a batch. StorageError, also where a segment has gone meanwhile."""
        try:
            return (yield from self._lookup(timestamp))
        except (OSError, RecordBatchError) as error:
            raise StorageError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"Error while reading {self.name}: {error}"
            ) from error

    def timestamp_search(self, timestamp: int | None) -> Callable[[], TimestampOffset | None]:
        """The lookup on what is there now, for a thread to do all of it."""
        return partial(run_through, self._lookup(timestamp))

    def _lookup(self, timestamp: int | None) -> Steps[TimestampOffset | None]:
        segments, start_offset = tuple(self._segments), self.log_start_offset
        if timestamp is None:
            return find_max_timestamp(segments, start_offset)
        return find_timestamp(segments, timestamp, start_offset)


def _load(segments: list[Segment], offset: int, max_bytes: int, limit: int) -> None:
    """Look up what a read from `offset` will, and bring what it will send into memory; waits for the disk."""
    for segment in segments:
        located = segment.locate(offset)
        if located is None:
            continue
        segment.locate(limit)
        segment.offset_index.load()
        position, header = located
        segment.open_for_read().load(position, min(max(header.size, max_bytes), _HOT_BYTES))
        return
