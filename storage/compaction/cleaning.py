"""One cleaning of one log: read its dirty section, then rewrite its segments without superseded records.

It runs in a thread, slice by slice, on segments that no longer change, and does not change the log: it writes and syncs
files named `.cleaned`, which the loop then swaps in (segment_swap.py). A generator yields every SLICE_BYTES and after each
segment, so that a stop, the throttle or the deletion of the log takes effect there; closing it removes unfinished files. The
steps are those of Kafka's Cleaner.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from itertools import pairwise

import msgspec

from barnabas.storage.compaction.batch_filter import BatchFilter, FilterSettings, LastRecords, control_type
from barnabas.storage.compaction.cleaned_transactions import CleanedTransactions
from barnabas.storage.compaction.log_to_clean import LogToClean
from barnabas.storage.compaction.offset_map import OffsetMap
from barnabas.storage.compaction.record_walk import put_keys
from barnabas.storage.disk.disk import Disk, File, write_rest
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.segment.segment import CLEANED_SUFFIX, MAX_RELATIVE_OFFSET, Segment
from barnabas.storage.segment.transaction_index import (
    AbortedTransaction,
    encode_transactions,
    transaction_index_path,
)
from barnabas.wire.compression import Bytes
from barnabas.wire.record_batch import (
    BatchHeader,
    CorruptBatch,
    iterate_whole_headers,
    read_header,
    verify_crc,
)
from barnabas.wire.records import iterate_records, records_payload

WINDOW_BYTES = 1 << 17  # read at once
_WRITE_BYTES = 1 << 20  # gathered before they are written
SLICE_BYTES = 1 << 20  # read and written between two yields, at most about


class Source(msgspec.Struct, frozen=True):
    """A segment to be cleaned, as it was when the cleaning began. `end_offset` is the next one's base."""

    segment: Segment
    path: str
    base_offset: int
    end_offset: int
    size: int
    index_size: int
    time_index_size: int


class Cleaning(msgspec.Struct, kw_only=True):
    """What to clean and by what rules, made on the loop; and counters, which the thread raises."""

    disk: Disk
    directory: str
    config: LogConfig
    sources: Sequence[Source]  # all of the log below the first uncleanable segment, ascending, not empty
    first_dirty_offset: int
    first_dirty_position: int  # at or before it in its segment
    now_ms: int
    map_bytes: int
    map_load_factor: float
    last_records: LastRecords
    aborted: Sequence[AbortedTransaction]
    end_offset: int = -1  # first offset that is still dirty afterwards; known when the map is
    map_utilization: float = 0.0
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0


class Slice(msgspec.Struct, gc=False):
    """The result of one slice: bytes read and written, and perhaps a new segment to swap in for `old`."""

    bytes_moved: int
    cleaned: Segment | None = None
    old: tuple[Segment, ...] = ()


def plan(choice: LogToClean, disk: Disk, now_ms: int, map_bytes: int, map_load_factor: float) -> Cleaning:
    """What a thread needs to clean a log, gathered on the loop. OSError, RecordBatchError or StorageError when the log can't
    be read."""
    log, dirty = choice.log, choice.first_dirty_offset
    sources = _sources(choice)
    first_dirty = next(source for source in sources if source.end_offset > dirty)
    return Cleaning(
        disk=disk,
        directory=log.directory,
        config=log.config,
        sources=sources,
        first_dirty_offset=dirty,
        first_dirty_position=first_dirty.segment.index_position(dirty),
        now_ms=now_ms,
        map_bytes=map_bytes,
        map_load_factor=map_load_factor,
        last_records={
            producer_id: (entry.last_offset, entry.producer_epoch)
            for producer_id, entry in log.producers.active.items()
        },
        aborted=log.producers.collect_aborted(sources[0].base_offset, choice.first_uncleanable_offset),
    )


def _sources(choice: LogToClean) -> list[Source]:
    """All segments below the first uncleanable one, as of now."""
    found = []
    for segment, following in pairwise(choice.log.segments):
        if following.base_offset > choice.first_uncleanable_offset:
            break
        found.append(
            Source(
                segment,
                segment.path,
                segment.base_offset,
                following.base_offset,
                segment.size,
                8 * len(segment.offset_index),
                12 * len(segment.time_index),
            )
        )
    return found


Slices = Generator[Slice, None, None]


