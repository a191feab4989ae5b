"""RaftMetadataLog: three voters under a virtual clock."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence

import pytest
from pysyncobj import syncobj

from barnabas.controller.metadata.errors import MetadataError, NotController
from barnabas.controller.raft import library, snapshots, transport
from barnabas.controller.raft.messages import SnapshotChunk
from barnabas.controller.raft.raft_log import RaftMetadataLog
from barnabas.controller.raft.tests.raft_world import RaftWorld, kind_of
from barnabas.testing.memory_disk import MemoryDisk
from compat_tests.virtual.runtime import VirtualRuntime


def test_proposals_of_the_leader_are_applied_everywhere() -> None:
    world = RaftWorld()
    leader = world.leader()
    outcomes = leader.propose(b"a", b"b")
    assert outcomes == [], "no promise before it is committed"
    took = world.run_until(lambda: outcomes, 1.0)
    assert outcomes == [None]
    assert took < 0.01
    world.run(0.1)
    assert [voter.groups for voter in world.voters.values()] == [[(b"a", b"b")]] * 3


def test_only_the_leader_accepts_proposals() -> None:
    world = RaftWorld()
    leader = world.leader()
    for voter in world.voters.values():
        if voter is not leader:
            (outcome,) = voter.propose(b"a")
            assert isinstance(outcome, NotController)


def test_a_killed_leader_is_replaced_at_once_and_finds_everything_when_it_returns() -> None:
    world = RaftWorld()
    first = world.leader()
    first.propose(b"a")
    world.run(0.05)
    term = first.log.term if first.log else 0
    first.stop(power_fails=True)
    assert world.run_until(lambda: world.leaders, 1.0) < 0.1, "its connections broke"
    second = world.leader()
    assert second.log is not None
    assert second.log.term > term
    second.propose(b"b")
    world.run(0.05)
    first.start()
    world.run(0.3)
    assert first.groups == [(b"a",), (b"b",)]
    assert world.leaders == [second], "it disturbed no leader"


def test_a_silent_leader_is_replaced_within_the_election_timeout() -> None:
    world = RaftWorld()
    first = world.leader()
    world.run(0.5)
    world.isolate(first.node_id)
    others = [voter for voter in world.voters.values() if voter is not first]
    took = world.run_until(lambda: any(other in world.leaders for other in others), 2.0)
    assert took < 0.5
    world.run(0.6)
    assert len(world.leaders) == 1, "the old one has noticed by itself"
    assert first.leaderships[-1][0] is False


def test_a_proposal_of_a_partitioned_leader_fails_with_an_unknown_outcome() -> None:
    world = RaftWorld()
    first = world.leader()
    world.isolate(first.node_id)
    outcomes = first.propose(b"lost")
    world.run(2.0)
    (outcome,) = outcomes
    assert isinstance(outcome, NotController)
    assert "not known" in str(outcome)
    world.heal()
    second = world.leader()
    second.propose(b"kept")
    world.run(1.0)
    assert [voter.groups for voter in world.voters.values()] == [[(b"kept",)]] * 3


@pytest.mark.parametrize("size", [1, 2])
def test_nothing_is_decided_until_the_outcome_of_a_late_proposal_is_known(size: int) -> None:
    """The followers' disks are slow: the proposal fails, and is committed later. What was decided without it must not be applied on top of
    it, whether it has as many records or not."""
    world = RaftWorld()
    leader = world.leader()
    world.run(0.5)
    followers = [voter for voter in world.voters.values() if voter is not leader]
    for voter in followers:
        voter.runtime.thread_delay_s = lambda: 5.6
    (late,) = [leader.propose(b"late")]
    world.run(5.2)
    assert [type(each) for each in late] == [NotController]
    without = leader.propose(*[b"without"] * size)
    on_top = leader.propose(b"on top of that")
    for voter in followers:
        voter.runtime.thread_delay_s = lambda: 0.0
    world.run(3)
    assert [type(each) for each in (*without, *on_top)] == [NotController] * 2
    assert leader in world.leaders
    assert leader.groups == [(b"late",)]
    assert leader.propose(b"next") == []
    world.run(0.5)
    assert [voter.groups for voter in world.voters.values()] == [[(b"late",), (b"next",)]] * 3


def test_a_single_voter_leads_at_once() -> None:
    world = RaftWorld([7])
    assert world.run_until(lambda: world.leaders) < 0.01
    outcomes = world.leader().propose(b"a")
    world.run(0.01)
    assert outcomes == [None]
    voter = world.voters[7]
    voter.stop(power_fails=True)
    voter.start()
    world.run(0.01)
    assert voter.groups == [(b"a",)]


def test_all_voters_begin_with_the_genesis() -> None:
    world = RaftWorld(start=False)
    world.genesis = ([b"x\x00y"], 41)
    for voter in world.voters.values():
        voter.start()
    leader = world.leader()
    leader.propose(b"z")
    world.run(0.1)
    assert [(voter.groups, voter.offset) for voter in world.voters.values()] == [
        ([(b"x", b"y"), (b"z",)], 42)
    ] * 3


def test_a_leader_transfers_its_leadership() -> None:
    world = RaftWorld()
    first = world.leader()
    world.run(0.2)
    assert first.log is not None
    assert first.log.transfer_leadership()
    took = world.run_until(lambda: world.leaders and world.leaders != [first], 1.0)
    assert took < 0.02
    (outcome,) = first.propose(b"a")
    assert isinstance(outcome, NotController)


def test_a_partitioned_voter_does_not_raise_the_term() -> None:
    world = RaftWorld()
    leader = world.leader()
    assert leader.log is not None
    term = leader.log.term
    other = next(voter for voter in world.voters.values() if voter is not leader)
    world.isolate(other.node_id)
    world.run(5.0)
    world.heal()
    world.run(1.0)
    assert world.leaders == [leader]
    assert leader.log.term == term


def test_a_change_too_large_for_one_step_is_refused() -> None:
    world = RaftWorld()
    (outcome,) = world.leader().propose(bytes(5 << 20))
    assert isinstance(outcome, MetadataError)
    assert not isinstance(outcome, NotController)


def test_committed_groups_can_be_read() -> None:
    world = RaftWorld()
    leader = world.leader()
    for group in (b"a", b"b", b"c"):
        leader.propose(group, group)
    world.run(0.1)
    for voter in world.voters.values():
        assert voter.log is not None
        groups = voter.log.read_committed(1)
        assert groups is not None
        assert [(group.base_offset, list(group.records)) for group in groups] == [
            (2, [b"b", b"b"]),
            (4, [b"c", b"c"]),
        ]
        assert voter.log.read_committed(5) == []
        assert voter.log.read_committed(2) is None, "no group begins there"
        assert voter.log.read_snapshot() == ([b"a\x00a", b"b\x00b", b"c\x00c"], 5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_a_long_log_is_cut_and_a_voter_that_missed_it_gets_a_snapshot(seed: int) -> None:
    world = RaftWorld(seed=seed, start=False)
    world.journal_bytes_min = 1000
    for voter in world.voters.values():
        voter.start()
    leader = world.leader()
    late = next(voter for voter in world.voters.values() if voter is not leader)
    late.stop()
    for number in range(300):
        leader.propose(b"%d" % number + bytes([65]) * 20_000)
        world.run(0.01)
    assert leader.log is not None
    assert leader.disk.size("/meta/raft.journal") < 5_000_000
    replaced = late.replaced
    late.start()
    world.run(3.0)
    assert late.groups == leader.groups
    assert late.replaced == replaced + 2, "at the start its own, then the leader's"
    other = leader.propose(b"on it goes")
    world.run(0.1)
    assert other == [None]
    assert late.groups == leader.groups
    late.stop(power_fails=True)
    late.start()
    world.run(0.5)
    assert late.groups == leader.groups


def test_a_large_snapshot_is_sent_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "CHUNK_BYTES", 10_000)
    monkeypatch.setattr(transport, "STEP_BYTES_MAX", 80_000)
    world = RaftWorld(start=False)
    world.genesis = ([bytes([66]) * 100_000] * 4, 3)
    world.journal_bytes_min = 1
    for voter in world.voters.values():
        voter.start()
    leader = world.leader()
    late = next(voter for voter in world.voters.values() if voter is not leader)
    late.stop()
    for number in range(60):
        leader.propose(b"%d" % number + bytes([65]) * 40_000)
        world.run(0.1)
    assert leader.log is not None
    assert leader.log._engine.journal.first_index > 2
    late.start()
    at_once: dict[float, int] = {}

    def watch(sender: int, receiver: int, message: bytes) -> Sequence[float]:
        if receiver == late.node_id and kind_of(message) is SnapshotChunk:
            at_once[world.world.now] = at_once.get(world.world.now, 0) + len(message)
        return (0.0005,)

    world.spoil = watch
    world.run(5.0)
    assert late.groups == leader.groups
    assert late.replaced == 3
    assert max(at_once.values()) < 90_000, "a connection holds that"
    assert sum(at_once.values()) > 400_000, "all of it, in parts"
    assert world.leaders == [leader]


def test_describe_has_the_leader_and_the_progress_of_all_voters() -> None:
    world = RaftWorld()
    leader = world.leader()
    behind = next(voter for voter in world.voters.values() if voter is not leader)
    leader.propose(b"a", b"b")
    world.run(0.2)
    world.isolate(behind.node_id)
    cut_at = leader.runtime.time_ms()
    leader.propose(b"c")
    world.run(1.0)
    assert leader.log is not None
    view = leader.log.describe()
    assert (view.leader_id, view.leader_epoch, view.high_watermark) == (leader.node_id, leader.log.term, 3)
    assert [voter.node_id for voter in view.voters] == [1, 2, 3]
    votes = [voter.log.describe().voted_for for voter in world.voters.values() if voter.log is not None]
    assert view.voted_for == leader.node_id
    assert votes.count(leader.node_id) >= 2
    now = leader.runtime.time_ms()
    for voter in view.voters:
        if voter.node_id == behind.node_id:
            assert voter.log_end_offset == 2
            assert cut_at - 100 <= voter.last_fetch_ms <= cut_at
            assert cut_at - 100 <= voter.last_caught_up_ms <= cut_at
        else:
            assert voter.log_end_offset == 3
            assert voter.last_fetch_ms > now - 100
            assert voter.last_caught_up_ms > now - 100


def test_a_log_that_is_not_open_does_not_lead() -> None:
    world = RaftWorld(start=False)
    log = RaftMetadataLog(
        MemoryDisk(), "/meta", VirtualRuntime(), 1, world.configured, world.voters[1], ([], -1)
    )
    assert (log.is_leader, log.term, log.leader_id) == (False, 0, None)
    log.close()


def test_a_closed_log_fails_proposals_in_flight_and_new_ones() -> None:
    world = RaftWorld()
    leader = world.leader()
    outcomes = leader.propose(b"a")
    assert leader.log is not None
    leader.log.close()
    outcomes += leader.propose(b"b")
    world.run(1.0)
    assert [type(outcome) for outcome in outcomes] == [NotController, NotController]
    assert leader.leaderships[-1][0] is False


def test_the_library_has_the_fields_that_are_used() -> None:
    world = RaftWorld()
    leader = world.leader()
    assert leader.log is not None
    names = set(re.findall(r'_[gs]et\("(\w+)"', inspect.getsource(library)))
    assert len(names) > 10
    for name in names:
        assert hasattr(leader.log._engine.library._raft, f"_SyncObj__{name}")
    for name in leader.log._engine.library._replaced:
        assert hasattr(syncobj, name)
