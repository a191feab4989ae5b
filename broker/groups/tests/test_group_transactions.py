"""Offsets inside transactions: random commits, transactional commits, markers, removals, failures and reloads, against a slow
model of Kafka's rules; and each rule by itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.coordinator.log import Marker
from barnabas.broker.coordinator.pending_writes import PendingWrite
from barnabas.broker.groups import offset_requests
from barnabas.broker.groups.offsets import CommittedOffset, DeletedTopic, OffsetStore
from barnabas.broker.groups.settings import GroupSettings
from barnabas.runtime.slices import run_through
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

Position = tuple[str, str, int]


def commit_in_transaction(
    bench: Any,
    producer_id: int,
    offsets: dict[tuple[str, int], int],
    *,
    group: str = "group",
    member_id: str = "",
    generation: int = -1,
    instance: str | None = None,
    metadata: str = "",
) -> list[Any]:
    """[] while it waits; then [error]."""
    topics: dict[str, TxnOffsetCommitRequestTopic] = {}
    for (topic, partition), offset in offsets.items():
        entry = topics.setdefault(topic, TxnOffsetCommitRequestTopic(topic, []))
        entry.partitions.append(
            TxnOffsetCommitRequestPartition(partition, offset, committed_metadata=metadata)
        )
    request = TxnOffsetCommitRequest(
        transactional_id="id",
        group_id=group,
        producer_id=producer_id,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=instance,
    )
    answers: list[Any] = []
    bench.shard.offset_requests.commit_in_transaction(request, list(topics.values()), None, answers.append)
    return answers


def end(bench: Any, producer_id: int, *, commit: bool) -> list[E]:
    errors: list[E] = []
    bench.shard.end_transaction(Marker(producer_id, 0, commit, 0, 2), errors.append)
    return errors


def delete(bench: Any, group: str, topics: dict[str, list[int]]) -> list[Any]:
    answers: list[Any] = []
    bench.shard.offset_requests.delete(group, topics, lambda *answer: answers.append(answer))
    return answers


def delete_group(bench: Any, group: str) -> list[Any]:
    answers: list[Any] = []
    bench.shard.offset_requests.delete_groups([group], answers.append)
    return answers


def offset(bench: Any, topic: str = "t", partition: int = 0, group: str = "group") -> int | None:
    found = bench.shard.offsets.get(group, topic, partition)
    return None if found is None else found.offset


def is_pending(bench: Any, topic: str = "t", partition: int = 0, group: str = "group") -> bool:
    found: bool = bench.shard.offsets.is_pending(group, topic, partition)
    return found


class Model:
    """The log as a list of what was written; the state is worked out from its start each time."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []

    def state(self, count: int) -> tuple[dict[Position, int], set[Position]]:
        """Committed offsets, and positions with pending ones, of the first `count` records."""
        values: dict[Position, tuple[int, int]] = {}  # number of the record, offset
        pending: dict[tuple[int, Position], tuple[int, int]] = {}
        for number, (what, *rest) in enumerate(self.log[:count]):
            if what == "commit":
                key, written = rest
                values[key] = number, written
            elif what == "inside":
                producer, key, written = rest
                pending[producer, key] = number, written
            elif what == "remove":
                values.pop(rest[0], None)
                pending = {each: found for each, found in pending.items() if each[1] != rest[0]}
            else:
                producer, commit = rest
                for each in [each for each in pending if each[0] == producer]:
                    found = pending.pop(each)
                    if commit and values.get(each[1], (-1, 0)) < found:
                        values[each[1]] = found
        return {key: found[1] for key, found in values.items()}, {key for _, key in pending}


KEYS = [("a", "t", 0), ("a", "t", 1), ("b", "t", 0)]
KEY = st.sampled_from(KEYS[:1] * 3 + KEYS[1:])
PRODUCER = st.integers(1, 2)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), KEY),
        st.tuples(st.just("inside"), PRODUCER, KEY),
        st.tuples(st.just("inside"), PRODUCER, KEY),
        st.tuples(st.just("end"), PRODUCER, st.booleans()),
        st.tuples(st.just("remove"), KEY),
        st.tuples(st.just("end"), PRODUCER, st.just(True)),
        st.tuples(st.sampled_from(["settle", "settle", "fail", "reload"])),
        st.tuples(st.just("hold"), st.booleans()),
    ),
    min_size=5,
    max_size=30,
)


