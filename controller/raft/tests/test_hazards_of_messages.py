"""Hazards of the library that lie in its messages (H1, H2, H3, H5, H6, H14, H15): each is shown on the library as it
comes, then to be gone behind our guards."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.controller.metadata.errors import MetadataError, NotController
from barnabas.controller.raft import snapshots
from barnabas.controller.raft.commands import Barrier, NoCommand, decode_command, encode_command
from barnabas.controller.raft.files import Snapshot, encode_snapshot
from barnabas.controller.raft.library import CANDIDATE, COMMAND_BYTES_MAX, LEADER
from barnabas.controller.raft.messages import (
    Append,
    AppendResponse,
    BadMessage,
    Entry,
    PreVote,
    RequestPreVote,
    SnapshotChunk,
    StaleTerm,
    Vote,
    decode_message,
    encode_message,
)
from barnabas.controller.raft.tests.raft_world import RaftWorld, Voter
from barnabas.controller.raft.tests.unguarded import Net
from barnabas.controller.raft.voters import Directory


def engine_of(voter: Voter) -> Any:
    assert voter.log is not None
    return voter.log._engine


# H1: a deposed leader that gets a snapshot in chunks commits its own uncommitted entries


def test_h1_unguarded_reports_success_for_an_uncommitted_command() -> None:
    net = Net(3, logCompactionBatchSize=100)
    old = net.leader()
    net.isolate(old)
    net.cut.add((old, old))
    outcomes: list[Any] = []
    with net.time():
        for number in range(8):
            net.nodes[old].put(f"lost {number}", callback=lambda _, reason: outcomes.append(reason))
    net.run(0.5)
    new = net.leader()
    assert new != old
    with net.time():
        for number in range(20):
            net.nodes[new].put(f"kept {number}")
    net.run(1.0)
    net.nodes[new].forceLogCompaction()
    net.run(0.5)
    net.cut.clear()
    net.ticks = True
    for _ in range(200):
        net.run(0.02)
        if 0 in outcomes:
            break
    assert 0 in outcomes, "success"
    assert not any(str(value).startswith("lost") for value in net.nodes[new].values)


def test_h1_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "CHUNK_BYTES", 100)
    world = RaftWorld(start=False)
    world.journal_bytes_min = 1
    for voter in world.voters.values():
        voter.start()
    old = world.leader()
    world.isolate(old.node_id)
    outcomes = [old.propose(b"lost %d" % number) for number in range(8)]
    world.run_until(lambda: world.leaders and old not in world.leaders)
    new = world.leader()
    for number in range(200):
        new.propose(b"kept %d" % number + bytes([65]) * 1000)
        world.run(0.005)
    assert engine_of(new).journal.first_index > 20, "too short for the old leader to be brought up by entries"
    replaced = old.replaced
    world.heal()
    world.run(3.0)
    assert old.replaced > replaced
    assert all(isinstance(outcome, NotController) for (outcome,) in outcomes)
    assert old.groups == new.groups
    assert all(group[0].startswith(b"kept") for group in new.groups)


# H2: an append that comes late cuts the log behind it


def appends(term: int, *commands: bytes) -> list[tuple[bytes, int, int]]:
    return [(command, 2 + number, term) for number, command in enumerate(commands)]


def test_h2_unguarded_forgets_acknowledged_entries() -> None:
    net = Net(3)
    follower = net.nodes["2"]
    entries = appends(1, b"\x01", b"\x01", b"\x01")
    message = {"type": "append_entries", "term": 1, "prevLogIdx": 1, "prevLogTerm": 0}
    early = {**message, "commit_index": 1, "entries": entries[:1]}
    net.deliver("1", "2", early)
    net.deliver("1", "2", {**message, "commit_index": 4, "entries": entries})
    assert follower.inside("raftLog")[-1][1] == 4
    assert follower.raftCommitIndex == 4
    net.deliver("1", "2", early)
    assert follower.inside("raftLog")[-1][1] == 2
    assert follower.raftCommitIndex == 2


def lone_voter(voters: int = 3) -> tuple[RaftWorld, Voter, list[bytes]]:
    """Voter 2 with connections to the others, who are not there: what it says to them is collected."""
    world = RaftWorld(range(1, voters + 1), start=False)
    said: list[bytes] = []
    voter = world.voters[2]
    voter.start()
    assert voter.log is not None

    def carry(sender: int, receiver: int, message: bytes) -> bool:
        said.append(message)
        return True

    world.carry = carry  # type: ignore[method-assign]
    for other in world.node_ids:
        if other != 2:
            voter.log.peer_connected(other, other)
    return world, voter, said


def test_h2_guarded() -> None:
    world, voter, said = lone_voter()
    entries = [Entry(index, 1, b"\x01") for index in (3, 4, 5)]
    early = encode_message(Append(1, 2, 2, 0, entries[:1]))
    assert voter.log is not None
    voter.log.received(1, 1, early)
    voter.log.received(1, 1, encode_message(Append(1, 5, 2, 0, entries)))
    world.run(0.01)
    said.clear()
    voter.log.received(1, 1, early)
    world.run(0.01)
    engine = engine_of(voter)
    assert engine.journal.last_index == 5
    assert engine.library.commit_index == 5
    assert said == [encode_message(AppendResponse(1, 4, True, False))], "it answers for what it was asked"


# H3: a command of almost a multiple of the batch size is sent in pieces that do not fit together


def test_h3_unguarded_stops_replicating() -> None:
    net = Net(3, appendEntriesBatchSizeBytes=1000)
    leader = net.leader()
    with net.time():
        net.nodes[leader].put("x" * 1950)
    with pytest.raises(Exception):  # noqa: B017, PT011 - a follower stumbles over half a pickle
        net.run(2.0)


@pytest.mark.parametrize("short_of_the_limit", [0, 1, 100])
def test_h3_guarded(short_of_the_limit: int) -> None:
    world = RaftWorld()
    leader = world.leader()
    overhead = 17
    outcomes = leader.propose(bytes([65]) * (COMMAND_BYTES_MAX - overhead - short_of_the_limit))
    refused = leader.propose(bytes([65]) * COMMAND_BYTES_MAX)
    world.run(1.0)
    assert outcomes == [None]
    assert isinstance(refused[0], MetadataError)
    assert [voter.offset for voter in world.voters.values()] == [0, 0, 0]


# H5: a command that was forwarded while the link was down is never answered


def test_h5_unguarded_never_calls_back() -> None:
    net = Net(3)
    leader = net.leader()
    follower = next(node_id for node_id in net.ids if node_id != leader)
    net.cut.add((follower, leader))
    outcomes: list[Any] = []
    with net.time():
        net.nodes[follower].put("x", callback=lambda _, reason: outcomes.append(reason))
    net.run(60.0)
    assert outcomes == []


def test_h5_guarded() -> None:
    world = RaftWorld()
    leader = world.leader()
    for voter in world.voters.values():
        if voter is not leader:
            assert isinstance(voter.propose(b"x")[0], NotController), "nothing is forwarded"
    world.spoil = lambda sender, receiver, message: () if len(message) > 60 else (0.001,)
    outcomes = leader.propose(bytes([65]) * 100)  # its entries are lost, its heartbeats are not
    world.run(6.0)
    assert len(outcomes) == 1
    assert isinstance(outcomes[0], NotController)


# H6: two leaders at once


def test_h6_unguarded_leads_for_half_a_minute_more() -> None:
    net = Net(3)
    old = net.leader()
    net.isolate(old)
    net.cut.add((old, old))
    net.leader()
    net.run(20.0)
    assert sum(node._isLeader() for node in net.nodes.values()) == 2


def test_h6_guarded() -> None:
    world = RaftWorld()
    old = world.leader()
    world.isolate(old.node_id)
    outcomes = old.propose(b"x")
    world.run(0.7)
    assert len(world.leaders) == 1
    assert old not in world.leaders
    assert isinstance(outcomes[0], NotController)


def test_h6_a_leader_serves_only_after_its_predecessors_commits() -> None:
    world = RaftWorld()
    first = world.leader()
    first.propose(b"x")
    world.run_until(lambda: first.groups)
    first.stop()
    seen: list[list[tuple[bytes, ...]]] = []
    for voter in world.voters.values():
        if voter.log is not None:
            voter.log.on_leadership(lambda leads, _, voter=voter: seen.append(list(voter.groups)))  # type: ignore[misc]
    world.leader()
    assert seen == [[(b"x",)]]


# H14: a vote that is delivered twice counts twice


def test_h14_unguarded_leads_with_two_of_five() -> None:
    net = Net(5)
    candidate = net.nodes["1"]
    candidate._SyncObj__raftElectionDeadline = 0
    net.tick("1")
    vote = {"type": "response_vote", "term": candidate.raftCurrentTerm}
    net.deliver("2", "1", vote)
    assert not candidate._isLeader()
    net.deliver("2", "1", vote)
    assert candidate._isLeader()


def candidate_of_five() -> tuple[RaftWorld, Voter]:
    world, voter, _ = lone_voter(5)
    engine = engine_of(voter)
    with engine.library:
        engine.library.elect_at(-1.0)
        engine.library.tick()
    assert engine.library.state == CANDIDATE
    return world, voter


def test_h14_guarded() -> None:
    _, voter = candidate_of_five()
    engine = engine_of(voter)
    vote = encode_message(Vote(engine.library.term))
    assert voter.log is not None
    for _ in range(5):
        voter.log.received(1, 1, vote)
    assert engine.library.state == CANDIDATE
    voter.log.received(3, 3, vote)
    assert engine.library.state == LEADER


# H15: an acknowledgement from another term moves the commit


def test_h15_unguarded_commits_an_entry_of_one_voter() -> None:
    net = Net(3)
    net.elect("1")
    late = {
        "type": "next_node_idx",
        "next_node_idx": 4,
        "reset": False,
        "success": True,
    }  # said in an older term
    leader = net.nodes["1"]
    net.cut = {(one, other) for one in net.ids for other in net.ids}
    with net.time():
        leader.put("x")
    net.tick("1")
    net.tick("1")
    assert leader.values == []
    net.deliver("2", "1", late)
    net.tick("1")
    assert leader.values == ["x"], "on one node of three"


def test_h15_guarded() -> None:
    world, voter = candidate_of_five()
    engine, log = engine_of(voter), voter.log
    assert log is not None
    vote = encode_message(Vote(engine.library.term))
    log.received(1, 1, vote)
    log.received(3, 3, vote)
    world.run(0.01)
    assert engine.library.state == LEADER
    end = engine.journal.last_index + 1
    for other in (1, 3, 4, 5):
        log.received(other, other, encode_message(AppendResponse(engine.library.term - 1, end, True, False)))
        log.received(other, other + 1, encode_message(AppendResponse(engine.library.term, end, True, False)))
        log.received(other, other, encode_message(AppendResponse(engine.library.term, end + 1, True, False)))
    world.run(0.01)
    assert engine.library.commit_index == 2
    for other in (1, 3):
        log.received(other, other, encode_message(AppendResponse(engine.library.term, end, True, False)))
    world.run(0.01)
    assert engine.library.commit_index >= end - 1


# Beyond the sixteen


def snapshot_of(index: int, term: int, offset: int) -> bytes:
    previous, last = Entry(index - 1, term, b"\x01"), Entry(index, term, b"\x01")
    return encode_snapshot(Snapshot(previous, last, term, offset, [b"s"]))


def chunk_of(term: int, index: int, index_term: int) -> bytes:
    data = snapshot_of(index, index_term, 9)
    return encode_message(SnapshotChunk(term, index, index_term, 0, len(data), data))


def test_a_snapshot_does_not_drop_acknowledged_entries_after_it() -> None:
    world, voter, said = lone_voter()
    assert voter.log is not None
    entries = [Entry(index, 1, b"\x01") for index in (3, 4, 5)]
    voter.log.received(1, 1, encode_message(Append(1, 2, 2, 0, entries)))
    world.run(0.01)
    said.clear()
    voter.log.received(1, 1, chunk_of(1, 4, 1))
    world.run(0.01)
    engine = engine_of(voter)
    assert engine.journal.last_index == 5
    assert engine.library.commit_index == 4, "which the snapshot proves"
    assert said == [encode_message(AppendResponse(1, 5, True, False))]


def test_an_old_snapshot_reverts_nothing() -> None:
    world, voter, said = lone_voter()
    assert voter.log is not None
    voter.log.received(1, 1, chunk_of(1, 20, 1))
    world.run(0.01)
    assert (voter.offset, voter.replaced) == (9, 2)
    said.clear()
    voter.log.received(1, 1, chunk_of(1, 10, 1))
    world.run(0.01)
    assert (voter.offset, voter.replaced) == (9, 2)
    assert said == [encode_message(AppendResponse(1, 21, True, False))]


@pytest.mark.parametrize("wrong", ["content", "index", "size"])
def test_a_snapshot_damaged_in_transfer_changes_nothing(wrong: str) -> None:
    world, voter, said = lone_voter()
    assert voter.log is not None
    data = bytearray(snapshot_of(20, 1, 9))
    size, index = len(data), 20
    if wrong == "content":
        data[-1] ^= 1
    elif wrong == "index":
        index = 21
    else:
        size = 1 << 40
    voter.log.received(1, 1, encode_message(SnapshotChunk(1, index, 1, 0, size, bytes(data))))
    world.run(0.01)
    assert (voter.offset, engine_of(voter).journal.last_index) == (-1, 2)
    assert said == [encode_message(AppendResponse(1, 0, False, False))], "it lives, that is all"


def test_votes_of_a_node_that_is_no_voter_do_not_count() -> None:
    world, voter, said = lone_voter()
    assert voter.log is not None
    voter.log.peer_connected(9, 9)
    engine = engine_of(voter)
    world.run_until(lambda: any(isinstance(decode_message(each), RequestPreVote) for each in said))
    asked = [each for each in map(decode_message, said) if isinstance(each, RequestPreVote)][-1]
    voter.log.received(9, 9, encode_message(PreVote(0, asked.round, True)))
    assert engine.library.term == 0, "a pre-vote"
    voter.log.received(1, 1, encode_message(PreVote(0, asked.round, True)))
    assert engine.library.term == 1
    voter.log.received(9, 9, encode_message(Vote(1)))
    assert engine.library.state != LEADER
    voter.log.received(1, 1, encode_message(Vote(1)))
    assert engine.library.state == LEADER


def test_a_voter_with_another_directory_does_not_count() -> None:
    """Its vote and its entries are gone with the directory that it had. It may lead where this node's voters are old."""
    world, voter, said = lone_voter()
    assert voter.log is not None
    voter.log.peer_connected(1, 9, Directory(b"another one".ljust(16)))
    engine = engine_of(voter)
    world.run_until(lambda: any(isinstance(decode_message(each), RequestPreVote) for each in said))
    asked = [each for each in map(decode_message, said) if isinstance(each, RequestPreVote)][-1]
    voter.log.received(1, 9, encode_message(PreVote(0, asked.round, True)))
    assert engine.library.term == 0
    voter.log.received(1, 9, encode_message(Append(1, 2, 2, 0, [Entry(3, 1, b"\x01")])))
    world.run(0.01)
    assert engine.journal.last_index == 3


def test_a_leader_of_a_past_term_gets_the_new_term() -> None:
    world, voter, said = lone_voter()
    assert voter.log is not None
    voter.log.received(1, 1, encode_message(Append(7, 2, 2, 0, [])))
    world.run(0.01)
    said.clear()
    voter.log.received(3, 3, encode_message(Append(6, 2, 2, 0, [])))
    assert said == [encode_message(StaleTerm(7))]


@pytest.mark.parametrize("number", range(4))
def test_text_that_is_not_utf8_is_a_bad_message(number: int) -> None:
    """msgspec raises UnicodeDecodeError for it, which is not one of its own errors."""
    text = [b"\x91\xa4\xc6ote", b"\x92\xa1\xff\x01", b"\xa2\xdd\x00", b"\x93\xa6\x91ppend\x01\x02"][number]
    with pytest.raises(BadMessage):
        decode_message(encode_message(Vote(1))[:1] + text)
    with pytest.raises(NoCommand):
        decode_command(encode_command(Barrier(1, 2))[:1] + text)
