"""Groups that move from one coordinator to the next: nothing that was answered is lost, and everything is answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.groups.settings import GroupSettings
from barnabas.broker.groups.tests.replicated_log import ReplicatedLog
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)


class Cluster:
    """A coordinator after the other, on one clock. Notes what it has been told."""

    def __init__(self, make_bench: Any) -> None:
        self.bench = make_bench()
        self.log = ReplicatedLog()
        self.asked = 0
        self.answered: list[tuple[tuple[str, int], int, E]] = []
        self.elect()

    def elect(self) -> None:
        bench = self.bench
        bench.log = self.log.lead()
        bench.shard = bench.make_shard()
        bench.load()

    def move(self, kept: int) -> None:
        self.log.lose(kept)
        self.bench.shard.unload()
        assert len(self.answered) == self.asked, "a request was not answered"
        self.elect()

    def commit_offset(self, group: str, partition: int, offset: int) -> None:
        request = OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1)
        topic = OffsetCommitRequestTopic(
            name="t",
            partitions=[OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)],
        )
        self.asked += 1
        self.bench.shard.offset_requests.commit(
            request, [topic], 9, lambda error, _: self.answered.append(((group, partition), offset, error))
        )

    def offset(self, group: str, partition: int) -> int | None:
        found = self.bench.shard.offsets.get(group, "t", partition)
        return None if found is None else found.offset


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("offset"), st.sampled_from("ab"), st.integers(0, 1)),
        st.tuples(st.just("commit"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("move"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("few"), st.booleans(), st.just(0)),
        st.tuples(st.just("wait"), st.integers(1, 6), st.just(0)),
    ),
    max_size=30,
)


@given(steps=STEPS)
def test_what_was_answered_survives_every_move(make_bench: Any, steps: list[tuple[str, Any, int]]) -> None:
    cluster = Cluster(make_bench)
    attempts: dict[tuple[str, int], list[int]] = {}  # that may be in the log

    def check() -> None:
        """A position is the last one that was acknowledged, or one that was appended since."""
        for key, offsets in attempts.items():
            outcome = {offset: error for told, offset, error in cluster.answered if told == key}
            acknowledged = [offset for offset in offsets if outcome.get(offset) == E.NONE]
            last = acknowledged[-1] if acknowledged else None
            allowed = {last} | {offset for offset in offsets if last is None or offset > last}
            assert cluster.offset(*key) in allowed

    for number, (what, one, two) in enumerate(steps):
        if what == "offset":
            offsets = attempts.setdefault((one, two), [])
            if not cluster.log.too_few:
                offsets.append(number)
            cluster.commit_offset(one, two, number)
        elif what == "commit":
            cluster.log.commit(one)
        elif what == "move":
            cluster.move(one)
        elif what == "few":
            cluster.log.too_few = one
        else:
            cluster.bench.clock.pass_ms(one * 1000)
        check()
    cluster.move(0)
    check()
    errors = {error for _, _, error in cluster.answered}
    assert errors <= {E.NONE, E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE}


def members_of(group: Any) -> dict[str, tuple[Any, ...]]:
    return {
        member.member_id: (
            member.group_instance_id,
            member.client_id,
            member.session_timeout_ms,
            member.rebalance_timeout_ms,
            member.subscription(group.protocol_name),
            bytes(member.assignment),
        )
        for member in group.members.values()
    }


@given(
    member_count=st.integers(1, 4),
    offsets=st.dictionaries(st.integers(0, 5), st.integers(0, 1 << 40), max_size=6),
    leaves=st.booleans(),
)
def test_the_next_coordinator_has_the_state_of_the_last_one(
    make_bench: Any, member_count: int, offsets: dict[int, int], leaves: bool
) -> None:
    cluster = Cluster(make_bench)
    bench = cluster.bench
    bench.log._waiting = Immediately(cluster.log)
    ids, generation = bench.stable(member_count)
    if offsets:
        committed = {("t", partition): offset for partition, offset in offsets.items()}
        ((error, _),) = bench.commit(committed, member_id=ids[0], generation=generation)
        assert error == E.NONE
    if leaves:
        assert bench.leave(*ids) == [E.NONE] * member_count
    before = bench.group
    told = (before.state, before.generation_id, before.protocol_type, before.protocol_name, before.leader_id)
    members = {} if leaves else members_of(before)
    positions = {partition: cluster.offset("group", partition) for partition in range(6)}
    cluster.move(0)
    after = bench.group
    assert after is not before
    assert (after.state, after.generation_id, after.protocol_type, after.protocol_name) == told[:4]
    assert after.leader_id == (None if leaves else told[4])
    assert ({} if leaves else members_of(after)) == members
    assert {partition: cluster.offset("group", partition) for partition in range(6)} == positions
    for member_id in () if leaves else ids:
        assert bench.heartbeat(member_id, generation) == E.NONE


class Immediately(list[Callable[[E], object]]):
    """Who waits for a commit waits no longer than until the append has returned."""

    def __init__(self, log: ReplicatedLog) -> None:
        super().__init__()
        self._log = log

    def append(self, done: Callable[[E], object]) -> None:
        self._log.committed = len(self._log.batches)
        done(E.NONE)


def test_members_get_a_session_timeout_and_no_rebalance(make_bench: Any) -> None:
    cluster = Cluster(make_bench)
    bench = cluster.bench
    bench.log._waiting = Immediately(cluster.log)
    ids, generation = bench.stable(3)
    bench.clock.pass_ms(9000)  # of 10,000
    cluster.move(0)
    bench.clock.pass_ms(9000)
    assert [bench.heartbeat(member_id, generation) for member_id in ids[:2]] == [E.NONE] * 2
    bench.clock.pass_ms(2000)  # only now the third is late
    assert bench.heartbeat(ids[2], generation) == E.UNKNOWN_MEMBER_ID
    assert bench.heartbeat(ids[0], generation) == E.REBALANCE_IN_PROGRESS


def test_waiting_requests_are_answered_by_a_move_at_every_point(make_bench: Any) -> None:
    """A join and a sync, with the leadership lost after each append that is on its way."""
    for appends_committed in range(3):
        cluster = Cluster(make_bench)
        bench = cluster.bench
        first = bench.join()  # appends that the group exists
        cluster.log.commit(appends_committed)
        member_id = first.member_id
        joined = bench.join(member_id)
        synced = None
        if not joined.waiting and joined.error == E.NONE:
            synced = bench.sync(member_id, joined.generation_id, {member_id: b"mine"})
            cluster.log.commit(appends_committed - 1)
        old = bench.shard
        cluster.move(0)
        assert not old.groups
        assert not joined.waiting
        if synced is not None:
            expected = E.NONE if appends_committed == 2 else E.NOT_COORDINATOR
            assert synced.error == expected
            again = bench.heartbeat(member_id, joined.generation_id)
            assert again == (E.NONE if appends_committed == 2 else E.UNKNOWN_MEMBER_ID)


def test_an_append_that_times_out_counts_when_it_is_committed(make_bench: Any) -> None:
    cluster = Cluster(make_bench)
    timeout_ms = GroupSettings().offsets_commit_timeout_ms
    cluster.commit_offset("a", 0, 1)
    cluster.bench.clock.pass_ms(2000)
    cluster.commit_offset("a", 0, 2)
    cluster.bench.clock.pass_ms(timeout_ms - 2001)
    assert cluster.answered == []
    cluster.bench.clock.pass_ms(1)
    assert cluster.answered == [(("a", 0), 1, E.COORDINATOR_NOT_AVAILABLE)]
    cluster.bench.clock.pass_ms(1999)
    assert len(cluster.answered) == 1
    assert cluster.offset("a", 0) is None
    cluster.log.commit(2)
    assert cluster.offset("a", 0) == 2
    assert cluster.answered[1:] == [(("a", 0), 2, E.NONE)]


def test_a_fetch_of_stable_offsets_is_answered_at_the_timeout(make_bench: Any) -> None:
    cluster = Cluster(make_bench)
    heard: list[E] = []
    cluster.commit_offset("a", 0, 1)
    cluster.bench.shard.log.when_settled(heard.append)
    cluster.bench.clock.pass_ms(GroupSettings().offsets_commit_timeout_ms)
    cluster.bench.shard.log.when_settled(heard.append)
    assert heard == [E.REQUEST_TIMED_OUT] * 2
    cluster.log.commit(1)
    cluster.bench.shard.log.when_settled(heard.append)
    assert heard[2:] == [E.NONE]


def test_an_unloaded_shard_appends_nothing(make_bench: Any) -> None:
    cluster = Cluster(make_bench)
    shard = cluster.bench.shard
    shard.unload()
    cluster.commit_offset("a", 0, 1)
    assert cluster.answered == [(("a", 0), 1, E.NOT_COORDINATOR)]
    assert cluster.log.batches == []
