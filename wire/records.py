"""The records inside a batch, and building a batch of them; off the hot path.

A record is: length varint, attributes i8 (unused), timestamp delta varlong, offset delta varint, key, value
(each a zigzag length, -1 for null, then bytes), header count varint, then headers (key never null). All
varints are zigzag-coded. Reading checks everything: every length is compared with what remains of its record,
and the record count and the offset deltas with the header, before they are used.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.wire.compression import Bytes, Codec, CompressionError, ResultTooLarge
from barnabas.wire.record_batch import (
    CONTROL_FLAG,
    EXTENSION_FLAG,
    HEADER_SIZE,
    LOG_APPEND_TIME_FLAG,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    CorruptBatch,
    InvalidBatch,
    assemble_batch,
    read_header,
)

if TYPE_CHECKING:
    from mmap import mmap

# Limits on decompressed records: a batch beyond them counts as unreadable.
_UNPACKED_ALWAYS_ALLOWED: Final = 1 << 26
_UNPACKED_RATIO_MAX: Final = 100
_UNPACKED_MAX: Final = 1 << 30

_SMALLEST_RECORD = 7  # length, attributes, two deltas, two null lengths, header count


class Record(msgspec.Struct, gc=False):
    """One record. The key and value are None or bytes; header keys may repeat, their values may be None."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] = []


def iterate_records(batch: Bytes, max_decompressed_bytes: int | None = None) -> Iterator[Record]:
    """The records of the batch at the start of `batch`, with absolute offsets.

    Under LogAppendTime every timestamp is the batch's max timestamp. The batch is decompressed whole, into
    at most `max_decompressed_bytes` (None: `unpacked_bytes_max`). Raises CorruptBatch or UnsupportedMagic for the header and
    InvalidBatch for everything behind it, after the records in front of the damage.
    """
    header = read_header(batch)
    if header.size > len(batch):
        raise CorruptBatch(f"a batch of {header.size} bytes, {len(batch)} remain")
    return records_of(header, records_payload(batch, header, max_decompressed_bytes))


class UnpacksTooLarge(InvalidBatch):
    """A batch whose records take more bytes than they may."""


def unpacked_bytes_max(header: BatchHeader) -> int:
    """How many bytes the records of a batch may take: 64 MB, or 100 times the batch, at most 1 GiB."""
    return min(_UNPACKED_MAX, max(_UNPACKED_ALWAYS_ALLOWED, _UNPACKED_RATIO_MAX * header.size))


def records_payload(
    batch: Bytes, header: BatchHeader, max_decompressed_bytes: int | None = None
) -> bytes | mmap:
    """The bytes of the records, decompressed into at most so many (None: `unpacked_bytes_max`); InvalidBatch when the codec
    can't read them."""
    payload = memoryview(batch)[HEADER_SIZE : header.size]
    if header.codec == Codec.NONE:
        return bytes(payload)
    from barnabas.wire.codecs import decompress  # late: for compressed batches only

    try:
        limit = unpacked_bytes_max(header) if max_decompressed_bytes is None else max_decompressed_bytes
        return decompress(header.codec, payload, limit)
    except ResultTooLarge as error:
        raise UnpacksTooLarge(f"the records can't be decompressed: {error}") from None
    except CompressionError as error:
        raise InvalidBatch(f"the records can't be decompressed: {error}") from None


def compress_records(codec: Codec, payload: bytes | mmap) -> bytes:
    """The bytes behind the header of a batch of `codec`."""
    if codec == Codec.NONE:
        return bytes(payload)
    from barnabas.wire.codecs import compress  # late: for compressed batches only

    return compress(codec, payload)


def records_of(header: BatchHeader, data: bytes | mmap) -> Iterator[Record]:
    """The records of a decompressed payload, as `iterate_records`."""
    count = header.record_count
    end = len(data)
    if count < 0:
        raise InvalidBatch(f"record count {count} is negative")
    if count * _SMALLEST_RECORD > end:
        raise InvalidBatch(f"{count} records can't stand in {end} bytes")
    base_offset = header.base_offset
    base_timestamp = header.base_timestamp
    last_offset_delta = header.last_offset_delta
    log_append_time = header.max_timestamp if header.is_log_append_time else None
    pos = 0
    previous_delta = -1
    for _ in range(count):
        length, pos = _read_varint(data, pos, end)
        record_end = pos + length
        if length < 0 or record_end > end:
            raise InvalidBatch(f"a record of {length} bytes, {end - pos} remain")
        timestamp_delta, pos = _read_varlong(data, pos + 1, record_end)
        offset_delta, pos = _read_varint(data, pos, record_end)
        if not previous_delta < offset_delta <= last_offset_delta:
            raise InvalidBatch(
                f"offset delta {offset_delta} after {previous_delta} in a batch that ends at {last_offset_delta}"
            )
        previous_delta = offset_delta
        key, pos = _read_bytes(data, pos, record_end)
        value, pos = _read_bytes(data, pos, record_end)
        header_count, pos = _read_varint(data, pos, record_end)
        headers: list[tuple[str, bytes | None]] = []
        if header_count:
            pos = _read_headers(data, pos, record_end, header_count, headers)
        if pos != record_end:
            raise InvalidBatch(f"a record's length differs from its content by {record_end - pos} bytes")
        timestamp = base_timestamp + timestamp_delta if log_append_time is None else log_append_time
        yield Record(base_offset + offset_delta, timestamp, key, value, headers)
    if pos != end:
        raise InvalidBatch(f"{end - pos} bytes behind the last of {count} records")


