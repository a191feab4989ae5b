"""The ids of the messages that a batch's records were, read in one flat loop.

A new leader reads millions of records before it takes the first message, and what makes the wait is the reading of
records in full. Here only lengths are looked at, and the headers' names, by the rules of records.py; whatever is unusual
about a batch (compressed, damaged) is left to that file, which is right about it or says what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from barnabas.nats.ingress.dedup import MESSAGE_ID, kept_id
from barnabas.wire.compression import Codec
from barnabas.wire.record_batch import HEADER_SIZE, BatchHeader, iterate_records

_NAME: Final = MESSAGE_ID.decode()
_NAMED: Final = bytes([len(MESSAGE_ID) << 1]) + MESSAGE_ID  # as it stands in a record
_PADDING: Final = bytes(64)  # behind a batch, so that no varint runs out of it
_BIG: Final = 1 << 62

Found = tuple[int, int, bytes]  # offset, timestamp in ms, id: b"" when it has none


def ids_of(batch: bytes, header: BatchHeader) -> Iterator[Found]:
    """One for each record of the batch, which is whole. RecordBatchError where records can't be read."""
    return _plain_ids(batch, header) if header.codec == Codec.NONE else _any_ids(batch, 0)


def _any_ids(batch: bytes, start: int) -> Iterator[Found]:
    """Those of the records from the one with this number on."""
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
    """The value of the first id among the headers; b"" when there is none, None when they can't be read."""
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
    """A length of more than one byte, whose first is `byte`, and the position behind it. One that can't be is made
    larger than any batch."""
    number, position = _number(data, byte, position)
    return (_BIG if number & 1 or number > 0xFFFFFFFF else number >> 1), position


def _number(data: bytes, byte: int, position: int) -> tuple[int, int]:
    """A varint, zigzag-coded still, whose first byte is `byte`."""
    number = byte & 0x7F
    shift = 7
    while byte > 0x7F and shift < 70:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        shift += 7
    return number, position
