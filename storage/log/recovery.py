"""Opening a log: which of the files in its directory to use, how far to trust them, and where the log ends.

After a clean stop the files are trusted as long as their indexes look right. After any other stop everything beyond the
recovery point, below which everything had been synced, is read batch by batch. The first batch that is not whole or whose
CRC differs ends the log, and what lies behind it is removed. A segment below the recovery point whose index is missing or
wrong is read too, but damage there removes only the rest of that segment.

First the files of interrupted work are removed or completed, by the rules of Kafka's LogLoader, so that either broker can
continue where the other was interrupted. `.deleted` and `.tmp` are removed. `.cleaned` is removed, as it was not complete
yet. `.swap` was complete: the segments that it replaces (those between its base offset and the end of its last batch) are
removed if they still exist, and it gets the usual name. A `.swap` beside a `.cleaned` of no higher offset is the exception:
it was being renamed, or is half of a split segment (KAFKA-6264), and what it would replace is still whole. Doing this twice
changes nothing, and a crash in between does no harm.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import msgspec

from barnabas.storage.disk.deletion import DELETED_SUFFIX
from barnabas.storage.disk.disk import Disk, File
from barnabas.storage.log.leader_epochs import LeaderEpochCache
from barnabas.storage.log.local_start import LOCAL_START_FILE, read_local_start
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.log.partition_directory import PartitionDirectory
from barnabas.storage.log.producer_recovery import ALL_COMMITTED, ProducerRecovery
from barnabas.storage.log.segments import LogSegments
from barnabas.storage.segment.legacy_format import read_stored_header, verify_stored_crc
from barnabas.storage.segment.segment import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    MAX_RELATIVE_OFFSET,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
)
from barnabas.storage.segment.transaction_index import TRANSACTION_INDEX_SUFFIX
from barnabas.wire.record_batch import HEADER_SIZE, BatchHeader, CorruptBatch, RecordBatchError

logger = logging.getLogger("barnabas.storage")

# An older segment without an index entry is trusted when it is this short: an entry is made for every
# index.interval.bytes, and a batch, which may be larger, comes in between.
_SMALL_ENOUGH_FOR_NO_ENTRY = 1 << 21

_READ_BYTES = 1 << 20
_INDEXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
_GARBAGE = (DELETED_SUFFIX, ".tmp")


class LoadedLog(msgspec.Struct):
    """What a log is made of. `epochs_changed`: the epochs are not those that were in their file."""

    segments: LogSegments
    end_offset: int
    epochs: LeaderEpochCache
    epochs_changed: bool
    producers: ProducerRecovery  # as of the log's end
    gap_from: int | None = None  # where records were before the crash, but for those of a segment further on


def new_log(directory: PartitionDirectory, now_ms: int) -> LoadedLog:
    """An empty log in a directory that has just been made, and so holds nothing to load."""
    producers = ProducerRecovery(directory, (), 0)
    producers.snapshot_offset = 0  # no snapshot is needed of an empty log
    segments = LogSegments([Segment.create(directory.disk, directory.path, 0, now_ms)])
    return LoadedLog(segments, 0, LeaderEpochCache(directory), False, producers)


class LogLoader:
    """Opens the log in `directory`, and recovers it unless it was stopped cleanly. `load` once; OSError when the directory
    can't be read or written."""

    def __init__(
        self,
        directory: PartitionDirectory,
        config: LogConfig,
        *,
        clean: bool,
        recovery_point: int,
        log_start_offset: int,
        high_watermark: int | None,
        now_ms: int,
        producer_expiration_ms: int,
    ) -> None:
        """`high_watermark`: None where all is committed."""
        self._directory = directory
        self._config = config
        self._clean = clean
        self._recovery_point = recovery_point
        self._log_start_offset = log_start_offset
        self._now_ms = now_ms
        self._epochs = LeaderEpochCache(directory)
        names = _settled_names(directory.disk, directory.path)
        self._bases = _bases(directory, names)
        self._producers = ProducerRecovery(
            directory,
            names,
            log_start_offset,
            high_watermark=ALL_COMMITTED if high_watermark is None else high_watermark,
            now_ms=now_ms,
            expiration_ms=producer_expiration_ms,
        )
        self._segments: list[Segment] = []
        self._next_offset = self._bases[0] if self._bases else log_start_offset
        self._bytes_cut = 0
        self._gap_from: int | None = None

    def load(self) -> LoadedLog:
        epochs = self._epochs
        epochs_known = epochs.load()
        entries = epochs.entries
        self._load_segments()
        segments = LogSegments(self._segments)
        if not epochs_known and self._next_offset > segments.bases[0]:
            self._recover_epochs(segments)
        epochs.truncate_from_end(self._next_offset + 1)
        changed = epochs.entries != entries
        if changed and not self._clean:
            epochs.save(sync=True)
        return LoadedLog(segments, self._next_offset, epochs, changed, self._producers, self._gap_from)

    def _recover_epochs(self, segments: LogSegments) -> None:
        """Rebuild the leader epochs from the batches, where their file is missing or damaged: recovery reads only the last
        segments."""
        self._epochs.clear()
        try:
            for header in segments.headers(segments.bases[0]):
                self._epochs.recover(header.partition_leader_epoch, header.base_offset)
        except RecordBatchError as error:  # the rest of the log is served all the same
            logger.warning(
                "%s: its leader epochs are known up to a damaged batch: %s", self._directory.name, error
            )

    def _load_segments(self) -> None:
        disk, path = self._directory.disk, self._directory.path
        bases, producers, segments = self._bases, self._producers, self._segments
        if bases:
            producers.drop_snapshots_before(bases[0])
        if not self._clean:
            # A snapshot of the log's start describes nothing that a crash could have removed.
            producers.begin(max(self._recovery_point, bases[0] if bases else 0))
        for index, base in enumerate(bases):
            next_base = bases[index + 1] if index + 1 < len(bases) else None
            segment = Segment(disk, path, base, disk.size(_log_path(path, base)), fresh=False)
            segment.created_ms = self._now_ms
            cut = self._load(segment, next_base)
            segments.append(segment)
            if cut:
                self._bytes_cut += cut
                for later in bases[index + 1 :]:
                    self._bytes_cut += disk.size(_log_path(path, later))
                    Segment(disk, path, later, 0, fresh=True).remove()
                disk.sync_directory(path)  # or a power failure would put them behind what is appended now
                segment.truncate(segment.size)  # last: until then the next start recovers again
                break
        if self._bytes_cut:
            logger.warning(
                "%s: cut %d bytes that are no whole batches; the log ends at offset %d",
                path,
                self._bytes_cut,
                self._next_offset,
            )
        if self._next_offset < self._log_start_offset:
            for segment in segments:
                segment.remove()
            disk.sync_directory(path)
            segments.clear()
            self._next_offset = self._log_start_offset
            producers.reset()
        if not segments:
            segments.append(Segment.create(disk, path, self._next_offset, self._now_ms))
        producers.finish(segments, self._next_offset)

    def _load(self, segment: Segment, next_base: int | None) -> int:
        """Make one segment usable and set `_next_offset` to its end; the bytes to cut from the log behind it."""
        if next_base is None and segment.size == 0:  # nothing to read, and no index to trust
            segment.clear_indexes()
            self._next_offset = max(self._next_offset, segment.base_offset)
            if self._segments and not self._clean:
                self._producers.advance(self._segments, segment.base_offset)
                self._producers.save()
            return 0
        # A segment that ends at the recovery point may have been the last one when the point was written, and its
        # indexes may not be on disk.
        must_recover = not self._clean and (next_base is None or next_base >= self._recovery_point)
        index_trusted = self._producers.take_transaction_index(segment)
        if must_recover:
            return self._recover(segment, next_base, index_trusted)
        if index_trusted and _indexes_look_right(segment, next_base):
            try:
                self._next_offset = _find_end(segment) if next_base is None else next_base
                return 0
            except RecordBatchError:
                pass
        self._rebuild_indexes(segment, next_base, index_trusted)
        return 0

    def _recover(self, segment: Segment, next_base: int | None, index_trusted: bool) -> int:
        """Read a segment that reaches beyond the recovery point. `index_trusted`: its transaction index can be trusted."""
        producers = self._producers
        if not index_trusted:
            producers.go_back(segment.base_offset)
        file_size = segment.size
        offset = skip_synced(segment, self._epochs, self._recovery_point) if index_trusted else None
        if offset is None:
            segment.size = 0
            segment.clear_indexes()
            offset = max(self._next_offset, segment.base_offset)
        producers.cut_transaction_index(segment.base_offset, max(0, producers.offset))
        producers.advance([*self._segments, segment], offset)
        if self._segments and segment.size == 0:
            producers.save()
        self._next_offset, cut = self._read_batches(segment, producers, offset, file_size)
        producers.reached(self._next_offset)
        start = max(self._next_offset, self._log_start_offset)  # below the log's start records may be missing
        if next_base is not None and start < next_base and self._gap_from is None:
            self._gap_from = start
        self._release(segment, next_base)
        return cut

    def _rebuild_indexes(self, segment: Segment, next_base: int | None, index_trusted: bool) -> None:
        """Read a segment below the recovery point whose indexes can't be trusted. Damage in it removes its rest and nothing
        else, as in Kafka."""
        producers = None
        if not index_trusted:  # its transactions have to be found again, with what was known when it began
            producers = self._producers.as_of(segment.base_offset)
            producers.advance(self._segments, segment.base_offset)
        file_size, segment.size = segment.size, 0
        segment.clear_indexes()
        end, cut = self._read_batches(segment, producers, segment.base_offset, file_size)
        if cut:
            segment.truncate(segment.size)
        if producers is not None:
            self._producers.transaction_indexes.update(producers.transaction_indexes)
        self._next_offset = end if next_base is None else next_base
        self._bytes_cut += cut
        self._release(segment, next_base)

    def _read_batches(
        self, segment: Segment, producers: ProducerRecovery | None, expected_offset: int, file_size: int
    ) -> tuple[int, int]:
        """Read every batch from `segment.size` on into the indexes, the leader epochs and `producers`; the caller cuts the
        file behind the last. Returns (offset after the last batch, bytes to cut)."""
        config = self._config
        file = segment.open_for_append()
        next_offset = expected_offset
        try:
            for header, batch in _batches(file, segment.size, file_size):
                if header.base_offset < next_offset or header.last_offset_delta < 0:
                    raise CorruptBatch("offsets that go back")
                if header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
                    raise CorruptBatch("an offset too far from the segment's base")
                self._epochs.recover(header.partition_leader_epoch, header.base_offset)
                if producers is not None:
                    producers.replay(segment, header, batch)
                segment.appended(header, header.size, config.index_interval_bytes, config.segment_index_bytes)
                next_offset = header.next_offset
        except RecordBatchError as error:
            logger.info("%s: the last good batch ends at %d: %s", segment.path, segment.size, error)
        return next_offset, file_size - segment.size

    def _release(self, segment: Segment, next_base: int | None) -> None:
        """Close a segment that has been read. An older one is not read again once the recovery point is behind it, so its
        indexes are written first."""
        if next_base is not None:
            index = self._producers.transaction_indexes.get(segment.base_offset)
            if index is not None:
                index.save(sync=True)
                index.unload()
            segment.add_time_index_entry()
            segment.save_indexes(sync=True)
        segment.release()


