"""What of an append may reach the library, which cuts its log wherever a message begins and believes its length.

A message may be late, doubled, or begin before what has been compacted here. So: what this node holds already is
taken off its front; the log is cut only where an entry contradicts; the commit index moves no further than the
message has verified; and the answer claims no more than that either.
"""

from __future__ import annotations

from typing import NamedTuple

from barnabas.controller.raft.journal import RaftJournal, same_entry
from barnabas.controller.raft.messages import Append, Entry


class Contradiction(Exception):
    """The message contradicts a committed entry: either this node's log or the leader's is damaged."""


class Fitted(NamedTuple):
    """An append as the library may have it. `next_index` is what a success may claim, None for the library's own."""

    commit_index: int
    previous_index: int
    previous_term: int
    entries: list[Entry]
    next_index: int | None


def fit_append(message: Append, journal: RaftJournal, applied_index: int) -> Fitted | int:
    """What may be passed on; or, when it does not follow what is here, the index from which it might.
    Contradiction when it would undo what has been applied."""
    verified = message.previous_index + len(message.entries)
    commit_index = min(message.commit_index, verified)
    previous, previous_term, entries = message.previous_index, message.previous_term, message.entries
    first, last = journal.first_index, journal.last_index
    if previous < first:
        # All up to the first entry kept is committed, so the leader has the same.
        entries = entries[first - previous :]
        previous = min(first, verified)
    elif previous > last:
        return last + 1
    elif journal.entries[previous - first][2] != previous_term:
        return _start_of_term(journal, previous, applied_index)
    held = 0
    for entry in entries:
        own = journal.entry_at(entry.index)
        if not same_entry(own, entry):
            break
        if own is not None and own[0] != entry.command:
            raise Contradiction(f"entry {entry.index} of term {entry.term} is not the same on two nodes")
        held += 1
    if held < len(entries):
        previous += held
        if previous < min(last, applied_index):
            raise Contradiction(
                f"entry {previous + 1} has been committed, and the leader of term {message.term} has another"
            )
        return Fitted(commit_index, previous, journal.entries[previous - first][2], entries[held:], None)
    return Fitted(commit_index, last, journal.entries[-1][2], [], verified + 1)


def _start_of_term(journal: RaftJournal, index: int, applied_index: int) -> int:
    """The first entry of the run of one term that `index` lies in, among those that are not committed: from one
    term to the next is a few steps, from entry to entry may be thousands."""
    first = journal.first_index
    term = journal.entries[index - first][2]
    while index - 1 > max(applied_index, first) and journal.entries[index - 1 - first][2] == term:
        index -= 1
    return index
