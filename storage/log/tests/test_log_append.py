"""Which batches a leader appends, the error codes of the others, and when a new segment begins."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from barnabas.storage.errors import StorageError
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.tests.workshop import max_timestamp_offset, offset_for_timestamp
from barnabas.wire.compression import Codec
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import (
    EXTENSION_FLAG,
    HEADER_SIZE,
    BatchHeader,
    assemble_batch,
    read_header,
    verify_crc,
)
from barnabas.wire.records import Record, build_batch, iterate_records


def refusal(log: Any, batch: bytes, epoch: int = 0) -> ErrorCode:
    """The error code; the log must be as it was."""
    before = (log.log_end_offset, log.size)
    with pytest.raises(StorageError) as caught:
        log.append_as_leader(batch, epoch)
    assert (log.log_end_offset, log.size) == before
    return caught.value.error


def patched(batch: bytes, **changes: int) -> bytes:
    """The batch with header fields changed and a CRC that fits."""
    header = read_header(batch)
    for name, value in changes.items():
        setattr(header, name, value)
    return assemble_batch(header, batch[HEADER_SIZE:])


def test_assigns_offsets_and_epoch_and_touches_nothing_else(workshop: Any) -> None:
    log = workshop.log()
    first, second = workshop.batch(3), workshop.batch(2, codec=Codec.ZSTD)
    result = log.append_as_leader(first, 7)
    assert (result.base_offset, result.last_offset, result.log_append_time) == (0, 2, -1)
    result = log.append_as_leader(memoryview(second), 7)
    assert (result.base_offset, result.last_offset) == (3, 4)
    stored = workshop.content(log)
    for offset, original, batch in zip((0, 3), (first, second), stored, strict=True):
        assert batch == struct.pack(">q", offset) + original[8:12] + struct.pack(">i", 7) + original[16:]
        verify_crc(batch, 0, read_header(batch))


def test_large_batches_go_without_a_copy_and_come_back_the_same(workshop: Any) -> None:
    log = workshop.log()
    batch = workshop.batch(3, size=200_000)
    workshop.disk.short_write = 70_000
    log.append_as_leader(batch, 0)
    assert workshop.content(log)[0][16:] == batch[16:]


def test_only_a_writable_view_is_written_into(workshop: Any) -> None:
    log = workshop.log()
    log.append_as_leader(workshop.batch(2), 3)
    batch = workshop.batch(3)
    own, lent = bytearray(b"before" + batch + b"behind"), bytearray(batch)
    log.append_as_leader(memoryview(own)[6:-6], 3)
    log.append_as_leader(memoryview(lent).toreadonly(), 3)
    assert lent == batch
    stored = workshop.content(log)
    assert own == b"before" + stored[1] + b"behind"
    assert [read_header(each).base_offset for each in stored] == [0, 2, 5]
    assert [each[16:] for each in stored[1:]] == [batch[16:]] * 2


def test_a_refused_batch_is_not_written_into(workshop: Any) -> None:
    log = workshop.log()
    log.append_as_leader(workshop.batch(2), 3)
    for refused in (workshop.batch()[:-1] + b"?", workshop.batch(timestamp=workshop.now + 10**10)):
        buffer = bytearray(refused)
        with pytest.raises(StorageError):
            log.append_as_leader(memoryview(buffer), 3)
        assert buffer == refused


def test_several_batches_at_once(workshop: Any) -> None:
    log = workshop.log()
    result = log.append_as_leader(workshop.batch(2) + workshop.batch(3), 0)
    assert (result.base_offset, result.last_offset, log.log_end_offset) == (0, 4, 5)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"record_count": 0}, ErrorCode.INVALID_RECORD),
        ({"record_count": -1}, ErrorCode.INVALID_RECORD),
        ({"record_count": 4}, ErrorCode.INVALID_RECORD),
        ({"record_count": 2**31 - 1}, ErrorCode.INVALID_RECORD),
        ({"last_offset_delta": 5}, ErrorCode.INVALID_RECORD),
        ({"last_offset_delta": -1}, ErrorCode.INVALID_RECORD),
        ({"last_offset_delta": -1, "record_count": 0}, ErrorCode.INVALID_RECORD),
        ({"base_offset": 9}, ErrorCode.INVALID_RECORD),
        ({"attributes": 0x20}, ErrorCode.INVALID_RECORD),
        ({"producer_id": 5, "producer_epoch": 0}, ErrorCode.INVALID_RECORD),
        ({"magic": 0}, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        ({"magic": 1}, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        ({"magic": 3}, ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_headers_that_contradict_themselves(workshop: Any, changes: dict[str, int], code: ErrorCode) -> None:
    assert refusal(workshop.log(), patched(workshop.batch(3), **changes)) == code


def test_a_claimed_append_time_is_cleared(workshop: Any) -> None:
    """Only a broker stamps; Kafka writes the topic's own timestamp type over what a client claims."""
    log, honest = workshop.log(), workshop.batch(3)
    log.append_as_leader(patched(honest, attributes=0x08), 0)
    stored = b"".join(region.read() for region in log.read(0, 1 << 20).regions)
    assert stored[16:] == honest[16:]