def _bases(directory: PartitionDirectory, names: Sequence[str]) -> list[int]:
    """The base offsets of the log's segments, after what a power failure has left in front of a tiered log's local start is gone."""
    bases = sorted(int(name[: -len(LOG_SUFFIX)]) for name in names if _is_log(name))
    disk, path = directory.disk, directory.path
    local_start = read_local_start(disk, path) if LOCAL_START_FILE in names else -1
    if local_start not in bases:
        return bases
    first = bases.index(local_start)
    for base in bases[:first]:
        Segment(disk, path, base, 0, fresh=True).remove()
    return bases[first:]


def _is_log(name: str) -> bool:
    return name.endswith(LOG_SUFFIX) and name[: -len(LOG_SUFFIX)].isdecimal()


def _log_path(directory: str, base_offset: int) -> str:
    return f"{directory}/{base_offset:020d}{LOG_SUFFIX}"


def _settled_names(disk: Disk, directory: str) -> list[str]:
    """The names in the directory, after interrupted work has been completed or undone, and indexes without a log removed."""
    names = settle_interrupted_work(disk, directory)
    logs = {name[: -len(LOG_SUFFIX)] for name in names if name.endswith(LOG_SUFFIX)}
    for name in names:
        if name.endswith(_INDEXES) and name.split(".")[0] not in logs:
            disk.remove(f"{directory}/{name}")
    return names


