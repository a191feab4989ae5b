"""Transactional ids that move from one coordinator to the next: nothing that was answered is lost, everything is answered, and each
end that was decided is written to its partitions."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from barnabas.broker.coordinator.topic import partition_for
from barnabas.broker.transactions.state import ENDING
from barnabas.broker.transactions.state import TransactionState as S
from barnabas.broker.transactions.tests.coordinators import (
    TOPIC,
    Answers,
    Coordinators,
    Marker,
    answer_markers,
    each_marker,
    markers_of,
)
from barnabas.broker.transactions.tests.scripted_brokers import Asked
from barnabas.broker.transactions.transaction import Transition
from barnabas.runtime import slices
from barnabas.wire.errors import ErrorCode as E

A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)
NONE = E.NONE


def test_the_next_coordinator_has_all_that_was_answered() -> None:
    all_ = Coordinators()
    producer = all_.ongoing(A0)
    before = all_.transaction().data
    all_.elect(2)
    assert all_.transaction().data == before
    assert all_.end(*producer) == [(NONE, -1, -1)]
    assert markers_of(all_.asked())[A0] == (1000, 0, True, 1, 0, 1)


def test_the_former_coordinator_is_none_any_more() -> None:
    all_ = Coordinators()
    all_.initialize()
    former = all_.leader
    all_.elect(2)
    answers = Answers()
    former.initialize("id", 1000, -1, -1, answers)
    former.add_partitions("id", 1000, 0, [A0], False, answers)
    former.end("id", 1000, 0, True, False, answers)
    assert [each[0] for each in answers] == [E.NOT_COORDINATOR] * 3
    assert former.verify_partitions("id", 1000, 0, [A0]) == {A0: E.NOT_COORDINATOR}
    assert former.describe("id") == E.NOT_COORDINATOR
    assert former.transactions() == []


@pytest.mark.parametrize("kept", [0, 1])
def test_an_end_without_an_answer_is_decided_by_the_next_coordinator(kept: int) -> None:
    all_ = Coordinators()
    producer = all_.ongoing(A0)
    all_.log.holds = True
    ended = all_.end(*producer)
    all_.log.holds = False
    all_.elect(2, kept)
    assert ended == [(E.NOT_COORDINATOR, -1, -1)]
    assert all_.state() == (S.PREPARE_COMMIT if kept else S.ONGOING)
    assert len(all_.asked()) == kept


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("bumps", [True, False])
def test_markers_that_were_not_written_are_sent_by_the_next_coordinator(commit: bool, bumps: bool) -> None:
    all_ = Coordinators()
    producer = all_.ongoing(A0, A1, bumps=bumps)
    all_.end(*producer, commit=commit, bumps=bumps)
    sent = all_.asked()
    all_.elect(2)
    for each in sent:  # what the former coordinator learns has no effect
        answer_markers(each)
    assert all_.state() in ENDING
    again = markers_of(all_.asked())
    before = markers_of(sent)
    assert {each: marker[:3] for each, marker in again.items()} == {
        each: marker[:3] for each, marker in before.items()
    }
    assert {marker[3] for marker in again.values()} == {1}  # the coordinator's epoch


def test_an_end_whose_completion_was_lost_is_completed_again() -> None:
    all_ = Coordinators()
    producer = all_.ongoing(A0)
    all_.end(*producer)
    all_.log.holds = True
    all_.write_markers()
    all_.log.holds = False
    all_.elect(2, kept=0)
    assert all_.write_markers() == 1
    assert all_.state() == S.COMPLETE_COMMIT


def test_no_marker_is_sent_for_an_end_that_may_be_lost() -> None:
    all_ = Coordinators()
    producer = all_.ongoing(A0)
    all_.log.holds = True
    all_.end(*producer)
    all_.elect(2, kept=1)
    assert all_.asked() == []
    assert all_.initialize() == [(E.COORDINATOR_LOAD_IN_PROGRESS, -1, -1)]
    assert all_.leader.describe("id") == E.COORDINATOR_LOAD_IN_PROGRESS
    assert all_.leader.transactions() == E.COORDINATOR_LOAD_IN_PROGRESS
    all_.log.partitions[0].commit()
    assert len(all_.asked()) == 1


def test_a_coordinator_that_moves_while_it_loads() -> None:
    all_ = Coordinators()
    producer = all_.ongoing(A0)
    all_.log.holds = True
    all_.end(*producer)
    all_.elect(2, kept=1)
    all_.elect(1, kept=1)
    all_.log.holds = False
    all_.log.partitions[0].commit()
    assert {marker[3] for marker in markers_of(all_.asked()).values()} == {2}
    assert all_.all[2].transactions() == []


def test_a_leader_that_stays_keeps_what_is_pending() -> None:
    all_ = Coordinators()
    producer = all_.ongoing(A0)
    all_.end(*producer)
    sent = all_.asked()
    all_.elect(1)
    for each in sent:
        answer_markers(each)
    all_.runtime.run_until_idle()
    assert all_.state() == S.COMPLETE_COMMIT
    all_.ongoing(A0)
    all_.initialize()
    assert markers_of(all_.asked())[A0][3] == 1


def test_each_partition_moves_by_itself() -> None:
    all_ = Coordinators(partition_count=2)
    first, second = (next(all_.of_partition(index)) for index in (0, 1))
    all_.initialize(first)
    all_.initialize(second)
    all_.metadata.leaders[TOPIC, 1] = 2
    all_.metadata.epochs[TOPIC, 1] = 1
    all_.metadata.changed()
    assert all_.all[1].describe(second) == E.NOT_COORDINATOR
    assert all_.all[1].transactions() == [all_.all[1].describe(first)]
    assert all_.all[2].transactions() == [all_.all[2].describe(second)]
    assert (all_.leader.topic.node_of(first), all_.leader.topic.node_of(second)) == (1, 2)


def test_a_topic_that_is_deleted_takes_its_ids_along() -> None:
    all_ = Coordinators()
    producer = all_.ongoing(A0)
    all_.end(*producer)
    del all_.metadata.leaders[TOPIC, 0]
    all_.metadata.changed()
    assert all_.initialize() == [(E.NOT_COORDINATOR, -1, -1)]
    assert all_.asked() == []
    assert all_.leader.topic.node_of("id") == -1


def test_a_coordinator_that_stops_answers_all_and_sends_nothing() -> None:
    all_ = Coordinators()
    producer = all_.ongoing(A0)
    other = all_.ongoing(A0, name="other", timeout_ms=5000)
    assert other
    all_.end(*producer)
    all_.log.holds = True
    waiting = all_.initialize("new")
    all_.leader.stop()
    assert waiting == [(E.NOT_COORDINATOR, -1, -1)]
    all_.runtime.advance(60)
    assert all_.asked() == []


def test_a_producer_id_that_arrives_when_the_coordinator_has_moved() -> None:
    all_ = Coordinators()
    asked: list[Any] = []
    all_.leader._producer_ids._request_block = asked.append
    answers = all_.initialize()
    all_.elect(2)
    asked[0](range(5, 6), NONE)
    assert answers == [(E.NOT_COORDINATOR, -1, -1)]


@pytest.mark.parametrize("level", [0, 1, 2])
def test_records_that_cannot_be_read_are_passed_over(level: int, caplog: pytest.LogCaptureFixture) -> None:
    all_ = Coordinators()
    all_.metadata.features["transaction.version"] = level
    all_.initialize()
    all_.initialize("other")
    batches = all_.log.partitions[0].batches
    value_version = (
        batches[1].rindex(b"other") + len("other") + 2
    )  # behind the key: the value's size, its version
    batches.append(batches[1][:value_version] + b"\x63" + batches[1][value_version + 1 :])
    all_.elect(2)
    assert all_.state() == S.EMPTY
    assert "records that can't be read are passed over" in caplog.text


# -- a random walk

PARTITIONS = [A0, A1, B0]


class Walk:
    """Random requests, commits, failures and moves."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.all = Coordinators(partition_count=2)
        self.all.on_answer = self.check_answer
        self.names = [next(self.all.of_partition(index)) for index in (0, 1)]
        self.waiting: list[Answers] = []
        self.held: list[Asked] = []  # requests with markers, without an answer
        self.written: Counter[Marker] = Counter()
        self.met: Counter[str] = Counter()

    def step(self) -> None:
        all_, choose = self.all, self.random
        match choose.choice(
            ["ask"] * 6 + ["commit", "commit", "markers", "markers", "move", "time", "errors"]
        ):
            case "ask":
                self.ask()
            case "commit":
                choose.choice(all_.log.partitions).commit(choose.randint(1, 3))
            case "markers":
                self.answer_markers()
            case "move":
                self.move(choose.choice([1, 2]))
            case "time":
                all_.runtime.advance(choose.choice([0.1, 1, 11]))
            case "errors":
                all_.log.errors = [choose.choice([E.NOT_ENOUGH_REPLICAS, E.KAFKA_STORAGE_ERROR])]
                all_.log.holds = choose.random() < 0.7
        if not all_.log.holds:
            for partition in all_.log.partitions:
                partition.commit()
        self.take_markers()
        self.check_memory()

    def ask(self) -> None:
        all_, choose = self.all, self.random
        name = choose.choice(self.names)
        producer = self.producer(name)
        bumps = choose.random() < 0.5
        kind = choose.choice(["initialize", "add", "add", "end", "end"])
        if kind == "initialize":
            given = producer if bumps else (-1, -1)
            answers = all_.initialize(name, *given, timeout_ms=choose.choice([3000, 60_000]))
        elif kind == "add":
            partitions = choose.sample(PARTITIONS, choose.randint(1, 3))
            answers = all_.add(*producer, *partitions, name=name, bumps=bumps)
        else:
            answers = all_.end(*producer, commit=choose.random() < 0.6, name=name, bumps=bumps)
        self.waiting.append(answers)

    def producer(self, name: str) -> tuple[int, int]:
        """Mostly the right one."""
        found = self.all.leader.describe(name)
        choose = self.random.random()
        if isinstance(found, E) or choose < 0.05:
            return 5, 5
        return found.data.producer_id, max(0, found.data.producer_epoch - (choose < 0.1))

    def move(self, node_id: int) -> None:
        has_moved = node_id != self.all.log.leader
        self.all.elect(node_id, self.random.randint(0, 2))
        if has_moved:
            assert all(self.waiting), "a request was not answered"
            self.met["move"] += 1

    def take_markers(self) -> None:
        """What a coordinator sends is an end that is committed."""
        for asked in self.all.asked():
            self.held.append(asked)
            for producer_id, epoch, commit, partition in each_marker(asked):
                ends = [
                    each
                    for index in (0, 1)
                    for each in self.committed(index)
                    if each.state in ENDING
                    and (each.producer_id, each.producer_epoch) == (producer_id, epoch)
                ]
                assert ends
                assert ends[-1].state == (S.PREPARE_COMMIT if commit else S.PREPARE_ABORT)
                assert partition in ends[-1].partitions
                self.met["marker"] += 1

    def answer_markers(self) -> None:
        self.random.shuffle(self.held)
        for _ in range(self.random.randint(0, len(self.held))):
            error = self.random.choice([NONE, NONE, E.NOT_LEADER_OR_FOLLOWER])
            self.answer(self.held.pop(), error)

    def answer(self, asked: Asked, error: E = NONE) -> None:
        if not error:
            self.written.update(each_marker(asked))
        answer_markers(asked, error)

    # -- what has to be so

    def committed(self, index: int, name: str | None = None) -> list[Transition]:
        """The records of one partition that are committed; of one id."""
        records = self.all.log.records(index)[: self.all.log.partitions[index].committed]
        return [
            each.data for each in records if name in (None, each.transactional_id) and each.data is not None
        ]

    def check_answer(self, request: tuple[Any, ...], answer: tuple[Any, ...]) -> None:
        """What is answered without an error is committed at that time."""
        if answer[0]:
            return
        kind, name, *rest = request
        last = self.committed(self.names.index(name), name)[-1]
        self.met[kind] += 1
        if kind == "initialize":
            assert (NONE, last.producer_id, last.producer_epoch) == answer
            assert last.state == S.EMPTY
        elif kind == "add":
            assert last.state == S.ONGOING
            assert last.partitions.issuperset(rest[0])
        else:
            ends = (S.PREPARE_COMMIT, S.COMPLETE_COMMIT) if rest[0] else (S.PREPARE_ABORT, S.COMPLETE_ABORT)
            assert last.state in ends

    def check_memory(self) -> None:
        """What is in memory is what is committed; markers and failed fences come before the log."""
        assert all(len(answers) <= 1 for answers in self.waiting)
        for index, name in enumerate(self.names):
            found = self.all.leader.describe(name)
            if isinstance(found, E):
                continue
            last = next(reversed(self.committed(index, name)), None)
            if last is None:
                assert found.data.producer_epoch == -1
                assert found.pending is not None
            else:
                assert (found.data.state, found.data.producer_id) == (last.state, last.producer_id)
                assert found.data.partitions <= last.partitions
                assert found.data.producer_epoch - last.producer_epoch in (0, 1)

    def settle(self) -> None:
        """No more failures: all that was decided is ended."""
        self.all.log.errors = []
        self.all.log.holds = False
        for partition in self.all.log.partitions:
            partition.commit()
        for seconds in [1] * 70 + [0] * 5:
            self.all.runtime.advance(seconds)
            self.take_markers()
            while self.held:
                self.answer(self.held.pop())
        assert all(len(answers) == 1 for answers in self.waiting)
        found = self.all.leader.transactions()
        assert not isinstance(found, E)
        assert all(each.pending is None and each.state not in ENDING for each in found)
        needed: Counter[Marker] = Counter()
        for index, name in enumerate(self.names):
            self.check_history(self.committed(index, name), needed)
        assert not needed - self.written, "a transaction was completed without its markers"

    def check_history(self, records: list[Transition], needed: Counter[Marker]) -> None:
        """In the log of one id each end is followed by its completion, and epochs do not go back."""
        for record, following in pairwise(records):
            if record.state in ENDING:
                assert following.state == record.state + 2
                assert (following.producer_id, following.producer_epoch) == record.next_identity
                commit = record.state == S.PREPARE_COMMIT
                for each in record.partitions:
                    needed[record.producer_id, record.producer_epoch, commit, each] += 1
                self.met["completion"] += 1
            elif following.producer_id == record.producer_id:
                assert following.producer_epoch >= record.producer_epoch


