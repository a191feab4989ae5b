"""Share partitions: single rules, and random requests against a model of single records."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from barnabas.broker.share_coordinator.state_batches import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    AVAILABLE,
    StateBatch,
    merge,
)
from barnabas.broker.share_partitions.acquisition import Acquire, AcquiredRange, Limits
from barnabas.broker.share_partitions.in_flight import Transition
from barnabas.broker.share_partitions.share_partition import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    Acknowledgement,
    SharePartition,
)
from barnabas.controller.metadata.decision import ApiError
from barnabas.wire.errors import ErrorCode as E

LIMITS = Limits(delivery_count=5, lock_s=30.0, locks=100)
LINES_A_RECORD = 100  # of Python that work may run which is linear in the records
R = TypeVar("R")


def lines_run(work: Callable[[], R]) -> tuple[R, int]:
    """What it returns, and how many lines of Python it runs, which does not depend on the machine."""
    lines = 0

    def count(_frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        found = work()
    finally:
        sys.settrace(before)
    return found, lines


def log_of(end: int, size: int) -> list[tuple[int, int]]:
    return [(first, first + size - 1) for first in range(0, end, size)]


def acquire(
    partition: SharePartition,
    log: list[tuple[int, int]],
    *,
    member: str = "m",
    records_max: int = 500,
    batch_size: int = 500,
    record_limit: bool = False,
    limits: Limits = LIMITS,
    now: float = 0.0,
) -> list[AcquiredRange]:
    """As a fetch does: from the log's batch with the next fetch offset on."""
    offset = partition.next_fetch_offset()
    read = [each for each in log if each[1] >= offset]
    request = Acquire(member, records_max, batch_size, record_limit)
    return partition.acquire(request, limits, offset, read, now)


def acknowledge(
    partition: SharePartition, *ranges: tuple[int, int, int], member: str = "m", limits: Limits = LIMITS
) -> None:
    transition = partition.acknowledge(
        member, [Acknowledgement(first, last, [kind]) for first, last, kind in ranges], limits, 0.0
    )
    partition.complete(transition, True, limits, 0.0)


def test_whole_batches_are_acquired_even_beyond_the_limit() -> None:
    partition = SharePartition(0)
    assert acquire(partition, log_of(30, 10), records_max=15) == [AcquiredRange(0, 19, 1)]
    assert acquire(partition, log_of(30, 10), records_max=1) == [AcquiredRange(20, 29, 1)]
    assert partition.in_flight == 30


def test_acquired_records_are_split_at_batches() -> None:
    partition = SharePartition(0)
    acquired = acquire(partition, log_of(30, 5), batch_size=8)
    assert acquired == [AcquiredRange(0, 9, 1), AcquiredRange(10, 19, 1), AcquiredRange(20, 29, 1)]


def test_with_a_record_limit_the_rest_of_the_batch_stays_available() -> None:
    partition = SharePartition(0)
    log = log_of(20, 10)
    assert acquire(partition, log, records_max=3, record_limit=True) == [AcquiredRange(0, 2, 1)]
    assert partition.next_fetch_offset() == 3
    assert acquire(partition, log, records_max=4, record_limit=True, member="n") == [AcquiredRange(3, 6, 1)]
    assert acquire(partition, log, records_max=9, record_limit=True) == [
        AcquiredRange(7, 9, 1),
        AcquiredRange(10, 15, 1),
    ]


def test_the_start_moves_over_what_is_finished() -> None:
    partition = SharePartition(0)
    acquire(partition, log_of(10, 10))
    acknowledge(partition, (5, 6, REJECT))
    assert (partition.start_offset, partition.delivery_complete_count) == (0, 2)
    acknowledge(partition, (0, 4, ACCEPT))
    assert (partition.start_offset, partition.delivery_complete_count) == (7, 0)
    acknowledge(partition, (7, 9, GAP))
    assert (partition.start_offset, partition.end_offset, partition.in_flight) == (10, 10, 0)


def test_records_are_archived_when_they_were_delivered_too_often() -> None:
    partition = SharePartition(0)
    limits = Limits(delivery_count=2)
    for count in (1, 2):
        assert acquire(partition, log_of(1, 1), limits=limits) == [AcquiredRange(0, 0, count)]
        acknowledge(partition, (0, 0, RELEASE), limits=limits)
    assert partition.start_offset == 1


