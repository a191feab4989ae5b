"""Reading the records of a batch before it is appended: how much of it one turn of the loop does, and what is answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from barnabas.runtime.slices import StepQueue, Steps, TooManySteps, run_through
from barnabas.storage.errors import StorageError
from barnabas.storage.log import validation
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.log.validation import Inspected, RecordsUnread
from barnabas.wire.compression import Codec
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import BatchHeader, assemble_batch, read_header
from barnabas.wire.records import Record, build_batch, iterate_records, record_heads
from compat_tests.virtual.runtime import VirtualRuntime

MANY = 20 * validation.RECORDS_PER_STEP
COMPACT: dict[str, Any] = {"cleanup_policy": frozenset({"compact"})}
READS_ALL: list[dict[str, Any]] = [
    COMPACT,
    {"validate_records": True},
    {"message_timestamp_before_max_ms": 10**9},
    {"compression_type": "lz4"},
]


class TickingRuntime(VirtualRuntime):
    """Each look at the clock takes a millisecond, so that a turn of two is two or three steps."""

    ticks = 0

    def monotonic(self) -> float:
        self.ticks += 1
        return super().monotonic() + self.ticks / 1000


class Meter:
    """Counts what is read of records."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        patch.setattr(validation, "record_heads", self._heads)

    def _heads(self, header: BatchHeader, data: bytes) -> Iterator[Any]:
        for head in record_heads(header, data):
            self.count += 1
            yield head


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Meter:
    return Meter(monkeypatch)


def appended(log: Any, batch: bytes, inspected: Inspected | None = None) -> Any:
    """As a handler appends what a client has sent."""
    if inspected is not None:
        return log.append_batch(inspected.records, inspected.header, 0, True, inspected)
    return log.append_batch(memoryview(bytearray(batch)), read_header(batch), 0)


def unread(log: Any, batch: bytes) -> RecordsUnread:
    with pytest.raises(RecordsUnread) as caught:
        appended(log, batch)
    return caught.value


def refusal(log: Any, batch: bytes) -> StorageError:
    with pytest.raises(StorageError) as caught:
        appended(log, batch)
    return caught.value


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("config", [{}, *READS_ALL], ids=lambda config: next(iter(config), "default"))
def test_a_header_too_far_ahead_is_refused_unread(
    workshop: Any, meter: Meter, codec: Codec, config: dict[str, Any]
) -> None:
    log = workshop.log(**config)
    refused = refusal(log, workshop.batch(5000, size=1, timestamp=workshop.now + 10**7, codec=codec))
    assert refused.error == ErrorCode.INVALID_TIMESTAMP
    assert str(refused).startswith("One or more records have been rejected due to invalid timestamp")
    assert (refused.record_errors, meter.count) == ([], 0)


def test_of_few_records_each_is_named(workshop: Any, meter: Meter) -> None:
    refused = refusal(workshop.log(), workshop.batch(10, timestamp=workshop.now + 10**7, codec=Codec.ZSTD))
    assert refused.error == ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in refused.record_errors] == list(range(10))


@pytest.mark.slow
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD, Codec.SNAPPY])
@pytest.mark.parametrize("config", READS_ALL, ids=lambda config: next(iter(config)))
def test_many_records_are_read_in_turns(
    workshop: Any, meter: Meter, codec: Codec, config: dict[str, Any]
) -> None:
    log = workshop.log(**config)
    batch = workshop.batch(MANY, size=1, codec=codec)
    reading = unread(log, batch)
    assert meter.count == 0
    runtime = TickingRuntime()
    found: list[Any] = []
    StepQueue(runtime).add(reading.steps(), lambda *result: found.append(result))
    most = 0
    while not found:
        before = meter.count
        assert runtime.step()
        most = max(most, meter.count - before)
    assert most <= 3 * validation.RECORDS_PER_STEP
    assert meter.count == (0 if "compression_type" in config else MANY)
    (((inspected, error),)) = found
    assert error is None
    assert appended(log, batch, inspected).last_offset == MANY - 1
    (stored,) = workshop.content(log)
    assert list(iterate_records(stored)) == list(iterate_records(batch))


def test_a_few_records_are_read_at_once(workshop: Any) -> None:
    log = workshop.log()
    for config in READS_ALL:
        log.update_config(LogConfig(**config))
        for codec in Codec:
            result = appended(log, workshop.batch(100, codec=codec))
            assert result.last_offset - result.base_offset == 99