def test_a_client_cannot_set_the_extension_flag(workshop: Any) -> None:
    """It is cleared, also where the batch is written anew for other reasons."""
    claimed = patched(workshop.batch(3), attributes=EXTENSION_FLAG)
    log = workshop.log()
    stamped, packed = LogConfig(message_timestamp_type="LogAppendTime"), LogConfig(compression_type="gzip")
    for config in (LogConfig(), stamped, packed):
        log.update_config(config)
        log.append_as_leader(claimed, 0)
        log.append_as_leader(claimed, 0, from_client=False)
    for place, batch in enumerate(workshop.content(log)):
        header = read_header(batch)
        assert header.is_from_extension == bool(place % 2)
        verify_crc(batch, 0, header)
    assert log.log_end_offset == 18


def test_damaged_bytes(workshop: Any) -> None:
    log = workshop.log()
    batch = workshop.batch(3)
    for damaged in (
        batch[:-1],
        batch + b"\0",
        batch[:-1] + bytes([batch[-1] ^ 1]),
        batch[:30],
        b"",
        batch[:8] + struct.pack(">i", -1) + batch[12:],
        batch[:8] + struct.pack(">i", 2**31 - 1) + batch[12:],
    ):
        assert refusal(log, damaged) == ErrorCode.CORRUPT_MESSAGE
    log.append_as_leader(batch, 0)


def test_sizes(workshop: Any) -> None:
    log = workshop.log(max_message_bytes=1000, segment_bytes=500)
    assert refusal(log, workshop.batch(size=1000)) == ErrorCode.MESSAGE_TOO_LARGE
    assert refusal(log, workshop.batch(size=600)) == ErrorCode.RECORD_LIST_TOO_LARGE
    log.append_as_leader(workshop.batch(size=300), 0)


def test_timestamp_bounds(workshop: Any) -> None:
    log = workshop.log(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=2000)
    now = workshop.now
    assert refusal(log, workshop.batch(timestamp=now - 1001)) == ErrorCode.INVALID_TIMESTAMP
    assert refusal(log, workshop.batch(timestamp=now + 2001)) == ErrorCode.INVALID_TIMESTAMP
    for timestamp in (now - 1000, now + 2000, -1):
        log.append_as_leader(workshop.batch(timestamp=timestamp), 0)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_every_record_is_held_to_the_bounds(workshop: Any, codec: Codec) -> None:
    """Also those between the first and the newest, of which the header says nothing."""
    log = workshop.log(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=2000)
    now = workshop.now
    times = [now, now - 1001, -1, now + 2001, now + 5]
    records = [Record(index, time, None, b"v") for index, time in enumerate(times)]
    with pytest.raises(StorageError) as caught:
        log.append_as_leader(build_batch(records, codec=codec), 0)
    assert caught.value.error == ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in caught.value.record_errors] == [1, 3]
    log.append_as_leader(build_batch([*records[:1], Record(1, -1, None, b"v")], codec=codec), 0)
    assert refusal(log, patched(workshop.batch(2), max_timestamp=now + 9999)) == ErrorCode.INVALID_TIMESTAMP


