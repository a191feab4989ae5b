"""One segment: a log file from a base offset on, and its two indexes.

The active segment keeps its file open once it has been written to, unless too many do (open_files.py); older ones
open theirs for each read, and the region that a read returns keeps it open until it has been sent. Only the first `size` bytes
of the file count: what a failed write has left behind them is cut off before the next write.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

from barnabas.storage.disk.disk import Disk, File
from barnabas.storage.segment.index import OFFSET_ENTRY, TIME_ENTRY, SparseIndex
from barnabas.storage.segment.legacy_format import read_stored_header
from barnabas.wire.record_batch import (
    HEADER_SIZE,
    NO_TIMESTAMP,
    BatchHeader,
    CorruptBatch,
    RecordBatchError,
)

logger = logging.getLogger("barnabas.storage")

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, ".txnindex", ".snapshot")
CLEANED_SUFFIX = ".cleaned"  # compaction is writing it
SWAP_SUFFIX = ".swap"  # written and synced, about to replace other segments

MAX_RELATIVE_OFFSET = 0x7FFFFFFF
_UNKNOWN = -2  # not read from the disk yet; -1 is Kafka's "no timestamp"


def offset_file_name(offset: int, suffix: str) -> str:
    """Kafka's file name: the offset in 20 digits."""
    return f"{offset:020d}{suffix}"


