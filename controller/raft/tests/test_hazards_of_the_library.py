"""Hazards of the library that lie in its code and files (H4, H7 to H13, H16): each is shown on the library as it
comes, then to be gone behind our guards."""

from __future__ import annotations

import os
import pickle
import socket
import struct
import threading
import zlib
from pathlib import Path
from typing import Any, NoReturn

import pysyncobj.pickle as library_pickle
import pytest
from pysyncobj import journal as library_journal
from pysyncobj.config import SyncObjConf
from pysyncobj.journal import FileJournal
from pysyncobj.node import Node
from pysyncobj.poller import SelectPoller
from pysyncobj.syncobj import SyncObj, replicated
from pysyncobj.tcp_connection import TcpConnection
from pysyncobj.transport import Transport

from barnabas.controller.metadata.errors import MetadataError
from barnabas.controller.raft.commands import Barrier, Group, encode_command
from barnabas.controller.raft.messages import Append, Entry, encode_message
from barnabas.controller.raft.tests.raft_world import RaftWorld, Voter
from barnabas.controller.raft.tests.unguarded import Net
from barnabas.testing.memory_disk import ProcessKilled


def engine_of(voter: Voter) -> Any:
    assert voter.log is not None
    return voter.log._engine


# H4: an exception in a replicated method is raised at every tick, and nothing behind it is ever applied


def test_h4_unguarded_stops_all_voters_for_ever() -> None:
    net = Net(1)
    net.leader()
    with net.time():
        net.nodes["1"].put("poison")
        net.nodes["1"].put("x")
    for _ in range(3):
        with pytest.raises(ValueError, match="poison"):
            net.run(1.0)
    assert net.nodes["1"].values == []


@pytest.mark.parametrize(
    "nonsense", [b"", b"\x00", b"\x01", b"\x01\xc1", b"\x01\x93\x01\x02\x03", b"\x01" + b"\x91" * 5000]
)
def test_h4_guarded_against_unreadable_commands(nonsense: bytes) -> None:
    world = RaftWorld()
    leader = world.leader()
    engine_of(leader).submit(nonsense)
    outcomes = leader.propose(b"x")
    world.run(0.1)
    assert outcomes == [None]
    assert [voter.groups for voter in world.voters.values()] == [[(b"x",)]] * 3


def test_h4_guarded_against_commands_that_one_node_can_not_apply() -> None:
    world = RaftWorld()
    leader = world.leader()
    broken = next(voter for voter in world.voters.values() if voter is not leader)

    def apply(records: Any) -> NoReturn:
        raise MetadataError("an unknown record")

    assert broken.log is not None
    broken.log._apply = apply
    for number in range(3):
        assert leader.propose(b"%d" % number) == []
        world.run(0.1)
    assert len(leader.groups) == 3, "the others go on"
    assert [str(error) for error in broken.errors] == ["an unknown record"]
    assert not broken.log.is_leader


def test_h4_a_command_of_a_newer_release_halts_an_older_voter() -> None:
    world = RaftWorld()
    leader = world.leader()
    engine_of(leader).submit(b"\x03whatever")
    world.run(5.0)
    halted = [voter.errors for voter in world.voters.values() if voter.errors]
    assert len(halted) == 2, "each that has led since; the last can't commit it alone"
    for (error,) in halted:
        assert "start this node with the software of the others" in str(error)


# H7: pickles of any caller of the port are loaded

EXECUTED = "BARNABAS_TEST_PICKLE_WAS_RUN"


class Attack:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return exec, (f"import os; os.environ[{EXECUTED!r}] = 'yes'",)


def test_h7_unguarded_runs_code_from_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EXECUTED, "no")
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    poller = SelectPoller()
    connection = TcpConnection(poller, onMessageReceived=lambda message: None, socket=ours)
    data = zlib.compress(pickle.dumps(Attack()))
    theirs.sendall(struct.pack("i", len(data)) + data)
    poller.poll(1.0)
    poller.poll(0.0)
    assert os.environ[EXECUTED] == "yes"
    connection.disconnect()
    theirs.close()