# What a reader of many small batches wants to know of one, read in one step: base offset, batch length, magic, attributes,
# last offset delta, record count; and what stands in front of the first record's key, where the record's length takes two
# bytes: those, and one each for attributes, timestamp delta, offset delta and the key's size, as one number, which is the
# key's size when the others are 0.
SMALL_BATCH: Final = struct.Struct(">qi4xb4xhi30xiHI")

# Of a record: offset delta, timestamp delta, size of the key (-1: null)
RecordHead = tuple[int, int, int]
_HEADERS_BETWEEN_PAUSES: Final = 512


def record_heads(header: BatchHeader, data: bytes | mmap) -> Iterator[RecordHead | None]:
    """The fields of each record that are validated, in a third of the time of `iterate_records`: no record is built.

    The lengths of records, fields and headers are compared with each other; offsets are not, nor is text decoded. None
    comes after every few hundred headers, so that the caller can pause there. InvalidBatch.
    """
    count, end = header.record_count, len(data)
    if count < 0:
        raise InvalidBatch(f"record count {count} is negative")
    if count * _SMALLEST_RECORD > end:
        raise InvalidBatch(f"{count} records can't stand in {end} bytes")
    pos = 0
    until_pause = _HEADERS_BETWEEN_PAUSES
    try:
        for _ in range(count):
            length = data[pos]
            pos += 1
            if length > 0x7F:
                length += (data[pos] << 7) - 0x80
                pos += 1
                if length > 0x3FFF:
                    length, pos = _read_varint(data, pos - 2, end)
                    length <<= 1
            record_end = pos + (length >> 1)
            if length & 1 or not pos <= record_end <= end:
                raise InvalidBatch(f"a record of {length >> 1} bytes, {end - pos} remain")
            timestamp_delta = data[pos + 1]
            pos += 2
            if timestamp_delta > 0x7F:
                timestamp_delta += (data[pos] << 7) - 0x80
                pos += 1
                if timestamp_delta > 0x3FFF:
                    timestamp_delta, pos = _read_varlong(data, pos - 2, record_end)
                    timestamp_delta = (timestamp_delta << 1) ^ (timestamp_delta >> 63)
            offset_delta = data[pos]
            pos += 1
            if offset_delta > 0x7F:
                offset_delta += (data[pos] << 7) - 0x80
                pos += 1
                if offset_delta > 0x3FFF:
                    offset_delta += (data[pos] << 14) - 0x4000
                    pos += 1
                    if offset_delta > 0x1FFFFF:
                        offset_delta, pos = _read_varint(data, pos - 3, record_end)
                        offset_delta = (offset_delta << 1) ^ (offset_delta >> 31)
            key_size = data[pos]
            if key_size & 0x81:
                key_size, pos = _read_size(data, pos, record_end)
                if key_size > 0:
                    pos += key_size
            else:
                key_size >>= 1
                pos += 1 + key_size
            value_size = data[pos]
            if value_size & 0x81:
                value_size, pos = _read_size(data, pos, record_end)
                if value_size > 0:
                    pos += value_size
            else:
                pos += 1 + (value_size >> 1)
            header_count = data[pos]
            pos += 1
            if header_count:
                header_count, pos = _read_varint(data, pos - 1, record_end)
                if not 0 <= header_count <= (record_end - pos) // 2:
                    raise InvalidBatch(f"{header_count} headers in {record_end - pos} bytes")
                for _ in range(header_count):
                    size, pos = _read_size(data, pos, record_end)
                    if size < 0:
                        raise InvalidBatch("null header key")
                    size, pos = _read_size(data, pos + size, record_end)
                    if size > 0:
                        pos += size
                    until_pause -= 1
                    if not until_pause:
                        until_pause = _HEADERS_BETWEEN_PAUSES
                        yield None
            if pos != record_end:
                raise InvalidBatch(f"a record's length differs from its content by {record_end - pos} bytes")
            yield (
                (offset_delta >> 1) ^ -(offset_delta & 1),
                (timestamp_delta >> 1) ^ -(timestamp_delta & 1),
                key_size,
            )
    except IndexError:
        raise InvalidBatch("a record ends inside a field") from None
    if pos != end:
        raise InvalidBatch(f"{end - pos} bytes behind the last of {count} records")


