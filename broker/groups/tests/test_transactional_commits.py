"""TxnOffsetCommit and the transaction coordinator's answer: over real partitions, with a coordinator that answers when the test
lets it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.coordinator.log import Marker
from barnabas.broker.coordinator.shards import Shards
from barnabas.broker.coordinator.topic import partition_for
from barnabas.broker.groups.settings import GroupSettings
from barnabas.broker.groups.shard import Shard
from barnabas.broker.groups.tests.conftest import group_configs
from barnabas.broker.groups.tests.offset_model import Commit, End, Removal, State
from barnabas.broker.groups.tests.share_states import ShareStates, shard_with
from barnabas.broker.groups.transactional_commits import commit_in_transaction
from barnabas.broker.tests.coordinator_world import TOPIC, World
from barnabas.storage.log import verification
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

GROUP = next(name for name in map(str, range(100)) if partition_for(name, 2) == 1)
PARTITION = (TOPIC, 1)
PID = 7


class Groups:
    """The groups of two partitions, led here. `asked`: the questions to the transaction coordinator that have no answer yet."""

    def __init__(self) -> None:
        self.world = World([1])
        self.shards: Shards[Shard] = Shards(TOPIC, 1, self._make_shard, self.world.runtime.monotonic)
        self.asked: list[tuple[tuple[Any, ...], Callable[[E], object]]] = []
        self.follow()

    def _make_shard(self, index: int) -> Shard:
        return shard_with(
            ShareStates(), index, self.world.log, self.world.runtime, GroupSettings(), group_configs()
        )

    def follow(self) -> None:
        """The metadata is known here."""
        self.shards.metadata_changed(self.world.image.topics[TOPIC])
        self.world.runtime.run_until_idle()

    def lead(self, leader: int) -> None:
        self.world.change(1, leader=leader)
        self.follow()

    @property
    def shard(self) -> Shard:
        found = self.shards.of(GROUP)
        assert isinstance(found, Shard)
        return found

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[tuple[str, int]],
        *,
        add: bool,
        done: Callable[[dict[tuple[str, int], E]], object],
    ) -> None:
        question = (transactional_id, producer_id, producer_epoch, list(partitions), add)
        self.asked.append((question, lambda error: done(dict.fromkeys(partitions, error))))

    def answer(self, error: E = E.NONE) -> tuple[Any, ...]:
        question, answer = self.asked.pop(0)
        answer(error)
        return question

    def commit(
        self,
        offset: int,
        *,
        version: int = 5,
        producer_id: int = PID,
        epoch: int = 0,
        generation: int = -1,
        is_verification_enabled: bool = True,
    ) -> list[E]:
        """[] while it waits, then [error]."""
        topic = TxnOffsetCommitRequestTopic("t", [TxnOffsetCommitRequestPartition(0, offset)])
        request = TxnOffsetCommitRequest(
            f"id {producer_id}", GROUP, producer_id, epoch, generation, topics=[topic]
        )
        errors: list[E] = []
        commit_in_transaction(
            self.shards,
            self.verify,
            request,
            [topic],
            version,
            errors.append,
            is_verification_enabled=is_verification_enabled,
        )
        return errors

    def commit_outside(self, offset: int) -> None:
        """A commit without a transaction."""
        request = OffsetCommitRequest(GROUP, generation_id_or_member_epoch=-1)
        topic = OffsetCommitRequestTopic("t", partitions=[OffsetCommitRequestPartition(0, offset)])
        self.shard.offset_requests.commit(request, [topic], 9, lambda *_: None)

    def end(self, *, commit: bool = True, epoch: int = 0, transaction_version: int = 0) -> None:
        assert self.mark(Marker(PID, epoch, commit, 0, transaction_version)) == E.NONE

    def mark(self, marker: Marker) -> E:
        errors: list[E] = []
        self.shard.end_transaction(marker, errors.append)
        (error,) = errors
        return error

    def offset(self) -> tuple[int | None, bool]:
        """The committed offset, and whether another one is pending."""
        found = self.shard.offsets.get(GROUP, "t", 0)
        pending = self.shard.offsets.is_pending(GROUP, "t", 0)
        return None if found is None else found.offset, pending


@pytest.fixture
def groups() -> Groups:
    return Groups()


@pytest.mark.parametrize("version", range(6))
def test_the_coordinator_is_asked_before_the_first_commit(groups: Groups, version: int) -> None:
    first = groups.commit(5, version=version)
    assert (first, groups.shard.groups) == ([], {})
    assert groups.answer() == ("id 7", PID, 0, [PARTITION], version == 5)
    assert (first, groups.offset()) == ([E.NONE], (None, True))
    assert (groups.commit(6, version=version), groups.asked) == ([E.NONE], [])
    groups.end()
    assert groups.offset() == (6, False)
    groups.commit(7, version=version, epoch=1)
    assert len(groups.asked) == 1


@pytest.mark.parametrize(
    ("version", "answer", "error"),
    [
        (3, E.TRANSACTION_ABORTABLE, E.INVALID_TXN_STATE),
        (4, E.TRANSACTION_ABORTABLE, E.TRANSACTION_ABORTABLE),
        (5, E.TRANSACTION_ABORTABLE, E.TRANSACTION_ABORTABLE),
        (5, E.CONCURRENT_TRANSACTIONS, E.CONCURRENT_TRANSACTIONS),
        (3, E.NETWORK_EXCEPTION, E.COORDINATOR_LOAD_IN_PROGRESS),
        (5, E.NETWORK_EXCEPTION, E.COORDINATOR_LOAD_IN_PROGRESS),
        (5, E.COORDINATOR_NOT_AVAILABLE, E.COORDINATOR_NOT_AVAILABLE),
        (5, E.NOT_COORDINATOR, E.NOT_COORDINATOR),
        (5, E.NOT_ENOUGH_REPLICAS, E.COORDINATOR_NOT_AVAILABLE),
        (5, E.INVALID_PRODUCER_EPOCH, E.INVALID_PRODUCER_EPOCH),
        (5, E.INVALID_PRODUCER_ID_MAPPING, E.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_what_the_client_gets_for_the_coordinators_error(
    groups: Groups, version: int, answer: E, error: E
) -> None:
    found = groups.commit(5, version=version)
    groups.answer(answer)
    groups.world.runtime.run_until_idle()
    assert (found, groups.shard.groups) == ([error], {})
    assert groups.asked == [], "the question is not repeated, not after CONCURRENT_TRANSACTIONS either"


@pytest.mark.parametrize(
    ("version", "marker_epoch", "error"), [(4, 0, E.INVALID_TXN_STATE), (5, 1, E.INVALID_PRODUCER_EPOCH)]
)
def test_a_transaction_that_ends_before_the_answer(
    groups: Groups, version: int, marker_epoch: int, error: E
) -> None:
    late = groups.commit(5, version=version)
    groups.end(epoch=marker_epoch)
    groups.answer()
    assert (late, groups.offset(), groups.shard.groups) == ([error], (None, False), {})


def test_the_marker_of_version_2_leaves_the_next_transaction(groups: Groups) -> None:
    """The producer begins the next one with the marker's epoch, which may come to the group first."""
    groups.commit(5)
    groups.answer()
    following = groups.commit(6, epoch=1)
    groups.end(epoch=1, transaction_version=2)
    groups.answer()
    assert (following, groups.offset()) == ([E.NONE], (5, True))
    groups.end(epoch=2, transaction_version=2)
    assert groups.offset() == (6, False)


