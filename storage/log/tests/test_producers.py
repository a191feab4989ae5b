"""Idempotent producers: every answer against a slow model that keeps every batch, and after every restart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from barnabas.storage.errors import StorageError
from barnabas.wire.errors import ErrorCode
from barnabas.wire.records import Record, build_batch

MAX = 2**31 - 1


class Model:
    """All batches of all producers: (id, epoch, first, last, base offset).

    A clean restart leaves of each producer the last batch, which is what a snapshot holds; a kill leaves all.
    """

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, int, int, int]] = []
        self.end = 0
        self.forgotten: set[int] = set()  # base offsets

    def restart(self) -> None:
        latest = {batch[0]: batch[4] for batch in self.batches}
        self.forgotten = {batch[4] for batch in self.batches} - set(latest.values())

    def kill(self) -> None:
        self.forgotten.clear()

    def append(self, producer: int, epoch: int, first: int, count: int) -> int | ErrorCode:
        last = (first + count - 1) % 2**31
        mine = [batch for batch in self.batches if batch[0] == producer]
        current = mine[-1][1] if mine else None
        if current is not None:
            if epoch < current:
                return ErrorCode.INVALID_PRODUCER_EPOCH
            same = [batch for batch in mine if batch[1] == epoch]
            for batch in same[-5:]:
                if batch[2:4] == (first, last) and batch[4] not in self.forgotten:
                    return batch[4]
            if first != ((same[-1][3] + 1) % 2**31 if same else 0):
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        self.batches.append((producer, epoch, first, last, self.end))
        self.end += count
        return self.batches[-1][4]


def produce(workshop: Any, log: Any, producer: int, epoch: int, first: int, count: int) -> int | ErrorCode:
    batch = workshop.batch(count, producer_id=producer, producer_epoch=epoch, base_sequence=first)
    try:
        offset: int = log.append_as_leader(batch, 0).base_offset
    except StorageError as error:
        return error.error
    return offset


attempts = st.tuples(
    st.integers(0, 2),  # producer
    st.integers(0, 2),  # epoch
    st.sampled_from([-3, -2, -1, 0, 0, 0, 0, 0, 0, 1, None]),  # batches back from the next; None: sequence 0
    st.integers(1, 3),
)


@given(
    steps=st.lists(st.one_of(attempts, attempts, attempts, st.just("restart"), st.just("kill")), max_size=60)
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_against_the_model(make_workshop: Callable[[], Any], steps: list[Any]) -> None:
    workshop = make_workshop()
    log = workshop.log(segment_bytes=700)
    model = Model()
    for step in steps:
        if step == "restart":
            log.close()
            log = workshop.log(segment_bytes=700)
            model.restart()
        elif step == "kill":
            log = workshop.log(segment_bytes=700, clean=False)
            model.kill()
        else:
            producer, epoch, back, count = step
            mine = [batch for batch in model.batches if batch[:2] == (producer, epoch)]
            first = 0
            if mine and back is not None:
                if back < 0 and len(mine) >= -back:
                    first, count = mine[back][2], mine[back][3] - mine[back][2] + 1
                else:
                    first = mine[-1][3] + 1 + max(back, 0)
            expected = model.append(producer, epoch, first, count)
            assert produce(workshop, log, producer, epoch, first, count) == expected
            assert log.log_end_offset == model.end


def test_a_duplicate_is_answered_with_the_first_ones_offsets(workshop: Any) -> None:
    log = workshop.log()
    log.append_as_leader(workshop.batch(4), 0)
    batch = workshop.batch(3, producer_id=9, producer_epoch=0, base_sequence=0)
    first = log.append_as_leader(batch, 0)
    size = log.size
    again = log.append_as_leader(batch, 0)
    assert again.duplicate
    assert not first.duplicate
    assert (again.base_offset, again.last_offset) == (first.base_offset, first.last_offset) == (4, 6)
    assert again.log_append_time == workshop.now + 2  # Kafka answers with the batch's largest time
    assert (log.log_end_offset, log.size) == (7, size)


def test_the_sixth_batch_back_is_forgotten(workshop: Any) -> None:
    log = workshop.log()
    for sequence in range(6):
        produce(workshop, log, 1, 0, sequence, 1)
    assert produce(workshop, log, 1, 0, 1, 1) == 1
    assert produce(workshop, log, 1, 0, 0, 1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_wrap(workshop: Any) -> None:
    log = workshop.log()
    records = [Record(i, workshop.now, None, b"v") for i in range(4)]
    log.append_as_leader(build_batch(records, producer_id=1, producer_epoch=0, base_sequence=MAX - 1), 0)
    assert produce(workshop, log, 1, 0, 2, 1) == 4
    again = log.append_as_leader(
        build_batch(records, producer_id=1, producer_epoch=0, base_sequence=MAX - 1), 0
    )
    assert again.duplicate


def test_an_unknown_producer_may_start_anywhere(workshop: Any) -> None:
    """Its earlier batches may have been deleted with their segments."""
    log = workshop.log()
    assert produce(workshop, log, 1, 3, 70, 1) == 0
    assert produce(workshop, log, 1, 3, 71, 1) == 1


def test_truncation_restores_the_earlier_state(workshop: Any) -> None:
    log = workshop.log()
    for sequence in range(4):
        produce(workshop, log, 1, 0, sequence, 1)
    log.truncate_to(2)
    assert produce(workshop, log, 1, 0, 3, 1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(workshop, log, 1, 0, 2, 1) == 2


@pytest.mark.parametrize(("silent_ms", "kept"), [(999, True), (1000, False)])
def test_silent_producers_expire(workshop: Any, silent_ms: int, kept: bool) -> None:
    log = workshop.log()
    produce(workshop, log, 1, 0, 0, 1)
    log.producers.remove_expired(workshop.now + silent_ms, 1000)
    assert (1 in log.producers.active) is kept