def test_a_batch_that_was_delivered_often_comes_in_parts() -> None:
    partition = SharePartition(0)
    log = log_of(16, 16)
    for _ in range(3):
        acquire(partition, log)
        acknowledge(partition, (0, 15, RELEASE))
    assert acquire(partition, log) == [AcquiredRange(0, 7, 4)]
    acknowledge(partition, (0, 7, RELEASE))
    assert acquire(partition, log) == [AcquiredRange(0, 0, 5)], "the last delivery, one by one"
    assert acquire(partition, log) == [AcquiredRange(1, 1, 5)]


def test_a_session_that_ends_releases_what_it_has() -> None:
    partition = SharePartition(0)
    acquire(partition, log_of(10, 10))
    partition.complete(partition.release("m", LIMITS), True, LIMITS, 0.0)
    assert acquire(partition, log_of(10, 10), member="n") == [AcquiredRange(0, 9, 2)]


def test_locks_expire_and_can_be_renewed() -> None:
    partition = SharePartition(0)
    acquire(partition, log_of(10, 10))
    partition.acknowledge("m", [Acknowledgement(3, 3, [RENEW])], LIMITS, 20.0)
    assert partition.expire(LIMITS, 29.9) == []
    assert partition.expire(LIMITS, 30.0) == [StateBatch(0, 2, 0, 1), StateBatch(4, 9, 0, 1)]
    assert partition.next_deadline() == 50.0


def test_a_lock_that_expires_during_a_failed_transition_is_gone() -> None:
    partition = SharePartition(0)
    acquire(partition, log_of(1, 1))
    transition = partition.acknowledge("m", [Acknowledgement(0, 0, [ACCEPT])], LIMITS, 20.0)
    assert partition.expire(LIMITS, 31.0) == []
    partition.complete(transition, False, LIMITS, 31.0)
    assert acquire(partition, log_of(1, 1), member="n") == [AcquiredRange(0, 0, 2)]


@pytest.mark.parametrize(
    ("member", "first", "last", "error"),
    [
        ("n", 0, 9, E.INVALID_RECORD_STATE),  # another member's
        ("m", 0, 3, E.INVALID_RECORD_STATE),  # some are accepted already
        ("m", 5, 10, E.INVALID_REQUEST),  # behind the end
        ("m", 10, 10, E.INVALID_REQUEST),
    ],
)
def test_an_acknowledgement_that_is_refused_changes_nothing(
    member: str, first: int, last: int, error: E
) -> None:
    partition = SharePartition(0)
    acquire(partition, log_of(10, 10))
    acknowledge(partition, (2, 2, ACCEPT))
    before = [(run.first, run.state) for run in partition.runs()]
    with pytest.raises(ApiError) as raised:
        partition.acknowledge(
            member, [Acknowledgement(0, 1, [ACCEPT]), Acknowledgement(first, last, [ACCEPT])], LIMITS, 0.0
        )
    assert raised.value.error == error
    assert [(run.first, run.state) for run in partition.runs() if run.first in dict(before)] == before


def test_a_transition_under_way_is_not_changed() -> None:
    partition = SharePartition(0)
    acquire(partition, log_of(1, 1))
    partition.acknowledge("m", [Acknowledgement(0, 0, [ACCEPT])], LIMITS, 0.0)
    with pytest.raises(ApiError):
        partition.acknowledge("m", [Acknowledgement(0, 0, [ACCEPT])], LIMITS, 0.0)


def test_a_list_that_is_refused_renews_nothing() -> None:
    partition = SharePartition(0)
    acquire(partition, log_of(20, 10))
    with pytest.raises(ApiError):
        partition.acknowledge(
            "m", [Acknowledgement(0, 4, [RENEW]), Acknowledgement(15, 20, [ACCEPT])], LIMITS, 20.0
        )
    assert partition.next_deadline() == 30.0
    assert len(list(partition.runs())) == 1, "what was cut is joined again"
    assert partition.expire(LIMITS, 30.0) == [StateBatch(0, 19, 0, 1)]