class Segment:
    """See the module. Times are ms since the epoch, sizes and positions bytes."""

    __slots__ = (
        "_disk",
        "_file",
        "_max_timestamp",
        "_max_timestamp_offset",
        "_stem",
        "_suffix",
        "base_offset",
        "bytes_since_index_entry",
        "created_ms",
        "first_timestamp",
        "index_full",
        "offset_index",
        "size",
        "time_index",
        "torn",
    )

    def __init__(
        self, disk: Disk, directory: str, base_offset: int, size: int, *, fresh: bool, suffix: str = ""
    ) -> None:
        """`fresh`: its indexes start empty, whatever is on the disk. `suffix` follows the usual names, until `rename`, while
        the segment is not part of the log yet."""
        stem = f"{directory}/{base_offset:020d}"
        self._disk = disk
        self._file: File | None = None
        self._stem = stem
        self._suffix = suffix
        self.base_offset = base_offset
        self.size = size
        self.offset_index = SparseIndex(disk, stem, INDEX_SUFFIX + suffix, OFFSET_ENTRY, fresh=fresh)
        self.time_index = SparseIndex(disk, stem, TIME_INDEX_SUFFIX + suffix, TIME_ENTRY, fresh=fresh)
        self.bytes_since_index_entry = 0
        self.index_full = False
        self.created_ms = 0
        self.torn = False  # bytes behind `size` may be on the disk
        self._max_timestamp = NO_TIMESTAMP if fresh else _UNKNOWN
        self._max_timestamp_offset = base_offset
        self.first_timestamp = _UNKNOWN  # the first batch's; negative when it has none or is not known yet

    @classmethod
    def create(cls, disk: Disk, directory: str, base_offset: int, now_ms: int) -> Segment:
        """A new, empty log file. OSError leaves none behind."""
        segment = cls(disk, directory, base_offset, 0, fresh=True)
        file = disk.open(segment.path, create=True)
        if file.size():
            file.truncate(0)
        segment.created_ms = now_ms
        return segment

    # --- the file

    @property
    def path(self) -> str:
        """Of the log file."""
        return self._stem + LOG_SUFFIX + self._suffix

    def open_for_append(self) -> File:
        """The file, kept open until too many are."""
        file = self._file
        if file is None:
            file = self._file = self._disk.open(self.path, writable=True)
            self._disk.open_files.add(self)
        return file

    def open_for_read(self) -> File:
        file = self._file  # read once: the loop may close it while a thread reads
        return file if file is not None else self._disk.open(self.path)

    def cut_torn_tail(self) -> None:
        """Remove what a failed write may have left. OSError when that fails too; it is tried again."""
        self.torn = True
        self.open_for_append().truncate(self.size)
        self.torn = False

    def truncate(self, size: int, *, sync: bool = True) -> None:
        """Keep the first `size` bytes and the index entries that point into them.

        Synced, or a power failure could bring back what has been removed; without `sync` the caller syncs the file.
        """
        file = self.open_for_append()
        file.truncate(size)
        if sync:
            file.sync()
        self.size = size
        self.offset_index.truncate(lambda _, position: position < size)
        last = self.offset_index.last()
        last_relative = last[0] if last is not None else -1
        self.time_index.truncate(lambda _, relative: relative <= last_relative)
        self.raise_max_timestamp()
        self.index_full = False

    def release(self) -> None:
        """Close the file as soon as no region waits on it."""
        if self._file is not None:
            self._file = None
            self._disk.open_files.discard(self)

    def remove(self) -> None:
        """Unlink its files at once; for recovery. Otherwise files are deleted by deletion.py."""
        self.release()
        for path in (self.path, self.offset_index.path, self.time_index.path):
            self._disk.remove(path)

    @property
    def files(self) -> list[str]:
        """The paths that belong to it, whether there is a file or not."""
        return [self._stem + kind + self._suffix for kind in SEGMENT_SUFFIXES]

    @property
    def has_final_name(self) -> bool:
        """False for a moment after it has replaced others (compaction/segment_swap.py)."""
        return not self._suffix

    def rename(self, suffix: str) -> None:
        """Rename its files to the usual names with `suffix` behind them. OSError when one can't be renamed; calling it again
        renames the others."""
        for kind in SEGMENT_SUFFIXES:
            try:
                self._disk.rename(self._stem + kind + self._suffix, self._stem + kind + suffix)
            except FileNotFoundError:
                continue  # has no such file, or has been renamed before
        self._suffix = suffix
        self.offset_index.renamed(INDEX_SUFFIX + suffix)
        self.time_index.renamed(TIME_INDEX_SUFFIX + suffix)

    # --- writing

    def appended(
        self, header: BatchHeader, size: int, index_interval_bytes: int, index_max_bytes: int
    ) -> None:
        """A batch of `size` bytes has been written at the end; its header is final."""
        position = self.size
        last_offset = header.base_offset + header.last_offset_delta
        if position == 0:
            self.first_timestamp = header.max_timestamp
        try:
            if header.max_timestamp > self._max_timestamp and header.max_timestamp > self.max_timestamp:
                self._max_timestamp = header.max_timestamp
                self._max_timestamp_offset = last_offset
        except OSError:  # the batch is in the log; the next reader of the maximum reads the file
            pass
        if self.bytes_since_index_entry > index_interval_bytes:
            self._add_index_entries(last_offset, position, index_max_bytes)
        self.bytes_since_index_entry += size
        self.size = position + size

    def _add_index_entries(self, last_offset: int, position: int, index_max_bytes: int) -> None:
        try:
            self.offset_index.append(last_offset - self.base_offset, position)
            self.add_time_index_entry()
        except OSError:  # the batch is in the log; the next one tries again
            return
        self.bytes_since_index_entry = 0
        self.index_full = (
            len(self.offset_index) >= index_max_bytes // OFFSET_ENTRY.size
            or len(self.time_index) >= index_max_bytes // TIME_ENTRY.size - 1
        )

    def add_time_index_entry(self) -> None:
        """Add an entry for the largest timestamp so far, if it is larger than the last entry's."""
        last = self.time_index.last()
        if self.max_timestamp > (last[0] if last is not None else NO_TIMESTAMP):
            self.time_index.append(self.max_timestamp, self._max_timestamp_offset - self.base_offset)

    def waited_ms(self, now_ms: int, batch_timestamp: int) -> int:
        """How long the segment has been filling, as segment.ms counts it: between the first batch's time and
        this one's, or by the clock when the first has none."""
        first = self.first_timestamp
        if first == _UNKNOWN:
            first = self.first_batch_timestamp
        return batch_timestamp - first if first >= 0 else now_ms - self.created_ms

    @property
    def first_batch_timestamp(self) -> int:
        """The first batch's max timestamp; negative when it has none, or is damaged."""
        if self.first_timestamp == _UNKNOWN and self.size:
            try:
                self.first_timestamp = next(self.headers(0))[1].max_timestamp
            except RecordBatchError:
                self.first_timestamp = NO_TIMESTAMP
        return self.first_timestamp

    def clear_indexes(self) -> None:
        """Empty them, before the batches are read from the first on."""
        self.offset_index.clear()
        self.time_index.clear()
        self.bytes_since_index_entry = 0
        self.reset_timestamps()

    def save_indexes(self, *, sync: bool = False) -> None:
        """Write the indexes as of now; of an empty segment only over existing files. OSError leaves the entries in memory,
        where they are still used."""
        indexes = (self.offset_index, self.time_index)
        if self.size or any(self._disk.exists(index.path) for index in indexes):
            changed = self.offset_index.save(sync=sync)
            changed = self.time_index.save(sync=sync) or changed
            if sync and changed:
                self._disk.sync_directory(os.path.dirname(self._stem))

    # --- looking up

    def make_ready(self) -> None:
        """To be called in a thread before its indexes are used there: here they are files, but see storage/tier. OSError."""

    @property
    def knows_timestamps(self) -> bool:
        """Whether `max_timestamp` is known without reading the file."""
        return self._max_timestamp != _UNKNOWN

    @property
    def max_timestamp(self) -> int:
        """Largest batch timestamp, -1 when there is none."""
        if self._max_timestamp == _UNKNOWN:
            self.raise_max_timestamp()
        return self._max_timestamp

    def reset_timestamps(self, known: tuple[int, int] | None = None) -> None:
        """Forget them before the batches are read again, from the time index entry `known` on, which has the largest
        timestamp so far."""
        timestamp, relative = known if known is not None else (NO_TIMESTAMP, 0)
        self._max_timestamp = timestamp
        self._max_timestamp_offset = self.base_offset + relative
        self.first_timestamp = _UNKNOWN

    def raise_max_timestamp(self) -> None:
        """Learn the largest timestamp from the time index and the batches behind its last entry."""
        self._max_timestamp, self._max_timestamp_offset = self.find_max_timestamp()

    def learn_timestamps(self, found: tuple[int, int]) -> None:
        """Store what `find_max_timestamp` found in a thread, unless the timestamps are known by now."""
        if self._max_timestamp == _UNKNOWN:
            self._max_timestamp, self._max_timestamp_offset = found

    def find_max_timestamp(self) -> tuple[int, int]:
        """(largest timestamp, last offset of its batch), read and not stored. Damaged batches, and those behind them, do not
        count."""
        last = self.time_index.last()
        timestamp, relative = last if last is not None else (NO_TIMESTAMP, 0)
        offset = self.base_offset + relative
        try:
            for _, header in self.headers(self.index_position(offset)):
                if header.max_timestamp > timestamp:
                    timestamp, offset = header.max_timestamp, header.last_offset
        except RecordBatchError as error:
            logger.warning("%s: the timestamps behind damage are unknown: %s", self.path, error)
        return timestamp, offset

    def index_position(self, offset: int, *, wait: bool = True) -> int:
        """A position at or before the batch that holds `offset`."""
        if offset <= self.base_offset:
            return 0
        entry = self.offset_index.floor(offset - self.base_offset, wait=wait)
        return entry[1] if entry is not None else 0

    def locate(self, offset: int, *, wait: bool = True) -> tuple[int, BatchHeader] | None:
        """Position and header of the first batch whose last offset is at least `offset`. Without `wait`
        BlockingIOError when what it looks at is not in memory."""
        for position, header in self.headers(self.index_position(offset, wait=wait), wait=wait):
            if header.base_offset + header.last_offset_delta >= offset:
                return position, header
        return None

    def headers(
        self, position: int, window: int = 8192, *, wait: bool = True
    ) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of the batches from `position` on, without their records.

        Reads `window` bytes at a time. CorruptBatch where there is no whole batch; without `wait`
        BlockingIOError when it is not in memory.
        """
        if position >= self.size:
            return
        file = self.open_for_read()
        read = file.pread if wait else file.pread_now
        start, chunk = 0, b""
        end = self.size
        while position < end:
            within = position - start
            if within + HEADER_SIZE > len(chunk):
                start, within = position, 0
                chunk = read(window, position)
            header = read_stored_header(chunk, within)
            size = header.size
            if size > end - position:
                raise CorruptBatch(
                    f"{self.path}: a batch of {size} bytes at {position}, {end - position} remain"
                )
            yield position, header
            position += size
