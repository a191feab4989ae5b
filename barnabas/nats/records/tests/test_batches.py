"""Batches of tails, read by the decoders of other clients."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.record import MemoryRecords
from kio.records.readers import read_batch

from barnabas.nats.records.batch_builder import Batch, BatchBuilder, TooLarge
from barnabas.nats.records.parts import VARINT_COUNT, header_parts, sized
from barnabas.wire.primitives import varint
from barnabas.wire.record_batch import HEADER_SIZE
from barnabas.wire.records import Record, build_batch, iterate_records

NOW_MS = 1_700_000_000_123
PLENTY = 1 << 30

contents = st.binary(max_size=30)
headers = st.lists(st.tuples(st.text(max_size=5), contents), max_size=3)
messages = st.lists(st.tuples(st.none() | contents, st.none() | contents, headers), min_size=1, max_size=30)

Message = tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]


def tail_of(message: Message) -> bytes:
    key, value, pairs = message
    parts = [part for name, content in pairs for part in header_parts(name.encode(), content)]
    return b"".join((sized(key), sized(value), varint(len(pairs)), *parts))


def model(messages: list[Message], times: list[int]) -> bytes:
    return build_batch(
        [
            Record(index, time, key, value, list(pairs))
            for index, ((key, value, pairs), time) in enumerate(zip(messages, times, strict=True))
        ]
    )


@given(messages)
@example([(None, None, [])])
@example([(b"", b"", [("", b"")])])
@example([(None, bytes(VARINT_COUNT), []), (b"k", bytes(VARINT_COUNT - 10), []), (None, bytes(20_000), [])])
@example([(None, bytes(size), []) for size in (30, 60, 70, 8000, 8180, 8190)])
@example([(b"k", b"v", [])] * 70)
def test_one_timestamp_for_all_records(messages: list[Message]) -> None:
    builder = BatchBuilder()
    for index, message in enumerate(messages):
        assert builder.add(tail_of(message)) == index
    assert len(builder) == len(messages)
    [batch] = builder.finish(NOW_MS, PLENTY)
    assert isinstance(batch, Batch)
    assert batch.first == 0
    assert bytes(batch.records) == model(messages, [NOW_MS] * len(messages))
    assert len(builder) == 0
    assert builder.finish(NOW_MS, PLENTY) == []


@given(messages, st.data())
def test_a_timestamp_for_each_record(messages: list[Message], data: st.DataObject) -> None:
    times = [data.draw(st.integers(0, 1 << 42)) for _ in messages]
    builder = BatchBuilder()
    for message, time in zip(messages, times, strict=True):
        builder.add_at(tail_of(message), time)
    [batch] = builder.finish(NOW_MS, PLENTY)
    assert isinstance(batch, Batch)
    assert bytes(batch.records) == model(messages, times)
    assert batch.header.max_timestamp == max(times)


def test_other_decoders_read_the_same_records() -> None:
    sent: list[Message] = [
        (b"key", b"value", [("nats.subject", b"a.b"), ("Twice", b"\xff"), ("Twice", b"")]),
        (None, b"", [("nats.subject", b"a")]),
        (b"", None, []),
    ]
    builder = BatchBuilder()
    for index, message in enumerate(sent):
        builder.add_at(tail_of(message), NOW_MS + index * 100)
    [batch] = builder.finish(0, PLENTY)
    assert isinstance(batch, Batch)

    theirs = MemoryRecords(bytes(batch.records)).next_batch()
    assert theirs is not None
    assert theirs.validate_crc()
    assert [(r.key, r.value, r.headers) for r in theirs] == sent
    reread = MemoryRecords(bytes(batch.records)).next_batch()
    assert [r.timestamp for r in reread] == [NOW_MS, NOW_MS + 100, NOW_MS + 200]

    read, size = read_batch(bytes(batch.records), 0)
    assert size == len(batch.records)
    assert [
        (r.key, r.value, [((h.key or b"").decode(), h.value) for h in r.headers]) for r in read.records
    ] == sent


def test_more_records_than_the_tables_hold() -> None:
    count = VARINT_COUNT + 3
    builder = BatchBuilder()
    for index in range(count):
        builder.add(tail_of((None, b"%d" % index, [])))
    [batch] = builder.finish(NOW_MS, PLENTY)
    assert isinstance(batch, Batch)
    read = list(iterate_records(batch.records))
    assert [record.offset for record in read] == list(range(count))
    assert [record.value for record in read] == [b"%d" % index for index in range(count)]


@given(messages, st.integers(HEADER_SIZE, 300), st.booleans())
@example([(None, bytes(100), []), (None, b"", []), (None, bytes(100), [])], 150, False)
@example([(None, bytes(10), [])] * 200, 400, True)
def test_batches_are_split(messages: list[Message], size_max: int, has_times: bool) -> None:
    times = [NOW_MS + 7 * index if has_times else NOW_MS for index in range(len(messages))]
    builder = BatchBuilder()
    for message, time in zip(messages, times, strict=True):
        if has_times:
            builder.add_at(tail_of(message), time)
        else:
            builder.add(tail_of(message))
    position = 0
    room_left = 0
    for piece in builder.finish(NOW_MS, size_max):
        assert piece.first == position
        if isinstance(piece, TooLarge):
            alone = model(messages[position : position + 1], [NOW_MS])
            assert piece.size == len(alone) > size_max
            assert piece.tail == tail_of(messages[position])
            position += 1
            room_left = 0
            continue
        end = position + piece.header.record_count
        assert bytes(piece.records) == model(messages[position:end], times[position:end])
        assert len(piece.records) <= size_max
        assert piece.header.record_count == 1 or len(piece.records) > HEADER_SIZE
        # The first of these did not fit behind the ones before.
        assert room_left < len(model(messages[position : position + 1], [NOW_MS])) - HEADER_SIZE + 5
        room_left = size_max - len(piece.records)
        position = end
    assert position == len(messages)
    assert len(builder) == 0


def test_timestamps_are_for_all_or_none() -> None:
    builder = BatchBuilder()
    builder.add(b"")
    builder.add_at(b"", NOW_MS)
    with pytest.raises(AssertionError):
        builder.finish(NOW_MS, PLENTY)