def headers_bomb(now: int, count: int = 1) -> bytes:
    """Few records, few bytes, and a great many headers."""
    headers: list[tuple[str, bytes | None]] = [("", None)] * (60_000 // count)
    records = [Record(index, now, b"k", b"v", headers) for index in range(count)]
    return build_batch(records, codec=Codec.ZSTD)


@pytest.mark.parametrize("count", [1, 200])
def test_a_header_that_counts_few_records_is_checked(workshop: Any, meter: Meter, count: int) -> None:
    log = workshop.log(**COMPACT)
    bombs = headers_bomb(workshop.now, count), workshop.batch(1, size=1 << 20, codec=Codec.ZSTD)
    for bomb in bombs:
        assert len(bomb) < 10_000
        reading = unread(log, bomb)
        assert meter.count < 500
        result = appended(log, bomb, run_through(reading.steps()))
        assert result.last_offset - result.base_offset == read_header(bomb).last_offset
        meter.count = 0


def test_what_can_not_be_read_few_or_many(workshop: Any) -> None:
    log = workshop.log(**COMPACT)
    header = read_header(workshop.batch(5000, codec=Codec.NONE))
    for codec in Codec:
        header.attributes = codec
        damaged = assemble_batch(header, b"\xff" * 50_000)
        with pytest.raises(StorageError) as caught:
            run_through(unread(log, damaged).steps())
        assert caught.value.error == ErrorCode.INVALID_RECORD
    assert log.log_end_offset == 0


def test_of_many_records_at_fault_the_first_are_named(workshop: Any) -> None:
    log = workshop.log(**COMPACT)
    with pytest.raises(StorageError) as caught:
        run_through(unread(log, workshop.batch(5000, key=None)).steps())
    assert caught.value.error == ErrorCode.INVALID_RECORD
    assert "due to 5000 record errors in total" in str(caught.value)
    assert [index for index, _ in caught.value.record_errors] == list(range(validation.RECORD_ERRORS_MAX))


def test_a_conversion_may_not_make_a_batch_too_large(workshop: Any) -> None:
    """As Kafka, which looks at the size again."""
    log = workshop.log(compression_type="uncompressed", max_message_bytes=10_000)
    batch = workshop.batch(100, size=1000, codec=Codec.ZSTD)
    with pytest.raises(StorageError) as caught:
        log.append_as_leader(batch, 0)
    assert caught.value.error == ErrorCode.MESSAGE_TOO_LARGE
    assert log.log_end_offset == 0


def test_settings_that_change_meanwhile_are_obeyed(workshop: Any) -> None:
    log = workshop.log(compression_type="lz4")
    batch = workshop.batch(5000, key=None)
    inspected = run_through(unread(log, batch).steps())
    log.update_config(LogConfig(**COMPACT))
    with pytest.raises(RecordsUnread) as caught:
        appended(log, batch, inspected)
    with pytest.raises(StorageError, match="without key"):
        run_through(caught.value.steps())


def test_the_brokers_own_batches_do_not_wait(workshop: Any) -> None:
    log = workshop.log(**COMPACT)
    batch = workshop.batch(5000)
    result = log.append_batch(memoryview(bytearray(batch)), read_header(batch), 0, False)
    assert result.last_offset == 4999
    assert log.append_as_leader(batch, 0).last_offset == 9999


# -- the queue


def test_what_an_extension_writes_for_others_is_checked_and_what_the_broker_builds_is_not(
    workshop: Any, meter: Meter
) -> None:
    log = workshop.log(**COMPACT)
    keyless = Record(0, workshop.now, None, b"v")
    log.append_as_leader(build_batch([keyless]), 0, from_client=False)
    assert meter.count == 0
    with pytest.raises(StorageError) as caught:
        log.append_as_leader(build_batch([keyless], from_extension=True), 0, from_client=False)
    assert caught.value.error == ErrorCode.INVALID_RECORD


def counted(number: int, running: list[int], most: list[int]) -> Steps[int]:
    running.append(number)
    most.append(len(running))
    doubled: int = yield lambda: 2 * number
    yield None
    running.remove(number)
    return doubled


@pytest.mark.parametrize("at_once", [1, 3])
def test_a_queue_does_so_many_at_once_in_order(at_once: int) -> None:
    runtime = VirtualRuntime()
    queue = StepQueue(runtime, at_once)
    running: list[int] = []
    most: list[int] = []
    results: list[Any] = []
    for number in range(10):
        queue.add(counted(number, running, most), lambda *result: results.append(result))
    assert results == []
    runtime.run_until_idle()
    assert results == [(2 * number, None) for number in range(10)]
    assert max(most) == at_once


def test_an_error_in_a_thread_is_raised_in_the_steps() -> None:
    def fails(catches: bool) -> Steps[str]:
        try:
            yield lambda: 1 // 0
        except ZeroDivisionError:
            if not catches:
                raise
        return "caught"

    runtime = VirtualRuntime()
    queue = StepQueue(runtime)
    results: list[Any] = []
    for catches in (True, False, True):
        queue.add(fails(catches), lambda *result: results.append(result))
    runtime.run_until_idle()
    assert [type(error) for _, error in results] == [type(None), ZeroDivisionError, type(None)]
    assert run_through(fails(catches=True)) == "caught"
    with pytest.raises(ZeroDivisionError):
        run_through(fails(catches=False))


def test_work_that_takes_longer_than_it_may() -> None:
    def long() -> Steps[None]:
        for _ in range(5):
            yield None

    run_through(long(), 5)
    with pytest.raises(TooManySteps):
        run_through(long(), 4)