def clean(cleaning: Cleaning) -> Slices:
    """The whole cleaning. RecordBatchError when the log holds what can't be read, OSError as the disk gives it."""
    offsets = OffsetMap(cleaning.map_bytes, cleaning.map_load_factor)
    try:
        yield from _clean(cleaning, offsets)
    finally:
        offsets.clear()


def _clean(cleaning: Cleaning, offsets: OffsetMap) -> Slices:
    yield from _build_offset_map(cleaning, offsets)
    offsets.seal()
    cleaning.end_offset = offsets.latest_offset + 1
    cleaning.map_utilization = offsets.utilization
    transactions = CleanedTransactions()
    first_base = cleaning.sources[0].base_offset
    transactions.add_aborted(one for one in cleaning.aborted if one.last_offset >= first_base)
    settings = FilterSettings(
        cleaning.now_ms,
        cleaning.config.delete_retention_ms,
        cleaning.first_dirty_offset,
        cleaning.sources[-1].end_offset,
        cleaning.last_records,
    )
    batch_filter = BatchFilter(settings, offsets, transactions)
    reached = [source for source in cleaning.sources if source.base_offset < cleaning.end_offset]
    for group in group_sources(reached, cleaning.config.segment_bytes, cleaning.config.segment_index_bytes):
        yield from _clean_group(cleaning, group, batch_filter, transactions)
    cleaning.records_read = batch_filter.records_read
    cleaning.records_kept = batch_filter.records_kept


def _build_offset_map(cleaning: Cleaning, offsets: OffsetMap) -> Slices:
    """Put the keys of the dirty section into the map, as far as it has room; without aborted records and markers."""
    start = cleaning.first_dirty_offset
    transactions = CleanedTransactions()
    transactions.add_aborted(one for one in cleaning.aborted if one.last_offset >= start)
    for source in cleaning.sources:
        if source.end_offset <= start:
            continue
        position = cleaning.first_dirty_position if source.base_offset <= start else 0
        moved = 0
        for data, headers in read_windows(cleaning.disk, source, position):
            if moved >= SLICE_BYTES:
                yield Slice(moved)
                moved = 0
            moved += len(data)
            for at, header in headers:
                batch = data[at : at + header.size]
                if header.is_control:
                    transactions.marker_may_go(header, control_type(batch))
                elif not transactions.is_aborted(header) and header.record_count:
                    verify_crc(batch, 0, header)
                    if not _put_batch(batch, header, start, offsets):
                        yield Slice(moved)
                        return
                if header.last_offset >= start:
                    offsets.latest_offset = header.last_offset
        offsets.latest_offset = source.end_offset - 1
        yield Slice(moved)


def _put_batch(batch: memoryview, header: BatchHeader, start: int, offsets: OffsetMap) -> bool:
    """False when the map is full, and the section ends inside this batch."""
    if len(offsets.values) + header.record_count <= offsets.entries_max:
        put_keys(records_payload(batch, header), header, start, offsets)
        return True
    for record in iterate_records(batch):
        if record.key is None or record.offset < start:
            continue
        if not offsets.put(record.key, record.offset, record.value is None):
            return False
    return True


def _clean_group(
    cleaning: Cleaning,
    group: Sequence[Source],
    batch_filter: BatchFilter,
    transactions: CleanedTransactions,
) -> Slices:
    """Write several segments into one."""
    writer = CleanedSegmentWriter(cleaning.disk, cleaning.directory, group[0].base_offset, cleaning.config)
    try:
        for source in group:
            moved = 0
            for data, headers in read_windows(cleaning.disk, source, 0):
                if moved >= SLICE_BYTES:
                    yield Slice(moved)
                    moved = 0
                written = 0
                for at, header in headers:
                    left = batch_filter.filter(data[at : at + header.size], header)
                    if left is not None:
                        writer.append(*left)
                        written += left[1].size
                cleaning.bytes_read += len(data)
                cleaning.bytes_written += written
                moved += len(data) + written
            yield Slice(moved)
        cleaned = writer.finish(transactions.take_retained(), group[-1].path)
    except BaseException:  # GeneratorExit too: the cleaning was cancelled
        writer.discard()
        raise
    yield Slice(0, cleaned, tuple(source.segment for source in group))


