"""A voter's files against a model that is a list: synced changes survive every fault."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.controller.metadata.errors import MetadataError
from barnabas.controller.raft.files import RaftFiles, Snapshot, decode_journal
from barnabas.controller.raft.journal import LibraryEntry, RaftJournal
from barnabas.controller.raft.messages import Entry
from barnabas.testing.memory_disk import MemoryDisk, ProcessKilled

State = tuple[int, int | None, list[LibraryEntry]]
DIRECTORY = "/meta"


class Voter:
    """The journal and its files, and what they should hold."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.disk = disk
        self.files = RaftFiles(disk, DIRECTORY)
        loaded = self.files.load(([], -1))
        self.snapshot = loaded.snapshot
        self.journal = RaftJournal(loaded.content)
        self.journal.rewrite()
        self.flush()

    def flush(self) -> None:
        self.files.write(self.journal.take_changes())

    @property
    def state(self) -> State:
        journal = self.journal
        return journal.getCurrentTerm(), journal.getVotedForNodeId(), list(journal.entries)

    def add(self, size: int = 10) -> None:
        journal = self.journal
        journal.add(b"\x00" + bytes([65]) * size, journal.last_index + 1, journal.getCurrentTerm())

    def change(self, random: Random) -> None:
        journal = self.journal
        what = random.random()
        if what < 0.5:
            self.add(random.choice([0, 10, 700]))
        elif what < 0.65:
            journal.setCurrentTerm(journal.getCurrentTerm() + 1, random.choice([None, 1, 2, 3]))
        elif what < 0.8 and len(journal) > 2:
            journal.deleteEntriesFrom(random.randrange(max(2, len(journal) - 4), len(journal)))
        elif what < 0.9:
            journal.setRaftCommitIndex(random.randrange(1, journal.last_index + 1))
        elif len(journal) > 4:
            self.shorten(random.randrange(1, len(journal) - 1))

    def shorten(self, at: int) -> None:
        """A snapshot up to the entry at this place, then the journal without what is before it."""
        journal = self.journal
        previous, last = (Entry(index, term, command) for command, index, term in journal[at - 1 : at + 1])
        journal.keep_snapshot(Snapshot(previous, last, 0, -1, []))
        self.flush()
        journal.deleteEntriesTo(at - 1)


def loaded_state(disk: MemoryDisk) -> State:
    return Voter(disk).state


def state_or_damage(content: bytes) -> State | str:
    """What a journal of these bytes leads to, or why it is refused."""
    try:
        return loaded_state(with_journal(content))
    except MetadataError as error:
        return str(error)


@given(st.integers(0, 1 << 30))
def test_synced_changes_survive_and_nothing_else_appears(seed: int) -> None:
    random = Random(seed)
    disk = MemoryDisk()
    disk.sector = random.choice([16, 64, 512])
    disk.ordered_names = random.random() < 0.5
    voter = Voter(disk)
    synced = states = [voter.state]
    try:
        for _ in range(random.randrange(25)):
            if random.random() < 0.1:
                disk.kill_after = random.randrange(6)
                disk.torn_bytes = random.randrange(100)
            for _ in range(random.randrange(4)):
                states = [synced[-1], voter.state]
                voter.change(random)
            states = [synced[-1], voter.state]
            voter.flush()
            synced = states = [voter.state]
    except ProcessKilled:
        states = [*states, voter.state]
    disk.revive()
    if random.random() < 0.7:
        luck = random.choice([0.0, 0.5, 1.0])
        disk = disk.crash(lambda n: random.randint(0, n) if 0 < luck < 1 else round(luck * n))
    found = loaded_state(disk)
    assert any(found == state or is_shortened(found, state) for state in states)
    assert loaded_state(disk) == found


def is_shortened(found: State, state: State) -> bool:
    """The same but for entries that a snapshot covers."""
    return found[:2] == state[:2] and found[2] == state[2][-len(found[2]) :]


def filled() -> tuple[Voter, list[State], bytes]:
    """A journal of several frames; the states behind each; its bytes."""
    voter = Voter(MemoryDisk())
    states = [voter.state]
    random = Random(7)
    for _ in range(12):
        voter.journal.setCurrentTerm(voter.journal.getCurrentTerm() + 1, 2)
        for _ in range(random.randrange(4)):
            voter.add(random.randrange(30))
        if random.random() < 0.3:
            voter.journal.deleteEntriesFrom(len(voter.journal) - 1)
        voter.flush()
        states.append(voter.state)
    return voter, states, voter.disk.read_file(voter.files.journal_path)


def with_journal(content: bytes) -> MemoryDisk:
    disk = Voter(MemoryDisk()).disk
    disk.write_file(f"{DIRECTORY}/raft.journal", content)
    return disk


