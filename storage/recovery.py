"""Opening a log directory: which segments there are, which of them to believe, and where the log ends.

After a clean stop the files are trusted as long as their indexes look right. After any other stop what lies
beyond the recovery point (below it everything is known to have been synced) is read batch by batch; the first
batch that is not whole or whose CRC differs ends the log, and what lies behind it is removed. A missing or
wrong index makes its whole segment be read the same way.
"""

from __future__ import annotations

import logging

import msgspec
from barnabas.storage.disk import Disk
from barnabas.storage.epochs import LeaderEpochCache
from barnabas.storage.leftovers import settle_leftovers
from barnabas.storage.log_config import LogConfig
from barnabas.storage.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    MAX_RELATIVE_OFFSET,
    TIME_INDEX_SUFFIX,
    Segment,
)
from barnabas.storage.synced_part import skip_synced_part
from barnabas.wire.record_batch import CorruptBatch, RecordBatchError, read_header, verify_crc

logger = logging.getLogger("barnabas.storage")

# An older segment without a single entry is believed when it is this short: an entry is made for every
# index.interval.bytes, and a batch, which may be larger, comes in between.
_SMALL_ENOUGH_FOR_NO_ENTRY = 1 << 21


class LoadedLog(msgspec.Struct):
    """What `load_segments` found: at least one segment, ascending."""

    segments: list[Segment]
    next_offset: int
    bytes_cut: int = 0


def load_segments(
    disk: Disk,
    directory: str,
    config: LogConfig,
    epochs: LeaderEpochCache,
    *,
    clean: bool,
    recovery_point: int,
    log_start_offset: int,
    now_ms: int,
) -> LoadedLog:
    """Open the segments of `directory`, recovering what must be. OSError when the directory can't be read."""
    bases = _list_bases(disk, directory)
    loaded = LoadedLog([], bases[0] if bases else log_start_offset)
    for index, base in enumerate(bases):
        next_base = bases[index + 1] if index + 1 < len(bases) else None
        path = f"{directory}/{base:020d}{LOG_SUFFIX}"
        segment = Segment(disk, directory, base, disk.size(path), fresh=False)
        segment.created_ms = now_ms
        must_recover = not clean and (next_base is None or next_base > recovery_point)
        cut = _load(segment, config, epochs, loaded, next_base, must_recover, recovery_point)
        loaded.segments.append(segment)
        if cut:
            loaded.bytes_cut += cut
            for later in bases[index + 1 :]:
                loaded.bytes_cut += disk.size(f"{directory}/{later:020d}{LOG_SUFFIX}")
                Segment(disk, directory, later, 0, fresh=True).remove()
            disk.sync_directory(directory)  # or a power failure would put them behind what is appended now
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
    if not loaded.segments:
        loaded.segments.append(Segment.create(disk, directory, loaded.next_offset, now_ms))
    return loaded


def _list_bases(disk: Disk, directory: str) -> list[int]:
    """Base offsets of the log files, when leftovers of interrupted work have been settled; indexes without a log
    are removed."""
    settle_leftovers(disk, directory)
    names = disk.list(directory)
    logs = {name[: -len(LOG_SUFFIX)] for name in names if name.endswith(LOG_SUFFIX)}
    for name in names:
        if name.endswith((INDEX_SUFFIX, TIME_INDEX_SUFFIX)) and name.split(".")[0] not in logs:
            disk.remove(f"{directory}/{name}")
    return sorted(int(stem) for stem in logs if stem.isdigit())


def _load(
    segment: Segment,
    config: LogConfig,
    epochs: LeaderEpochCache,
    loaded: LoadedLog,
    next_base: int | None,
    must_recover: bool,
    recovery_point: int,
) -> int:
    """Make one segment usable and set `loaded.next_offset` to its end; the bytes cut from it."""
    if next_base is None and segment.size == 0:  # nothing to read, and no index to believe
        segment.clear_indexes()
        loaded.next_offset = max(loaded.next_offset, segment.base_offset)
        return 0
    if not must_recover and _indexes_look_right(segment, next_base):
        try:
            if next_base is None:
                loaded.next_offset = _find_end(segment)
            else:
                loaded.next_offset = next_base
            return 0
        except RecordBatchError:
            pass
    point = recovery_point if must_recover else 0  # a wrong index is no guide
    loaded.next_offset, cut = recover_segment(segment, config, epochs, loaded.next_offset, point)
    if next_base is not None:
        segment.add_time_index_entry()
        segment.save_indexes(sync=True)
    segment.release()
    return cut


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
    expected_offset: int,
    recovery_point: int,
) -> tuple[int, int]:
    """Read every batch from the recovery point on, mend the indexes, cut the file behind the last good one.

    Returns (offset after the last batch, bytes cut).
    """
    file = segment.open_for_append()
    file_size = file.size()
    next_offset = skip_synced_part(segment, epochs, recovery_point)
    if next_offset is None:
        segment.size = 0
        segment.clear_indexes()
        next_offset = max(expected_offset, segment.base_offset)
    while segment.size < file_size:
        position = segment.size
        try:
            header = read_header(file.pread(61, position))
            if header.size > file_size - position:
                raise CorruptBatch("a batch that ends behind the file")
            if header.base_offset < next_offset or header.last_offset_delta < 0:
                raise CorruptBatch("offsets that go back")
            if header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
                raise CorruptBatch("an offset too far from the segment's base")
            verify_crc(file.pread(header.size, position), 0, header)
        except RecordBatchError:
            break
        if header.partition_leader_epoch > epochs.latest_epoch:
            epochs.recover(header.partition_leader_epoch, header.base_offset)
        segment.appended(header, header.size, config.index_interval_bytes, config.segment_index_bytes)
        next_offset = header.next_offset
    cut = file_size - segment.size
    if cut:
        file.truncate(segment.size)
        file.sync()  # what has been cut must not come back
    return next_offset, cut
