"""Looks up the offset for a timestamp (KIP-79, KIP-734): by the time index, then the headers, then one batch's records.

A batch whose records can't be read, or take more than `unpacked_bytes_max`, answers with its first offset and largest
time: a consumer that seeks there gets that batch and its error, and other lookups are not affected.

A lookup runs in steps: a thread reads indexes and headers and unpacks, the loop decodes the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.runtime.slices import Steps
from barnabas.storage.segment.segment import Segment
from barnabas.wire.record_batch import NO_TIMESTAMP, BatchHeader, CorruptBatch, RecordBatchError, read_header
from barnabas.wire.records import record_heads, records_payload

if TYPE_CHECKING:
    from mmap import mmap

RECORDS_PER_STEP: Final = 512  # between two looks at the clock: some 0.3 ms


class TimestampOffset(msgspec.Struct, frozen=True):
    """A record's time (ms), offset and leader epoch."""

    timestamp: int
    offset: int
    leader_epoch: int


def find_timestamp(
    segments: Iterable[Segment], timestamp: int, start_offset: int
) -> Steps[TimestampOffset | None]:
    """The first record from `start_offset` on whose time is at least `timestamp`."""
    candidates = _candidates(segments, timestamp, start_offset)
    while True:
        candidate = yield partial(_next_unpacked, candidates)
        if candidate is None:
            return None
        header, payload = candidate
        try:
            if payload is None:
                raise CorruptBatch("its records can't be unpacked")
            found = yield from _first_record(header, payload, timestamp, start_offset)
        except RecordBatchError:
            return TimestampOffset(
                header.max_timestamp, max(header.base_offset, start_offset), header.partition_leader_epoch
            )
        if found is not None:
            return found


def find_max_timestamp(segments: Sequence[Segment], start_offset: int) -> Steps[TimestampOffset | None]:
    """The first record that has the largest time of all."""
    newest = yield partial(_newest, segments)
    if newest is None:
        return None
    segment, timestamp = newest
    return (yield from find_timestamp([segment], timestamp, start_offset))


def _newest(segments: Sequence[Segment]) -> tuple[Segment, int] | None:
    """The first segment that has the largest time of all, and that time."""
    best: Segment | None = None
    largest = NO_TIMESTAMP
    for segment in segments:
        timestamp = _max_timestamp(segment)
        if timestamp > largest:
            best, largest = segment, timestamp
    return None if best is None else (best, largest)


def _max_timestamp(segment: Segment) -> int:
    """Read from the disk where it is not known, and not stored: this runs in a thread, and an append may have raised it."""
    return segment.max_timestamp if segment.knows_timestamps else segment.find_max_timestamp()[0]


def _candidates(
    segments: Iterable[Segment], timestamp: int, start_offset: int
) -> Iterator[tuple[BatchHeader, bytes]]:
    """The batches that may hold the record, by their headers."""
    for segment in segments:
        if _max_timestamp(segment) < timestamp:
            continue
        segment.make_ready()
        entry = segment.time_index.floor(timestamp)
        relative = entry[1] if entry is not None else 0
        position = segment.index_position(max(segment.base_offset + relative, start_offset))
        for at, header in segment.headers(position):
            if header.max_timestamp >= timestamp and header.last_offset >= start_offset:
                yield header, segment.open_for_read().pread(header.size, at)


def _next_unpacked(
    candidates: Iterator[tuple[BatchHeader, bytes]],
) -> tuple[BatchHeader, bytes | mmap | None] | None:
    """The next batch and its records, None for those that can't be unpacked."""
    candidate = next(candidates, None)
    if candidate is None:
        return None
    header, batch = candidate
    try:
        read_header(batch)  # of an older format, its records are not read
        return header, records_payload(batch, header)
    except RecordBatchError:
        return header, None


def _first_record(
    header: BatchHeader, payload: bytes | mmap, timestamp: int, start_offset: int
) -> Steps[TimestampOffset | None]:
    base, epoch = header.base_timestamp, header.partition_leader_epoch
    append_time = header.max_timestamp if header.is_log_append_time else None
    previous, first_delta = -1, start_offset - header.base_offset
    for number, head in enumerate(record_heads(header, payload), 1):
        if head is not None:
            delta, timestamp_delta, _ = head
            if not previous < delta <= header.last_offset_delta:
                raise CorruptBatch(f"offset delta {delta} after {previous}")
            previous = delta
            time = base + timestamp_delta if append_time is None else append_time
            if time >= timestamp and delta >= first_delta:
                return TimestampOffset(time, header.base_offset + delta, epoch)
        if head is None or not number % RECORDS_PER_STEP:
            yield None
    return None
