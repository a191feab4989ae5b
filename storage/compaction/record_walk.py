"""Reads keys, offsets and spans of bytes of a batch's records without making objects of them.

Compaction reads every record of a log, so each function here is one flat loop with its varints inline: nearly all have one or
two bytes, longer ones go through `_long_varint`. A field that contradicts the record's length raises InvalidBatch.
wire/records.py describes the format.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from barnabas.storage.compaction.offset_map import RAW_KEY_MAX, OffsetMap, map_key
from barnabas.wire.primitives import varint
from barnabas.wire.record_batch import NO_TIMESTAMP, BatchHeader, InvalidBatch

if TYPE_CHECKING:
    from mmap import mmap

_DAMAGED = "a record's length differs from its content"
_NULL = 1  # the zigzag form of -1, in one byte


class Spans:
    """Which bytes of a batch's payload survive: [starts[i], ends[i]) is one record."""

    __slots__ = ("ends", "has_tombstone", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.has_tombstone = False


def _long_varint(data: bytes | mmap, pos: int) -> tuple[int, int]:
    """(value, position behind it) of an unsigned varint of up to ten bytes."""
    value = shift = 0
    while shift < 70:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7
    raise InvalidBatch("a variable-length integer is too long")


def put_keys(data: bytes | mmap, header: BatchHeader, start_offset: int, offsets: OffsetMap) -> None:
    """Put every key at or behind `start_offset` into the map, which must have room for all of the batch."""
    values = offsets.values
    base = header.base_offset
    size = len(data)
    pos = 0
    try:
        for _ in range(header.record_count):
            length = data[pos]
            pos += 1
            if length > 0x7F:
                length, pos = _long_varint(data, pos - 1)
            end = pos + (length >> 1)
            pos += 1  # attributes
            while data[pos] > 0x7F:  # timestamp delta
                pos += 1
            delta = data[pos + 1]
            pos += 2
            if delta > 0x7F:
                delta, pos = _long_varint(data, pos - 1)
            key_size = data[pos]
            pos += 1
            if key_size != _NULL:
                if key_size > 0x7F:
                    key_size, pos = _long_varint(data, pos - 1)
                stop = pos + (key_size >> 1)
                if stop >= end:
                    raise InvalidBatch(_DAMAGED)
                offset = base + (delta >> 1)
                if offset >= start_offset:
                    key = data[pos:stop]
                    if stop - pos > RAW_KEY_MAX:
                        key = map_key(key)
                    values[key] = offset << 1 | (data[stop] == _NULL)
            pos = end
    except IndexError:
        raise InvalidBatch(_DAMAGED) from None
    if pos != size:
        raise InvalidBatch(_DAMAGED)


def live_spans(data: bytes | mmap, header: BatchHeader, live: Sequence[int]) -> Spans:
    """The records whose offsets are in `live` (values of a sealed map, ascending, all of this batch)."""
    spans = Spans()
    starts, ends = spans.starts, spans.ends
    base = header.base_offset
    pos = 0
    following = iter(live)
    wanted = next(following, -2)
    try:
        for _ in range(header.record_count):
            start = pos
            length = data[pos]
            pos += 1
            if length > 0x7F:
                length, pos = _long_varint(data, pos - 1)
            end = pos + (length >> 1)
            pos += 1
            while data[pos] > 0x7F:
                pos += 1
            delta = data[pos + 1]
            if delta > 0x7F:
                delta = _long_varint(data, pos + 1)[0]
            if base + (delta >> 1) == wanted >> 1:
                starts.append(start)
                ends.append(end)
                if wanted & 1:
                    spans.has_tombstone = True
                wanted = next(following, -2)
            pos = end
    except IndexError:
        raise InvalidBatch(_DAMAGED) from None
    if pos != len(data) or wanted != -2:
        raise InvalidBatch(_DAMAGED)
    return spans


def latest_spans(
    data: bytes | mmap, header: BatchHeader, offsets: OffsetMap, keeps_tombstones: bool
) -> Spans:
    """The records that no later one of the map supersedes, and those behind the last offset that the map covers.

    A record without a key is removed (nothing supersedes it), a tombstone unless
    `keeps_tombstones`.
    """
    spans = Spans()
    starts, ends = spans.starts, spans.ends
    find = offsets.values.get
    latest = offsets.latest_offset
    base = header.base_offset
    pos = 0
    try:
        for _ in range(header.record_count):
            start = pos
            length = data[pos]
            pos += 1
            if length > 0x7F:
                length, pos = _long_varint(data, pos - 1)
            end = pos + (length >> 1)
            pos += 1
            while data[pos] > 0x7F:
                pos += 1
            delta = data[pos + 1]
            pos += 2
            if delta > 0x7F:
                delta, pos = _long_varint(data, pos - 1)
            offset = base + (delta >> 1)
            key_size = data[pos]
            pos += 1
            has_key = key_size != _NULL
            if has_key:
                if key_size > 0x7F:
                    key_size, pos = _long_varint(data, pos - 1)
                stop = pos + (key_size >> 1)
            else:
                stop = pos
            if stop >= end:
                raise InvalidBatch(_DAMAGED)
            is_tombstone = data[stop] == _NULL
            if offset > latest:
                keeps = True
            elif has_key and (keeps_tombstones or not is_tombstone):
                key = data[pos:stop]
                if stop - pos > RAW_KEY_MAX:
                    key = map_key(key)
                keeps = offset >= find(key, -2) >> 1
            else:
                keeps = False
            if keeps:
                starts.append(start)
                ends.append(end)
                if is_tombstone:
                    spans.has_tombstone = True
            pos = end
    except IndexError:
        raise InvalidBatch(_DAMAGED) from None
    if pos != len(data):
        raise InvalidBatch(_DAMAGED)
    return spans


class Encoded(msgspec.Struct, gc=False):
    """Records encoded again, uncompressed, and the new times of their batch."""

    payload: bytes
    base_timestamp: int
    max_timestamp: int


def encode_spans(data: bytes | mmap, header: BatchHeader, spans: Spans, horizon_ms: int | None) -> Encoded:
    """The surviving records, there is at least one, with the batch's times as Kafka computes them.

    The base timestamp is the delete horizon or else the first record's time. Only the timestamp delta, and
    with it the length in front, can differ from before; where the base stays, the bytes are copied.
    """
    old_base = header.base_timestamp
    append_time = header.max_timestamp if header.is_log_append_time else None
    deltas: list[int] = []
    bounds: list[int] = []  # where the timestamp delta begins and where it ends
    try:
        for start in spans.starts:
            pos = start
            while data[pos] > 0x7F:
                pos += 1
            pos += 2
            delta = data[pos]
            bounds.append(pos)
            pos += 1
            if delta > 0x7F:
                delta, pos = _long_varint(data, pos - 1)
            bounds.append(pos)
            deltas.append((delta >> 1) ^ -(delta & 1))
    except IndexError:
        raise InvalidBatch(_DAMAGED) from None
    if append_time is not None:
        base = append_time if horizon_ms is None else horizon_ms
        shifted = [append_time - base] * len(deltas)
        largest = append_time
    else:
        base = old_base + deltas[0] if horizon_ms is None else horizon_ms
        shift = old_base - base
        shifted = [delta + shift for delta in deltas]
        largest = max(NO_TIMESTAMP, old_base + max(deltas))
    parts: list[bytes] = []
    if shifted == deltas:
        run_start, run_end = spans.starts[0], spans.starts[0]
        for start, end in zip(spans.starts, spans.ends, strict=True):
            if start != run_end:
                parts.append(data[run_start:run_end])
                run_start = start
            run_end = end
        parts.append(data[run_start:run_end])
    else:
        for index, delta in enumerate(shifted):
            stamp = varint(delta)
            begin, behind, end = bounds[2 * index], bounds[2 * index + 1], spans.ends[index]
            parts += (
                varint(1 + len(stamp) + end - behind),
                data[begin - 1 : begin],
                stamp,
                data[behind:end],
            )
    return Encoded(b"".join(parts), base, largest)