@given(steps=STEPS)
def test_pending_offsets_equal_those_of_a_simple_model(make_bench: Any, steps: list[Any]) -> None:
    bench = make_bench()
    model = Model()
    committed = 0  # records of the model that are committed

    def check() -> None:
        values, _ = model.state(committed)
        compare(bench, model.state(committed))
        for group in "ab":
            listed = {
                (group, topic, partition): position.offset
                for topic, partitions in bench.shard.offsets.committed_topics(group).items()
                for partition, position in partitions.items()
            }
            assert listed == {key: value for key, value in values.items() if key[0] == group}
        written, open_ones = model.state(len(model.log))
        assert {key for group in "ab" for key in bench.shard.offsets.pending_of(group)} == open_ones
        assert set(bench.shard.offsets.pending_keys()) == open_ones
        assert {key for key in KEYS if bench.shard.offsets.get(*key, committed=False)} == set(written)

    for number, (what, *rest) in enumerate(steps):
        before = len(bench.log.held), len(bench.log.batches)
        if what == "commit":
            [key] = rest
            bench.commit({key[1:]: number}, group=key[0])
            model.log.append((what, key, number))
        elif what == "inside":
            producer, key = rest
            commit_in_transaction(bench, producer, {key[1:]: number}, group=key[0])
            model.log.append((what, producer, key, number))
        elif what == "end":
            end(bench, rest[0], commit=rest[1])
            model.log.append((what, *rest))
        elif what == "remove":
            group, topic, partition = rest[0]
            delete(bench, group, {topic: [partition]})
            if (len(bench.log.held), len(bench.log.batches)) != before:
                model.log.append((what, rest[0]))
        elif what == "settle" and bench.log.held:
            bench.log.settle()
            committed += 1
        elif what == "fail" and bench.log.held:
            bench.log.settle(E.NOT_LEADER_OR_FOLLOWER)
            del model.log[committed]
        elif what == "hold" and not bench.log.held:
            bench.log.hold = rest[0]
        elif what == "reload" and not bench.log.held:
            held = bench.log.hold
            bench = bench.restarted()
            bench.log.hold = held
        if not bench.log.hold:
            committed = len(model.log)
        check()
    for count in range(len(bench.log.batches) + 1):
        for producers in ((1, 2), (2, 1)):
            again, rest = make_bench(), Model()
            again.log.batches = bench.log.batches[:count]
            again.load()
            rest.log = model.log[:count]
            compare(again, rest.state(count))
            for producer in producers:
                end(again, producer, commit=True)
                rest.log.append(("end", producer, True))
                compare(again, rest.state(len(rest.log)))


def compare(bench: Any, state: tuple[dict[Position, int], set[Position]]) -> None:
    values, pending = state
    for key in KEYS:
        found = bench.shard.offsets.get(*key)
        assert (None if found is None else found.offset) == values.get(key)
        assert bench.shard.offsets.is_pending(*key) == (key in pending)


def test_an_offset_counts_when_its_transaction_commits(bench: Any) -> None:
    bench.commit({("t", 0): 1})
    assert commit_in_transaction(bench, 7, {("t", 0): 5, ("t", 1): 6}) == [E.NONE]
    assert (offset(bench), is_pending(bench), offset(bench, partition=1)) == (1, True, None)
    assert end(bench, 7, commit=True) == [E.NONE]
    assert (offset(bench), is_pending(bench), offset(bench, partition=1)) == (5, False, 6)


def test_an_aborted_offset_is_dropped(bench: Any) -> None:
    commit_in_transaction(bench, 7, {("t", 0): 5})
    assert end(bench, 7, commit=False) == [E.NONE]
    assert end(bench, 7, commit=True) == [E.NONE]
    assert (offset(bench), is_pending(bench)) == (None, False)
    assert set(bench.shard.groups) == {"group"}


def test_a_marker_is_answered_once_it_is_committed(bench: Any) -> None:
    commit_in_transaction(bench, 7, {("t", 0): 5})
    bench.log.hold = True
    answers = end(bench, 7, commit=True)
    assert (answers, offset(bench), is_pending(bench)) == ([], None, True)
    following = commit_in_transaction(bench, 7, {("t", 0): 6})
    bench.log.settle()
    assert (answers, offset(bench), is_pending(bench)) == ([E.NONE], 5, False)
    assert following == []
    bench.log.settle()
    assert (following[0], offset(bench), is_pending(bench)) == (E.NONE, 5, True)


def test_a_marker_after_the_partition_has_moved(bench: Any) -> None:
    commit_in_transaction(bench, 7, {("t", 0): 5})
    bench.log.hold = True
    answers = end(bench, 7, commit=True)
    bench.shard.unload()
    assert answers == [E.NOT_COORDINATOR]
    assert end(bench, 7, commit=True) == [E.NOT_COORDINATOR]


