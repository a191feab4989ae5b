"""Opening a log: which of the files in its directory to use, how far to trust them, and where the log ends.

After a clean stop the files are trusted as long as their indexes look right. After any other stop everything beyond the
recovery point, below which everything had been synced, is read batch by batch; the first batch that is not whole or whose
CRC differs ends the log, and what lies behind it is removed. A segment below the recovery point whose index is missing or
wrong is read through too, but damage there takes only the rest of that segment.

Files that interrupted work has left are settled first, by the rules of Kafka's LogLoader, so that either broker can continue
where the other was interrupted. `.deleted` and `.tmp` are removed. `.cleaned` is removed: it was not complete yet. `.swap`
was: the segments that it replaces (those between its base offset and the end of its last batch) are removed if they still
exist, and it takes the usual name. A `.swap` next to a `.cleaned` of no higher offset is the exception: it was being renamed,
or is half of a split segment (KAFKA-6264), and what it would replace is still whole. Settling twice changes nothing, and
neither does a crash in between.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import msgspec

from barnabas.storage.disk.deletion import DELETED_SUFFIX
from barnabas.storage.disk.disk import Disk, File
from barnabas.storage.log.leader_epochs import EPOCH_FILE, LeaderEpochCache
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.log.producer_recovery import ProducerRecovery
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


def load_log(
    disk: Disk,
    directory: str,
    name: str,
    config: LogConfig,
    *,
    clean: bool,
    recovery_point: int,
    log_start_offset: int,
    now_ms: int,
    producer_expiration_ms: int,
) -> LoadedLog:
    """Open the log in `directory`, and recover what has to be unless it was stopped cleanly. `name` is for messages. OSError
    when the directory can't be read or written."""
    epochs = LeaderEpochCache(disk, f"{directory}/{EPOCH_FILE}")
    epochs_known = epochs.load()
    entries = epochs.entries
    loaded = load_segments(
        disk,
        directory,
        name,
        config,
        epochs,
        clean=clean,
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
        now_ms=now_ms,
        producer_expiration_ms=producer_expiration_ms,
    )
    segments = LogSegments(loaded.segments)
    if not epochs_known and loaded.next_offset > segments.bases[0]:
        _recover_epochs(epochs, segments, name)
    epochs.truncate_from_end(loaded.next_offset + 1)
    changed = epochs.entries != entries
    if changed and not clean:
        epochs.save()
    return LoadedLog(segments, loaded.next_offset, epochs, changed, loaded.producers)


def _recover_epochs(epochs: LeaderEpochCache, segments: LogSegments, name: str) -> None:
    """Rebuild from the batches what a power failure has damaged: recovery has read only the last segments."""
    epochs.clear()
    try:
        for header in segments.headers(segments.bases[0]):
            epochs.recover(header.partition_leader_epoch, header.base_offset)
    except RecordBatchError as error:  # what can be read further is served all the same
        logger.warning("%s: its leader epochs are known up to a damaged batch: %s", name, error)


class LoadedSegments(msgspec.Struct):
    """At least one segment, ascending, and the producers as of the log's end."""

    segments: list[Segment]
    next_offset: int
    producers: ProducerRecovery
    bytes_cut: int = 0


