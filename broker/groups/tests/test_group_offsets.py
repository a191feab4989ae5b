"""Committing, fetching, deleting and expiring offsets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.coordinator.pending_writes import PendingWrite
from barnabas.broker.groups import offset_requests
from barnabas.broker.groups.offsets import CommittedOffset, DeletedTopic, OffsetStore
from barnabas.broker.groups.settings import GroupSettings
from barnabas.broker.groups.state import GroupState
from barnabas.runtime.slices import run_through
from barnabas.wire.errors import ErrorCode as E

MINUTE = 60_000
RETENTION = GroupSettings(offsets_retention_ms=10 * MINUTE)


def error_of(answers: list[Any]) -> E:
    ((error, results),) = answers
    if error:
        assert results == []
        return E(error)
    return E(results[0].partitions[0].error_code)


def offset(
    bench: Any, topic: str = "t", partition: int = 0, *, group: str = "group", committed: bool = True
) -> Any:
    position = bench.shard.offsets.get(group, topic, partition, committed=committed)
    return None if position is None else position.offset


def test_consumer_without_membership(bench: Any) -> None:
    assert error_of(bench.commit({("t", 0): 5, ("t", 1): 6, ("u", 0): 7})) is E.NONE
    assert (offset(bench), offset(bench, "t", 1), offset(bench, "u")) == (5, 6, 7)
    assert bench.group.state is GroupState.EMPTY
    assert bench.group.protocol_type is None
    assert bench.commit({("t", 0): 9})[0][0] is E.NONE
    after = bench.restarted()
    assert (offset(after), offset(after, "u")) == (9, 7)
    assert after.group.protocol_type is None


@pytest.mark.parametrize(("version", "expected"), [(8, E.ILLEGAL_GENERATION), (9, E.GROUP_ID_NOT_FOUND)])
def test_generation_of_a_missing_group(bench: Any, version: int, expected: E) -> None:
    assert error_of(bench.commit({("t", 0): 5}, generation=1, member_id="m", version=version)) is expected


def test_members_commit_and_others_do_not(bench: Any) -> None:
    (member,), generation = bench.stable()
    position = {("t", 0): 5}
    assert error_of(bench.commit(position, member_id=member, generation=generation)) is E.NONE
    assert (
        error_of(bench.commit(position, member_id=member, generation=generation + 1)) is E.ILLEGAL_GENERATION
    )
    assert error_of(bench.commit(position, member_id=member, generation=-1)) is E.ILLEGAL_GENERATION
    assert error_of(bench.commit(position, member_id="who", generation=generation)) is E.UNKNOWN_MEMBER_ID
    assert error_of(bench.commit(position)) is E.UNKNOWN_MEMBER_ID


def test_commit_during_a_rebalance(bench: Any) -> None:
    (member,), generation = bench.stable()
    newcomer = bench.join(bench.join().member_id)
    assert error_of(bench.commit({("t", 0): 1}, member_id=member, generation=generation)) is E.NONE
    bench.join(member)
    assert newcomer.generation_id == generation + 1
    during_sync = bench.commit({("t", 0): 2}, member_id=member, generation=generation + 1)
    assert error_of(during_sync) is E.REBALANCE_IN_PROGRESS
    assert offset(bench) == 1


def test_commits_keep_a_session(bench: Any) -> None:
    (member,), generation = bench.stable()
    for _ in range(5):
        bench.clock.pass_ms(9_000)
        assert error_of(bench.commit({("t", 0): 1}, member_id=member, generation=generation)) is E.NONE


def test_metadata_limit_counts_for_each_partition(bench: Any) -> None:
    assert error_of(bench.commit({("t", 0): 1}, metadata="x" * 4096)) is E.NONE
    assert error_of(bench.commit({("t", 0): 2}, metadata="x" * 4097)) is E.OFFSET_METADATA_TOO_LARGE
    assert offset(bench) == 1
    bench.commit({("t", 0): 3}, metadata=None)
    assert bench.shard.offsets.get("group", "t", 0).metadata == ""


def test_failed_append_changes_nothing(bench: Any) -> None:
    bench.log.error = E.NOT_ENOUGH_REPLICAS
    assert error_of(bench.commit({("t", 0): 1})) is E.COORDINATOR_NOT_AVAILABLE
    assert offset(bench) is None
    assert bench.shard.groups == {}


def test_pending_commit_is_not_read_until_committed(bench: Any) -> None:
    bench.commit({("t", 0): 1})
    bench.log.hold = True
    answers = bench.commit({("t", 0): 2, ("t", 1): 3})
    settled: list[E] = []
    bench.shard.log.when_settled(settled.append)
    assert (answers, settled) == ([], [])
    assert (offset(bench), offset(bench, committed=False)) == (1, 2)
    assert bench.shard.offsets.committed_topics("group").keys() == {"t"}
    assert list(bench.shard.offsets.committed_topics("group")["t"]) == [0]
    bench.log.settle()
    assert (error_of(answers), offset(bench), settled) == (E.NONE, 2, [E.NONE])


def test_pending_commit_that_fails_is_reverted(bench: Any) -> None:
    bench.log.hold = True
    first = bench.commit({("t", 0): 1})
    second = bench.commit({("t", 0): 2})
    bench.log.settle(E.NOT_ENOUGH_REPLICAS)
    assert error_of(first) is E.COORDINATOR_NOT_AVAILABLE
    assert (offset(bench), offset(bench, committed=False)) == (None, 2)
    bench.log.settle()
    assert (error_of(second), offset(bench)) == (E.NONE, 2)
    other = bench.commit({("t", 0): 3}, group="other")
    bench.log.settle(E.REQUEST_TIMED_OUT)
    assert error_of(other) is E.COORDINATOR_NOT_AVAILABLE
    assert "other" not in bench.shard.groups


def delete(bench: Any, topics: dict[str, list[int]], group: str = "group") -> Any:
    answers: list[Any] = []
    bench.shard.offset_requests.delete(group, topics, lambda error, errors: answers.append((error, errors)))
    return answers[0]


def subscription(*topics: str) -> bytes:
    names = b"".join(len(each).to_bytes(2, "big") + each.encode() for each in topics)
    return b"\x00\x01" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


def test_offset_delete(bench: Any) -> None:
    assert delete(bench, {"t": [0]}) == (E.GROUP_ID_NOT_FOUND, {})
    bench.commit({("t", 0): 1, ("t", 1): 1})
    assert delete(bench, {"t": [0, 0, 7]}) == (E.NONE, {"t": E.NONE})
    assert (offset(bench), offset(bench, "t", 1)) == (None, 1)
    assert offset(bench.restarted(), "t", 0) is None


def test_offset_delete_in_a_living_group(bench: Any) -> None:
    protocols = [("range", subscription("t"))]
    (member,), generation = bench.stable(protocols=protocols)
    bench.commit({("t", 0): 1, ("u", 0): 1}, member_id=member, generation=generation)
    assert delete(bench, {"t": [0], "u": [0]}) == (
        E.NONE,
        {"t": E.GROUP_SUBSCRIBED_TO_TOPIC, "u": E.NONE},
    )
    assert (offset(bench), offset(bench, "u")) == (1, None)


def test_offset_delete_with_an_unreadable_subscription_or_another_protocol(make_bench: Any) -> None:
    bench = make_bench()
    bench.stable(protocols=[("range", b"\xff")])
    assert delete(bench, {"t": [0]}) == (E.NONE, {"t": E.GROUP_SUBSCRIBED_TO_TOPIC})
    connect = make_bench()
    member_id = connect.join(protocol_type="connect").member_id
    connect.join(member_id, protocol_type="connect")
    assert delete(connect, {"t": [0]}) == (E.NON_EMPTY_GROUP, {})


def delete_groups(bench: Any, *groups: str) -> dict[str, E]:
    answers: list[dict[str, E]] = []
    bench.shard.offset_requests.delete_groups(list(groups), answers.append)
    return answers[0]


def test_delete_groups(bench: Any) -> None:
    bench.commit({("t", 0): 1}, group="old")
    bench.stable()
    results = delete_groups(bench, "old", "group", "none")
    assert results == {"old": E.NONE, "group": E.NON_EMPTY_GROUP, "none": E.GROUP_ID_NOT_FOUND}
    assert list(bench.shard.groups) == ["group"]
    assert offset(bench, group="old") is None
    assert list(bench.restarted().shard.groups) == ["group"]


def test_delete_of_a_group_that_fails_restores_it(bench: Any) -> None:
    bench.commit({("t", 0): 1})
    bench.log.hold = True
    answers: list[Any] = []
    bench.shard.offset_requests.delete_groups(["group"], answers.append)
    bench.log.settle(E.NOT_ENOUGH_REPLICAS)
    assert answers == [{"group": E.COORDINATOR_NOT_AVAILABLE}]
    assert offset(bench) == 1
    assert "group" in bench.shard.groups


# -- expiry


def test_offsets_without_membership_expire_each_by_its_commit(make_bench: Any) -> None:
    bench = make_bench(RETENTION)
    bench.commit({("t", 0): 1})
    bench.clock.pass_ms(5 * MINUTE)
    bench.commit({("t", 1): 1})
    bench.clock.pass_ms(5 * MINUTE)
    run_through(bench.shard.offset_requests.expire(bench.clock.time_ms()))
    assert (offset(bench), offset(bench, "t", 1)) == (None, 1)
    bench.clock.pass_ms(5 * MINUTE)
    run_through(bench.shard.offset_requests.expire(bench.clock.time_ms()))
    assert bench.shard.groups == {}
    assert bench.restarted().shard.groups == {}


def test_offsets_of_members_expire_after_the_group_is_empty(make_bench: Any) -> None:
    bench = make_bench(RETENTION)
    (member,), generation = bench.stable(session_ms=30 * MINUTE)
    bench.commit({("t", 0): 1}, member_id=member, generation=generation)
    bench.clock.pass_ms(20 * MINUTE)
    run_through(bench.shard.offset_requests.expire(bench.clock.time_ms()))
    assert offset(bench) == 1
    bench.leave(member)
    bench.clock.pass_ms(10 * MINUTE - 1)
    run_through(bench.shard.offset_requests.expire(bench.clock.time_ms()))
    assert offset(bench) == 1
    bench.clock.pass_ms(1)
    run_through(bench.shard.offset_requests.expire(bench.clock.time_ms()))
    assert bench.shard.groups == {}


def test_a_stable_group_loses_only_offsets_of_topics_that_it_no_longer_reads(make_bench: Any) -> None:
    bench = make_bench(RETENTION)
    (member,), generation = bench.stable(session_ms=30 * MINUTE, protocols=[("range", subscription("t"))])
    bench.commit({("t", 0): 1, ("gone", 0): 1}, member_id=member, generation=generation)
    bench.clock.pass_ms(10 * MINUTE)
    run_through(bench.shard.offset_requests.expire(bench.clock.time_ms()))
    assert (offset(bench), offset(bench, "gone")) == (1, None)
    assert bench.group.state is GroupState.STABLE


def test_offsets_stay_while_subscriptions_are_too_long_to_be_read(make_bench: Any) -> None:
    bench = make_bench(RETENTION)
    long = subscription("t") + bytes(600_000)
    (member, _), generation = bench.stable(2, session_ms=30 * MINUTE, protocols=[("range", long)])
    bench.commit({("t", 0): 1, ("gone", 0): 1}, member_id=member, generation=generation)
    bench.clock.pass_ms(10 * MINUTE)
    run_through(bench.shard.offset_requests.expire(bench.clock.time_ms()))
    assert (offset(bench), offset(bench, "gone")) == (1, 1)
    assert bench.group.subscribed_topics is None


def test_retention_time_of_the_request_takes_precedence(make_bench: Any) -> None:
    bench = make_bench(RETENTION)
    bench.commit({("t", 0): 1}, retention_ms=MINUTE)
    bench.commit({("t", 1): 1}, retention_ms=60 * MINUTE)
    after = bench.restarted()
    for each in (bench, after):
        each.clock.pass_ms(20 * MINUTE)
        run_through(each.shard.offset_requests.expire(each.clock.time_ms()))
        assert (offset(each), offset(each, "t", 1)) == (None, 1)


def test_an_empty_group_without_offsets_is_removed_at_the_next_check(bench: Any) -> None:
    (member,), _generation = bench.stable()
    bench.leave(member)
    run_through(bench.shard.offset_requests.expire(bench.clock.time_ms()))
    assert bench.shard.groups == {}


def test_deleted_topics_lose_their_offsets(bench: Any) -> None:
    mine, other = b"\x01" * 16, b"\x02" * 16
    bench.commit({("t", 0): 1}, topic_id=mine)
    bench.commit({("t", 1): 1})
    bench.commit({("t", 2): 1}, topic_id=other)
    bench.commit({("u", 0): 1}, topic_id=other)
    bench.shard.offset_requests.topics_deleted([DeletedTopic("t", mine)])
    assert [offset(bench, "t", index) for index in range(3)] == [None, None, 1]
    assert offset(bench, "u") == 1
    assert offset(bench.restarted(), "t", 0) is None


def test_what_is_committed_while_the_offsets_of_a_deleted_topic_are_removed_stays(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.commit({("t", 0): 1, ("t", 1): 1})
    pieces: list[Any] = []
    monkeypatch.setattr(offset_requests, "in_slices", lambda _runtime, steps, _done: pieces.append(steps))
    bench.shard.offset_requests.topics_deleted([DeletedTopic("t", b"\x01" * 16)])
    bench.commit({("t", 1): 2})
    for _ in pieces.pop():
        pass
    assert [offset(bench, "t", index) for index in range(2)] == [None, 2]


BATCH_MAX = 1_048_588
LONG_NAME = "t" * 249


@pytest.fixture
def limited(make_bench: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A bench whose log takes no larger batches, and a group with positions whose tombstones don't fit into one."""
    bench = make_bench(RETENTION)
    append = bench.log.append

    def check_size(index: int, batch: bytes, done: Callable[[E], object]) -> None:
        if len(batch) > BATCH_MAX:
            done(E.MESSAGE_TOO_LARGE)
        else:
            append(index, batch, done)

    monkeypatch.setattr(bench.log, "append", check_size)
    for start in range(0, 4000, 1000):
        positions = {(LONG_NAME, index): 1 for index in range(start, start + 1000)}
        assert error_of(bench.commit(positions)) is E.NONE
    return bench


