"""Opening a log directory: which segments there are, which of them to believe, and where the log ends.

After a clean stop the files are trusted as long as their indexes look right. After any other stop what lies
beyond the recovery point (below it everything is known to have been synced) is read batch by batch; the first
batch that is not whole or whose CRC differs ends the log, and what lies behind it is removed. A segment below it
whose index is missing or wrong is read through too, but damage there takes the segment's rest alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import msgspec

from barnabas.storage.disk.disk import Disk, File
from barnabas.storage.log.leader_epochs import LeaderEpochCache
from barnabas.storage.log.leftovers import settle_leftovers
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.log.producer_recovery import ProducerRecovery
from barnabas.storage.log.producers import PRODUCER_ID_EXPIRATION_MS
from barnabas.storage.log.synced_part import skip_synced_part
from barnabas.storage.segment.legacy_format import read_stored_header, verify_stored_crc
from barnabas.storage.segment.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    MAX_RELATIVE_OFFSET,
    TIME_INDEX_SUFFIX,
    Segment,
)
from barnabas.storage.segment.transaction_index import TRANSACTION_INDEX_SUFFIX
from barnabas.wire.record_batch import (
    HEADER_SIZE,
    BatchHeader,
    CorruptBatch,
    RecordBatchError,
)

logger = logging.getLogger("barnabas.storage")

# An older segment without a single entry is believed when it is this short: an entry is made for every
# index.interval.bytes, and a batch, which may be larger, comes in between.
_SMALL_ENOUGH_FOR_NO_ENTRY = 1 << 21

_READ_BYTES = 1 << 20
_INDEXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)


class LoadedLog(msgspec.Struct):
    """What `load_segments` found: at least one segment, ascending, and the producers as of the log's end."""

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
    producer_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS,
) -> LoadedLog:
    """Open the segments of `directory`, recovering what must be. OSError when the directory can't be read."""
    names = _tidy(disk, directory)
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
        # One of the log's beginning speaks of nothing that a crash could have taken.
        producers.begin(max(recovery_point, bases[0] if bases else 0))
    loaded = LoadedLog([], bases[0] if bases else log_start_offset, producers)
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
        producers.forget()
    if not loaded.segments:
        loaded.segments.append(Segment.create(disk, directory, loaded.next_offset, now_ms))
    producers.finish(loaded.segments, loaded.next_offset)
    return loaded


def _is_log(name: str) -> bool:
    return name.endswith(LOG_SUFFIX) and name[: -len(LOG_SUFFIX)].isdecimal()


def _tidy(disk: Disk, directory: str) -> list[str]:
    """The names in the directory, when leftovers of interrupted work have been settled; indexes without a log
    are removed."""
    names = settle_leftovers(disk, directory)
    logs = {name[: -len(LOG_SUFFIX)] for name in names if name.endswith(LOG_SUFFIX)}
    for name in names:
        if name.endswith(_INDEXES) and name.split(".")[0] not in logs:
            disk.remove(f"{directory}/{name}")
    return names


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
    loaded: LoadedLog,
    next_base: int | None,
    whole: bool,
    recovery_point: int,
) -> int:
    """A segment that reaches beyond the recovery point. `whole`: its transaction index can be believed."""
    producers = loaded.producers
    if not whole:
        producers.go_back(segment.base_offset)
    file_size = segment.size
    offset = skip_synced_part(segment, epochs, recovery_point) if whole else None
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
    loaded: LoadedLog,
    next_base: int | None,
    whole: bool,
) -> int:
    """A segment that is on the disk for good, with indexes that can't be believed. Damage in it takes its rest
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
