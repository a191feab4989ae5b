"""Record batches: round trips, bytes made by independent codecs, and damage of every kind."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import aiokafka.record.default_records as aiokafka_records
import kafka.record.default_records as kafka_python_records
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.wire.compression import Codec
from barnabas.wire.record_batch import (
    HEADER_SIZE,
    BatchHeader,
    CorruptBatch,
    InvalidBatch,
    RecordBatchError,
    UnsupportedMagic,
    assemble_batch,
    iterate_headers,
    iterate_whole_headers,
    read_header,
    verify_crc,
)
from barnabas.wire.records import SMALL_BATCH, Record, build_batch, iterate_records

optional_bytes = st.none() | st.binary(max_size=60)


@st.composite
def record_lists(draw: st.DrawFn) -> list[Record]:
    base = draw(st.integers(0, 2**40))
    records = []
    for index in range(draw(st.integers(1, 12))):
        headers = draw(st.lists(st.tuples(st.text(max_size=6), optional_bytes), max_size=3))
        timestamp = draw(st.integers(-1, 2**45))
        records.append(Record(base + index, timestamp, draw(optional_bytes), draw(optional_bytes), headers))
    return records


@given(records=record_lists(), codec=st.sampled_from(list(Codec)), transactional=st.booleans())
def test_round_trip(records: list[Record], codec: Codec, transactional: bool) -> None:
    batch = build_batch(
        records,
        base_offset=records[0].offset,
        codec=codec,
        producer_id=7,
        producer_epoch=2,
        base_sequence=5,
        leader_epoch=3,
        transactional=transactional,
    )
    ((position, header),) = iterate_headers(memoryview(batch))
    verify_crc(batch, 0, header)
    assert (position, header.size, header.codec) == (0, len(batch), codec)
    assert (header.base_offset, header.last_offset) == (records[0].offset, records[-1].offset)
    assert (header.next_offset, header.record_count) == (records[-1].offset + 1, len(records))
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 5)
    assert (header.partition_leader_epoch, header.is_transactional) == (3, transactional)
    assert not header.is_control
    assert list(iterate_records(batch)) == records


def test_log_append_time_is_every_records_time() -> None:
    batch = build_batch([Record(0, 5, None, b"a"), Record(1, 6, None, b"b")], log_append_time=99)
    header = read_header(batch)
    assert (header.is_log_append_time, header.max_timestamp) == (True, 99)
    assert [record.timestamp for record in iterate_records(batch)] == [99, 99]


ROWS = [
    (
        1000 + i,
        None if i % 3 == 0 else b"key%d" % i,
        None if i % 5 == 4 else b"value" * i,
        [("h", b"x"), ("n", None)],
    )
    for i in range(40)
]
EXPECTED = [Record(i, *row[:3], row[3]) for i, row in enumerate(ROWS)]


def kafka_python_batch(codec: int) -> bytes:
    builder = kafka_python_records.DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for offset, (timestamp, key, value, headers) in enumerate(ROWS):
        builder.append(offset, timestamp, key, value, headers)
    return bytes(builder.build())


def aiokafka_batch(codec: int) -> bytes:
    builder = aiokafka_records.DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for offset, (timestamp, key, value, headers) in enumerate(ROWS):
        builder.append(offset, timestamp, key, value, headers)
    return bytes(builder.build())


@pytest.mark.parametrize("make", [kafka_python_batch, aiokafka_batch])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_batches_of_other_clients(make: Callable[[int], bytes], codec: Codec) -> None:
    batch = make(codec)
    header = read_header(batch)
    verify_crc(batch, 0, header)
    assert header.codec == codec
    assert list(iterate_records(batch)) == EXPECTED
    if codec == Codec.NONE:
        assert build_batch(EXPECTED) == batch[:12] + struct.pack(">i", -1) + batch[16:]


@pytest.mark.parametrize("codec", list(Codec))
def test_other_clients_read_ours(codec: Codec) -> None:
    """aiokafka reads every codec (through cramjam), kafka-python the two of the standard library."""
    batch = build_batch(EXPECTED, codec=codec)
    readers: list[Any] = [aiokafka_records.DefaultRecordBatch(bytearray(batch))]
    if codec in (Codec.NONE, Codec.GZIP):
        readers.append(kafka_python_records.DefaultRecordBatch(bytearray(batch)))
    for reader in readers:
        assert reader.validate_crc()
        rows = [(r.offset, r.timestamp, r.key, r.value, [tuple(pair) for pair in r.headers]) for r in reader]
        assert rows == [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in EXPECTED]


def exercise(data: bytes) -> None:
    """Everything that may be asked of bytes from outside."""
    for position, header in iterate_headers(data):
        verify_crc(data, position, header)
        for _ in iterate_records(data[position : position + header.size], 100_000):
            pass


def test_the_start_of_a_small_batch_in_one_step() -> None:
    key = b"k" * 20
    batch = build_batch([Record(5, 1000, key, bytes(100))], base_offset=5)
    header = read_header(batch)
    *fields, record_length, key_size = SMALL_BATCH.unpack_from(batch)
    assert fields == [5, header.batch_length, 2, header.attributes, header.last_offset_delta, 1]
    assert batch[SMALL_BATCH.size : SMALL_BATCH.size + len(key)] == key
    assert (record_length >> 8 & 0x7F | record_length << 7 & 0x7F80) >> 1 == len(batch) - (
        SMALL_BATCH.size - 4
    )
    assert key_size == len(key) << 1


@given(
    records=record_lists(),
    codec=st.sampled_from(list(Codec)),
    flips=st.lists(st.integers(0), max_size=4),
    cut=st.none() | st.integers(0),
    fix_crc=st.booleans(),
)
def test_damage_gives_only_the_modules_errors(
    records: list[Record], codec: Codec, flips: list[int], cut: int | None, fix_crc: bool
) -> None:
    damaged = bytearray(build_batch(records, base_offset=records[0].offset, codec=codec))
    for flip in flips:
        damaged[flip // 8 % len(damaged)] ^= 1 << flip % 8
    if cut is not None:
        del damaged[cut % len(damaged) :]
    data = bytes(damaged)
    if fix_crc and len(data) > HEADER_SIZE and data[16] == 2:
        data = assemble_batch(BatchHeader(*struct.unpack_from(">qiibIhiqqqhii", data)), data[HEADER_SIZE:])
    try:
        exercise(data)
    except RecordBatchError:
        pass


@given(data=st.binary(max_size=200))
def test_noise_gives_only_the_modules_errors(data: bytes) -> None:
    try:
        exercise(data)
    except RecordBatchError:
        pass


def with_header(batch: bytes, payload: bytes | None = None, **changes: int) -> bytes:
    header = read_header(batch)
    for name, value in changes.items():
        setattr(header, name, value)
    return assemble_batch(header, batch[HEADER_SIZE:] if payload is None else payload)


GOOD = build_batch([Record(0, 5, b"k", b"v"), Record(1, 5, b"k", b"v")])


@pytest.mark.parametrize(
    "liar",
    [
        with_header(GOOD, record_count=1),
        with_header(GOOD, record_count=3),
        with_header(GOOD, record_count=-1),
        with_header(GOOD, record_count=2**31 - 1),
        with_header(GOOD, last_offset_delta=0),
        with_header(GOOD, attributes=1),
        with_header(GOOD, attributes=6),
        with_header(GOOD, payload=b""),
        with_header(GOOD, payload=b"\xff" * 30),
        with_header(GOOD, payload=GOOD[HEADER_SIZE:] + b"\0"),
        with_header(
            GOOD, record_count=1, last_offset_delta=0, payload=bytes([14, 0, 0, 0, 1, 1, 2])
        ),  # no headers
        with_header(GOOD, record_count=1, last_offset_delta=0, payload=bytes([14, 0, 0, 0, 1, 1, 1, 9])),
        with_header(GOOD, record_count=1, last_offset_delta=0, payload=bytes([14, 0, 0, 0, 200, 1, 1, 0])),
        with_header(GOOD, record_count=1, last_offset_delta=0, payload=bytes([1, 0, 0, 0, 1, 1, 0])),
    ],
)
def test_lying_records(liar: bytes) -> None:
    verify_crc(liar, 0, read_header(liar))
    with pytest.raises(InvalidBatch):
        list(iterate_records(liar))


def test_a_batch_that_unpacks_beyond_the_limit() -> None:
    bomb = build_batch([Record(0, 0, None, bytes(1 << 20))], codec=Codec.ZSTD)
    with pytest.raises(InvalidBatch, match="limit"):
        list(iterate_records(bomb, 1000))


def test_headers_that_are_none() -> None:
    for magic in (0, 1):
        with pytest.raises(UnsupportedMagic):
            read_header(GOOD[:16] + bytes([magic]) + GOOD[17:])
        with pytest.raises(UnsupportedMagic):
            read_header(bytes(16) + bytes([magic]) + bytes(9))
    for broken in (
        GOOD[:16] + b"\x03" + GOOD[17:],
        GOOD[:16] + b"\xff" + GOOD[17:],
        GOOD[:60],
        b"",
        GOOD[:8] + struct.pack(">i", 48) + GOOD[12:],
        GOOD[:8] + struct.pack(">i", -5) + GOOD[12:],
    ):
        with pytest.raises(CorruptBatch):
            read_header(broken)
    with pytest.raises(CorruptBatch):
        list(iterate_headers(GOOD + GOOD[:-1]))
    with pytest.raises(CorruptBatch):
        verify_crc(GOOD[:-1], 0, read_header(GOOD))
    with pytest.raises(CorruptBatch, match="crc"):
        verify_crc(GOOD[:-1] + b"\xff", 0, read_header(GOOD))


def test_many_batches_in_one_buffer() -> None:
    buffer = b"junk" + GOOD * 5
    assert [position for position, _ in iterate_headers(buffer, 4)] == [4 + i * len(GOOD) for i in range(5)]


def test_sequences_wrap() -> None:
    header = read_header(build_batch(EXPECTED[:3], producer_id=1, producer_epoch=0, base_sequence=2**31 - 1))
    assert header.last_sequence == 1
    assert read_header(GOOD).last_sequence == -1


def test_an_empty_batch_is_not_built() -> None:
    with pytest.raises(ValueError, match="at least one"):
        build_batch([])


@pytest.mark.parametrize("cut", [0, 1, 60, len(GOOD) - 1])
def test_the_whole_batches_before_one_that_is_cut_off(cut: int) -> None:
    data = GOOD + GOOD + GOOD[:cut]
    assert [position for position, _ in iterate_whole_headers(data)] == [0, len(GOOD)]