def test_the_offsets_of_a_deleted_topic_are_removed_in_several_batches(limited: Any) -> None:
    limited.shard.offset_requests.topics_deleted([DeletedTopic(LONG_NAME, b"\x01" * 16)])
    assert limited.shard.offsets.topics("group") == {}


def test_a_group_with_many_offsets_expires_in_several_batches(limited: Any) -> None:
    limited.clock.pass_ms(10 * MINUTE)
    steps = limited.shard.offset_requests.expire(limited.clock.time_ms())
    next(steps)
    assert 0 < len(limited.shard.offsets.topics("group")[LONG_NAME]) < 4000, "a step takes a part"
    run_through(steps)
    assert limited.shard.groups == {}
    assert limited.restarted().shard.groups == {}


def test_a_group_stays_as_long_as_some_of_its_offsets_could_not_be_removed(limited: Any) -> None:
    limited.clock.pass_ms(10 * MINUTE)
    steps = limited.shard.offset_requests.expire(limited.clock.time_ms())
    limited.log.error = E.NOT_ENOUGH_REPLICAS
    next(steps)
    limited.log.error = E.NONE
    run_through(steps)
    assert limited.group.is_empty
    assert limited.shard.offsets.topics("group")
    run_through(limited.shard.offset_requests.expire(limited.clock.time_ms()))
    assert limited.shard.groups == {}


