"""The Raft log as the library reads and changes it: in memory, with the changes that are not on disk yet.

Every change of term, vote or entries has a number. `take_changes` returns all changes since its last call as one frame, which is
written and synced together. Until then no message that depends on them may be sent (outbox.py). A journal that was shortened at
its front, or begins again after a snapshot, is rewritten as a whole.

The journal also knows the voters that its entries name. They count from the moment when such an entry is added until it is deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import overload

from pysyncobj.journal import Journal

from barnabas.controller.raft.commands import voters_in
from barnabas.controller.raft.files import NOT_VOTED, Changes, JournalContent, JournalFrame, Snapshot
from barnabas.controller.raft.messages import Entry
from barnabas.controller.raft.voters import CONFIGURED, VoterHistory, VoterSet, voter_set

LibraryEntry = tuple[bytes, int, int]  # (command, index, term), as the library has it


class RaftJournal(Journal):
    """Implements pysyncobj.journal.Journal."""

    def __init__(self, content: JournalContent, configured: VoterSet = (), *, is_blank: bool = False) -> None:
        """`configured`: the voters while neither a snapshot nor an entry names any. `is_blank`: see files.Loaded."""
        self.is_blank = is_blank
        self.voters = VoterHistory(CONFIGURED, configured)
        self.on_voters: Callable[[], object] = lambda: None  # called when the last set has changed
        self.change_number = 0
        self.term_change_number = 0  # of the last change of term or vote
        self.entries: list[LibraryEntry] = [to_library(entry) for entry in content.entries]
        self.bytes = sum(len(entry.command) for entry in content.entries)
        self._term = content.term
        self._voted_for = content.voted_for
        self._commit_index = self._written_commit_index = content.commit_index
        self._taken_number = 0
        self._kept_index = (
            content.entries[-1].index if content.entries else 0
        )  # of the last valid entry on disk
        self._replaces = False  # the next frame replaces the file
        self._snapshot: Snapshot | None = None

    # The library's side

    def add(self, command: bytes, idx: int, term: int) -> None:
        self.entries.append((command, idx, term))
        self.bytes += len(command)
        self.change_number += 1
        self._read_voters(command, idx)

    def clear(self) -> None:
        """The library calls this only before it adds the two entries of a snapshot."""
        self.entries.clear()
        self.bytes = 0
        self.rewrite()

    def deleteEntriesFrom(self, entryFrom: int) -> None:  # noqa: N802, N803 - the library's names
        removed = self.entries[entryFrom:]
        if not removed:
            return
        del self.entries[entryFrom:]
        self.bytes -= sum(len(command) for command, _, _ in removed)
        self._kept_index = min(self._kept_index, removed[0][1] - 1)
        self.change_number += 1
        if self.voters.cut(removed[0][1]):
            self.on_voters()

    def deleteEntriesTo(self, entryTo: int) -> None:  # noqa: N802, N803
        removed = self.entries[:entryTo]
        if not removed:
            return
        del self.entries[:entryTo]
        self.bytes -= sum(len(command) for command, _, _ in removed)
        self.voters.forget_before(self.first_index)
        self.rewrite()

    @overload
    def __getitem__(self, item: int) -> LibraryEntry: ...

    @overload
    def __getitem__(self, item: slice) -> list[LibraryEntry]: ...

    def __getitem__(self, item: int | slice) -> LibraryEntry | list[LibraryEntry]:
        return self.entries[item]

    def __len__(self) -> int:
        return len(self.entries)

    def _destroy(self) -> None:
        """Nothing: RaftFiles owns the file."""

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:  # noqa: N802, N803
        """Written with the next frame: it shortens a start, and no message depends on it."""
        self._commit_index = raftCommitIndex

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        return min(self._commit_index, self.entries[-1][1])

    def setCurrentTerm(self, term: int, votedForNodeId: int | None) -> None:  # noqa: N802, N803
        self._term = term
        self._voted_for = NOT_VOTED if votedForNodeId is None else votedForNodeId
        self.change_number += 1
        self.term_change_number = self.change_number

    def getCurrentTerm(self) -> int:  # noqa: N802
        return self._term

    def getVotedForNodeId(self) -> int | None:  # noqa: N802
        return None if self._voted_for == NOT_VOTED else self._voted_for

    def onOneSecondTimer(self) -> None:  # noqa: N802
        if self._commit_index != self._written_commit_index:
            self.change_number += 1

    # Our side

    def begin_after(self, snapshot: Snapshot) -> None:
        """Read the voters from the snapshot on disk, and from the entries after it."""
        self._take_voters(snapshot)
        for command, index, _ in self.entries:
            if index > snapshot.last.index:
                self._read_voters(command, index)

    def replaced_by(self, snapshot: Snapshot) -> None:
        """The library is about to replace all entries by this snapshot of the leader. Write it before the next frame."""
        self.is_blank = False
        self.keep_snapshot(snapshot)
        self._take_voters(snapshot)
        self.on_voters()

    def _take_voters(self, snapshot: Snapshot) -> None:
        voters = None if snapshot.voters is None else voter_set(snapshot.voters)
        self.voters.restart(snapshot.last.index, voters)

    def _read_voters(self, command: bytes, index: int) -> None:
        found = voters_in(command)
        if found is not None and index > self.voters.index:
            self.voters.append(index, voter_set(found))
            self.on_voters()

    def entry_at(self, index: int) -> LibraryEntry | None:
        at = index - self.entries[0][1]
        return self.entries[at] if 0 <= at < len(self.entries) else None

    @property
    def first_index(self) -> int:
        return self.entries[0][1]

    @property
    def last_index(self) -> int:
        return self.entries[-1][1]

    @property
    def has_changes(self) -> bool:
        return self.change_number > self._taken_number or self._snapshot is not None

    def rewrite(self) -> None:
        """The next frame replaces the file with what is in memory."""
        self._replaces = True
        self._kept_index = 0
        self.change_number += 1

    def keep_snapshot(self, snapshot: Snapshot) -> None:
        """Write it before the next frame."""
        self._snapshot = snapshot

    def write_again(self, changes: Changes) -> None:
        """These changes may not be on disk: write them again, with the whole journal."""
        if self._snapshot is None:
            self._snapshot = changes.snapshot
        self.rewrite()

    def take_changes(self) -> Changes:
        """All changes that are neither on disk nor in flight. They count as written from now on."""
        snapshot, self._snapshot = self._snapshot, None
        replaces, self._replaces = self._replaces, False
        frame = None
        if self.change_number > self._taken_number:
            frame = JournalFrame(
                self._term, self._voted_for, self._commit_index, self._kept_index, self._entries_after_kept()
            )
            self._kept_index = self.last_index
            self._written_commit_index = self._commit_index
        self._taken_number = self.change_number
        return Changes(self.change_number, snapshot, frame, replaces)

    def _entries_after_kept(self) -> list[Entry]:
        start = max(0, self._kept_index + 1 - self.first_index)
        return [from_library(entry) for entry in self.entries[start:]]


def same_entry(entry: LibraryEntry | None, other: Entry) -> bool:
    return entry is not None and entry[1] == other.index and entry[2] == other.term


def to_library(entry: Entry) -> LibraryEntry:
    return entry.command, entry.index, entry.term


def from_library(entry: LibraryEntry) -> Entry:
    command, index, term = entry
    return Entry(index, term, command)
