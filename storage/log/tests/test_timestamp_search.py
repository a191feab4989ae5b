"""A thread searches for timestamps while the loop appends."""

from __future__ import annotations

from collections.abc import Iterator
from mmap import mmap
from typing import Any

import pytest

from barnabas.runtime.slices import StepQueue
from barnabas.storage.log import timestamps
from barnabas.storage.log.tests.test_record_inspection import TickingRuntime
from barnabas.storage.tests.workshop import max_timestamp_offset, offset_for_timestamp
from barnabas.wire import codecs
from barnabas.wire import records as wire_records
from barnabas.wire.compression import Codec
from barnabas.wire.records import record_heads


@pytest.mark.parametrize("largest", [False, True])
def test_what_is_appended_during_a_search_is_not_forgotten(workshop: Any, largest: bool) -> None:
    log = workshop.log()
    log.append_as_leader(workshop.batch(timestamp=1000), 0)
    log.close()
    log = workshop.log()  # its times have not been read yet
    appended: list[Any] = []

    def meanwhile(operation: str, path: str) -> None:
        if operation == "read" and path.endswith(".log") and not appended:
            appended.append(True)
            appended.append(log.append_as_leader(workshop.batch(timestamp=5000), 0))

    search = log.timestamp_search(None if largest else 500)
    workshop.disk.fault = meanwhile
    found = search()
    workshop.disk.fault = None
    assert found.offset == 0
    assert appended[1].base_offset == 1
    assert log.segments[-1].max_timestamp == 5000
    assert max_timestamp_offset(log).timestamp == 5000


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the results of codecs that were given room of their own."""
    sizes: list[int] = []
    original = codecs._map

    def noted(size: int) -> mmap:
        sizes.append(size)
        return original(size)

    monkeypatch.setattr(codecs, "_map", noted)
    return sizes


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_batch_that_unpacks_beyond_its_bound_answers_by_its_header(
    workshop: Any, mapped: list[int], monkeypatch: pytest.MonkeyPatch, codec: Codec
) -> None:
    monkeypatch.setattr(wire_records, "_UNPACKED_ALWAYS_ALLOWED", 1 << 20)
    monkeypatch.setattr(wire_records, "_UNPACKED_RATIO_MAX", 4)
    log = workshop.log(max_message_bytes=1 << 22)
    now = workshop.now
    log.append_as_leader(workshop.batch(timestamp=now - 10), 0)
    bomb = workshop.batch(100, size=300_000, timestamp=now - 5, codec=codec)
    bound = max(1 << 20, 4 * len(bomb))
    assert bound < 30_000_000
    log.append_as_leader(bomb, 0)
    log.append_as_leader(workshop.batch(timestamp=now + 500), 0)
    found = offset_for_timestamp(log, now)
    assert (found.offset, found.timestamp) == (1, now - 5 + 99)
    assert offset_for_timestamp(log, now + 400).offset == 101
    assert max_timestamp_offset(log).offset == 101
    assert sum(mapped) <= bound, "looked into once"


def test_a_large_batch_is_looked_into(workshop: Any, mapped: list[int]) -> None:
    """As those are from which Spark starts by time."""
    log = workshop.log()
    log.append_as_leader(workshop.batch(20_000, size=1000, codec=Codec.ZSTD), 0)
    found = offset_for_timestamp(log, workshop.now + 12_345)
    assert (found.offset, found.timestamp) == (12_345, workshop.now + 12_345)
    assert len(mapped) == 1


def test_the_records_of_a_batch_are_read_in_turns(workshop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0

    def counted(header: Any, data: Any) -> Iterator[Any]:
        nonlocal count
        for head in record_heads(header, data):
            count += 1
            yield head

    monkeypatch.setattr(timestamps, "record_heads", counted)
    log = workshop.log()
    log.append_as_leader(workshop.batch(20_000, size=1, codec=Codec.ZSTD), 0)
    runtime = TickingRuntime()
    found: list[Any] = []
    StepQueue(runtime).add(log.timestamp_lookup(None), lambda *result: found.append(result))
    most = 0
    while not found:
        before = count
        assert runtime.step()
        most = max(most, count - before)
    assert (found[0][0].offset, found[0][1]) == (19_999, None)
    assert count == 20_000
    assert most <= 3 * timestamps.RECORDS_PER_STEP