@pytest.mark.parametrize("size", [1, 10_000])
def test_an_acknowledgement_of_single_records_takes_linear_time(size: int) -> None:
    limits = Limits(locks=10_000)
    partition = SharePartition(0)
    acquire(partition, log_of(10_000, size), records_max=10_000, batch_size=1, limits=limits)
    types = [ACCEPT, RELEASE] * 5_000
    acknowledgements = [Acknowledgement(0, 9_999, types)]
    transition, lines = lines_run(lambda: partition.acknowledge("m", acknowledgements, limits, 0.0))
    assert lines < LINES_A_RECORD * 10_000
    assert len(transition.batches) == 10_000


def test_aborted_records_are_left_out_in_linear_time() -> None:
    limits = Limits(locks=10_000)
    partition = SharePartition(0)
    acquired = acquire(partition, log_of(10_000, 1), records_max=10_000, batch_size=1, limits=limits)
    aborted = [(offset, offset) for offset in range(1, 10_000, 2)]
    kept, lines = lines_run(lambda: partition.drop_aborted(acquired, aborted))
    assert lines < LINES_A_RECORD * 10_000
    assert kept == [AcquiredRange(offset, offset, 1) for offset in range(0, 10_000, 2)]


def test_many_gaps_are_acquired_in_linear_time() -> None:
    limits = Limits(locks=20_000)
    stored = [StateBatch(offset, offset, ARCHIVED, 1) for offset in range(1, 8_000, 2)]
    partition = SharePartition(0, stored)
    acquired, lines = lines_run(
        lambda: acquire(partition, log_of(8_000, 2), records_max=8_000, batch_size=0, limits=limits)
    )
    assert lines < LINES_A_RECORD * 8_000
    assert acquired == [AcquiredRange(offset, offset, 1) for offset in range(0, 8_000, 2)]


def test_a_stored_state_that_no_leader_writes_can_be_encoded() -> None:
    partition = SharePartition(
        0, [StateBatch(0, 0, AVAILABLE, 32767), StateBatch(1, 1 << 40, ACKNOWLEDGED, 1)]
    )
    assert partition.delivery_complete_count == (1 << 31) - 1
    (acquired,) = acquire(partition, log_of(1, 1))
    assert acquired.delivery_count == 32767


def test_what_is_persisted_is_joined() -> None:
    partition = SharePartition(0)
    acquire(partition, log_of(30, 1), batch_size=1)
    transition = partition.acknowledge("m", [Acknowledgement(0, 29, [ACCEPT])], LIMITS, 0.0)
    assert transition.batches == [StateBatch(0, 29, ACKNOWLEDGED, 1)]


def test_a_stored_state_is_continued_and_its_gaps_are_available() -> None:
    partition = SharePartition(5, [StateBatch(10, 14, 2, 1), StateBatch(20, 24, 0, 2)])
    log = log_of(40, 5)
    assert partition.next_fetch_offset() == 5
    assert acquire(partition, log, records_max=5) == [AcquiredRange(5, 9, 1)]
    assert acquire(partition, log, records_max=10) == [AcquiredRange(15, 19, 1), AcquiredRange(20, 24, 3)]
    acknowledge(partition, (5, 9, ACCEPT))
    assert partition.start_offset == 15


def test_at_the_limit_of_locks_only_released_records_are_acquired() -> None:
    limits = Limits(locks=10)
    partition = SharePartition(0)
    log = log_of(40, 10)
    assert acquire(partition, log, limits=limits) == [AcquiredRange(0, 9, 1)]
    assert not partition.can_acquire(limits)
    assert acquire(partition, log, limits=limits) == []
    acknowledge(partition, (4, 4, RELEASE), limits=limits)
    assert partition.can_acquire(limits)
    assert acquire(partition, log, limits=limits) == [AcquiredRange(4, 4, 2)]


def test_aborted_records_are_left_out() -> None:
    partition = SharePartition(0)
    acquired = acquire(partition, log_of(30, 10))
    assert partition.drop_aborted(acquired, [(0, 9), (20, 24)]) == [
        AcquiredRange(10, 19, 1),
        AcquiredRange(25, 29, 1),
    ]
    assert partition.start_offset == 10


def test_what_compaction_removed_is_archived() -> None:
    partition = SharePartition(0)
    acquire(partition, log_of(30, 10), batch_size=10)
    acknowledge(partition, (0, 29, RELEASE))
    assert acquire(partition, [(20, 29)]) == [AcquiredRange(20, 29, 2)]
    assert partition.start_offset == 20