def test_log_append_time(workshop: Any) -> None:
    log = workshop.log(message_timestamp_type="LogAppendTime")
    result = log.append_as_leader(workshop.batch(3, timestamp=5), 0)
    assert result.log_append_time == workshop.now
    (batch,) = workshop.content(log)
    header = read_header(batch)
    verify_crc(batch, 0, header)
    assert (header.is_log_append_time, header.max_timestamp) == (True, workshop.now)
    assert [record.timestamp for record in iterate_records(batch)] == [workshop.now] * 3
    assert offset_for_timestamp(log, workshop.now).offset == 0


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("wanted", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_the_topics_own_codec(workshop: Any, codec: Codec, wanted: str) -> None:
    log = workshop.log(compression_type=wanted)
    original = workshop.batch(5, codec=codec, producer_id=4, producer_epoch=0, base_sequence=0)
    log.append_as_leader(original, 0)
    (batch,) = workshop.content(log)
    header = read_header(batch)
    verify_crc(batch, 0, header)
    assert header.codec == ("uncompressed", "gzip", "snappy", "lz4", "zstd").index(wanted)
    assert (header.producer_id, header.base_sequence) == (4, 0)
    assert list(iterate_records(batch)) == list(iterate_records(original))


def test_compacted_topics_want_keys(workshop: Any) -> None:
    log = workshop.log(cleanup_policy=frozenset({"compact"}))
    with pytest.raises(StorageError) as caught:
        log.append_as_leader(workshop.batch(2, key=None), 0)
    assert caught.value.error == ErrorCode.INVALID_RECORD
    assert [index for index, _ in caught.value.record_errors] == [0, 1]
    log.append_as_leader(workshop.batch(2), 0)


def lying_batches(batch: bytes) -> list[bytes]:
    """Headers that agree with themselves, over records that do not."""
    header = read_header(batch)
    return [
        patched(batch, record_count=5, last_offset_delta=4),
        patched(batch, record_count=2, last_offset_delta=1),
        patched(batch, attributes=Codec.GZIP),
        patched(batch, attributes=7),
        assemble_batch(header, b"\xff" * 40),
        assemble_batch(header, b""),
    ]


def test_invalid_records_are_opaque_by_default_and_harm_nothing_else(workshop: Any) -> None:
    log = workshop.log()
    log.append_as_leader(workshop.batch(2, timestamp=workshop.now - 10), 0)
    liars = lying_batches(workshop.batch(3))
    for liar in liars:
        log.append_as_leader(liar, 0)
    end = log.log_end_offset
    log.append_as_leader(workshop.batch(1, timestamp=workshop.now + 50), 0)
    assert len(workshop.content(log)) == len(liars) + 2
    assert offset_for_timestamp(log, workshop.now + 50).offset == end
    assert offset_for_timestamp(log, workshop.now).offset == 2  # the first liar: its header must do
    assert max_timestamp_offset(log).offset == end
    assert workshop.log(clean=False).log_end_offset == end + 1


def test_lying_records_are_refused_on_demand(workshop: Any) -> None:
    log = workshop.log(validate_records=True)
    for liar in lying_batches(workshop.batch(3)):
        assert refusal(log, liar) == ErrorCode.INVALID_RECORD
    sparse = build_batch([Record(0, workshop.now, None, b"a"), Record(2, workshop.now, None, b"b")])
    assert refusal(log, patched(sparse, record_count=2, last_offset_delta=1)) == ErrorCode.INVALID_RECORD
    log.append_as_leader(workshop.batch(3), 0)


def bases(log: Any) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def test_rolls_by_size(workshop: Any) -> None:
    size = len(workshop.batch())
    log = workshop.log(segment_bytes=3 * size)
    for _ in range(7):
        log.append_as_leader(workshop.batch(), 0)
    assert bases(log) == [0, 3, 6]
    assert log.flusher.recovery_point == 6


def test_rolls_by_the_time_between_batches(workshop: Any) -> None:
    log = workshop.log(segment_ms=1000, message_timestamp_after_max_ms=10**9)
    for ahead in (0, 1000, 1001, 1500):
        log.append_as_leader(workshop.batch(timestamp=workshop.now + ahead), 0)
    assert bases(log) == [0, 2]
    reopened = workshop.log(segment_ms=1000, message_timestamp_after_max_ms=10**9)
    reopened.append_as_leader(workshop.batch(timestamp=workshop.now + 2002), 0)
    assert bases(reopened) == [0, 2, 4]


def test_rolls_by_the_clock_when_records_have_no_time(workshop: Any) -> None:
    log = workshop.log(segment_ms=1000)
    log.append_as_leader(workshop.batch(timestamp=-1), 0)
    workshop.runtime.advance(1.0)
    log.append_as_leader(workshop.batch(timestamp=-1), 0)
    workshop.runtime.advance(0.1)
    log.append_as_leader(workshop.batch(timestamp=-1), 0)
    assert bases(log) == [0, 2]


def test_rolls_when_the_index_is_full(workshop: Any) -> None:
    log = workshop.log(segment_index_bytes=12 * 4, index_interval_bytes=0)
    for ahead in range(20):
        log.append_as_leader(workshop.batch(timestamp=workshop.now + ahead), 0)
    assert len(bases(log)) > 2
    assert all(len(segment.time_index) <= 4 for segment in log.segments)


def test_rolls_before_a_relative_offset_overflows(workshop: Any) -> None:
    log = workshop.log()
    log.append_as_leader(workshop.batch(), 0)
    huge = BatchHeader(0, 0, -1, 2, 0, 0, 2**31 - 2, workshop.now, workshop.now, -1, -1, -1, 2**31 - 1)
    log.append_as_leader(assemble_batch(huge, b"opaque"), 0)
    log.append_as_leader(workshop.batch(), 0)
    assert bases(log) == [0, 2**31]


def test_flush_messages(workshop: Any) -> None:
    log = workshop.log(flush_messages=2)
    points = []
    for _ in range(4):
        log.append_as_leader(workshop.batch(), 0)
        points.append(log.flusher.recovery_point)
    assert points == [0, 2, 2, 4]


def test_flush_ms(workshop: Any) -> None:
    log = workshop.log(flush_ms=500)
    log.append_as_leader(workshop.batch(), 0)
    workshop.runtime.advance(0.4)
    log.append_as_leader(workshop.batch(), 0)
    assert log.flusher.recovery_point == 0
    workshop.runtime.advance(0.1)
    assert log.flusher.recovery_point == 2
    log.append_as_leader(workshop.batch(), 0)
    log.release()
    workshop.runtime.advance(10)
    assert (log.flusher.recovery_point, log.failure) == (2, None)


@pytest.mark.parametrize(
    "settings", [{}, {"cleanup_policy": frozenset({"compact"})}, {"compression_type": "lz4"}]
)
def test_few_bytes_do_not_unpack_to_gigabytes(workshop: Any, settings: dict[str, Any]) -> None:
    log = workshop.log(**settings)
    far_ahead = workshop.now + (0 if settings else 10**9)
    bomb = workshop.batch(size=70_000_000, timestamp=far_ahead, codec=Codec.ZSTD)
    assert len(bomb) < 100_000
    assert refusal(log, bomb) == (ErrorCode.INVALID_RECORD if settings else ErrorCode.INVALID_TIMESTAMP)
    large = workshop.batch(size=10_000_000, codec=Codec.ZSTD)
    assert log.append_as_leader(large, 0).base_offset == 0