def test_deleting_an_offset_drops_what_is_pending(bench: Any) -> None:
    commit_in_transaction(bench, 7, {("t", 0): 5, ("t", 1): 6})
    assert delete(bench, "group", {"t": [0, 2]}) == [(E.NONE, {"t": E.NONE})]
    assert (is_pending(bench), is_pending(bench, partition=1)) == (False, True)
    for each in (bench, bench.restarted()):
        end(each, 7, commit=True)
        assert (offset(each), offset(each, partition=1)) == (None, 6)


def test_deleting_a_group_drops_what_is_pending(bench: Any) -> None:
    bench.commit({("t", 0): 1})
    commit_in_transaction(bench, 7, {("t", 0): 5, ("t", 1): 6})
    before = len(bench.log.batches)
    assert delete_group(bench, "group") == [{"group": E.NONE}]
    assert len(bench.log.batches) == before + 1
    for each in (bench, bench.restarted()):
        end(each, 7, commit=True)
        assert (offset(each), offset(each, partition=1), each.shard.groups) == (None, None, {})


def test_deleting_a_topic_drops_what_is_pending(bench: Any) -> None:
    old, new = b"old".ljust(16), b"new".ljust(16)
    commit_in_transaction(bench, 7, {("t", 0): 5, ("other", 0): 6})
    bench.commit({("t", 1): 1}, topic_id=new)
    bench.shard.offset_requests.topics_deleted([DeletedTopic("t", old)])
    assert (is_pending(bench), is_pending(bench, "other"), offset(bench, partition=1)) == (False, True, 1)


def test_offsets_and_groups_of_open_transactions_do_not_expire(make_bench: Any) -> None:
    bench = make_bench(GroupSettings(offsets_retention_ms=1000))
    bench.commit({("t", 0): 1})
    bench.commit({("t", 1): 1})
    commit_in_transaction(bench, 7, {("t", 0): 5})
    bench.clock.pass_ms(5000)
    run_through(bench.shard.offset_requests.expire(bench.clock.time_ms()))
    assert (offset(bench), offset(bench, partition=1), set(bench.shard.groups)) == (1, None, {"group"})
    end(bench, 7, commit=False)
    run_through(bench.shard.offset_requests.expire(bench.clock.time_ms()))
    assert (offset(bench), bench.shard.groups) == (None, {})


def test_what_a_transaction_writes_between_two_slices_of_the_expiry_stays(
    make_bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_requests, "OFFSETS_AT_ONCE", 1)
    bench = make_bench(GroupSettings(offsets_retention_ms=1000))
    bench.commit({("t", 0): 1}, group="first")
    bench.commit({("t", 0): 1})
    bench.clock.pass_ms(5000)
    slices = bench.shard.offset_requests.expire(bench.clock.time_ms())
    next(slices)
    commit_in_transaction(bench, 7, {("t", 0): 5})
    run_through(slices)
    assert (offset(bench), set(bench.shard.groups)) == (1, {"group"})


def test_a_group_with_nothing_but_a_pending_offset_does_not_expire(make_bench: Any) -> None:
    bench = make_bench(GroupSettings(offsets_retention_ms=1000))
    commit_in_transaction(bench, 7, {("t", 0): 5})
    bench.clock.pass_ms(5000)
    run_through(bench.shard.offset_requests.expire(bench.clock.time_ms()))
    assert set(bench.restarted().shard.groups) == {"group"}
    end(bench, 7, commit=True)
    assert offset(bench) == 5


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, E.NONE),
        ({"generation": 3}, E.UNKNOWN_MEMBER_ID),
        ({"member_id": "stranger"}, E.UNKNOWN_MEMBER_ID),
        ({"instance": "i"}, E.UNKNOWN_MEMBER_ID),
        ({"member_id": "MEMBER"}, E.ILLEGAL_GENERATION),
        ({"member_id": "MEMBER", "generation": 0}, E.ILLEGAL_GENERATION),
        ({"member_id": "MEMBER", "generation": 1}, E.NONE),
    ],
)
def test_who_commits_for_a_group_with_members(bench: Any, options: dict[str, Any], error: E) -> None:
    [member], generation = bench.stable()
    assert generation == 1
    if options.get("member_id") == "MEMBER":
        options = {**options, "member_id": member}
    [found] = commit_in_transaction(bench, 7, {("t", 0): 5}, **options)
    assert found == error
    assert is_pending(bench) == (not error)