def test_a_fenced_producer_is_not_asked_about(groups: Groups) -> None:
    groups.commit(5, epoch=1)
    groups.answer()
    assert (groups.commit(6), groups.asked) == ([E.INVALID_PRODUCER_EPOCH], [])


def test_refused_producers_do_not_displace_one_that_waits(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "ENTRIES_MAX", 2)
    live = groups.commit(5)
    for producer_id in range(50, 53):
        refused = groups.commit(6, producer_id=producer_id)
        _, answer = groups.asked.pop()
        answer(E.INVALID_PRODUCER_ID_MAPPING)
        assert refused == [E.INVALID_PRODUCER_ID_MAPPING]
    assert groups.commit(6, producer_id=60) == []
    assert groups.commit(6, producer_id=61) == [E.COORDINATOR_LOAD_IN_PROGRESS]
    groups.answer()
    assert live == [E.NONE]


def test_the_group_is_checked_after_the_answer(groups: Groups) -> None:
    absent = groups.commit(5, generation=3)
    groups.answer()
    assert absent == [E.ILLEGAL_GENERATION]
    stranger = groups.commit(5, generation=3)
    groups.shard.store.create(GROUP)
    groups.answer()
    assert stranger == [E.UNKNOWN_MEMBER_ID]


def test_without_verification_partitions_are_added_all_the_same(groups: Groups) -> None:
    assert groups.commit(5, version=4, is_verification_enabled=False) == [E.NONE]
    groups.end(epoch=1)
    assert groups.commit(6, version=4, is_verification_enabled=False) == [E.INVALID_PRODUCER_EPOCH]
    assert groups.commit(6, epoch=1, is_verification_enabled=False) == []
    assert groups.answer() == ("id 7", PID, 1, [PARTITION], True)


