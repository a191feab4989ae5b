"""Reads the tails (records/parts.py) of the records in a stored batch.

A broker that received the same messages as the leader of a partition compares tails to find which of them the leader has
appended. Clients may have written the batch, so any bytes are possible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.wire.compression import Bytes
from barnabas.wire.record_batch import CorruptBatch, InvalidBatch, read_header
from barnabas.wire.records import records_payload

if TYPE_CHECKING:
    from mmap import mmap


def read_tails(batch: Bytes, decompressed_bytes_max: int) -> list[bytes]:
    """The tail of each record of one batch, in order. RecordBatchError when the bytes are malformed, or the records are
    larger than `decompressed_bytes_max`."""
    header = read_header(batch)
    if header.size != len(batch):
        raise CorruptBatch(f"a batch of {header.size} bytes in {len(batch)}")
    data = records_payload(batch, header, decompressed_bytes_max)
    tails: list[bytes] = []
    append = tails.append
    position, end = 0, len(data)
    try:
        while position < end:
            size = data[position]
            position += 1
            if size > 127:
                size, position = _long_size(data, size & 0x7F, position)
            elif size & 1:
                raise InvalidBatch("a record's length is negative")
            stop = position + (size >> 1)
            if stop > end:
                raise InvalidBatch(f"a record of {size >> 1} bytes, {end - position} remain")
            position += 1  # attributes
            while data[position] > 127:  # timestamp delta
                position += 1
            position += 1
            while data[position] > 127:  # offset delta
                position += 1
            position += 1
            if position > stop:
                raise InvalidBatch("a record ends inside a field")
            append(data[position:stop])
            position = stop
    except IndexError:
        raise InvalidBatch("a record ends inside a field") from None
    if len(tails) != header.record_count:
        raise InvalidBatch(f"{len(tails)} records in a batch of {header.record_count}")
    return tails


def _long_size(data: bytes | mmap, size: int, position: int) -> tuple[int, int]:
    """The rest of a length before zigzag decoding, whose first seven bits are `size`, and the position behind it."""
    for shift in (7, 14, 21, 28):
        byte = data[position]
        position += 1
        size |= (byte & 0x7F) << shift
        if byte < 128:
            if size & 1:
                break
            return size, position
    raise InvalidBatch("a record's length is negative or too long")