def test_a_fenced_instance(bench: Any) -> None:
    first = bench.join(instance="i")
    bench.clock.pass_ms(0)
    bench.sync(first.member_id, first.generation_id, {first.member_id: b""}, instance="i")
    second = bench.join(instance="i")
    options: dict[str, Any] = {"generation": second.generation_id, "instance": "i"}
    [error] = commit_in_transaction(bench, 7, {("t", 0): 5}, member_id=first.member_id, **options)
    assert error == E.FENCED_INSTANCE_ID
    [error] = commit_in_transaction(bench, 7, {("t", 0): 5}, member_id=second.member_id, **options)
    assert error == E.NONE


def test_a_commit_while_the_rebalance_completes(bench: Any) -> None:
    member = bench.join(bench.join().member_id)
    bench.clock.pass_ms(0)
    assert bench.group.state.value == "CompletingRebalance"
    [error] = commit_in_transaction(
        bench, 7, {("t", 0): 5}, member_id=member.member_id, generation=member.generation_id
    )
    assert error == E.NONE


def test_a_group_that_does_not_exist(bench: Any) -> None:
    [error] = commit_in_transaction(bench, 7, {("t", 0): 5}, generation=0)
    assert (error, bench.shard.groups) == (E.ILLEGAL_GENERATION, {})
    [error] = commit_in_transaction(bench, 7, {("t", 0): 5})
    assert (error, bench.group.protocol_type) == (E.NONE, None)


def test_metadata_that_is_too_large(make_bench: Any) -> None:
    bench = make_bench(GroupSettings(offset_metadata_max_bytes=3))
    assert commit_in_transaction(bench, 7, {("t", 0): 5}, metadata="four") == [E.NONE]
    assert (bench.log.batches, bench.shard.groups) == ([], {})


def test_an_append_that_fails_leaves_nothing(bench: Any) -> None:
    bench.log.error = E.INVALID_PRODUCER_EPOCH
    assert commit_in_transaction(bench, 7, {("t", 0): 5}) == [E.INVALID_PRODUCER_EPOCH]
    bench.log.error = E.NOT_ENOUGH_REPLICAS
    assert commit_in_transaction(bench, 7, {("t", 0): 5}) == [E.COORDINATOR_NOT_AVAILABLE]
    assert end(bench, 7, commit=True) == [E.NOT_ENOUGH_REPLICAS]
    bench.log.error, bench.log.hold = E.NONE, True
    answer = commit_in_transaction(bench, 7, {("t", 0): 5})
    assert set(bench.shard.groups) == {"group"}
    bench.log.settle(E.NOT_LEADER_OR_FOLLOWER)
    assert (answer, bench.shard.groups, is_pending(bench)) == ([E.NOT_COORDINATOR], {}, False)


# -- the markers of a store with pending appends

POSITION = ("group", "t", 0)


def written(value: int) -> PendingWrite[CommittedOffset]:
    return PendingWrite(7, CommittedOffset(value, -1, "", 0))


class CountedId(int):
    """A producer id that counts its look-ups in dicts and sets."""

    lookups = 0

    def __hash__(self) -> int:
        self.lookups += 1
        return int(self)


def lookups_of_a_marker(pending_commits: int) -> int:
    store = OffsetStore()
    for number in range(pending_commits):
        store.apply(("other", "t", number), CommittedOffset(1, -1, "", 0), number)
    store.apply_pending(POSITION, written(5), pending_commits)
    producer_id = CountedId(7)
    assert store.end_transaction(producer_id, commit=True, append=pending_commits + 1) == (POSITION,)
    return producer_id.lookups


def test_a_marker_looks_at_its_own_positions_only() -> None:
    assert lookups_of_a_marker(pending_commits=1000) == lookups_of_a_marker(pending_commits=0)


def test_a_second_marker_ends_what_is_left_if_the_first_fails() -> None:
    store = OffsetStore()
    store.apply_pending(POSITION, written(5), 1)
    assert store.end_transaction(7, commit=False, append=2) == (POSITION,)
    assert store.end_transaction(7, commit=True, append=3) == (POSITION,)
    store.commit(POSITION, 1)
    store.revert(POSITION, 2)
    store.commit(POSITION, 3)
    found = store.get(*POSITION)
    assert found is not None
    assert (found.offset, store.end_transaction(7, commit=True)) == (5, ())


def test_a_marker_finds_nothing_of_an_append_that_failed() -> None:
    store = OffsetStore()
    store.apply_pending(POSITION, written(5), 1)
    store.revert(POSITION, 1)
    assert store.end_transaction(7, commit=True, append=2) == ()
    store.apply_pending(POSITION, written(6), 3)
    store.commit(POSITION, 3)
    assert store.end_transaction(7, commit=True, append=4) == (POSITION,)
