"""Voters that come and go: the sets in a log, and what a quorum does with them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from barnabas.controller.metadata.errors import NotController
from barnabas.controller.raft.commands import Barrier, Voters, encode_command, voters_in
from barnabas.controller.raft.election import Election
from barnabas.controller.raft.engine import RaftEngine
from barnabas.controller.raft.files import Snapshot, decode_snapshot, encode_snapshot
from barnabas.controller.raft.journal import RaftJournal
from barnabas.controller.raft.library import LEADER, RaftLibrary
from barnabas.controller.raft.messages import COMMAND_KIND, NO_OP, Append, Entry, SnapshotChunk
from barnabas.controller.raft.raft_log import RaftMetadataLog
from barnabas.controller.raft.tests import raft_world
from barnabas.controller.raft.tests import test_hazards_of_messages as hazards
from barnabas.controller.raft.tests.chaos_world import run_seed
from barnabas.controller.raft.tests.raft_world import DELAY_S, RaftWorld, kind_of
from barnabas.controller.raft.voters import (
    CONFIGURED,
    Directory,
    Voter,
    VoterHistory,
    is_single_change,
    voter_set,
)


def named(*node_ids: int) -> tuple[Voter, ...]:
    return voter_set(Voter(node_id, "h", 1, bytes([node_id]) * 16) for node_id in node_ids)


# The sets in a log


@pytest.mark.parametrize(
    ("old", "new", "is_allowed"),
    [
        ((1, 2, 3), (1, 2, 3), True),
        ((1, 2, 3), (1, 2, 3, 4), True),
        ((1, 2, 3), (1, 2), True),
        ((1,), (1, 2), True),
        ((1, 2), (1,), True),
        ((1, 2, 3), (1, 2, 4), False),
        ((1, 2, 3), (1,), False),
        ((1, 2, 3), (1, 2, 3, 4, 5), False),
        ((1,), (), False),
        ((1,), (2,), False),
    ],
)
def test_one_voter_is_added_or_removed(old: tuple[int, ...], new: tuple[int, ...], is_allowed: bool) -> None:
    assert is_single_change(named(*old), named(*new)) is is_allowed


def test_another_directory_is_another_voter() -> None:
    replaced = (*named(1, 2), Voter(3, "h", 1, b"x" * 16))
    assert not is_single_change(named(1, 2, 3), replaced)


def test_a_history_follows_its_log() -> None:
    history = VoterHistory(CONFIGURED, named(1, 2, 3))
    assert not history.are_recorded
    assert history.recorded_at(50) is None
    history.append(10, named(1, 2, 3, 4))
    history.append(20, named(1, 2, 4))
    assert (history.index, history.last, history.are_recorded) == (20, named(1, 2, 4), True)
    assert history.recorded_at(9) is None
    assert history.recorded_at(19) == named(1, 2, 3, 4)
    assert history.possible(9) == [named(1, 2, 3), named(1, 2, 3, 4), named(1, 2, 4)]
    assert history.possible(10) == [named(1, 2, 3, 4), named(1, 2, 4)]
    assert history.possible(25) == [named(1, 2, 4)]
    assert history.cut(11)
    assert not history.cut(11)
    assert history.last == named(1, 2, 3, 4)
    history.forget_before(10)
    assert not history.cut(10), "what is committed is never undone"
    assert history.possible(10) == [named(1, 2, 3, 4)]
    history.restart(30, named(5))
    assert (history.index, history.last) == (30, named(5))


def test_voters_of_an_entry() -> None:
    command = Voters(3, list(named(1, 2)))
    entry = COMMAND_KIND + encode_command(command)
    assert voters_in(entry) == list(named(1, 2))
    for other in (NO_OP, COMMAND_KIND, COMMAND_KIND + encode_command(Barrier(1, 2)), entry[:-4], entry[:2]):
        assert voters_in(other) is None
    assert entry[1] == 2, "a release that does not know it stops"


def test_a_snapshot_names_its_voters() -> None:
    plain = Snapshot(Entry(4, 1, NO_OP), Entry(5, 1, NO_OP), 1, 0, [b"r"])
    with_voters = Snapshot(plain.previous, plain.last, 1, 0, [b"r"], list(named(1, 2)))
    for snapshot in (plain, with_voters):
        assert decode_snapshot(encode_snapshot(snapshot), "s") == snapshot
    assert encode_snapshot(plain)[:8] != encode_snapshot(with_voters)[:8]


# A quorum


def joined(world: RaftWorld, node_id: int) -> raft_world.Voter:
    """A spare node that has everything, and no vote."""
    leader, node = world.leader(), world.voters[node_id]
    assert leader.log is not None
    log = leader.log
    world.run_until(lambda: log.is_caught_up(node_id) and node.groups == leader.groups)
    return node


def make_voters(world: RaftWorld, *node_ids: int) -> list[Exception | None]:
    outcomes = world.leader().change_voters(world.voters[node_id].name for node_id in node_ids)
    world.run_until(lambda: outcomes)
    world.run(0.2)
    return outcomes


def sets(world: RaftWorld) -> list[list[int]]:
    return [voter.voter_ids for voter in world.voters.values() if voter.log is not None]


def committed(world: RaftWorld, group: bytes) -> bool:
    outcomes = world.leader().propose(group)
    world.run(0.5)
    return outcomes == [None]


def test_a_node_joins_without_a_vote_and_becomes_a_voter() -> None:
    world = RaftWorld(spares=[4])
    assert committed(world, b"before")
    joiner = joined(world, 4)
    assert joiner.groups == [(b"before",)]
    assert joiner.voter_ids == []
    assert make_voters(world, 1, 2, 3, 4) == [None]
    assert sets(world) == [[1, 2, 3, 4]] * 4
    for node_id in (1, 2):
        world.isolate(node_id)
    world.run(2.0)
    assert not any(leader.node_id in (3, 4) for leader in world.leaders), "two of four are no majority"
    world.heal()
    assert committed(world, b"after")
    assert [voter.groups for voter in world.voters.values()] == [[(b"before",), (b"after",)]] * 4


def test_an_observer_is_not_counted() -> None:
    world = RaftWorld(spares=[4, 5])
    joined(world, 4)
    joined(world, 5)
    leader = world.leader()
    outcomes: list[Exception | None] = []
    for other in world.configured_ids:
        if other != leader.node_id:
            world.isolate(other)
    leader.propose(b"x")
    world.run(0.2)
    assert outcomes == []
    assert not leader.groups
    world.run(3.0)
    assert not world.leaders


@pytest.mark.slow
@pytest.mark.parametrize("records_first", [0, 30])
def test_a_restart_knows_its_voters(records_first: int) -> None:
    """From the journal, or from a snapshot."""
    world = RaftWorld(spares=[4])
    world.journal_bytes_min = 200 if records_first else 1 << 20
    for voter in list(world.voters.values()):
        voter.stop()
        voter.start()
    joined(world, 4)
    assert make_voters(world, 1, 2, 3, 4) == [None]
    for number in range(records_first):
        assert committed(world, b"%d" % number * 50)
    assert make_voters(world, 1, 2, 4) == [None]
    for number in range(records_first):
        assert committed(world, b"again %d" % number * 50)
    world.run(1.0)
    for voter in list(world.voters.values()):
        voter.stop(power_fails=True)
    for voter in world.voters.values():
        voter.start()
        assert voter.voter_ids == [1, 2, 4], voter.node_id
        assert voter.log is not None
        assert (voter.log._engine.journal.first_index > 2) == bool(records_first)
    assert committed(world, b"after")


def test_a_leader_that_removes_itself_resigns() -> None:
    world = RaftWorld()
    leader = world.leader()
    others = [node_id for node_id in world.node_ids if node_id != leader.node_id]
    assert make_voters(world, *others) == [None], "it answers for its own removal"
    assert leader.leaderships[-1][0] is False
    assert world.leader().node_id in others
    assert committed(world, b"x")
    assert leader.groups == [(b"x",)], "it follows as an observer"
    starts = len(leader.leaderships)
    for node_id in others:
        world.voters[node_id].stop()
    world.run(3.0)
    assert len(leader.leaderships) == starts, "it does not campaign any more"


def test_a_leader_that_removes_itself_does_not_count_itself() -> None:
    world = RaftWorld(spares=[])
    leader = world.leader()
    first, second = (world.voters[node_id] for node_id in world.node_ids if node_id != leader.node_id)
    world.isolate(second.node_id)
    outcomes = leader.change_voters([first.name, second.name])
    world.run(0.4)
    assert outcomes == [], "one of two is no majority"
    world.heal()
    world.run(3.0)
    assert sets(world) == [[first.node_id, second.node_id]] * 3 or outcomes != [None]


def test_a_removal_in_one_log_alone_can_still_be_committed() -> None:
    """Voters A and B; A has appended the removal of itself, and no other node has it. B lacks an entry, so only A can be elected."""
    world = RaftWorld([1, 2])
    leader = world.leader()
    other = next(voter for voter in world.voters.values() if voter is not leader)
    world.isolate(other.node_id)
    leader.change_voters([other.name])
    world.run(0.1)
    leader.stop()
    world.heal()
    leader.start()
    assert leader.voter_ids == [other.node_id]
    world.run_until(lambda: other in world.leaders)
    assert sets(world) == [[other.node_id]] * 2
    assert committed(world, b"x")


def test_one_change_at_a_time() -> None:
    world = RaftWorld(spares=[4])
    joined(world, 4)
    leader = world.leader()
    assert leader.log is not None
    names = [world.voters[node_id].name for node_id in (1, 2, 3, 4)]
    first = leader.change_voters(names)
    (refused,) = leader.change_voters(names[1:])
    assert isinstance(refused, NotController)
    world.run(0.2)
    assert first == [None]
    (refused,) = make_voters(world, 1, 2)
    assert isinstance(refused, NotController), "two voters at once"
    assert sets(world) == [[1, 2, 3, 4]] * 4


def test_a_change_that_is_not_committed_is_undone_with_its_entry() -> None:
    world = RaftWorld(spares=[4])
    joined(world, 4)
    old = world.leader()
    world.isolate(old.node_id)
    outcomes = old.change_voters(voter.name for voter in world.voters.values())
    world.run(0.05)
    assert old.voter_ids == [1, 2, 3, 4]
    world.run(3.0)
    assert isinstance(outcomes[0], NotController)
    assert world.leader() is not old
    assert committed(world, b"x")
    world.heal()
    world.run(2.0)
    assert sets(world)[:3] == [[1, 2, 3]] * 3
    assert old.groups == [(b"x",)]


def test_from_one_voter_to_two_and_back() -> None:
    world = RaftWorld([1], spares=[2])
    assert committed(world, b"a")
    joined(world, 2)
    assert make_voters(world, 1, 2) == [None]
    world.voters[2].stop()
    outcomes = world.voters[1].propose(b"b")
    world.run(0.3)
    assert outcomes == [], "one of two is no majority"
    world.voters[2].start()
    assert committed(world, b"c")
    assert make_voters(world, 1) == [None]
    world.voters[2].stop()
    assert committed(world, b"d")


def test_a_node_that_waits_for_its_first_snapshot_keeps_its_vote() -> None:
    world = RaftWorld([1, 2], spares=[3], start=False)
    spare = world.voters[3]
    spare.start()
    assert spare.log is not None
    engine = spare.log._engine
    with engine.library:
        engine._transport.adopt(1, 7)
    world.run(0.1)
    engine.wake()
    world.run(2.0)
    spare.stop(power_fails=True)
    spare.start()
    assert spare.log is not None
    assert spare.log.term == 7
    assert spare.log._engine.journal.is_blank
    assert spare.log._engine.library.state != LEADER
    for node_id in (1, 2):
        world.voters[node_id].start()
    assert committed(world, b"x")
    assert spare.groups == [(b"x",)]


def test_a_voter_that_was_wiped_does_not_count() -> None:
    world = RaftWorld()
    assert committed(world, b"a")
    leader = world.leader()
    wiped, other = (voter for voter in world.voters.values() if voter is not leader)
    wiped.stop()
    wiped.wipe()
    world.isolate(other.node_id)
    leader.stop()
    leader.start()
    wiped.start()
    world.run(3.0)
    assert not world.leaders, "one of three has its vote"
    world.heal()
    assert committed(world, b"b")


def test_a_voter_that_has_lost_its_files_does_not_vote_until_it_is_added_again() -> None:
    world = RaftWorld()
    assert committed(world, b"a")
    leader = world.leader()
    lost, other = (voter for voter in world.voters.values() if voter is not leader)
    assert make_voters(world, 1, 2, 3) == [None]
    lost.stop()
    lost.lose_files()
    world.isolate(other.node_id)
    leader.stop()
    leader.start()
    lost.start()
    world.run(3.0)
    assert not world.leaders, "it grants no vote"
    world.heal()
    assert committed(world, b"b")
    assert lost.groups == [], "it gets nothing as a voter"
    rest = [node_id for node_id in world.node_ids if node_id != lost.node_id]
    assert make_voters(world, *rest) == [None]
    joined(world, lost.node_id)
    assert make_voters(world, 1, 2, 3) == [None]
    assert lost.groups == [(b"a",), (b"b",)]


# Planted bugs: the tests above and the random faults notice them


@pytest.mark.parametrize("keeps_directory_id", [False, True])
def test_a_wiped_voter_does_not_lead_by_a_set_of_before(keeps_directory_id: bool) -> None:
    """It begins with a snapshot of a time when it was the only voter, and hears of nothing after that."""
    world = RaftWorld((1, 2))
    world.journal_bytes_min = 2000
    for voter in world.voters.values():
        voter.stop()
    for voter in world.voters.values():
        voter.start()

    def commit(outcomes: list[Exception | None]) -> None:
        world.run_until(lambda: outcomes)
        assert outcomes == [None]

    def change(*ids: int) -> None:
        commit(world.leader().change_voters([world.voters[each].name for each in ids]))
        world.run(1.0)

    change(1, 2)
    while world.leader().node_id != 2:
        leader = world.leader().log
        assert leader is not None
        leader._engine.transfer_leadership()
        world.run(2.0)
    change(2)
    for number in range(60):
        commit(world.leader().propose(b"%d" % number + bytes(100)))
    change(1, 2)
    change(1)
    wiped = world.voters[2]
    wiped.stop()
    (wiped.lose_files if keeps_directory_id else wiped.wipe)()
    chunks: list[object] = []

    def spoil(_sender: int, receiver: int, message: Any) -> tuple[float, ...]:
        kind = kind_of(message)
        if receiver == 2 and kind is SnapshotChunk:
            chunks.append(message)
        return () if chunks and receiver == 2 and kind is Append else (DELAY_S,)

    world.spoil = spoil
    wiped.start()
    world.run_until(lambda: wiped.log is not None and not wiped.log._engine.journal.is_blank)
    assert wiped.voter_ids == [2]
    wiped.stop()
    wiped.start()
    world.run(2.0)
    assert [each.node_id for each in world.leaders] == [1]
    world.spoil = lambda _sender, _receiver, _message: (DELAY_S,)
    commit(world.leader().propose(b"after"))
    world.run(2.0)
    assert not wiped.errors
    assert wiped.groups[-1] == (b"after",)
    change(1, 2)
    for voter in world.voters.values():
        voter.stop(power_fails=True)
    for voter in world.voters.values():
        voter.start()
    commit(world.leader().propose(b"again"))
    assert [each.voter_ids for each in world.voters.values()] == [[1, 2]] * 2, "as a voter it is counted"


def two_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RaftEngine, "_may_change_voters", lambda engine, _: engine.library.state == LEADER)
    monkeypatch.setattr(RaftMetadataLog, "is_voter_change_open", False)


def majority_of_the_old_set(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = RaftEngine._voters_changed

    def unless_leader(engine: RaftEngine) -> None:
        if engine.library.state != LEADER:
            changed(engine)

    monkeypatch.setattr(RaftEngine, "_voters_changed", unless_leader)


def restart_without_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RaftJournal, "begin_after", RaftJournal._take_voters)


def snapshot_without_voters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VoterHistory, "recorded_at", lambda _history, _index: None)


def counts_itself_by_its_id_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Voter, "is_node", lambda voter, node_id, _directory: voter.node_id == node_id)


def counts_itself_after_another_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Directory, "is_same", lambda one, other: one.directory_id == other.directory_id)


def removed_leader_counts_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RaftLibrary, "_counted", lambda library: list(library.nodes.values()))


def other_directory_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RaftEngine, "_has_other_directory", lambda _engine, _node_id: False)


def no_campaign_of_the_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Election, "may_campaign", property(lambda election: election._library.is_voter))


def cut_entries_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VoterHistory, "cut", lambda _history, _index: False)


@pytest.mark.parametrize(
    ("plant", "notices"),
    [
        (
            counts_itself_by_its_id_alone,
            partial(test_a_wiped_voter_does_not_lead_by_a_set_of_before, keeps_directory_id=False),
        ),
        (
            counts_itself_after_another_join,
            partial(test_a_wiped_voter_does_not_lead_by_a_set_of_before, keeps_directory_id=True),
        ),
        (removed_leader_counts_itself, test_a_leader_that_removes_itself_does_not_count_itself),
        (other_directory_counts, hazards.test_a_voter_with_another_directory_does_not_count),
        (no_campaign_of_the_removed, test_a_removal_in_one_log_alone_can_still_be_committed),
        (cut_entries_count, test_a_change_that_is_not_committed_is_undone_with_its_entry),
    ],
)
def test_a_planted_bug_is_noticed(
    plant: Callable[[pytest.MonkeyPatch], None], notices: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        notices()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "seed"),
    [
        (two_at_once, 13),
        (majority_of_the_old_set, 12),
        (restart_without_entries, 0),
        (snapshot_without_voters, 3),
    ],
)
def test_random_faults_find_a_planted_bug(
    plant: Callable[[pytest.MonkeyPatch], None], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seed is one of several in a hundred. Where a change of the code moves them, look for another one nearby."""
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        run_seed(seed, 6.0, changes=0.2)