def test_what_compaction_removed_makes_room_at_once() -> None:
    limits = Limits(locks=20)
    partition = SharePartition(0)
    acquire(partition, log_of(20, 10), limits=limits)
    acknowledge(partition, (0, 19, RELEASE), limits=limits)
    assert acquire(partition, [(20, 29)], limits=limits) == [AcquiredRange(20, 29, 1)]


class Record:
    """The model of one record. `is_missing`: compaction has removed it before it was in flight."""

    def __init__(self) -> None:
        self.state = AVAILABLE
        self.count = 0
        self.member = ""
        self.deadline = 0.0
        self.is_missing = False
        self.transition: Transition | None = None
        self.previous: tuple[int, str] = (0, "")

    def unlock(self, limit: int) -> None:
        self.state = ARCHIVED if self.count >= limit else AVAILABLE
        self.member = ""

    @property
    def is_finished(self) -> bool:
        return self.is_missing or (self.state in (ACKNOWLEDGED, ARCHIVED) and self.transition is None)


STATES = {GAP: ARCHIVED, ACCEPT: ACKNOWLEDGED, RELEASE: AVAILABLE, REJECT: ARCHIVED}
members = st.sampled_from(("m", "n"))
kinds = st.sampled_from((GAP, ACCEPT, RELEASE, REJECT, RENEW))
# (first, types): one for each offset, or one for as many as are given
acknowledgements = st.tuples(
    st.integers(0, 25),
    st.one_of(
        st.lists(kinds, min_size=1, max_size=7),
        st.builds(lambda kind, count: [kind] * count, kinds, st.integers(1, 7)),
    ),
)