def _find_end(segment: Segment) -> int:
    """The offset after the last batch, from the last index entry on."""
    last = segment.offset_index.last()
    position = last[1] if last is not None else 0
    next_offset = segment.base_offset
    for _, header in segment.headers(position):
        next_offset = header.next_offset
    segment.bytes_since_index_entry = segment.size - position
    return next_offset


def _indexes_look_right(segment: Segment, next_base: int | None) -> bool:
    """Kafka's sanity checks, and that the last entry points at the batch that it names."""
    try:
        if not (segment.offset_index.is_well_formed() and segment.time_index.is_well_formed()):
            return False
        last = segment.offset_index.last()
        if last is None:
            return next_base is None or segment.size <= _SMALL_ENOUGH_FOR_NO_ENTRY
        relative, position = last
        if not 0 <= position < segment.size:
            return False
        _, header = next(segment.headers(position))
    except (OSError, RecordBatchError, StopIteration):
        return False
    return header.last_offset == segment.base_offset + relative


def _batches(file: File, position: int, end: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    """(header, the whole batch) up to `end`, read in large pieces. RecordBatchError where there is none."""
    chunk, start = memoryview(b""), position
    while position < end:
        within = position - start
        if within + HEADER_SIZE > len(chunk):
            wanted = min(_READ_BYTES, end - position)
            chunk, start, within = memoryview(file.pread(wanted, position)), position, 0
        header = read_stored_header(chunk, within)
        size = header.size
        if size > end - position:
            raise CorruptBatch("a batch that ends behind the file")
        if within + size > len(chunk):
            wanted = min(max(_READ_BYTES, size), end - position)
            chunk, start, within = memoryview(file.pread(wanted, position)), position, 0
        verify_stored_crc(chunk, within, header)
        yield header, chunk[within : within + size]
        position += size


# --- the part that was synced


def skip_synced(segment: Segment, epochs: LeaderEpochCache, recovery_point: int) -> int | None:
    """Cut the segment and its indexes back to its last index entry below the recovery point.

    What lies below was synced, so only what came later has to be read. The offset index says where to begin, if it can be
    trusted: it is not synced with the log, and a power failure may leave zeros in place of its entries, or nothing. So the
    whole index is checked, which is half a percent of the log, and its last entry below the recovery point must point at the
    batch that it names, of the leader epoch that the cache has for it. The time index may have been saved up to an earlier
    batch: nothing behind the last batch that it knows is skipped.

    `segment.size` has to be the file's; afterwards it is where reading has to go on, and the offset expected
    there is returned. Returns None, and changes nothing, when there is no such entry or the indexes can't be
    trusted.
    """
    try:
        if not (segment.offset_index.is_well_formed() and segment.time_index.is_well_formed()):
            return None
        offsets, times = segment.offset_index.entries(), segment.time_index.entries()
        if not _ascend(offsets) or not _ascend(times):
            return None
        if not times:
            return None
        known = next((relative for relative, _ in offsets if relative >= times[-1][1]), recovery_point)
        below = [
            entry
            for entry in offsets
            if entry[0] <= known and segment.base_offset + entry[0] < recovery_point
        ]
        if not below:
            return None
        relative, position = below[-1]
        _, header = next(segment.headers(position))
        if (
            header.last_offset != segment.base_offset + relative
            or epochs.epoch_for_offset(header.base_offset) != header.partition_leader_epoch
            or not _names_its_batch(segment, offsets, [entry for entry in times if entry[1] <= relative])
        ):
            return None
        segment.offset_index.truncate(lambda entry, _: entry <= relative)
        segment.time_index.truncate(lambda _, entry: entry <= relative)
    except (OSError, RecordBatchError, StopIteration):
        return None
    segment.size = position
    segment.bytes_since_index_entry = 0
    segment.reset_timestamps(segment.time_index.last())
    return header.base_offset


def _names_its_batch(
    segment: Segment, offsets: Sequence[tuple[int, int]], times: Sequence[tuple[int, int]]
) -> bool:
    """Whether the last of `times` has the timestamp of the batch that it names. Entries may be left from before the log
    was truncated."""
    if not times:
        return False
    timestamp, relative = times[-1]
    position = max((position for offset, position in offsets if offset <= relative), default=0)
    wanted = segment.base_offset + relative
    header = next(header for _, header in segment.headers(position) if header.last_offset >= wanted)
    return header.last_offset == wanted and header.max_timestamp == timestamp


def _ascend(entries: Sequence[tuple[int, int]]) -> bool:
    """Whether both fields grow from entry to entry (the second may stay), from above zero on."""
    previous = (0, 0)
    for entry in entries:
        if entry[0] <= previous[0] or entry[1] < previous[1]:
            return False
        previous = entry
    return True


# --- interrupted work


def settle_interrupted_work(disk: Disk, directory: str) -> list[str]:
    """Complete or undo the work whose files are found; the names in the directory afterwards. OSError."""
    names = disk.list(directory)
    garbage = [name for name in names if name.endswith(_GARBAGE)]
    cleaned = [name for name in names if name.endswith(CLEANED_SUFFIX)]
    swaps = [name for name in names if name.endswith(SWAP_SUFFIX)]
    if not (garbage or cleaned or swaps):
        return names
    lowest = min(map(_offset, cleaned), default=1 << 63)
    undone = [name for name in swaps if _offset(name) >= lowest]
    _remove(disk, directory, [*garbage, *undone])
    _remove(disk, directory, cleaned)
    whole = [name for name in swaps if name not in undone]
    if whole:
        rest = [name for name in names if not name.endswith((*_GARBAGE, CLEANED_SUFFIX, SWAP_SUFFIX))]
        _complete(disk, directory, whole, rest)
    disk.sync_directory(directory)
    return disk.list(directory)


def _complete(disk: Disk, directory: str, swaps: list[str], names: list[str]) -> None:
    """Remove what the swapped segments replace among `names`; when that is certain, let them take the names."""
    ranges = [
        (_offset(name), _end_offset(disk, directory, _offset(name)))
        for name in swaps
        if name == f"{_offset(name):020d}{LOG_SUFFIX}{SWAP_SUFFIX}"
    ]
    if ranges:
        start, end = min(start for start, _ in ranges), max(end for _, end in ranges)
        logger.info("%s: completing a swap of the segments between offsets %d and %d", directory, start, end)
        keeps = f"{start:020d}.snapshot"  # describes what lies before `start`
        replaced = [name for name in names if name != keeps and start <= _offset(name) < end]
        _remove(disk, directory, replaced)
        disk.sync_directory(directory)
    for name in swaps:
        disk.rename(f"{directory}/{name}", f"{directory}/{name.removesuffix(SWAP_SUFFIX)}")


def _end_offset(disk: Disk, directory: str, base_offset: int) -> int:
    path = f"{directory}/{base_offset:020d}{LOG_SUFFIX}{SWAP_SUFFIX}"
    segment = Segment(disk, directory, base_offset, disk.size(path), fresh=True, suffix=SWAP_SUFFIX)
    end = base_offset
    try:
        for _, header in segment.headers(0):
            end = header.next_offset
    except RecordBatchError as error:  # the segment is recovered next, and cut there
        logger.warning("%s is damaged: %s", path, error)
    return end


def _remove(disk: Disk, directory: str, names: list[str]) -> None:
    for name in names:
        disk.remove(f"{directory}/{name}")


def _offset(name: str) -> int:
    """The offset that a segment's file is named after; -1 for any other file."""
    stem = name.partition(".")[0]
    return int(stem) if stem.isdecimal() else -1
