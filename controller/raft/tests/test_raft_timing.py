"""Elections: a leader stays while loops, machines and disks are busy, and is replaced when it ends."""

from __future__ import annotations

import errno

import pytest

from barnabas.controller.metadata.errors import NotController
from barnabas.controller.raft.raft_log import COMMIT_TIMEOUT_S, RaftMetadataLog
from barnabas.controller.raft.tests.raft_world import RaftWorld, Voter


def terms(world: RaftWorld) -> set[int]:
    return {voter.log.term for voter in world.voters.values() if voter.log is not None}


def others(world: RaftWorld, one: Voter) -> list[Voter]:
    return [voter for voter in world.voters.values() if voter is not one]


@pytest.mark.parametrize("first", [1, 2, 3])
def test_the_voter_with_the_shortest_election_delay_leads(first: int) -> None:
    world = RaftWorld(start=False)
    for node_id, voter in world.voters.items():
        voter.start(election_delay_s=0.01 if node_id == first else 0.05)
    assert world.run_until(lambda: world.leaders) < 0.02
    assert [leader.node_id for leader in world.leaders] == [first]
    assert terms(world) == {1}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("voters", [3, 5])
@pytest.mark.parametrize("one_way_s", [0.02, 0.1, 0.25])
def test_voters_far_apart_elect_a_leader(one_way_s: float, voters: int, seed: int) -> None:
    """An answer takes longer than a voter waits before it asks again."""
    world = RaftWorld(range(1, voters + 1), seed)
    world.spoil = lambda *_: (one_way_s * world.random.uniform(0.9, 1.1),)
    for _ in range(2):
        assert world.run_until(lambda: world.leaders) < 0.5 + 8 * one_way_s
        leaders, found = world.leaders, terms(world)
        world.run(5.0)
        assert (world.leaders, terms(world)) == (leaders, found), "it stays"
        leaders[0].stop()
        world.run(one_way_s)


@pytest.mark.parametrize("busy_s", [0.04, 0.1, 0.2])
def test_busy_loops_do_not_change_the_leader(busy_s: float) -> None:
    world = RaftWorld()
    leader = world.leader()
    before = terms(world)
    for _ in range(100):
        for voter in world.voters.values():
            voter.runtime.hold_until(world.world.now + busy_s * world.random.uniform(0.5, 1.0))
        world.run(busy_s + 0.002)
    world.run(0.5)
    assert world.leaders == [leader]
    assert terms(world) == before


@pytest.mark.parametrize("stop_s", [0.5, 3.0])
def test_a_paused_follower_does_not_change_the_leader(stop_s: float) -> None:
    world = RaftWorld()
    leader = world.leader()
    before = terms(world)
    for _ in range(5):
        for voter in others(world, leader):
            voter.runtime.hold_until(world.world.now + stop_s)
            world.run(stop_s + 0.3)
    assert world.leaders == [leader]
    assert terms(world) == before


def test_a_paused_leader_learns_at_once_that_it_was_replaced() -> None:
    world = RaftWorld()
    old = world.leader()
    world.run(0.2)
    old.runtime.hold_until(world.world.now + 5.0)
    took = world.run_until(lambda: any(leader is not old for leader in world.leaders))
    assert took < 0.8
    world.run_until(lambda: world.world.now >= old.runtime.held_until)
    world.run(0.05)
    assert old not in world.leaders
    assert isinstance(old.propose(b"x")[0], NotController)
    world.run(1.0)
    assert len(world.leaders) == 1


@pytest.mark.parametrize("sleep_s", [0.25, 0.7, 3.0, 20.0])
def test_a_paused_leader_that_was_not_replaced_continues(sleep_s: float) -> None:
    """As on a busy machine, where no voter runs."""
    world = RaftWorld()
    leader = world.leader()
    world.run(0.2)
    before = terms(world)
    outcomes = leader.propose(b"on its way")
    until = world.world.now + sleep_s
    for voter in world.voters.values():
        voter.runtime.hold_until(until)
    world.run(sleep_s + 0.3)
    assert world.leaders == [leader]
    assert terms(world) == before
    assert [leads for leads, _ in leader.leaderships] == [True], "it has not stepped down"
    if sleep_s < COMMIT_TIMEOUT_S:
        assert outcomes == [None]
    assert leader.propose(b"next") == []
    world.run(0.1)
    assert leader.groups[-1] == (b"next",)


def test_a_paused_leader_decides_nothing_before_a_majority_confirms_it() -> None:
    world = RaftWorld()
    leader = world.leader()
    world.run(0.2)
    own = leader.node_id
    world.cut = {(own, other.node_id) for other in others(world, leader)}  # what it says is lost
    leader.runtime.hold_until(world.world.now + 0.31)
    world.run_until(lambda: world.world.now >= leader.runtime.held_until)
    world.run(0.01)
    assert leader.log is not None
    assert not leader.log.is_leader
    assert isinstance(leader.propose(b"stale")[0], NotController)
    world.cut = set()
    world.run(1.0)
    assert len(world.leaders) == 1
    assert world.leader().propose(b"x") == []