def _read_size(data: bytes | mmap, pos: int, end: int) -> tuple[int, int]:
    """The size of a field, -1 for null, and where it begins."""
    size, pos = _read_varint(data, pos, end)
    if size < -1 or pos + size > end:
        raise InvalidBatch(f"a field of {size} bytes, {end - pos} remain")
    return size, pos


def _read_headers(
    data: bytes | mmap, pos: int, end: int, count: int, headers: list[tuple[str, bytes | None]]
) -> int:
    if not 0 <= count <= (end - pos) // 2:
        raise InvalidBatch(f"{count} headers in {end - pos} bytes")
    for _ in range(count):
        key, pos = _read_bytes(data, pos, end)
        value, pos = _read_bytes(data, pos, end)
        if key is None:
            raise InvalidBatch("null header key")
        try:
            headers.append((key.decode(), value))
        except UnicodeDecodeError:
            raise InvalidBatch("a header key is not UTF-8") from None
    return pos


def _read_bytes(data: bytes | mmap, pos: int, end: int) -> tuple[bytes | None, int]:
    length, pos = _read_varint(data, pos, end)
    if length == -1:
        return None, pos
    stop = pos + length
    if length < -1 or stop > end:
        raise InvalidBatch(f"a field of {length} bytes, {end - pos} remain")
    return data[pos:stop], stop


def _read_varint(data: bytes | mmap, pos: int, end: int) -> tuple[int, int]:
    return _read_zigzag(data, pos, end, 28)


def _read_varlong(data: bytes | mmap, pos: int, end: int) -> tuple[int, int]:
    return _read_zigzag(data, pos, end, 63)


def _read_zigzag(data: bytes | mmap, pos: int, end: int, last_shift: int) -> tuple[int, int]:
    if pos >= end:
        raise InvalidBatch("a record ends inside a field")
    byte = data[pos]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), pos + 1
    value = byte & 0x7F
    shift = 7
    while shift <= last_shift:
        pos += 1
        if pos >= end:
            raise InvalidBatch("a record ends inside a field")
        byte = data[pos]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            bits = last_shift + 4 if last_shift == 28 else 64
            value &= (1 << bits) - 1  # as Java, which drops what lies beyond its int or long
            return (value >> 1) ^ -(value & 1), pos + 1
        shift += 7
    raise InvalidBatch("a variable-length integer is too long")


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    leader_epoch: int = NO_LEADER_EPOCH,
    control: bool = False,
    transactional: bool = False,
    from_extension: bool = False,
    log_append_time: int | None = None,
) -> bytes:
    """A batch of `records`, whose offsets are absolute and ascending from `base_offset` on.

    `log_append_time` (ms) marks the batch LogAppendTime and becomes its max timestamp; otherwise the max is
    the records' own. ValueError when there is no record.
    """
    listed = list(records)
    if not listed:
        raise ValueError("a batch needs at least one record")
    base_timestamp = listed[0].timestamp
    payload = encode_records(listed, base_offset, base_timestamp)
    attributes = int(codec)
    if log_append_time is not None:
        attributes |= LOG_APPEND_TIME_FLAG
    if transactional:
        attributes |= TRANSACTIONAL_FLAG
    if control:
        attributes |= CONTROL_FLAG
    if from_extension:
        attributes |= EXTENSION_FLAG
    return assemble_batch(
        BatchHeader(
            base_offset=base_offset,
            batch_length=0,
            partition_leader_epoch=leader_epoch,
            magic=2,
            crc=0,
            attributes=attributes,
            last_offset_delta=listed[-1].offset - base_offset,
            base_timestamp=base_timestamp,
            max_timestamp=max(r.timestamp for r in listed) if log_append_time is None else log_append_time,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            record_count=len(listed),
        ),
        compress_records(codec, payload),
    )


def encode_records(records: Sequence[Record], base_offset: int, base_timestamp: int) -> bytes:
    """`records` one behind the other, uncompressed, relative to the base offset and timestamp."""
    out = bytearray()
    for record in records:
        body = bytearray(1)
        _write_varint(body, record.timestamp - base_timestamp)
        _write_varint(body, record.offset - base_offset)
        _write_bytes(body, record.key)
        _write_bytes(body, record.value)
        _write_varint(body, len(record.headers))
        for key, value in record.headers:
            _write_bytes(body, key.encode())
            _write_bytes(body, value)
        _write_varint(out, len(body))
        out += body
    return bytes(out)


def _write_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)  # zigzag of -1
    else:
        _write_varint(out, len(value))
        out += value


def _write_varint(out: bytearray, value: int) -> None:
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
