"""Tails read back from batches, whole and damaged ones."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from barnabas.nats.records.batch_builder import Batch, BatchBuilder
from barnabas.nats.records.tails import read_tails
from barnabas.wire.compression import Codec
from barnabas.wire.record_batch import InvalidBatch, RecordBatchError
from barnabas.wire.records import Record, build_batch

NOW_MS = 1_700_000_000_123

tails = st.lists(st.binary(min_size=3, max_size=90), min_size=1, max_size=80)


@given(tails, st.booleans())
@example([bytes(20_000), bytes(100), bytes(3_000_000)], False)
@example([b"abc"] * 9000, True)
def test_tails_are_read_back(written: list[bytes], has_times: bool) -> None:
    builder = BatchBuilder()
    for index, tail in enumerate(written):
        if has_times:
            builder.add_at(tail, NOW_MS - 1000 + index * 7)
        else:
            builder.add(tail)
    [batch] = builder.finish(NOW_MS, 1 << 30)
    assert isinstance(batch, Batch)
    assert read_tails(batch.records, 1 << 20) == written


def test_tails_of_compressed_batches() -> None:
    records = [Record(index, NOW_MS, b"k", b"v" * index, [("h", None)]) for index in range(20)]
    plain = read_tails(build_batch(records), 1 << 20)
    for codec in Codec:
        assert read_tails(build_batch(records, codec=codec), 1 << 20) == plain
    with pytest.raises(InvalidBatch):
        read_tails(build_batch(records, codec=Codec.GZIP), 50)


@given(tails, st.data())
def test_damaged_batches_raise_record_batch_errors_only(written: list[bytes], data: st.DataObject) -> None:
    builder = BatchBuilder()
    for tail in written:
        builder.add(tail)
    [batch] = builder.finish(NOW_MS, 1 << 30)
    assert isinstance(batch, Batch)
    damaged = bytearray(batch.records)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        read = read_tails(bytes(damaged), 1 << 20)
    except RecordBatchError:
        return
    assert len(read) == len(written)
    assert sum(map(len, read)) <= len(damaged)


@pytest.mark.parametrize(
    "records",
    [
        b"",
        b"\x01",  # a length of -1
        b"\x06\0\0",  # cut off
        b"\x02\0\0\0",  # shorter than its fields
        b"\x08\0\x80\x80\x80",
        b"\x80\x80\x80\x80\x80\x01",
        b"\x81\x01\0\0\0",
        b"\x06\0\0\0" * 2,  # two, where the header says one
    ],
)
def test_malformed_records_are_refused(records: bytes) -> None:
    whole = bytearray(build_batch([Record(0, 0, None, None)])[:61] + records)
    whole[8:12] = (len(whole) - 12).to_bytes(4, "big")
    with pytest.raises(RecordBatchError):
        read_tails(bytes(whole), 1 << 20)


def test_a_batch_that_is_cut_off_is_refused() -> None:
    batch = build_batch([Record(0, 0, b"k", b"v")])
    for damaged in (batch[:-1], batch + b"x", batch[:20], b""):
        with pytest.raises(RecordBatchError):
            read_tails(damaged, 1 << 20)
