"""Message sets of magic 0 and 1, which clients may no longer write (KIP-724) and old logs may still hold.

The log treats each entry as a batch with an offset, a size and perhaps a timestamp. A compressed entry holds several messages
and carries the offset of the last one. Layout, big-endian:

    0 offset i64 | 8 size i32 (what follows it) | 12 CRC-32 u32 (over everything from 16) | 16 magic i8
    17 attributes i8 | 18 timestamp i64, of magic 1 alone | key and value, each behind its length
"""

from __future__ import annotations

import struct
import zlib

from barnabas.wire.compression import Bytes
from barnabas.wire.record_batch import (
    LOG_OVERHEAD,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    CorruptBatch,
    UnsupportedMagic,
    read_header,
    verify_crc,
)

_ENTRY = struct.Struct(">qiIbb")
_TIMESTAMP = struct.Struct(">q")
_SMALLEST = {0: 14, 1: 22}  # size of a message without key and value
_CRC_FROM = 16


def read_stored_header(buffer: Bytes, pos: int = 0) -> BatchHeader:
    """The header of the batch or entry at `pos`, of any format. CorruptBatch when there is none."""
    try:
        return read_header(buffer, pos)
    except UnsupportedMagic:
        return read_legacy_header(buffer, pos)


def verify_stored_crc(buffer: Bytes, pos: int, header: BatchHeader) -> None:
    """CorruptBatch when the CRC of the batch or entry at `pos`, which is whole, differs."""
    if header.magic >= 2:
        verify_crc(buffer, pos, header)
    else:
        verify_legacy_crc(memoryview(buffer)[pos : pos + header.size], header)


def read_legacy_header(buffer: Bytes, pos: int) -> BatchHeader:
    """The entry at `pos` as the header of a batch that ends at its offset. CorruptBatch when there is none."""
    available = len(buffer) - pos
    if available < _ENTRY.size:
        raise CorruptBatch(f"a message needs more than {available} bytes")
    offset, size, crc, magic, attributes = _ENTRY.unpack_from(buffer, pos)
    smallest = _SMALLEST.get(magic)
    if smallest is None or size < smallest or available < LOG_OVERHEAD + smallest:
        raise CorruptBatch(f"a message of magic {magic} and {size} bytes")
    timestamp = _TIMESTAMP.unpack_from(buffer, pos + _ENTRY.size)[0] if magic == 1 else NO_TIMESTAMP
    return BatchHeader(
        base_offset=offset,
        batch_length=size,
        partition_leader_epoch=NO_LEADER_EPOCH,
        magic=magic,
        crc=crc,
        attributes=attributes,
        last_offset_delta=0,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
        record_count=1,
    )


def verify_legacy_crc(entry: Bytes, header: BatchHeader) -> None:
    """CorruptBatch when the CRC of the whole entry differs."""
    computed = zlib.crc32(memoryview(entry)[_CRC_FROM:])
    if computed != header.crc:
        raise CorruptBatch(f"Record is corrupt (stored crc = {header.crc}, computed crc = {computed})")
