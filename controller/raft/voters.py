"""The voters of the quorum, as the Raft log names them (KIP-853).

A quorum begins with configured voters. Once its log has a `Voters` entry (commands.py), the last one in a node's log counts there,
committed or not: a change takes effect on each node when the entry is appended, and is undone when the entry is cut off. Each entry
names the whole set, so both need no more than a look at the log. What a snapshot covers is committed, so its voters are never undone.

The rules that make this safe are those of single-server changes (Ongaro's dissertation, 4.1 and its correction):

- two sets in a row differ by one voter, so a majority of one has a member in common with any majority of the other;
- a leader appends a set only when the last one, and an entry of its own term, are committed (raft_log.py);
- majorities are counted over the last set in the log, without a leader that is no member of it (library.py);
- votes are granted whether or not the candidate or this node is in this node's set: either log may be behind the other. A node without
  its first snapshot grants none: a new voter has caught up before it is added, so it is none, or has lost its files;
- a node campaigns while it is in the last set that it knows to be committed, or in a later one. So one whose removal is in its own
  log alone can still be elected, and commit it;
- a leader that is no voter once its removal is committed resigns.

A node is known by its id and by its metadata directory, which holds its vote and entries (`Directory`). A node with the id of a voter
and another directory takes no part: the others don't count it (engine.py), and it does not count itself, so that by an old set, of a
snapshot that it has begun with, it can't elect itself. A directory that was emptied is another one, though its id is the same: a node
that begins without metadata makes a join id, which is kept beside Raft's files and lost with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec


class Directory(NamedTuple):
    """A metadata directory. `directory_id`: 16 bytes of its meta.properties; empty where voters are not known by theirs. `join_id`: 16
    random bytes, made when the node joined the quorum with it; empty where the quorum was formed with it."""

    directory_id: bytes = b""
    join_id: bytes = b""

    def is_same(self, other: Directory) -> bool:
        is_known = self.directory_id and other.directory_id
        return self.join_id == other.join_id and (not is_known or self.directory_id == other.directory_id)


UNKNOWN_DIRECTORY: Final = Directory()


class Voter(msgspec.Struct, array_like=True, frozen=True):
    """A member of the quorum. `directory_id`, `join_id`: its Directory."""

    node_id: int
    host: str
    port: int
    directory_id: bytes = b""
    join_id: bytes = b""

    def is_node(self, node_id: int, directory: Directory) -> bool:
        """Whether it is the node with this id and metadata directory."""
        return self.node_id == node_id and directory.is_same(Directory(self.directory_id, self.join_id))


VoterSet = tuple[Voter, ...]  # by node id


def voter_set(voters: Iterable[Voter]) -> VoterSet:
    """These voters in order of their ids."""
    return tuple(sorted(voters, key=lambda voter: voter.node_id))


def ids_of(voters: Iterable[Voter]) -> list[int]:
    return [voter.node_id for voter in voters]


def is_single_change(old: Iterable[Voter], new: Iterable[Voter]) -> bool:
    """Whether a voter is added or removed, or none is: then majorities of both sets have a voter in common. A voter with another
    directory counts as another voter."""
    before = {(voter.node_id, voter.directory_id, voter.join_id) for voter in old}
    after = {(voter.node_id, voter.directory_id, voter.join_id) for voter in new}
    return bool(after) and len(before ^ after) <= 1


CONFIGURED: Final = 0  # index of voters that no entry of the log names


class VoterHistory:
    """The sets of voters in one node's log: those of its beginning, and one for each `Voters` entry after it."""

    def __init__(self, index: int, voters: VoterSet) -> None:
        """`index`: that of an entry which is committed, up to which `voters` are the set; CONFIGURED for the configured ones."""
        self._sets: list[tuple[int, VoterSet]] = [(index, voters)]

    @property
    def index(self) -> int:
        """Of the entry that names the last set, or an entry up to which a snapshot covers it."""
        return self._sets[-1][0]

    @property
    def last(self) -> VoterSet:
        return self._sets[-1][1]

    @property
    def are_recorded(self) -> bool:
        """Whether the log names the voters, and not the configuration."""
        return self.index > CONFIGURED

    def append(self, index: int, voters: VoterSet) -> None:
        assert index > self.index
        self._sets.append((index, voters))

    def cut(self, index: int) -> bool:
        """Forget the entries from `index` on; whether one of them named voters."""
        kept = [each for each in self._sets[1:] if each[0] < index]
        is_cut = len(kept) + 1 < len(self._sets)
        self._sets[1:] = kept
        return is_cut

    def restart(self, index: int, voters: VoterSet | None) -> None:
        """The log begins again after a snapshot up to `index`; None: it names no voters."""
        self._sets = [self._sets[0] if voters is None else (index, voters)]

    def recorded_at(self, index: int) -> VoterSet | None:
        """The voters that the log names up to entry `index`, None where it names none."""
        found = [each for each in self._sets if each[0] <= index]
        return found[-1][1] if found and found[-1][0] > CONFIGURED else None

    def forget_before(self, index: int) -> None:
        """Sets before the one of the committed entry `index` are no longer needed."""
        while len(self._sets) > 1 and self._sets[1][0] <= index:
            del self._sets[0]

    def committed(self, applied_index: int) -> tuple[int, VoterSet]:
        """The last set up to this entry, and the entry that names it (see `index`)."""
        return next(
            each for each in reversed(self._sets) if each[0] <= applied_index or each is self._sets[0]
        )

    def possible(self, commit_index: int) -> list[VoterSet]:
        """The last set that is known to be committed, and those after it: one of them is the quorum's."""
        first = max(at for at, (index, _) in enumerate(self._sets) if at == 0 or index <= commit_index)
        return [voters for _, voters in self._sets[first:]]
