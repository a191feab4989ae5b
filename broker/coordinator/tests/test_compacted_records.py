"""The last records of each key against a slow look at all of them, in batches of every kind."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.coordinator.compacted_records import CommittedRecords, CompactedRecords
from barnabas.storage.errors import StorageError
from barnabas.storage.segment.transaction_marker import build_marker
from barnabas.wire.compression import Codec
from barnabas.wire.record_batch import RecordBatchError, assemble_batch, read_header
from barnabas.wire.records import Record, build_batch

Pair = tuple[bytes | None, bytes | None]

# Sizes at which a record's length, its key's or its value's takes one more byte.
KEYS = [b"k", b"l", b"", b"m" * 63, b"n" * 64, b"o" * 8192, None]
VALUES = [b"", b"v", b"w" * 54, b"w" * 55, b"x" * 63, b"y" * 64, b"z" * 8192, None, None]
RECORD = st.tuples(
    st.sampled_from(KEYS),
    st.sampled_from(VALUES),
    st.sampled_from([0, 0, 1, 64, 70_000]),  # how much later than the first of its batch
    st.sampled_from(
        [1, 1, 1, 2, 100, 9000]
    ),  # offset after the one before: what lay between was cleaned away
    st.booleans(),  # with a header
)
BATCH = st.tuples(
    st.sampled_from(["plain", "plain", "plain", "gzip", "inside", "commit", "abort", "empty"]),
    st.integers(1, 2),
    st.lists(RECORD, min_size=1, max_size=5),
)
LOG = st.lists(BATCH, max_size=12)


def made(log: list[Any]) -> list[bytes]:
    batches, offset = [], 0
    for what, producer, written in log:
        records, at = [], offset - 1
        for key, value, later, step, has_header in written:
            at += step
            records.append(Record(at, 1000 + later, key, value, [("h", b"1")] if has_header else []))
        inside: dict[str, Any] = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0}
        if what in ("commit", "abort"):
            marker = build_marker(producer, 0, commit=what == "commit", coordinator_epoch=0, timestamp=0)
            batch = offset.to_bytes(8, "big") + marker[8:]
        elif what == "empty":
            header = read_header(build_batch(records, base_offset=offset))
            header.record_count = 0
            batch = assemble_batch(header, b"")
        elif what == "inside":
            batch = build_batch(records, base_offset=offset, transactional=True, **inside)
        else:
            codec = Codec.GZIP if what == "gzip" else Codec.NONE
            batch = build_batch(records, base_offset=offset, codec=codec)
        batches.append(batch)
        offset = read_header(batch).next_offset
    return batches


def slow(batches: list[bytes]) -> list[Pair]:
    """Of each key the last value and the last tombstone, in the order of writing; what has no key stays."""
    settled = CommittedRecords()
    everything = [(each.key, each.value) for batch in batches for each in settled.of(batch)]
    kept: list[Pair] = []
    seen: set[tuple[bytes, bool]] = set()
    for key, value in reversed(everything):
        if key is not None and (key, value is None) not in seen:
            seen.add((key, value is None))
            kept.append((key, value))
    return kept[::-1]


def fast(batches: list[bytes], cuts: list[int], *, every: bool = False) -> list[Pair]:
    """As a log is read: some whole batches at a time, and the beginning of the next one."""
    replayed: list[Pair] = []
    records = CompactedRecords("p", lambda key, value: replayed.append((key, value)), every=every)
    ends = sorted({cut % (len(batches) + 1) for cut in cuts} | {len(batches)})
    start = 0
    for cut, end in zip(chain(cuts, [0, 0]), ends, strict=False):
        behind = batches[end][: cut % len(batches[end])] if end < len(batches) else b""
        for _ in records.take(b"".join(batches[start:end]) + behind):
            pass
        start = end
        assert records.next_offset == (read_header(batches[end - 1]).next_offset if end else 0)
    for _ in records.finish():
        pass
    return replayed


@given(log=LOG, cuts=st.lists(st.integers(0, 300), max_size=3))
def test_the_last_record_of_each_key_equals_that_of_a_simple_reader(log: list[Any], cuts: list[int]) -> None:
    batches = made(log)
    assert [pair for pair in fast(batches, cuts) if pair[0] is not None] == slow(batches)


@given(log=LOG)
def test_every_record_is_replayed_with_every(log: list[Any]) -> None:
    batches = made(log)
    settled = CommittedRecords()
    assert fast(batches, [], every=True) == [
        (each.key, each.value) for batch in batches for each in settled.of(batch)
    ]


@pytest.mark.slow
@given(
    log=LOG, damage=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=4)
)
def test_damage_is_an_error_or_without_effect(log: list[Any], damage: list[tuple[int, int]]) -> None:
    data = bytearray(b"".join(made(log)))
    for position, byte in damage:
        if data:
            data[position % len(data)] = byte
    records = CompactedRecords("p", lambda _key, _value: None)
    try:
        for _ in chain(records.take(bytes(data)), records.finish()):
            pass
    except (RecordBatchError, StorageError):
        pass


def _put_key(to: list[bytes | None], key: bytes | None, _: bytes | None) -> None:
    to.append(key)


def test_steps_are_short() -> None:
    """Many batches, many records in one batch, and many keys: a step has a few hundred records at most."""
    records = [Record(offset, 0, b"%d" % offset, b"v") for offset in range(5000)]
    singles = [build_batch([each], base_offset=each.offset) for each in records]
    for batches in (singles, [build_batch(records)], [build_batch(records, codec=Codec.GZIP)]):
        replayed: list[bytes | None] = []
        taken = CompactedRecords("p", partial(_put_key, replayed))
        assert len(list(taken.take(b"".join(batches)))) >= 5000 // 128
        before = 0
        for _ in taken.finish():
            assert len(replayed) - before <= 16
            before = len(replayed)
        assert replayed == [each.key for each in records]


def test_a_record_of_many_bytes() -> None:
    big = bytes(3 << 20)
    batch = build_batch([Record(0, 0, b"k" * 20_000, big), Record(1, 0, b"k", b"v")])
    assert fast([batch], []) == [(b"k" * 20_000, big), (b"k", b"v")]


@pytest.mark.parametrize("filler", [0, 1, 0x7F, 0x80, 0xFF])
def test_records_with_lengths_past_the_batch(filler: int) -> None:
    header = read_header(build_batch([Record(0, 0, b"k", b"v")]))
    for size in range(12):
        for count in (1, 2, 1 << 30):
            header.record_count = count
            records = CompactedRecords("p", lambda _key, _value: None)
            with pytest.raises(RecordBatchError):
                list(records.take(assemble_batch(header, bytes([filler] * size))))


def test_a_length_below_a_headers_is_damage() -> None:
    batch = bytearray(build_batch([Record(0, 0, b"k", b"v")]))
    for length in (-12, -100, 0, 48):
        batch[8:12] = length.to_bytes(4, "big", signed=True)
        records = CompactedRecords("p", lambda _key, _value: None)
        with pytest.raises(RecordBatchError):
            list(records.take(bytes(batch)))
