"""The end of a transaction in the log: a control batch of one record, COMMIT or ABORT (KIP-98).

Its key is a version i16 and a type i16 (0 ABORT, 1 COMMIT), its value a version i16 and the epoch i32 of the
coordinator that decided. Other control records (KRaft's leader changes and the like) end no transaction.
"""

from __future__ import annotations

import struct

import msgspec

from barnabas.wire.checksum import crc32c
from barnabas.wire.compression import Bytes
from barnabas.wire.record_batch import (
    ATTRIBUTES_OFFSET,
    CODEC_MASK,
    CONTROL_FLAG,
    CRC_OFFSET,
    LOG_OVERHEAD,
    NO_LEADER_EPOCH,
    NO_SEQUENCE,
    TRANSACTIONAL_FLAG,
    RecordBatchError,
)
from barnabas.wire.records import iterate_records

ABORT = 0
COMMIT = 1
MARKER_SIZE_MAX = 1 << 16  # a marker has 78 bytes; no more than this is read in search of one

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")

# A whole marker as Kafka and `build_marker` write it: the header, the record up to its key (length, attributes, two deltas, the
# key's size), the key, the value's size, the value, the number of headers. One of another form is read as any batch.
_BATCH = struct.Struct(">qiibIhiqqqhii 5shh BhiB")
_READ = struct.Struct(">8xi4xb4xhi30xi 5s2xh B2xiB")  # the same without the fields that may have any value
_LENGTH = _BATCH.size - LOG_OVERHEAD
_RECORD = bytes((32, 0, 0, 0, 8))  # numbers as varints
_VALUE_SIZE = 12
_ATTRIBUTES = TRANSACTIONAL_FLAG | CONTROL_FLAG
_CRC = struct.Struct(">I")


class EndTransactionMarker(msgspec.Struct, frozen=True):
    """What a control batch decides for its producer's transaction."""

    commit: bool
    coordinator_epoch: int


def read_marker(batch: Bytes) -> EndTransactionMarker | None:
    """The marker in a control batch; None when it holds none: compaction has emptied it, or it is of another
    kind. RecordBatchError when the batch can't be read."""
    if len(batch) == _BATCH.size:
        length, magic, attributes, last_delta, count, record, kind, value_size, epoch, headers = _READ.unpack(
            batch
        )
        if (
            kind in (ABORT, COMMIT)
            and record == _RECORD
            and (length, magic, last_delta, count) == (_LENGTH, 2, 0, 1)
            and (value_size, headers) == (_VALUE_SIZE, 0)
            and not attributes & CODEC_MASK
        ):
            return EndTransactionMarker(kind == COMMIT, epoch)
    record = next(iterate_records(batch, MARKER_SIZE_MAX), None)
    if record is None or record.key is None or len(record.key) < _KEY.size:
        return None
    kind = _KEY.unpack_from(record.key)[1]
    if kind not in (ABORT, COMMIT) or record.value is None or len(record.value) < _VALUE.size:
        return None
    return EndTransactionMarker(kind == COMMIT, _VALUE.unpack_from(record.value)[1])


def find_marker(batch: Bytes) -> EndTransactionMarker | None:
    """As `read_marker`, for a batch of the log: a damaged one holds no marker."""
    try:
        return read_marker(batch)
    except RecordBatchError:
        return None


def build_marker(
    producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int, timestamp: int
) -> bytes:
    """The control batch that ends the producer's transaction, for `append_as_leader(..., from_client=False)`."""
    kind = COMMIT if commit else ABORT
    batch = bytearray(
        _BATCH.pack(
            *(0, _LENGTH, NO_LEADER_EPOCH, 2, 0, _ATTRIBUTES, 0, timestamp, timestamp),
            *(producer_id, producer_epoch, NO_SEQUENCE, 1),
            *(_RECORD, 0, kind, _VALUE_SIZE, 0, coordinator_epoch, 0),
        )
    )
    _CRC.pack_into(batch, CRC_OFFSET, crc32c(memoryview(batch)[ATTRIBUTES_OFFSET:]))
    return bytes(batch)