def test_a_group_that_is_led_elsewhere(groups: Groups) -> None:
    groups.lead(-1)
    assert (groups.commit(5), groups.asked) == ([E.NOT_COORDINATOR], [])


def test_a_partition_that_moves_before_the_answer(groups: Groups) -> None:
    gone = groups.commit(5)
    groups.lead(-1)
    groups.answer()
    assert gone == [E.NOT_COORDINATOR]
    groups.lead(1)
    back = groups.commit(5, generation=-1)
    groups.lead(-1)
    groups.lead(1)
    groups.answer()
    assert (back, groups.offset()) == ([E.NONE], (None, True))
    groups.lead(-1)
    groups.lead(1)
    assert groups.offset() == (None, True)
    groups.end()
    assert groups.offset() == (5, False)


class Transaction:
    """What the transaction coordinator and the client know of one producer. `version`: of the transactions."""

    def __init__(self, producer_id: int, version: int) -> None:
        self.producer_id = producer_id
        self.version = version
        self.epoch = 0
        self.has_group = False  # the group's partition belongs to the open transaction
        self.ending: Marker | None = None

    def asked(self, epoch: int, add: bool) -> E:
        """As AddPartitionsToTxn is answered."""
        if epoch != self.epoch:
            return E.INVALID_PRODUCER_EPOCH
        if self.ending is not None:
            return E.CONCURRENT_TRANSACTIONS
        if not self.has_group and not add:
            return E.TRANSACTION_ABORTABLE
        self.has_group = True
        return E.NONE

    def end(self, commit: bool) -> None:
        if self.ending is None and self.has_group:
            self.epoch += self.version == 2
            self.ending = Marker(self.producer_id, self.epoch, commit, 0, self.version)

    def add(self) -> None:
        """AddOffsetsToTxn."""
        if self.ending is None:
            self.has_group = True

    def completed(self) -> None:
        self.ending = None
        self.has_group = False


PRODUCER = st.integers(0, 1)
STEP = st.one_of(
    st.tuples(st.just("add"), PRODUCER),
    st.tuples(st.just("commit"), PRODUCER, st.just(0)),
    st.tuples(st.just("commit"), PRODUCER, st.integers(0, 1)),  # with an epoch before
    st.tuples(st.just("reach"), st.integers(0, 3)),
    st.tuples(st.just("answer"), st.integers(0, 3)),
    st.tuples(st.just("answer"), st.integers(0, 3)),
    st.tuples(st.just("end"), PRODUCER, st.booleans()),
    st.tuples(st.just("mark"), PRODUCER),
    st.tuples(st.just("plain")),
    st.tuples(st.just("delete")),
    st.tuples(st.just("move")),
)


