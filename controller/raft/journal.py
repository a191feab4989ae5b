"""The Raft log as the library reads and changes it: in memory, with an account of what is not on disk yet.

Every change of term, vote or entries has a number. `take_changes` hands over all changes since the last time as one
frame, to be written and synced in one go; until that has happened nothing may be sent that depends on them
(outbox.py). A journal that was shortened at its front, or begun anew behind a snapshot, is written anew as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from pysyncobj.journal import Journal

from barnabas.controller.raft.files import NOT_VOTED, Changes, JournalContent, JournalFrame, Snapshot
from barnabas.controller.raft.messages import Entry

LibraryEntry = tuple[bytes, int, int]  # (command, index, term), as the library has it


class RaftJournal(Journal):
    """Implements pysyncobj.journal.Journal."""

    def __init__(self, content: JournalContent) -> None:
        self.change_number = 0
        self.term_change_number = 0  # of the last change of term or vote
        self.entries: list[LibraryEntry] = [
            (entry.command, entry.index, entry.term) for entry in content.entries
        ]
        self.bytes = sum(len(entry.command) for entry in content.entries)
        self._term = content.term
        self._voted_for = content.voted_for
        self._commit_index = self._written_commit_index = content.commit_index
        self._taken_number = 0
        self._kept_index = content.entries[-1].index if content.entries else 0  # on disk, and still valid
        self._anew = False
        self._snapshot: Snapshot | None = None

    # The library's side

    def add(self, command: bytes, idx: int, term: int) -> None:
        self.entries.append((command, idx, term))
        self.bytes += len(command)
        self.change_number += 1

    def clear(self) -> None:
        """Only before the two entries of a snapshot are added."""
        self.entries.clear()
        self.bytes = 0
        self.write_anew()

    def deleteEntriesFrom(self, entryFrom: int) -> None:  # noqa: N802, N803 - the library's names
        removed = self.entries[entryFrom:]
        if not removed:
            return
        del self.entries[entryFrom:]
        self.bytes -= sum(len(command) for command, _, _ in removed)
        self._kept_index = min(self._kept_index, removed[0][1] - 1)
        self.change_number += 1

    def deleteEntriesTo(self, entryTo: int) -> None:  # noqa: N802, N803
        removed = self.entries[:entryTo]
        if not removed:
            return
        del self.entries[:entryTo]
        self.bytes -= sum(len(command) for command, _, _ in removed)
        self.write_anew()

    @overload
    def __getitem__(self, item: int) -> LibraryEntry: ...

    @overload
    def __getitem__(self, item: slice) -> list[LibraryEntry]: ...

    def __getitem__(self, item: int | slice) -> LibraryEntry | list[LibraryEntry]:
        return self.entries[item]

    def __len__(self) -> int:
        return len(self.entries)

    def _destroy(self) -> None:
        """The file is closed elsewhere."""

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:  # noqa: N802, N803
        """Goes to disk with the next frame: nothing depends on it, it only shortens a start."""
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

    def write_anew(self) -> None:
        """The next frame starts the file anew: all that counts is in memory."""
        self._anew = True
        self._kept_index = 0
        self.change_number += 1

    def keep_snapshot(self, snapshot: Snapshot) -> None:
        """Write it before the next frame."""
        self._snapshot = snapshot

    def write_again(self, changes: Changes) -> None:
        """These changes may not be on disk: what has failed is done again, whole."""
        if self._snapshot is None:
            self._snapshot = changes.snapshot
        self.write_anew()

    def take_changes(self) -> Changes:
        """All that is neither on disk nor in flight. Taken changes count as written."""
        snapshot, self._snapshot = self._snapshot, None
        anew, self._anew = self._anew, False
        frame = None
        if self.change_number > self._taken_number:
            frame = JournalFrame(
                self._term, self._voted_for, self._commit_index, self._kept_index, self._entries_behind()
            )
            self._kept_index = self.last_index
            self._written_commit_index = self._commit_index
        self._taken_number = self.change_number
        return Changes(self.change_number, snapshot, frame, anew)

    def _entries_behind(self) -> list[Entry]:
        start = max(0, self._kept_index + 1 - self.first_index)
        return [Entry(index, term, command) for command, index, term in self.entries[start:]]


def same_entry(entry: LibraryEntry | None, other: Entry) -> bool:
    return entry is not None and entry[1] == other.index and entry[2] == other.term


def to_library(entries: Sequence[Entry]) -> list[LibraryEntry]:
    return [(entry.command, entry.index, entry.term) for entry in entries]