def load_segments(
    disk: Disk,
    directory: str,
    partition: str,
    config: LogConfig,
    epochs: LeaderEpochCache,
    *,
    clean: bool,
    recovery_point: int,
    log_start_offset: int,
    now_ms: int,
    producer_expiration_ms: int,
) -> LoadedSegments:
    """Open the segments of `directory`, recovering what must be. OSError when the directory can't be read."""
    names = _settle(disk, directory)
    bases = sorted(int(name[: -len(LOG_SUFFIX)]) for name in names if _is_log(name))
    producers = ProducerRecovery(
        disk,
        directory,
        partition,
        names,
        log_start_offset,
        now_ms=now_ms,
        expiration_ms=producer_expiration_ms,
    )
    if bases:
        producers.drop_snapshots_before(bases[0])
    if not clean:
        # A snapshot of the log's start describes nothing that a crash could have removed.
        producers.begin(max(recovery_point, bases[0] if bases else 0))
    loaded = LoadedSegments([], bases[0] if bases else log_start_offset, producers)
    for index, base in enumerate(bases):
        next_base = bases[index + 1] if index + 1 < len(bases) else None
        path = f"{directory}/{base:020d}{LOG_SUFFIX}"
        segment = Segment(disk, directory, base, disk.size(path), fresh=False)
        segment.created_ms = now_ms
        # one that ends there may have been the last when the point was written down, its indexes not on the medium
        must_recover = not clean and (next_base is None or next_base >= recovery_point)
        cut = _load(segment, config, epochs, loaded, next_base, must_recover, recovery_point)
        loaded.segments.append(segment)
        if cut:
            loaded.bytes_cut += cut
            for later in bases[index + 1 :]:
                loaded.bytes_cut += disk.size(f"{directory}/{later:020d}{LOG_SUFFIX}")
                Segment(disk, directory, later, 0, fresh=True).remove()
            disk.sync_directory(directory)  # or a power failure would put them behind what is appended now
            segment.truncate(
                segment.size
            )  # last: until then another start would find that there is work to do
            break
    if loaded.bytes_cut:
        logger.warning(
            "%s: cut %d bytes that are no whole batches; the log ends at offset %d",
            directory,
            loaded.bytes_cut,
            loaded.next_offset,
        )
    if loaded.next_offset < log_start_offset:
        for segment in loaded.segments:
            segment.remove()
        disk.sync_directory(directory)
        loaded.segments.clear()
        loaded.next_offset = log_start_offset
        producers.reset()
    if not loaded.segments:
        loaded.segments.append(Segment.create(disk, directory, loaded.next_offset, now_ms))
    producers.finish(loaded.segments, loaded.next_offset)
    return loaded


def _is_log(name: str) -> bool:
    return name.endswith(LOG_SUFFIX) and name[: -len(LOG_SUFFIX)].isdecimal()


def _settle(disk: Disk, directory: str) -> list[str]:
    """The names in the directory, after files of interrupted work have been settled; indexes without a log
    are removed."""
    names = settle_interrupted_work(disk, directory)
    logs = {name[: -len(LOG_SUFFIX)] for name in names if name.endswith(LOG_SUFFIX)}
    for name in names:
        if name.endswith(_INDEXES) and name.split(".")[0] not in logs:
            disk.remove(f"{directory}/{name}")
    return names


def _load(
    segment: Segment,
    config: LogConfig,
    epochs: LeaderEpochCache,
    loaded: LoadedSegments,
    next_base: int | None,
    must_recover: bool,
    recovery_point: int,
) -> int:
    """Make one segment usable and set `loaded.next_offset` to its end; the bytes cut from it."""
    if next_base is None and segment.size == 0:  # nothing to read, and no index to trust
        segment.clear_indexes()
        loaded.next_offset = max(loaded.next_offset, segment.base_offset)
        return 0
    whole = loaded.producers.take_transaction_index(segment)
    if not must_recover and whole and _indexes_look_right(segment, next_base):
        try:
            if next_base is None:
                loaded.next_offset = _find_end(segment)
            else:
                loaded.next_offset = next_base
            return 0
        except RecordBatchError:
            pass
    if must_recover:
        return _recover(segment, config, epochs, loaded, next_base, whole, recovery_point)
    return _mend(segment, config, epochs, loaded, next_base, whole)


def _recover(
    segment: Segment,
    config: LogConfig,
    epochs: LeaderEpochCache,
    loaded: LoadedSegments,
    next_base: int | None,
    whole: bool,
    recovery_point: int,
) -> int:
    """A segment that reaches beyond the recovery point. `whole`: its transaction index can be trusted."""
    producers = loaded.producers
    if not whole:
        producers.go_back(segment.base_offset)
    file_size = segment.size
    offset = skip_synced(segment, epochs, recovery_point) if whole else None
    if offset is None:
        segment.size = 0
        segment.clear_indexes()
        offset = max(loaded.next_offset, segment.base_offset)
    producers.cut_transaction_index(segment.base_offset, max(0, producers.offset))
    producers.advance([*loaded.segments, segment], offset)
    if loaded.segments and segment.size == 0:
        producers.save()
    loaded.next_offset, cut = recover_segment(segment, config, epochs, producers, offset, file_size)
    producers.reached(loaded.next_offset)
    _close(segment, next_base, producers)
    return cut


