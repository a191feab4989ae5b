"""From a time to an offset (KIP-79, KIP-734), by the time index, then the headers, then one batch's records.

A batch whose records can't be read answers with its first offset and largest time: whoever seeks there gets
that batch and its error, and nobody else's lookup is harmed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from barnabas.storage.segment import Segment
from barnabas.storage.validation import DECOMPRESSED_LIMIT
from barnabas.wire.record_batch import NO_TIMESTAMP, BatchHeader, RecordBatchError
from barnabas.wire.records import decode_records


class TimestampOffset(msgspec.Struct, frozen=True):
    """A record's time (ms), offset and leader epoch."""

    timestamp: int
    offset: int
    leader_epoch: int


def find_timestamp(segments: Iterable[Segment], timestamp: int, start_offset: int) -> TimestampOffset | None:
    """The first record from `start_offset` on whose time is at least `timestamp`."""
    for segment in segments:
        if _max_timestamp(segment) < timestamp:
            continue
        entry = segment.time_index.floor(timestamp)
        relative = entry[1] if entry is not None else 0
        position = segment.index_position(max(segment.base_offset + relative, start_offset))
        for at, header in segment.headers(position):
            if header.max_timestamp >= timestamp and header.last_offset >= start_offset:
                found = _first_record(segment, at, header, timestamp, start_offset)
                if found is not None:
                    return found
    return None


def find_max_timestamp(segments: Sequence[Segment], start_offset: int) -> TimestampOffset | None:
    """The first record that has the largest time of all."""
    best: Segment | None = None
    largest = NO_TIMESTAMP
    for segment in segments:
        timestamp = _max_timestamp(segment)
        if timestamp > largest:
            best, largest = segment, timestamp
    if best is None:
        return None
    return find_timestamp([best], largest, start_offset)


def _max_timestamp(segment: Segment) -> int:
    """Not remembered where it had to be read: in a thread that would undo what an append has learned meanwhile."""
    return segment.max_timestamp if segment.knows_timestamps else segment.find_max_timestamp()[0]


def _first_record(
    segment: Segment, position: int, header: BatchHeader, timestamp: int, start_offset: int
) -> TimestampOffset | None:
    batch = segment.open_for_read().pread(header.size, position)
    epoch = header.partition_leader_epoch
    try:
        for record in decode_records(batch, DECOMPRESSED_LIMIT):
            if record.timestamp >= timestamp and record.offset >= start_offset:
                return TimestampOffset(record.timestamp, record.offset, epoch)
    except RecordBatchError:
        return TimestampOffset(header.max_timestamp, max(header.base_offset, start_offset), epoch)
    return None