class CleanedSegmentWriter:
    """Writes the segment that replaces others: its log, its indexes, its transaction index. Append batches in offset order, then
    `finish` or `discard`, once. The name of every file ends in `.cleaned`, and every file is synced before the log uses it."""

    def __init__(self, disk: Disk, directory: str, base_offset: int, config: LogConfig) -> None:
        """OSError leaves at most an empty file."""
        self._disk = disk
        self._directory = directory
        self._config = config
        self._segment = Segment(disk, directory, base_offset, 0, fresh=True, suffix=CLEANED_SUFFIX)
        self._file = disk.open(self._segment.path, create=True)
        self._file.truncate(0)  # a cleaning that was cancelled may have left it
        self._parts: list[bytes] = []
        self._gathered = 0
        self._position = 0

    def append(self, batch: Bytes, header: BatchHeader) -> None:
        """Append the next batch, which is copied."""
        size = header.size
        self._segment.appended(
            header, size, self._config.index_interval_bytes, self._config.segment_index_bytes
        )
        self._parts.append(bytes(batch))
        self._gathered += size
        if self._gathered >= _WRITE_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._parts:
            write_rest(self._file, b"".join(self._parts), 0, self._position)
            self._position += self._gathered
            self._parts.clear()
            self._gathered = 0

    def finish(self, aborted: Sequence[AbortedTransaction], like: str) -> Segment:
        """The segment, synced; as old as the file `like`, for retention."""
        segment = self._segment
        self._flush()
        self._file.sync()
        segment.add_time_index_entry()
        segment.save_indexes(sync=True)
        if aborted:
            path = transaction_index_path(self._directory, segment.base_offset) + CLEANED_SUFFIX
            self._disk.write_file(path, encode_transactions(aborted))
        self._disk.set_modified_ms(segment.path, self._disk.modified_ms(like))
        self._disk.sync_directory(self._directory)
        return segment

    def discard(self) -> None:
        """Remove what has been written, as far as possible; the next start removes the rest."""
        try:
            for path in self._segment.files:
                self._disk.remove(path)
        except OSError:
            pass


def group_sources(
    sources: Sequence[Source], segment_bytes: int, segment_index_bytes: int
) -> list[list[Source]]:
    """Groups of adjacent segments that fit into one: by the size of the log and of both indexes, and by relative offset."""
    groups: list[list[Source]] = []
    size = index_size = time_index_size = 0
    for source in sources:
        size += source.size
        index_size += source.index_size
        time_index_size += source.time_index_size
        if (
            groups
            and size <= segment_bytes
            and index_size <= segment_index_bytes
            and time_index_size <= segment_index_bytes
            and (source.size == 0 or source.end_offset - 1 - groups[-1][0].base_offset <= MAX_RELATIVE_OFFSET)
        ):
            groups[-1].append(source)
        else:
            groups.append([source])
            size, index_size, time_index_size = source.size, source.index_size, source.time_index_size
    return groups


def read_windows(
    disk: Disk, source: Source, position: int
) -> Iterator[tuple[memoryview, list[tuple[int, BatchHeader]]]]:
    """(bytes, [(position in them, header)]) of whole batches, about WINDOW_BYTES at a time.

    CorruptBatch where there is no whole batch, or offsets go back.
    """
    file = disk.open(source.path)
    last_offset = source.base_offset - 1
    while position < source.size:
        data, headers = _read_window(file, position, source)
        for _, header in headers:
            if header.base_offset <= last_offset or header.last_offset_delta < 0:
                raise CorruptBatch(f"{source.path}: offset {header.base_offset} behind {last_offset}")
            last_offset = header.last_offset
        if last_offset >= source.end_offset:
            raise CorruptBatch(f"{source.path}: offset {last_offset} belongs to the next segment")
        yield data, headers
        position += len(data)


def _read_window(
    file: File, position: int, source: Source
) -> tuple[memoryview, list[tuple[int, BatchHeader]]]:
    rest = source.size - position
    data = memoryview(file.pread(min(WINDOW_BYTES, rest), position))
    first = read_header(data).size
    if first > rest:
        raise CorruptBatch(f"{source.path}: a batch of {first} bytes at {position}, {rest} remain")
    if first > len(data):
        data = memoryview(file.pread(first, position))
    headers = list(iterate_whole_headers(data))
    if not headers:
        raise CorruptBatch(f"{source.path}: no whole batch at {position}")
    last_at, last = headers[-1]
    return data[: last_at + last.size], headers