# -- the store against a list of appends


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["append", "append", "commit", "fail"]),
            st.integers(0, 2),
            st.one_of(st.none(), st.integers(0, 99)),
        ),
        max_size=30,
    )
)
def test_store_equals_a_model_that_keeps_every_append(steps: list[tuple[str, int, int | None]]) -> None:
    """The model: committed positions, and the appends on their way in order. Commit and failure meet the
    oldest one, as they come from a log."""
    store = OffsetStore()
    committed: dict[int, int | None] = {}
    pending: list[tuple[int, int, int | None]] = []
    for sequence, (step, partition, value) in enumerate(steps):
        if step == "append":
            pending.append((sequence, partition, value))
            position = None if value is None else CommittedOffset(value, -1, "", 0)
            store.apply(("g", "t", partition), position, sequence)
        elif pending:
            oldest, partition, value = pending.pop(0)
            if step == "commit":
                committed[partition] = value
                store.commit(("g", "t", partition), oldest)
            else:
                store.revert(("g", "t", partition), oldest)
        latest = dict(committed)
        for _, partition, value in pending:
            latest[partition] = value
        for partition in range(3):
            for expected, flag in ((committed, True), (latest, False)):
                found = store.get("g", "t", partition, committed=flag)
                assert (None if found is None else found.offset) == expected.get(partition)
        everything = {index: each.offset for index, each in store.committed_topics("g").get("t", {}).items()}
        assert everything == {key: value for key, value in committed.items() if value is not None}
        assert bool(store.topics("g")) == any(value is not None for value in latest.values())


class _GroupId(str):
    """Counts how often it is hashed or compared."""

    __slots__ = ()
    looked_at = 0

    def __hash__(self) -> int:
        _GroupId.looked_at += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        _GroupId.looked_at += 1
        return super().__eq__(other)


@pytest.mark.parametrize("append", [None, 1])
def test_a_group_is_asked_about_without_a_look_at_others(append: int | None) -> None:
    """What others have in open transactions (`append` None), or on its way into the log as well."""
    store = OffsetStore()
    position = CommittedOffset(5, -1, "", 0)
    groups = [_GroupId(number) for number in range(1000)]
    for producer_id, group in enumerate(groups):
        store.apply_pending((group, "t", 0), PendingWrite(producer_id, position), append)
    _GroupId.looked_at = 0
    assert store.committed_topics("0") == {}
    assert list(store.pending_of("0")) == [("0", "t", 0)]
    assert store.is_used_by("0")
    assert not store.is_used_by("1000")
    assert _GroupId.looked_at < 20
