"""The markers that end transactions: written as any batch of one record, and read like one."""

from __future__ import annotations

import pytest

from barnabas.storage.segment.transaction_marker import (
    EndTransactionMarker,
    build_marker,
    find_marker,
    read_marker,
)
from barnabas.wire.record_batch import HEADER_SIZE, RecordBatchError
from barnabas.wire.records import Record, build_batch, iterate_records


def marker(commit: bool) -> bytes:
    return build_marker(1 << 40, 32767, commit=commit, coordinator_epoch=1 << 20, timestamp=1_700_000_000_000)


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_is_a_control_batch_of_one_record(commit: bool) -> None:
    record = Record(0, 1_700_000_000_000, bytes((0, 0, 0, commit)), bytes((0, 0, 0, 0x10, 0, 0)))
    batch = build_batch([record], producer_id=1 << 40, producer_epoch=32767, control=True, transactional=True)
    assert marker(commit) == batch
    assert read_marker(batch) == EndTransactionMarker(commit, 1 << 20)


def test_one_with_a_header_is_read_as_well() -> None:
    record = Record(0, 0, bytes((0, 0, 0, 1)), bytes((0, 0, 0, 0, 0, 9)), [("k", b"v")])
    assert read_marker(build_batch([record], control=True)) == EndTransactionMarker(True, 9)


def as_any_batch(batch: bytes) -> EndTransactionMarker | None:
    """What the record says, if it is a marker's."""
    try:
        record = next(iterate_records(batch), None)
    except RecordBatchError:
        return None
    if record is None or record.key is None or record.value is None:
        return None
    kind = int.from_bytes(record.key[2:4], "big", signed=True)
    if len(record.key) < 4 or len(record.value) < 6 or kind not in (0, 1):
        return None
    return EndTransactionMarker(kind == 1, int.from_bytes(record.value[2:6], "big", signed=True))


@pytest.mark.parametrize("position", range(HEADER_SIZE + 17))
def test_a_changed_byte_is_read_as_in_any_batch(position: int) -> None:
    for value in (0, 1, 2, 8, 0x7F, 0x80, 0xFF):
        changed = bytearray(marker(commit=True))
        changed[position] = value
        assert find_marker(changed) == as_any_batch(bytes(changed)), f"byte {position} is {value}"