def test_h7_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EXECUTED, "no")
    world = RaftWorld()
    leader = world.leader()
    log = leader.log
    assert log is not None
    for version in (b"", b"\x00", b"\x01", b"\x02"):
        for other in (1, 2, 3, 4):
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
                log.received(
                    other, world.connections.get((1, 2), 1), version + pickle.dumps(Attack(), protocol)
                )
    for kind in (b"\x02", b"\x03", b"", b"\x04"):  # membership, a code version, nothing, unknown
        entry = Entry(4, log.term, kind + pickle.dumps(Attack()))
        forged = encode_message(Append(log.term, 4, 3, log.term, [entry]))
        for voter in world.voters.values():
            for other in (1, 2, 3):
                key = world.key(voter.node_id, other)
                if voter.log is not None and key in world.connections:
                    voter.log.received(other, world.connections[key], forged)
    world.run(0.5)
    assert os.environ[EXECUTED] == "no"
    assert world.leaders == [leader]


# H8: replicated methods are numbered by their place


def test_h8_unguarded_calls_another_method_after_one_was_added() -> None:
    class Older(SyncObj):
        @replicated  # type: ignore[untyped-decorator]
        def create(self) -> None: ...

    class Newer(SyncObj):
        @replicated  # type: ignore[untyped-decorator]
        def abolish(self) -> None: ...

        @replicated  # type: ignore[untyped-decorator]
        def create(self) -> None: ...

    def number(kind: type[SyncObj], method: str) -> int:
        node = kind(Node("1"), [], conf=SyncObjConf(autoTick=False), transport=Transport(None, None, []))
        found: int = node._methodToID[node._getFuncName(method)]
        return found

    assert number(Older, "create") == number(Newer, "abolish") != number(Newer, "create")


def test_h8_guarded_by_one_method_and_commands_that_name_themselves() -> None:
    world = RaftWorld([1])
    assert list(engine_of(world.voters[1]).library._raft._idToMethod) == [0]
    group = encode_command(Group(3, 10, 1, 7, [b"record"]))
    assert group.hex() == "01" + "96" + "01" + "03" + "0a" + "01" + "07" + "91" + "c406" + b"record".hex()
    assert encode_command(Barrier(3, 1)).hex() == "01" + "93" + "02" + "03" + "01"


# H9: the journal has no checksum, its compaction is no single step, and a damaged snapshot means an empty start


def test_h9_unguarded_loses_most_of_a_journal_that_is_being_shortened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = FileJournal(str(tmp_path / "journal"))
    for index in range(1, 501):
        journal.add(b"\x00entry", index, 1)
    added: list[tuple[Any, ...]] = []

    def dying_add(self: FileJournal, *entry: Any) -> None:
        if len(added) == 10:
            raise KeyboardInterrupt
        added.append(entry)
        original(self, *entry)

    original: Any = FileJournal.add
    monkeypatch.setattr(FileJournal, "add", dying_add)
    with pytest.raises(KeyboardInterrupt):
        journal.deleteEntriesTo(5)
    journal._destroy()
    assert len(FileJournal(str(tmp_path / "journal"))) == 10