def _mend(
    segment: Segment,
    config: LogConfig,
    epochs: LeaderEpochCache,
    loaded: LoadedSegments,
    next_base: int | None,
    whole: bool,
) -> int:
    """A segment that had been synced, with indexes that can't be trusted. Damage in it removes its rest
    and nothing else, as in Kafka, unless it is the last: 0 then."""
    producers = None
    if not whole:  # its transactions have to be found again, with what was known when it began
        producers = loaded.producers.as_of(segment.base_offset)
        producers.advance(loaded.segments, segment.base_offset)
    file_size, segment.size = segment.size, 0
    segment.clear_indexes()
    end, cut = recover_segment(segment, config, epochs, producers, segment.base_offset, file_size)
    if cut:
        segment.truncate(segment.size)
    if producers is not None:
        loaded.producers.transaction_indexes.update(producers.transaction_indexes)
    loaded.next_offset = end if next_base is None else next_base
    loaded.bytes_cut += cut
    _close(segment, next_base, loaded.producers)
    return 0


def _close(segment: Segment, next_base: int | None, producers: ProducerRecovery) -> None:
    """An older segment will not be read again once the recovery point is behind it: its indexes must be there."""
    if next_base is not None:
        index = producers.transaction_indexes.get(segment.base_offset)
        if index is not None:
            index.save(sync=True)
            index.unload()
        segment.add_time_index_entry()
        segment.save_indexes(sync=True)
    segment.release()


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


def recover_segment(
    segment: Segment,
    config: LogConfig,
    epochs: LeaderEpochCache,
    producers: ProducerRecovery | None,
    expected_offset: int,
    file_size: int,
) -> tuple[int, int]:
    """Read every batch from `segment.size` on and mend the indexes; the caller cuts the file behind the last.

    `producers` follow what is read. Returns (offset after the last batch, bytes to cut).
    """
    file = segment.open_for_append()
    next_offset = expected_offset
    try:
        for header, batch in _batches(file, segment.size, file_size):
            if header.base_offset < next_offset or header.last_offset_delta < 0:
                raise CorruptBatch("offsets that go back")
            if header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
                raise CorruptBatch("an offset too far from the segment's base")
            epochs.recover(header.partition_leader_epoch, header.base_offset)
            if producers is not None:
                producers.replay(segment, header, batch)
            segment.appended(header, header.size, config.index_interval_bytes, config.segment_index_bytes)
            next_offset = header.next_offset
    except RecordBatchError as error:
        logger.info("%s: the last good batch ends at %d: %s", segment.path, segment.size, error)
    return next_offset, file_size - segment.size


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
    trusted: it is not synced with the log, and a power failure leaves zeros or nothing of what it takes. So all of the index
    is checked, which is half a percent of the log, and its last entry below the recovery point has to point at the batch that
    it names, written in the leader epoch that the cache has for it. The time index may have been saved less far: nothing is
    skipped behind the entry that its last one was made with.

    `segment.size` has to be the file's; afterwards it is where reading has to go on, and the offset expected
    there is returned. None, and nothing has changed, when there is no such entry or the indexes can't be
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


# --- files of interrupted work


def settle_interrupted_work(disk: Disk, directory: str) -> list[str]:
    """Remove what interrupted work has left, or complete it; the names in the directory afterwards. OSError."""
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
        keeps = f"{start:020d}.snapshot"  # says what lies before
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
    except RecordBatchError as error:  # recovery of the segment will say the same, and cut it
        logger.warning("%s is damaged: %s", path, error)
    return end


def _remove(disk: Disk, directory: str, names: list[str]) -> None:
    for name in names:
        disk.remove(f"{directory}/{name}")


def _offset(name: str) -> int:
    """The offset that a segment's file is named after; -1 for any other file."""
    stem = name.partition(".")[0]
    return int(stem) if stem.isdecimal() else -1