class Walk:
    """Two producers that commit an offset of a group, one of them with transaction.version 2. Questions reach the coordinator, and
    answers come back, in any order and at any time."""

    def __init__(self) -> None:
        self.groups = Groups()
        self.transactions = [Transaction(0, 0), Transaction(1, 2)]
        self.log: list[list[Any]] = []
        self.waiting: list[tuple[Commit, list[E]]] = []
        self.reached: dict[int, E] = {}  # what the coordinator has decided, by the identity of the answer
        self.offsets = 0

    def commit(self, producer: int, epochs_behind: int) -> None:
        transaction = self.transactions[producer]
        self.offsets += 1
        errors = self.groups.commit(
            self.offsets,
            version=5 if transaction.version == 2 else 4,
            producer_id=producer,
            epoch=max(transaction.epoch - epochs_behind, 0),
        )
        self.waiting.append((Commit((GROUP, "t", 0), self.offsets, 0, producer), errors))

    def reach(self, index: int) -> None:
        """A question reaches the coordinator."""
        (_, producer_id, epoch, _, add), answer = self.groups.asked[index]
        if id(answer) not in self.reached:
            self.reached[id(answer)] = self.transactions[producer_id].asked(epoch, add)

    def answer(self, index: int) -> None:
        self.reach(index)
        _, answer = self.groups.asked.pop(index)
        answer(self.reached.pop(id(answer)))

    def mark(self, producer: int) -> None:
        transaction = self.transactions[producer]
        marker = transaction.ending
        if marker is not None and self.groups.mark(marker) == E.NONE:
            transaction.completed()
            self.log.append([End(producer, marker.commit)])

    def settle(self) -> None:
        """Note what has been appended since."""
        for commit, errors in [each for each in self.waiting if each[1]]:
            self.waiting.remove((commit, errors))
            if errors == [E.NONE]:
                self.log.append([commit])
            else:
                assert errors[0] in REFUSALS

    def check(self) -> None:
        self.settle()
        state = State(self.log)
        key = (GROUP, "t", 0)
        assert self.groups.offset() == (state.offsets().get(key), key in state.pending_keys())


REFUSALS = (
    E.INVALID_PRODUCER_EPOCH,
    E.CONCURRENT_TRANSACTIONS,
    E.TRANSACTION_ABORTABLE,
    E.INVALID_TXN_STATE,
    E.NOT_COORDINATOR,
)


@given(steps=st.lists(STEP, min_size=15, max_size=50))
def test_no_offset_is_left_pending_by_late_commits(steps: list[Any]) -> None:
    walk = Walk()
    groups = walk.groups
    for what, *rest in steps:
        if what == "add":
            walk.transactions[rest[0]].add()
        elif what == "commit":
            walk.commit(*rest)
        elif what in ("reach", "answer") and rest[0] < len(groups.asked):
            getattr(walk, what)(rest[0])
        elif what == "end":
            walk.transactions[rest[0]].end(rest[1])
        elif what == "mark":
            walk.mark(rest[0])
        elif what == "plain":
            walk.offsets += 1
            groups.commit_outside(walk.offsets)
            walk.log.append([Commit((GROUP, "t", 0), walk.offsets, 0)])
        elif what == "delete":
            groups.shard.offset_requests.delete(GROUP, {"t": [0]}, lambda *_: None)
            walk.log.append([Removal((GROUP, "t", 0))])
        elif what == "move":
            groups.lead(-1)
            groups.lead(1)
        walk.check()
    while groups.asked:
        walk.answer(0)
        walk.check()
    assert walk.waiting == []
    for producer, transaction in enumerate(walk.transactions):
        walk.mark(producer)  # of a transaction that was ending
        transaction.end(commit=True)
        walk.mark(producer)
    walk.check()
    assert not groups.offset()[1]
    log = groups.world.partition(1).log
    assert log.last_stable_offset == log.log_end_offset, "no transaction is open"


@pytest.mark.parametrize(("producer_id", "epoch"), [(-1, 0), (PID, -1)])
@pytest.mark.parametrize("is_verification_enabled", [False, True])
def test_a_commit_of_no_producer_is_not_left_pending(
    groups: Groups, producer_id: int, epoch: int, is_verification_enabled: bool
) -> None:
    errors = groups.commit(
        7, version=4, producer_id=producer_id, epoch=epoch, is_verification_enabled=is_verification_enabled
    )
    assert errors == [E.INVALID_PRODUCER_ID_MAPPING]
    assert groups.offset() == (None, False)