def test_a_torn_tail_is_dropped_at_every_byte() -> None:
    _, states, content = filled()
    found: list[State] = []
    for length in range(len(content), 0, -1):
        state = state_or_damage(content[:length])
        if isinstance(state, str):
            assert "is damaged" in state
            assert length < 60, "the first frame was written in one step with the file"
        elif not found or found[-1] != state:
            found.append(state)
    assert found == states[::-1]


@pytest.mark.parametrize("bit", [0, 3, 7])
def test_a_flipped_bit_is_refused_unless_it_is_in_the_last_frame(bit: int) -> None:
    _, states, content = filled()
    refused = 0
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << bit
        state = state_or_damage(bytes(damaged))
        if isinstance(state, str):
            assert "is damaged" in state
            refused += 1
        else:
            assert state == states[-2]
    last = len(content) - decode_journal(content[:-1], "").end
    assert refused == len(content) - last


def test_a_tail_of_zeros_is_dropped() -> None:
    _, states, content = filled()
    assert loaded_state(with_journal(content + bytes(1000))) == states[-1]


def test_a_file_of_another_format_is_refused() -> None:
    for content in (b"", b"BARN", b"\x00" * 100, b"BARNJNL1" + b"\x00" * 100):
        with pytest.raises(MetadataError, match=r"raft\.journal is damaged"):
            loaded_state(with_journal(content))


def test_the_journal_is_rewritten_after_a_failed_write() -> None:
    voter = Voter(MemoryDisk())
    voter.add()
    changes = voter.journal.take_changes()
    voter.disk.short_write = 5
    voter.disk.fault = lambda operation, _: 5 if operation == "sync" else None
    with pytest.raises(OSError, match="Input/output error"):
        voter.files.write(changes)
    voter.add()
    voter.disk.fault = voter.disk.short_write = None
    voter.journal.write_again(changes)
    voter.flush()
    assert loaded_state(voter.disk.crash(lambda _: 0)) == voter.state


def test_a_snapshot_from_the_leader_that_came_before_the_journal_was_replaced() -> None:
    voter = Voter(MemoryDisk())
    voter.journal.setCurrentTerm(3, 2)
    for _ in range(5):
        voter.add()
    voter.flush()
    snapshot = Snapshot(Entry(50, 2, b"\x01"), Entry(51, 3, b"\x01"), 3, 70, [b"r"])
    voter.journal.keep_snapshot(snapshot)
    voter.journal.clear()
    voter.journal.add(b"\x01", 50, 2)
    voter.journal.add(b"\x01", 51, 3)
    changes = voter.journal.take_changes()
    voter.disk.kill_after = 5  # behind the snapshot, before the journal
    with pytest.raises(ProcessKilled):
        voter.files.write(changes)
    voter.disk.revive()
    again = Voter(voter.disk)
    assert again.snapshot == snapshot
    assert again.state == (3, 2, [(b"\x01", 50, 2), (b"\x01", 51, 3)]), "and the vote is not forgotten"


def test_the_vote_is_not_forgotten() -> None:
    voter = Voter(MemoryDisk())
    for term, vote in ((1, 3), (2, None), (3, 1)):
        voter.journal.setCurrentTerm(term, vote)
        voter.flush()
        assert loaded_state(voter.disk.crash(lambda _: 0))[:2] == (term, vote)


def test_the_commit_index_goes_with_the_next_frame() -> None:
    voter = Voter(MemoryDisk())
    for _ in range(3):
        voter.add()
    voter.journal.setRaftCommitIndex(4)
    assert not voter.files.write(voter.journal.take_changes())
    voter.journal.setRaftCommitIndex(5)
    assert not voter.journal.has_changes, "nothing waits for it"
    assert Voter(voter.disk.crash(lambda _: 0)).journal.getRaftCommitIndex() == 4
    voter.journal.onOneSecondTimer()
    assert voter.journal.has_changes
    voter.flush()
    assert Voter(voter.disk.crash(lambda _: 0)).journal.getRaftCommitIndex() == 5


def test_a_first_start_interrupted_at_any_step_is_repeated() -> None:
    for step in range(40):
        disk = MemoryDisk()
        disk.kill_after = step
        killed: list[Any] = []
        try:
            RaftFiles(disk, DIRECTORY).load(([b"r"], 0))
        except ProcessKilled:
            killed.append(step)
        disk.revive()
        loaded = RaftFiles(disk.crash(lambda _: 0), DIRECTORY).load(([b"r"], 0))
        assert loaded.snapshot.records == [b"r"]
        if not killed:
            return
    raise AssertionError("killed at every step")