def test_a_leader_that_pauses_as_it_begins_to_decide_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The step in which it applies its first command takes longer than an election timeout."""
    world = RaftWorld(start=False)
    leader = world.voters[1]
    found: list[bool] = []
    outcomes: list[Exception | None] = []
    applied = RaftMetadataLog.apply_command

    def slowly(log: RaftMetadataLog, payload: bytes) -> None:
        applied(log, payload)
        if log is leader.log and not found:
            world.world.now += 0.5

    monkeypatch.setattr(RaftMetadataLog, "apply_command", slowly)
    for voter in world.voters.values():
        voter.start(election_delay_s=0.01 * voter.node_id)
    log = leader.log
    assert log is not None

    def notified(_leads: bool, _term: int) -> None:
        found.append(log.is_leader)
        log.propose([b"first"], outcomes.append)

    log.on_leadership(notified)
    with caplog.at_level("INFO", "barnabas.raft"):
        world.run_until(lambda: found)
        world.run(0.2)
    assert "the leader of term 1 has paused for 0.5 s: asking for a majority" in caplog.messages
    assert (found, outcomes, world.leaders) == ([True], [None], [leader])


def test_a_paused_leader_decides_nothing_before_it_reads_the_clock() -> None:
    """Requests that came meanwhile may be read before its timers are."""
    world = RaftWorld()
    leader = world.leader()
    world.run(0.2)
    assert leader.log is not None
    world.world.now += 0.31
    assert not leader.log.is_leader
    assert isinstance(leader.propose(b"stale")[0], NotController)
    world.run(0.5)
    assert world.leader().propose(b"x") == []


@pytest.mark.parametrize("who", ["leader", "followers", "all"])
def test_a_slow_disk_does_not_change_the_leader(who: str) -> None:
    world = RaftWorld()
    leader = world.leader()
    world.run(0.5)
    before = terms(world)
    slow = {"leader": [leader], "followers": others(world, leader), "all": list(world.voters.values())}[who]
    for voter in slow:
        voter.runtime.thread_delay_s = lambda: 1.5
    outcomes = leader.propose(b"x")
    world.run(1.4)
    assert outcomes == []
    world.run(3.0)
    assert outcomes == [None]
    assert world.leaders == [leader]
    assert terms(world) == before


def test_a_write_that_does_not_end_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    world = RaftWorld()
    leader = world.leader()
    world.run(0.5)
    leader.runtime.thread_delay_s = lambda: 20.0
    leader.propose(b"x")
    world.run(19.0)
    assert [line for line in caplog.messages if "has taken 5 s so far" in line] == [
        "a write to /meta/raft.journal has taken 5 s so far"
    ]


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_leader_with_a_failing_disk_is_replaced_and_comes_back(operation: str) -> None:
    world = RaftWorld()
    old = world.leader()
    world.run(0.5)
    old.disk.fault = lambda what, _: errno.ENOSPC if what == operation else None
    outcomes = old.propose(b"lost")
    world.run_until(lambda: outcomes)
    assert isinstance(outcomes[0], NotController)
    assert isinstance(old.errors[0], OSError)
    assert world.run_until(lambda: world.leaders) < 0.8
    new = world.leader()
    assert new is not old
    assert new.propose(b"kept") == []
    world.run(3.0)
    old.disk.fault = None
    world.run(2.0)
    assert old.groups == [(b"kept",)]
    assert world.leaders == [new]
    old.stop(power_fails=True)
    old.start()
    world.run(1.0)
    assert old.groups == [(b"kept",)]


def test_a_single_voter_leads_again_when_its_disk_works() -> None:
    world = RaftWorld([1])
    voter = world.leader()
    voter.disk.fault = lambda what, _: errno.EIO if what == "write" else None
    outcomes = voter.propose(b"x")
    world.run(0.5)
    assert isinstance(outcomes[0], NotController)
    assert world.leaders == []
    assert isinstance(voter.propose(b"y")[0], NotController)
    voter.disk.fault = None
    world.run(1.5)
    assert world.leaders == [voter]
    assert voter.groups == [(b"x",)], "whose outcome was not known"
    outcomes = voter.propose(b"z")
    world.run(0.1)
    assert outcomes == [None]
    assert [leads for leads, _ in voter.leaderships] == [True, False, True]
    assert voter.groups == [(b"x",), (b"z",)]


def test_an_idle_quorum_does_little_work() -> None:
    world = RaftWorld()
    leader = world.leader()
    world.run(2.0)
    carried, events = world.carried, world.world.events_count
    sizes = [voter.disk.size("/meta/raft.journal") for voter in world.voters.values()]
    world.run(10.0)
    assert (world.carried - carried) / 10 <= 85, "a heartbeat to two, and their answers, 20 times a second"
    assert (world.world.events_count - events) / 10 <= 250
    assert [voter.disk.size("/meta/raft.journal") for voter in world.voters.values()] == sizes
    assert world.leaders == [leader]


def test_an_idle_single_voter_does_little_work() -> None:
    world = RaftWorld([1])
    world.leader()
    world.run(2.0)
    events = world.world.events_count
    world.run(10.0)
    assert (world.world.events_count - events) / 10 <= 5


@pytest.mark.parametrize("voters", [3, 5])
@pytest.mark.parametrize("seed", range(8))
def test_a_killed_leader_is_replaced_before_the_election_timeout(voters: int, seed: int) -> None:
    world = RaftWorld(range(1, voters + 1), seed)
    for _ in range(voters // 2):
        world.leader().stop()
        assert world.run_until(lambda: world.leaders, 2.0) < 0.3


def test_two_partitioned_voters_commit_through_the_third() -> None:
    world = RaftWorld()
    leader = world.leader()
    one = others(world, leader)[0]
    world.cut = {(leader.node_id, one.node_id), (one.node_id, leader.node_id)}
    before = terms(world)
    world.run(10.0)
    assert world.leaders == [leader], "the third still hears it, and supports no other"
    assert terms(world) == before
