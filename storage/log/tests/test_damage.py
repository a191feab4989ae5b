"""Bytes that are damaged after a clean stop: a start does not read them, and a read reports them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from barnabas.storage.errors import StorageError
from barnabas.storage.tests.workshop import max_timestamp_offset, offset_for_timestamp
from barnabas.wire.errors import ErrorCode

ERRORS = (ErrorCode.CORRUPT_MESSAGE, ErrorCode.KAFKA_STORAGE_ERROR)


def try_to(act: Callable[[], object]) -> None:
    """Succeeds, or fails with one of Kafka's error codes."""
    code: ErrorCode | None = None
    try:
        act()
    except StorageError as error:
        code = error.error
    assert code in (None, *ERRORS)


@given(
    damaged=st.integers(0, 11),
    position=st.integers(0, 60),
    junk=st.binary(min_size=1, max_size=70),
    segment_bytes=st.sampled_from([400, 10_000]),
    segment_ms=st.sampled_from([1, 10**9]),
    transactional=st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_but_kafkas_errors(
    make_workshop: Callable[[], Any],
    damaged: int,
    position: int,
    junk: bytes,
    segment_bytes: int,
    segment_ms: int,
    transactional: bool,
) -> None:
    workshop = make_workshop()
    log = workshop.log(segment_bytes=segment_bytes, index_interval_bytes=150)
    fields = {"producer_id": 1, "producer_epoch": 0} if transactional else {}
    batches = [
        workshop.batch(2, **fields, **({"base_sequence": 2 * number} if fields else {}))
        for number in range(12)
    ]
    places = []
    for batch in batches:
        log.append_as_leader(batch, 0)
        places.append((log.segments[-1].path, log.segments[-1].size - len(batch)))
    log.close()
    path, start = places[damaged]
    data = workshop.disk.files[path].data
    data[start + position : start + position + len(junk)] = junk
    del data[start + position + len(junk) + 10_000 :]

    log = workshop.log(segment_bytes=segment_bytes, segment_ms=segment_ms, index_interval_bytes=150)
    end = log.log_end_offset
    for number in range(4):
        log.append_as_leader(workshop.batch(1, timestamp=workshop.now + number), 0)
        assert log.log_end_offset == end + number + 1
        try_to(partial(log.read, log.log_end_offset - 1, 10))
    for offset in range(0, min(end, 30), 2):
        try_to(partial(log.read, offset, 500))
    for timestamp in (0, workshop.now, workshop.now + 3, workshop.now + 10**6):
        try_to(partial(offset_for_timestamp, log, timestamp))
    try_to(partial(max_timestamp_offset, log))
    try_to(partial(log.increment_log_start_offset, 3))
    try_to(partial(log.truncate_to, end - 1))
    log.close()
    for clean in (True, False):
        again = workshop.log(clean=clean, segment_bytes=segment_bytes)
        again.append_as_leader(workshop.batch(1), 0)


@pytest.mark.parametrize("clean", [True, False])
def test_segments_behind_a_damaged_synced_one_stay(workshop: Any, clean: bool) -> None:
    """An index that has to be made anew makes its segment be read: what is damaged there takes the rest of that
    segment, and Kafka leaves the others alone as well."""
    log = workshop.log(segment_bytes=400, index_interval_bytes=150)
    for _ in range(20):
        log.append_as_leader(workshop.batch(2), 0)
    log.close()
    second, third = log.segments[1], log.segments[2]
    workshop.disk.files[second.path].data[second.size // 2] ^= 0xFF
    workshop.disk.remove(second.offset_index.path)
    again = workshop.log(clean=clean, recovery_point=log.log_end_offset, segment_bytes=400)
    assert [segment.base_offset for segment in again.segments] == [
        segment.base_offset for segment in log.segments
    ]
    assert again.log_end_offset == log.log_end_offset
    assert again.read(third.base_offset, 1).size > 0


def test_a_truncation_that_meets_damage_changes_nothing(workshop: Any) -> None:
    log = workshop.log(segment_bytes=400)
    for _ in range(12):
        log.append_as_leader(workshop.batch(2), 0)
    second = log.segments[1]
    workshop.disk.files[second.path].data[16] = 7  # an unknown magic
    with pytest.raises(StorageError) as caught:
        log.truncate_to(second.base_offset + 3)
    assert caught.value.error == ErrorCode.CORRUPT_MESSAGE
    assert (log.log_end_offset, len(log.segments)) == (24, 3)
    log.append_as_leader(workshop.batch(2), 0)
