"""Record batches, format 2 (KIP-98): the header as one struct, the checks that need the header alone.

The broker treats the records behind the header as opaque bytes. Everything here works on the 61 header bytes,
but the CRC, which takes one pass over the whole batch. records.py reads and writes the records. Layout, big-endian:

    0 base offset i64 | 8 batch length i32 (what follows it) | 12 partition leader epoch i32 | 16 magic i8
    17 CRC-32C u32 (over everything from 21) | 21 attributes i16 | 23 last offset delta i32
    27 base timestamp i64 | 35 max timestamp i64 | 43 producer id i64 | 51 producer epoch i16
    53 base sequence i32 | 57 record count i32 | 61 records, compressed as one stream

Base offset and leader epoch lie outside the CRC, so a broker assigns both without touching the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

from barnabas.wire.checksum import crc32c
from barnabas.wire.compression import Bytes

HEADER_SIZE = 61
LOG_OVERHEAD = 12  # base offset and batch length, which the batch length does not count
LENGTH_SIZE = 4  # of the batch length, which ends at LOG_OVERHEAD
MAGIC_OFFSET = 16
CRC_OFFSET = 17
ATTRIBUTES_OFFSET = 21
MAX_TIMESTAMP_OFFSET = 35

CODEC_MASK = 0x07
LOG_APPEND_TIME_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40
# Not one of Kafka's flags, and ignored by clients: an extension of the broker wrote the batch. Clients can't set it.
EXTENSION_FLAG = 0x4000

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
MAX_PRODUCER_EPOCH = 0x7FFF
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1

# Message sets of magic 0 and 1 are shorter than a v2 header; this much tells the magic of all three.
_MAGIC_KNOWN_AFTER = 17
_SMALLEST_BATCH_LENGTH = HEADER_SIZE - LOG_OVERHEAD

_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC = struct.Struct(">I")
_unpack_header = _HEADER.unpack_from


class RecordBatchError(ValueError):
    """Base of the errors that this module and `records.py` raise on bytes from outside."""


class CorruptBatch(RecordBatchError):
    """No batch: a length out of bounds, an unknown magic, or a wrong CRC."""


class InvalidBatch(RecordBatchError):
    """A whole batch whose records contradict its header or themselves."""


class UnsupportedMagic(RecordBatchError):
    """A message set of magic 0 or 1, which Kafka 4 no longer takes (KIP-724)."""


class BatchHeader(msgspec.Struct, gc=False):
    """The 61 bytes in front of the records, in their order on the wire. Times are ms since the epoch."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch, header included."""
        return LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """A `Codec`, or an unknown number above 4."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME_FLAG)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def is_from_extension(self) -> bool:
        """Whether an extension of the broker wrote it, so that the headers of its records can be trusted."""
        return bool(self.attributes & EXTENSION_FLAG)

    @property
    def delete_horizon_ms(self) -> int | None:
        """Set by compaction (KIP-534): the base timestamp then holds when tombstones may go."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_FLAG else None

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id >= 0

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; sequences wrap from 2^31-1 to 0. -1 without a producer."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


def read_header(buffer: Bytes, pos: int = 0) -> BatchHeader:
    """The header at `pos`. The batch's own length is not compared with the buffer: see `iterate_headers`.

    Raises CorruptBatch when the buffer ends before the header does, when the batch length is shorter than a
    header or the magic is unknown; UnsupportedMagic for magic 0 and 1.
    """
    try:
        header = BatchHeader(*_unpack_header(buffer, pos))
    except struct.error:
        available = len(buffer) - pos
        if available >= _MAGIC_KNOWN_AFTER:
            _check_magic(buffer[pos + MAGIC_OFFSET])
        raise CorruptBatch(f"a batch header needs {HEADER_SIZE} bytes, {available} remain") from None
    if header.magic != 2:
        _check_magic(header.magic)
    if header.batch_length < _SMALLEST_BATCH_LENGTH:
        raise CorruptBatch(f"batch length {header.batch_length} is less than a batch header")
    return header


def _check_magic(magic: int) -> None:
    if magic in (0, 1):
        raise UnsupportedMagic(f"message format v{magic} is not supported, only v2 is")
    if magic != 2:
        raise CorruptBatch(f"unknown magic {magic}")


def iterate_headers(buffer: Bytes, pos: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of every batch from `pos` on; CorruptBatch when the last one is not whole."""
    end = len(buffer)
    while pos < end:
        header = read_header(buffer, pos)
        size = LOG_OVERHEAD + header.batch_length
        if size > end - pos:
            raise CorruptBatch(f"a batch of {size} bytes at {pos}, {end - pos} remain")
        yield pos, header
        pos += size


def iterate_whole_headers(buffer: Bytes, pos: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """As `iterate_headers`, up to a last batch that is cut off, as the last one of a read may be."""
    end = len(buffer)
    while end - pos >= HEADER_SIZE:
        header = read_header(buffer, pos)
        size = LOG_OVERHEAD + header.batch_length
        if size > end - pos:
            return
        yield pos, header
        pos += size


def verify_crc(buffer: Bytes, pos: int, header: BatchHeader) -> None:
    """CorruptBatch when the batch at `pos` does not lie wholly in the buffer or its CRC differs."""
    end = pos + LOG_OVERHEAD + header.batch_length
    if end > len(buffer):
        raise CorruptBatch(f"a batch of {header.size} bytes at {pos}, {len(buffer) - pos} remain")
    computed = crc32c(memoryview(buffer)[pos + ATTRIBUTES_OFFSET : end])
    if computed != header.crc:
        raise CorruptBatch(f"Record is corrupt (stored crc = {header.crc}, computed crc = {computed})")


def assemble_batch(header: BatchHeader, payload: Bytes) -> bytes:
    """`payload` (already compressed as the attributes say) behind `header`, with its length and CRC set."""
    batch = bytearray(HEADER_SIZE)
    batch += payload
    seal_batch(batch, header)
    return bytes(batch)


def seal_batch(batch: bytearray, header: BatchHeader) -> None:
    """Write `header`, with its length and CRC set, into the room of 61 bytes at the beginning of `batch`."""
    header.batch_length = len(batch) - LOG_OVERHEAD
    _HEADER.pack_into(batch, 0, *msgspec.structs.astuple(header))
    header.crc = crc32c(memoryview(batch)[ATTRIBUTES_OFFSET:])
    _CRC.pack_into(batch, CRC_OFFSET, header.crc)
