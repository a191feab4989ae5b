"""The end of a transaction in the log: a control batch of one record, COMMIT or ABORT (KIP-98).

Its key is a version i16 and a type i16 (0 ABORT, 1 COMMIT), its value a version i16 and the epoch i32 of the
coordinator that decided. Other control records (KRaft's leader changes and the like) end no transaction.
"""

from __future__ import annotations

import struct

import msgspec

from barnabas.wire.compression import Bytes
from barnabas.wire.record_batch import RecordBatchError
from barnabas.wire.records import Record, build_batch, iterate_records

ABORT = 0
COMMIT = 1
MARKER_SIZE_MAX = 1 << 16  # a marker has 78 bytes; no more than this is read in search of one

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")


class EndTransactionMarker(msgspec.Struct, frozen=True):
    """What a control batch decides for its producer's transaction."""

    commit: bool
    coordinator_epoch: int


def read_marker(batch: Bytes) -> EndTransactionMarker | None:
    """The marker in a control batch; None when it holds none: compaction has emptied it, or it is of another
    kind. RecordBatchError when the batch can't be read."""
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
    record = Record(
        0, timestamp, _KEY.pack(0, COMMIT if commit else ABORT), _VALUE.pack(0, coordinator_epoch)
    )
    return build_batch(
        [record], producer_id=producer_id, producer_epoch=producer_epoch, control=True, transactional=True
    )