def test_h9_unguarded_accepts_damaged_entries(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = FileJournal(str(path))
    journal.add(b"\x00entry", 1, 1)
    journal._destroy()
    path.write_bytes(path.read_bytes().replace(b"entry", b"ent2y"))
    assert FileJournal(str(path))[0] == (b"\x00ent2y", 1, 1)


def test_h9_unguarded_starts_empty_from_a_damaged_snapshot(tmp_path: Path) -> None:
    (tmp_path / "snapshot").write_bytes(b"damaged")
    net = Net(1, fullDumpFile=str(tmp_path / "snapshot"))
    net.leader()
    assert net.nodes["1"].values == []


def world_with_a_snapshot() -> RaftWorld:
    world = RaftWorld([1], start=False)
    world.journal_bytes_min = 1
    voter = world.voters[1]
    voter.start()
    world.leader()
    for number in range(30):
        voter.propose(b"%d" % number)
        world.run(0.01)
    assert engine_of(voter).journal.first_index > 1
    return world


def test_h9_guarded_a_kill_at_any_step_of_shortening_loses_nothing() -> None:
    lived = False
    for step in range(200):
        world = RaftWorld([1], start=False)
        world.journal_bytes_min = 1
        voter = world.voters[1]
        voter.start()
        world.leader()
        voter.disk.kill_after = step
        outcomes = []
        try:
            for number in range(12):
                outcomes.append(voter.propose(b"%d" % number))
                world.run(0.01)
            lived = voter.disk.kill_after > 0
        except ProcessKilled:
            pass
        committed = sum(outcome == [None] for outcome in outcomes)
        voter.stop(power_fails=True)
        voter.start()
        world.leader()
        assert [group[0] for group in voter.groups][:committed] == [
            b"%d" % number for number in range(committed)
        ]
        if lived:
            break
    assert lived, "the last run was not killed at all"


@pytest.mark.parametrize("name", ["raft.journal", "raft.snapshot"])
def test_h9_guarded_damage_is_refused(name: str) -> None:
    world = world_with_a_snapshot()
    voter = world.voters[1]
    voter.stop()
    data = voter.disk.files[f"/meta/{name}"].data
    for position in range(0, len(data) // 2, 7):
        data[position] ^= 4
        with pytest.raises(MetadataError, match=f"/meta/{name} is damaged"):
            voter.start()
        voter.log = None
        data[position] ^= 4
    voter.start()
    world.leader()
    assert len(voter.groups) == 30


@pytest.mark.parametrize("name", ["raft.journal", "raft.snapshot"])
def test_h9_guarded_missing_or_older_files_are_refused(name: str) -> None:
    world = world_with_a_snapshot()
    voter = world.voters[1]
    other = world_with_a_snapshot().voters[1]
    for number in range(200):
        voter.propose(b"%d" % number)
        world.run(0.01)
    voter.stop()
    voter.disk.remove(f"/meta/{name}")
    with pytest.raises(MetadataError, match=f"/meta/{name} is missing"):
        voter.start()
    voter.log = None
    if name == "raft.snapshot":
        other.stop()
        voter.disk.write_file(f"/meta/{name}", bytes(other.disk.files[f"/meta/{name}"].data))
        with pytest.raises(MetadataError, match="what lies between them is lost"):
            voter.start()


# H10: a node that comes back with nothing under its old id is counted as if it knew all


def test_h10_unguarded_loses_committed_entries() -> None:
    net = Net(3)
    net.elect("1")
    net.cut = {("1", "3"), ("3", "1")}
    with net.time():
        net.nodes["1"].put("x")
    net.run(1.0)
    assert net.nodes["1"].values == ["x"], "held by two of three"
    net.stop("1")
    net.start("2")  # with a journal in memory: all gone
    net.elect("3")
    net.run(1.0)
    assert net.nodes["3"].values == []


def test_h10_guarded() -> None:
    world = RaftWorld()
    leader = world.leader()
    leader.propose(b"x")
    world.run(0.1)
    world.genesis = None  # it is given once, before the first start
    for voter in world.voters.values():
        if voter is not leader:
            voter.stop()
            voter.disk.remove_tree("/meta")
            with pytest.raises(MetadataError, match="bring it back as a new one"):
                voter.start()
            voter.log = None


# H11: fork in a process with threads


class ForkedError(Exception):
    pass


def forbid_fork(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    forks: list[str] = []

    def fork() -> NoReturn:
        forks.append("fork")
        raise ForkedError

    monkeypatch.setattr(os, "fork", fork)
    return forks


def test_h11_unguarded_forks_for_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forks = forbid_fork(monkeypatch)
    net = Net(1, fullDumpFile=str(tmp_path / "snapshot"))
    net.leader()
    net.nodes["1"].forceLogCompaction()
    with pytest.raises(ForkedError):
        net.run(0.1)
    assert forks


def test_h11_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    forks = forbid_fork(monkeypatch)
    threads = threading.active_count()
    world_with_a_snapshot()
    assert not forks
    assert threading.active_count() <= threads  # those that tests before it have left may end


# H12: what the socket did not take at once stays behind


def test_h12_unguarded_never_sends_the_rest() -> None:
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        end.setblocking(False)
    poller = SelectPoller()
    connection = TcpConnection(poller, socket=ours)
    poller.poll(0.1)
    connection.send(os.urandom(1_000_000))
    left = connection.getSendBufferSize()
    assert left > 0
    received = 0
    for _ in range(100):
        poller.poll(0.001)
        try:
            while data := theirs.recv(1 << 20):
                received += len(data)
        except BlockingIOError:
            pass
    assert connection.getSendBufferSize() == left
    assert received < 1_000_000
    connection.disconnect()
    theirs.close()


def test_h12_guarded_a_full_connection_loses_nothing() -> None:
    world = RaftWorld()
    leader = world.leader()
    carry = world.carry
    world.carry = lambda sender, receiver, message: False  # type: ignore[method-assign]
    outcomes = [leader.propose(b"%d" % number) for number in range(5)]
    world.run(0.1)
    assert outcomes == [[]] * 5
    world.carry = carry  # type: ignore[method-assign]
    world.run(0.2)
    assert outcomes == [[None]] * 5
    assert world.leaders == [leader]


# H13: who is alone never sends, so 'sync before sending' syncs nothing


def test_h13_unguarded_reports_success_without_a_send(tmp_path: Path) -> None:
    sent: list[Any] = []
    net = Net(1, journalFile=str(tmp_path / "journal"))
    net.leader()
    net.wires["1"].send = lambda node, message: sent.append(message) or True  # type: ignore[method-assign, func-returns-value]
    outcomes: list[Any] = []
    with net.time():
        net.nodes["1"].put("x", callback=lambda _, reason: outcomes.append(reason))
    net.run(0.5)
    assert outcomes == [0]
    assert sent == [], "there was no moment to sync at"


def test_h13_guarded() -> None:
    world = RaftWorld([1])
    voter = world.leader()
    voter.runtime.thread_delay_s = lambda: 0.2  # a slow disk
    outcomes = voter.propose(b"x")
    world.run(0.1)
    assert outcomes == [], "it is not on disk"
    world.run(0.2)
    assert outcomes == [None]
    voter.stop(power_fails=True)
    voter.start()
    world.leader()
    assert voter.groups == [(b"x",)]


# H16: pickle inside


def no_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise AssertionError("pickle was used")

    for module in (pickle, library_pickle):
        for name in ("load", "loads", "dump", "dumps"):
            monkeypatch.setattr(module, name, refuse)
    monkeypatch.setattr(library_journal, "loads", refuse)
    monkeypatch.setattr(library_journal, "dumps", refuse)


def test_h16_unguarded_pickles_every_command(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net(1)
    net.leader()
    no_pickle(monkeypatch)
    with pytest.raises(AssertionError, match="pickle was used"), net.time():
        net.nodes["1"].put("x")


def test_h16_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    no_pickle(monkeypatch)
    world = RaftWorld(start=False)
    world.journal_bytes_min = 1
    for voter in world.voters.values():
        voter.start()
    leader = world.leader()
    late = next(voter for voter in world.voters.values() if voter is not leader)
    late.stop()
    for number in range(100):
        leader.propose(b"%d" % number)
        world.run(0.01)
    late.start()
    world.run(1.0)
    assert late.groups == leader.groups
    assert late.replaced == 3, "at both starts, and then a snapshot came from the leader"