class Records(RuleBasedStateMachine):
    """Every record has the state that a model of single records gives it; what was answered as accepted is not delivered again, over
    leaders that move; and in the end everything can be delivered and accepted."""

    @initialize(sizes=st.lists(st.integers(1, 6), min_size=3, max_size=8), limit=st.integers(2, 6))
    def begin(self, sizes: list[int], limit: int) -> None:
        self.limits = Limits(limit, 10.0, 20)
        self.log: list[tuple[int, int]] = []
        offset = 0
        for size in sizes:
            self.log.append((offset, offset + size - 1))
            offset += size
        self.partition = SharePartition(0)
        self.records = {at: Record() for at in range(offset)}
        self.start = self.end = 0
        self.log_start = 0
        self.now = 0.0
        self.transitions: list[tuple[Transition, int]] = []  # with the start offset when it began
        self.stored: tuple[StateBatch, ...] = ()
        self.stored_start = 0
        self.accepted: set[int] = set()  # and answered

    @rule(
        member=members,
        records_max=st.integers(1, 12),
        batch_size=st.integers(1, 8),
        record_limit=st.booleans(),
        aborted=st.sets(st.integers(0, 7)),
    )
    def acquire(
        self, member: str, records_max: int, batch_size: int, record_limit: bool, aborted: set[int]
    ) -> None:
        offset = self.partition.next_fetch_offset()
        read = [each for each in self.log if each[1] >= offset]
        acquired = acquire(
            self.partition,
            self.log,
            member=member,
            records_max=records_max,
            batch_size=batch_size,
            record_limit=record_limit,
            limits=self.limits,
            now=self.now,
        )
        if read:
            self._compacted(offset, read[0][0])
        count = 0
        for each in acquired:
            for at in range(each.first, each.last + 1):
                record = self.records[at]
                assert record.state == AVAILABLE
                assert record.transition is None
                assert at >= self.start
                assert at not in self.accepted
                record.state, record.member = ACQUIRED, member
                record.count += 1
                record.deadline = self.now + self.limits.lock_s
                assert record.count == each.delivery_count <= self.limits.delivery_count
                count += 1
        assert not record_limit or count <= records_max
        if acquired:
            self.end = max(self.end, self.partition.end_offset)
            missing = sum(self.records[at].is_missing for at in range(self.start, self.end))
            assert self.partition.in_flight - missing < self.limits.locks + 6, "and the rest of a batch"
            self._abort(acquired, [self.log[number] for number in sorted(aborted) if number < len(self.log)])
        elif self.partition.can_acquire(self.limits) and self.log:
            assert self.partition.next_fetch_offset() > self.log[-1][1], "what is there can be acquired"

    def _compacted(self, first: int, base: int) -> None:
        """A fetch at `first` has found records from `base` on."""
        for at in range(first, base):
            record = self.records[at]
            if at >= self.end:
                record.is_missing = True
            elif not record.is_missing and record.state == AVAILABLE and record.transition is None:
                record.state = ARCHIVED

    def _abort(self, acquired: list[AcquiredRange], aborted: list[tuple[int, int]]) -> None:
        kept = self.partition.drop_aborted(acquired, aborted)
        gone = {at for first, last in aborted for at in range(first, last + 1)}
        expected = [
            (at, each.delivery_count)
            for each in acquired
            for at in range(each.first, each.last + 1)
            if at not in gone
        ]
        assert [
            (at, each.delivery_count) for each in kept for at in range(each.first, each.last + 1)
        ] == expected
        for each in acquired:
            for at in gone.intersection(range(each.first, each.last + 1)):
                self.records[at].state, self.records[at].member = ARCHIVED, ""

    @precondition(lambda self: hasattr(self, "partition") and self.end > self.start)
    @rule(
        member=members,
        lists=st.lists(acknowledgements, min_size=1, max_size=3),
        begins_at_held=st.booleans(),
    )
    def acknowledge(self, member: str, lists: list[tuple[int, list[int]]], begins_at_held: bool) -> None:
        held = [at for at, each in self.records.items() if each.member == member]
        if begins_at_held and held:
            lists = [(held[first % len(held)], types) for first, types in lists]
        wanted: list[Acknowledgement] = []
        for first, types in sorted(lists):
            last = first + len(types) - 1
            if not wanted or first > wanted[-1].last:
                wanted.append(Acknowledgement(first, last, types[:1] if len(set(types)) == 1 else types))
        renewed: list[Record] = []
        changed: list[tuple[Record, int]] = []
        is_fine = True
        for each in wanted:
            if each.last < self.start or not is_fine:
                continue
            if each.last >= self.end or each.first >= self.end:
                is_fine = False
                continue
            for at in range(max(each.first, self.start), each.last + 1):
                record = self.records[at]
                if record.is_missing:
                    return  # whatever is answered
                if record.state != ACQUIRED or record.member != member or record.transition is not None:
                    is_fine = False
                    break
                kind = each.types[0 if len(each.types) == 1 else at - each.first]
                if kind == RENEW:
                    renewed.append(record)
                else:
                    changed.append((record, STATES[kind]))
        try:
            transition = self.partition.acknowledge(member, wanted, self.limits, self.now)
        except ApiError:
            assert not is_fine
        else:
            assert is_fine
            self._begin(transition, changed)
            for record in renewed:
                record.deadline = self.now + self.limits.lock_s

    def _begin(self, transition: Transition, changed: list[tuple[Record, int]]) -> None:
        for record, state in changed:
            record.previous = record.state, record.member
            record.transition = transition
            is_over = state == AVAILABLE and record.count >= self.limits.delivery_count
            record.state, record.member = ARCHIVED if is_over else state, ""
        if changed:
            self.transitions.append((transition, self.partition.start_offset))
        else:
            assert not transition.batches

    @rule(member=members)
    def release(self, member: str) -> None:
        transition = self.partition.release(member, self.limits)
        held = [each for each in self.records.values() if each.member == member and each.transition is None]
        self._begin(transition, [(record, AVAILABLE) for record in held])

    @precondition(lambda self: bool(getattr(self, "transitions", None)))
    @rule(data=st.data(), is_persisted=st.booleans(), is_stored=st.booleans())
    def complete(self, data: Any, is_persisted: bool, is_stored: bool) -> None:
        """A write that has failed for the leader may be stored nevertheless."""
        number = data.draw(st.integers(0, len(self.transitions) - 1))
        self._complete(number, is_persisted=is_persisted, is_stored=is_persisted or is_stored)

    def _complete(self, number: int, *, is_persisted: bool, is_stored: bool) -> None:
        transition, start = self.transitions.pop(number)
        self.partition.complete(transition, is_persisted, self.limits, self.now)
        if is_stored:
            self._store(start, transition.batches)
        for at, record in self.records.items():
            if record.transition is transition:
                record.transition = None
                if is_persisted and record.state == ACKNOWLEDGED:
                    self.accepted.add(at)
                if not is_persisted:
                    record.state, record.member = record.previous
                    if record.deadline <= self.now:
                        record.unlock(self.limits.delivery_count)

    def _store(self, start: int, batches: list[StateBatch]) -> None:
        self.stored_start = max(start, self.stored_start)
        self.stored = merge(self.stored_start, self.stored, batches)

    @rule(seconds=st.integers(1, 12), is_stored=st.booleans())
    def expire(self, seconds: int, is_stored: bool) -> None:
        self.now += seconds
        start = self.partition.start_offset
        batches = self.partition.expire(self.limits, self.now)
        if is_stored and batches:
            self._store(start, batches)
        for record in self.records.values():
            if record.state == ACQUIRED and record.transition is None and record.deadline <= self.now:
                record.unlock(self.limits.delivery_count)

    @rule(offset=st.integers(0, 25))
    def move_log_start(self, offset: int) -> None:
        if self.log and offset <= self.log[-1][1]:
            self.log = [each for each in self.log if each[1] >= offset]
            self.log_start = max(self.log_start, offset)
            self._move_to_log_start()

    def _move_to_log_start(self) -> None:
        self.partition.log_start_moved(self.log_start)
        for at in range(self.start, self.log_start):
            self.records[at] = Record()
            self.records[at].state = ARCHIVED
        self.start = max(self.start, self.log_start)
        self.end = max(self.end, self.log_start)

    @rule(number=st.integers(0, 6))
    def compact(self, number: int) -> None:
        """Remove a batch, but not the last."""
        if number < len(self.log) - 1:
            del self.log[number]

    @rule(stored=st.sets(st.integers(0, 5)))
    def move_leader(self, stored: set[int]) -> None:
        """The next leader has what was stored, with some of the transitions that are not completed."""
        for number, (transition, start) in enumerate(self.transitions):
            if number in stored:
                self._store(start, transition.batches)
        self.transitions.clear()
        self.partition = SharePartition(self.stored_start, self.stored)
        self.start = self.stored_start
        self.end = max([self.start, *(each.last_offset + 1 for each in self.stored)])
        for at in self.records:
            self.records[at] = Record()
        for each in self.stored:
            for at in range(max(each.first_offset, self.start), each.last_offset + 1):
                self.records[at].state, self.records[at].count = each.delivery_state, each.delivery_count
        self._move_start()
        self._move_to_log_start()

    def _move_start(self) -> None:
        while self.start < self.end and self.records[self.start].is_finished:
            self.start += 1
        while self.start == self.end in self.records and self.records[self.end].is_missing:
            self.start = self.end = self.end + 1  # nothing is in flight

    @invariant()
    def every_record_is_as_in_the_model(self) -> None:
        if not hasattr(self, "partition"):
            return
        self._move_start()
        assert self.partition.start_offset == self.start
        assert self.partition.end_offset == self.end
        seen = self.start
        for run in self.partition.runs():
            assert all(self.records[at].is_missing for at in range(seen, run.first)), "the runs have no gaps"
            for offset in range(run.first, run.last + 1):
                record = self.records[offset]
                assert (run.state, run.delivery_count, run.member_id) == (
                    record.state,
                    record.count,
                    record.member,
                )
                assert run.transition is record.transition
                if run.state == ACQUIRED:
                    assert run.deadline == record.deadline
            seen = run.last + 1
        assert seen == self.end
        finished = sum(
            self.records[at].state in (ACKNOWLEDGED, ARCHIVED) for at in range(self.start, self.end)
        )
        assert self.partition.delivery_complete_count == finished
        held = [
            each.deadline
            for each in self.records.values()
            if each.state == ACQUIRED and each.transition is None
        ]
        assert self.partition.next_deadline() == min(held, default=None)

    def teardown(self) -> None:
        """All that is left is delivered and accepted, so that there is no lag."""
        if not hasattr(self, "partition"):
            return
        while self.transitions:
            self._complete(0, is_persisted=True, is_stored=True)
        self.partition.expire(self.limits, self.now + self.limits.lock_s)
        for _ in range(200):
            if self.partition.next_fetch_offset() > self.log[-1][1]:
                break
            for first, last, _ in acquire(self.partition, self.log, limits=self.limits):
                acknowledge(self.partition, (first, last, ACCEPT), limits=self.limits)
        assert self.partition.start_offset == self.partition.end_offset == self.log[-1][1] + 1


TestRecords = Records.TestCase
