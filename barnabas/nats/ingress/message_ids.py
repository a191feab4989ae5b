"""Reads the message ids (Nats-Msg-Id) in the records of a batch, in one flat loop.

A new leader may read millions of records before it takes the first message. So only lengths and header names are read here;
batches that are compressed or damaged are left to `iterate_records` of wire/records.py, which reads them or raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from barnabas.nats.ingress.dedup import MESSAGE_ID, kept_id
from barnabas.wire.compression import Codec
from barnabas.wire.record_batch import HEADER_SIZE, BatchHeader
from barnabas.wire.records import iterate_records

_NAME: Final = MESSAGE_ID.decode()
_NAMED: Final = bytes([len(MESSAGE_ID) << 1]) + MESSAGE_ID  # as in a record
_PADDING: Final = bytes(64)  # behind a batch, so that no varint ends outside
_BIG: Final = 1 << 62

Found = tuple[int, int, bytes]  # offset, timestamp in ms, id (b"" without one)


def ids_of(batch: bytes, header: BatchHeader) -> Iterator[Found]:
    """The id of each record of a whole batch. RecordBatchError."""
    return _plain_ids(batch, header) if header.codec == Codec.NONE else _any_ids(batch, 0)


def _any_ids(batch: bytes, start: int) -> Iterator[Found]:
    """The ids of the records from number `start` on."""
    for number, record in enumerate(iterate_records(batch)):
        if number >= start:
            value = next((value for name, value in record.headers if name == _NAME), None)
            yield record.offset, record.timestamp, kept_id(value or b"")


def _plain_ids(batch: bytes, header: BatchHeader) -> Iterator[Found]:
    data, end = batch + _PADDING, len(batch)
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    log_append_time = header.max_timestamp if header.is_log_append_time else -1
    position = HEADER_SIZE
    taken = 0
    while taken < header.record_count:
        byte = data[position]
        position += 1
        if byte < 0x80:
            length = byte >> 1
        else:
            length, position = _length(data, byte, position)
        record_end = position + length
        if record_end > end:
            break
        position += 1  # attributes
        byte = data[position]
        position += 1
        if byte < 0x80:
            delta = byte >> 1 ^ -(byte & 1)
        else:
            number, position = _number(data, byte, position)
            delta = number >> 1 ^ -(number & 1)
        byte = data[position]
        position += 1
        if byte < 0x80:
            place = byte >> 1
        else:
            place, position = _length(data, byte, position)
        byte = data[position]  # of the key's length
        position += 1
        if byte < 0x80:
            position += byte >> 1  # nothing for null, which is 1
        else:
            length, position = _length(data, byte, position)
            position += length
        if position >= record_end:
            break
        byte = data[position]  # of the value's length
        position += 1
        if byte < 0x80:
            position += byte >> 1
        else:
            length, position = _length(data, byte, position)
            position += length
        if position >= record_end:
            break
        identity = b""
        if data.find(_NAMED, position, record_end) >= 0:
            value = _id_within(data, position, record_end)
            if value is None:
                break
            identity = kept_id(value)
        position = record_end
        taken += 1
        yield (
            base_offset + place,
            log_append_time if log_append_time >= 0 else base_timestamp + delta,
            identity,
        )
    else:
        return
    yield from _any_ids(batch, taken)


def _id_within(data: bytes, position: int, end: int) -> bytes | None:
    """The value of the first id among the headers; b"" without one, None when the headers are malformed."""
    byte = data[position]
    position += 1
    if byte < 0x80:
        count = byte >> 1
    else:
        count, position = _length(data, byte, position)
    for _ in range(count):
        is_id = data.startswith(_NAMED, position)
        byte = data[position]
        position += 1
        if byte < 0x80:
            position += byte >> 1
        else:
            length, position = _length(data, byte, position)
            position += length
        if position >= end:
            return None
        byte = data[position]
        position += 1
        if byte < 0x80:
            length = byte >> 1  # nothing for null, which is 1
        else:
            length, position = _length(data, byte, position)
        start, position = position, position + length
        if position > end:
            return None
        if is_id:
            return data[start:position]
    return b""


def _length(data: bytes, byte: int, position: int) -> tuple[int, int]:
    """A length of several bytes, the first of which is `byte`, and the position behind it. An invalid one becomes larger
    than any batch."""
    number, position = _number(data, byte, position)
    return (_BIG if number & 1 or number > 0xFFFFFFFF else number >> 1), position


def _number(data: bytes, byte: int, position: int) -> tuple[int, int]:
    """A varint before zigzag decoding, whose first byte is `byte`, and the position behind it."""
    number = byte & 0x7F
    shift = 7
    while byte > 0x7F and shift < 70:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        shift += 7
    return number, position