@pytest.mark.parametrize("first_seed", range(0, 200, 20))
def test_random_walks_end_all_that_was_decided(first_seed: int) -> None:
    met: Counter[str] = Counter()
    for seed in range(first_seed, first_seed + 20):
        walk = Walk(seed)
        for _ in range(150):
            walk.step()
        walk.settle()
        met += walk.met
    assert min(met[each] for each in ("initialize", "add", "end", "move", "marker", "completion")) > 20, met


def test_very_many_ids_are_freed_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "TURN_S", 0.0)
    all_ = Coordinators()
    for number in range(1000):
        all_.initialize(f"id-{number}")
    (shard,) = all_.leader.shards.loaded()
    held = shard.transactions
    all_.elect(2)
    assert shard.transactions == {}
    assert len(held) > 800, "not in one turn"
    all_.runtime.run_until_idle()
    assert not held


def test_open_transactions_of_a_former_coordinator_time_out() -> None:
    all_ = Coordinators()
    all_.ongoing(A0, timeout_ms=30_000)
    all_.elect(2)
    all_.runtime.advance(50)
    assert all_.state() == S.PREPARE_ABORT


def test_another_number_of_partitions_is_not_loaded(caplog: pytest.LogCaptureFixture) -> None:
    """As in Kafka, which counts them when it starts: the ids would belong to other partitions. What is loaded goes on."""
    all_ = Coordinators(2)
    names = [next(all_.of_partition(index)) for index in (0, 1)]
    for name in names:
        all_.initialize(name)
    all_.metadata.leaders[TOPIC, 2] = 1
    all_.metadata.changed()
    assert [all_.initialize(name)[0][1:] for name in names] == [(1000, 1), (1001, 1)]
    assert "has 3 partitions instead of 2" in caplog.text
    assert all_.leader.transactions() == E.COORDINATOR_LOAD_IN_PROGRESS
    all_.elect(2)
    assert [all_.initialize(name) for name in names] == [[(E.COORDINATOR_LOAD_IN_PROGRESS, -1, -1)]] * 2


def test_the_number_of_partitions_is_that_of_the_start() -> None:
    all_ = Coordinators(3, transaction_state_log_num_partitions="2")
    assert all_.leader.topic.partition_of("id") == partition_for("id", 3), "the topic is there"
    all_ = Coordinators(0, transaction_state_log_num_partitions="2")
    assert all_.leader.topic.partition_of("id") == partition_for("id", 2)
    all_.metadata.leaders |= {(TOPIC, index): 1 for index in range(3)}
    all_.metadata.changed()
    assert all_.initialize() == [(E.COORDINATOR_LOAD_IN_PROGRESS, -1, -1)]
