"""pysyncobj's transport: it checks every message to and from the library.

To the library:
- an append is fitted to the log first (`fit_append`), because the library cuts its log where a message begins and trusts the
  message's length. A message may be late, doubled, or begin before the first entry kept here. So entries that this node has are
  removed from its front; the log is cut only where an entry contradicts it; and neither the commit index nor the answer goes
  further than the message has verified. Entries of unknown kinds are refused before (messages.py);
- a snapshot arrives whole or not at all, and only where the log lacks its last entry; its messages carry no commit index, which
  the library would apply to the old log;
- progress counts in the term that it was made for, up to the end of the leader's own log;
- a vote counts once per voter and term, and only of a voter;
- a node that has nothing yet takes no entries before its first snapshot, because its log begins like any other. It asks for an
  entry that no other node asks for. Where it is a voter it has lost what it promised, and gets nothing while it is one;
- commands of other nodes are ignored: each node proposes only while it leads.
From the library: messages get the term that the library leaves out, and go to the outbox.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pysyncobj.transport import Transport

from barnabas.controller.metadata.errors import MetadataError
from barnabas.controller.raft.files import GENESIS_INDEX, Snapshot
from barnabas.controller.raft.journal import LibraryEntry, RaftJournal, from_library, same_entry, to_library
from barnabas.controller.raft.messages import (
    Append,
    AppendResponse,
    Entry,
    Heartbeat,
    Message,
    RequestVote,
    SnapshotChunk,
    TimeoutNow,
    Vote,
)
from barnabas.controller.raft.snapshots import Outgoing, RaftSnapshots

if TYPE_CHECKING:
    from pysyncobj.node import Node

    from barnabas.controller.raft.library import RaftLibrary

log = logging.getLogger("barnabas.raft")

NEVER_ELECTED: Final = -1  # index and term of a log that gets no votes
STEP_BYTES_MAX: Final = 8 << 20  # to one follower in one step


class Contradiction(Exception):
    """The message contradicts a committed entry: either this node's log or the leader's is damaged."""


class Fitted(NamedTuple):
    """An append that the library may process. `next_index`: for its answer; None to take the library's."""

    commit_index: int
    previous_index: int
    previous_term: int
    entries: list[Entry]
    next_index: int | None


def fit_append(message: Append, journal: RaftJournal, applied_index: int) -> Fitted | int:
    """The append for the library; or, when it does not follow this log, the index from which entries are needed.
    Contradiction when it would remove entries that have been applied."""
    verified = message.previous_index + len(message.entries)
    commit_index = min(message.commit_index, verified)
    previous, previous_term, entries = message.previous_index, message.previous_term, message.entries
    first, last = journal.first_index, journal.last_index
    if journal.is_blank:
        return GENESIS_INDEX - 1  # the leader keeps no entry before it, so it sends its snapshot
    if previous < first:
        # Entries up to the first one kept are committed, so the leader has the same.
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
    """Index of the first uncommitted entry with the same term as entry `index`. Going back term by term takes a few steps, entry
    by entry perhaps thousands."""
    first = journal.first_index
    term = journal.entries[index - first][2]
    while index - 1 > max(applied_index, first) and journal.entries[index - 1 - first][2] == term:
        index -= 1
    return index


class GuardedTransport(Transport):
    """See the module. `send_message(node id, message)` sends a message of the library; `install(snapshot)` applies a snapshot."""

    def __init__(
        self,
        library: RaftLibrary,
        journal: RaftJournal,
        snapshots: RaftSnapshots,
        send_message: Callable[[int, Message], object],
        install: Callable[[Snapshot], object],
    ) -> None:
        Transport.__init__(self, None, None, [])
        self._journal = journal
        self._snapshots = snapshots
        self._send_message = send_message
        self._install = install
        self._library = library
        self._sent: dict[int, int] = {}  # node id -> bytes in this step
        self._answer_term = 0  # of the message that is being answered
        self._next_index: int | None = None  # for the answer; None: the library's
        self._voted: dict[int, int] = {}  # node id -> the last term in which its vote was counted
        self._empty_voters: set[int] = set()  # which were logged
        self._reset_to: dict[
            int, int
        ] = {}  # node id -> lowest index that it has asked for since its last success

    # From the library

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        translated = self._translate(message)
        if translated is not None:
            self._send_message(node.id, translated)
            self._limit(node.id, translated)
        return True

    def _limit(self, node_id: int, message: Message) -> None:
        """Bound the bytes of one step. The library sends everything that a follower lacks, until the follower is disconnected;
        a connection has a bounded queue."""
        if isinstance(message, SnapshotChunk):
            size = len(message.data)
        elif isinstance(message, Append) and message.entries:
            size = sum(len(entry.command) for entry in message.entries)
        else:
            return
        sent = self._sent[node_id] = self._sent.get(node_id, 0) + size
        if sent >= STEP_BYTES_MAX:
            self._library.disconnected(node_id)

    def resume(self, connected: Container[int]) -> None:
        """At the end of a step. Sending continues at the next heartbeat."""
        for node_id, sent in self._sent.items():
            if sent >= STEP_BYTES_MAX and node_id in connected:
                self._library.connected(node_id)
        self._sent.clear()

    def _translate(self, message: dict[str, Any]) -> Message | None:
        kind = message["type"]
        if kind == "append_entries":
            return self._translate_append(message)
        if kind == "next_node_idx":
            success, reset = bool(message["success"]), bool(message["reset"])
            next_index = message["next_node_idx"]
            if success and self._next_index is not None:
                next_index = self._next_index
            return AppendResponse(self._answer_term, next_index if success or reset else 0, success, reset)
        if kind == "request_vote":
            return RequestVote(message["term"], message["last_log_index"], message["last_log_term"])
        if kind == "response_vote":
            return Vote(message["term"])
        if kind == "timeout_now":
            return TimeoutNow(message["term"])
        return None  # commands forwarded to the leader, and their answers

    def _translate_append(self, message: dict[str, Any]) -> Message:
        term = message["term"]
        if "serialized" in message:
            outgoing: Outgoing = message["serialized"]
            piece = outgoing.chunk
            return SnapshotChunk(term, piece.index, piece.index_term, piece.position, piece.size, piece.data)
        assert "transmission" not in message, "no command is as large as a batch"
        if message["prevLogIdx"] is None:
            return Heartbeat(term)
        entries: list[LibraryEntry] = message["entries"]
        return Append(
            term,
            message["commit_index"],
            message["prevLogIdx"],
            message["prevLogTerm"],
            [from_library(entry) for entry in entries],
        )

    # To the library

    def deliver(self, node_id: int, connection_number: int, message: Message) -> None:
        """One message from a voter. A leader's message has at least the term of this voter."""
        if isinstance(message, Append):
            self._append(node_id, message)
        elif isinstance(message, SnapshotChunk):
            self._chunk(node_id, connection_number, message)
        elif isinstance(message, Heartbeat):
            self._verified(node_id, message.term, 0, None)
        elif isinstance(message, AppendResponse):
            self._progress(node_id, message)
        elif isinstance(message, RequestVote):
            self._pass_on(
                node_id,
                {
                    "type": "request_vote",
                    "term": message.term,
                    "last_log_index": message.last_index,
                    "last_log_term": message.last_term,
                },
            )
        elif isinstance(message, Vote):
            is_new = self._voted.get(node_id) != message.term
            if is_new and message.term == self._library.term and node_id in self._library.nodes:
                self._voted[node_id] = message.term
                self._pass_on(node_id, {"type": "response_vote", "term": message.term})
        elif isinstance(message, TimeoutNow) and message.term == self._library.term:
            self._pass_on(node_id, {"type": "timeout_now", "term": message.term})

    def adopt(self, node_id: int, term: int) -> None:
        """Begin the newer term of a voter, without a leader and without a vote."""
        self._pass_on(
            node_id,
            {
                "type": "request_vote",
                "term": term,
                "last_log_index": NEVER_ELECTED,
                "last_log_term": NEVER_ELECTED,
            },
        )

    def _pass_on(self, node_id: int, message: dict[str, Any]) -> None:
        Transport._onMessageReceived(self, self._library.node(node_id), message)

    def _pass_append(
        self, node_id: int, term: int, content: dict[str, Any], next_index: int | None = None
    ) -> None:
        self._answer_term, self._next_index = term, next_index
        try:
            self._pass_on(node_id, {"type": "append_entries", "term": term, **content})
        finally:
            self._next_index = None

    def _append(self, node_id: int, message: Append) -> None:
        fitted = fit_append(message, self._journal, self._library.applied_index)
        if isinstance(fitted, int):
            self._pass_append(node_id, message.term, {"commit_index": 0, "serialized": None})
            self._send_message(node_id, AppendResponse(message.term, fitted, False, True))
            return
        content = {
            "commit_index": fitted.commit_index,
            "prevLogIdx": fitted.previous_index,
            "prevLogTerm": fitted.previous_term,
            "entries": [to_library(entry) for entry in fitted.entries],
        }
        self._pass_append(node_id, message.term, content, fitted.next_index)

    def _verified(self, node_id: int, term: int, index: int, next_index: int | None) -> None:
        """Give the library a heartbeat that changes only the commit index: entries up to `index`, which this node has, are
        committed. The answer has `next_index`; with None it only says that this node is alive."""
        if next_index is None:
            self._pass_append(node_id, term, {"commit_index": 0, "serialized": None})
            self._send_message(node_id, AppendResponse(term, 0, False, False))
            return
        _, last, last_term = self._journal.entries[-1]
        content = {"commit_index": index, "prevLogIdx": last, "prevLogTerm": last_term, "entries": []}
        self._pass_append(node_id, term, content, next_index)

    def _chunk(self, node_id: int, connection_number: int, message: SnapshotChunk) -> None:
        is_last = message.position + len(message.data) == message.size
        applied = self._library.applied_index
        own = self._journal.entry_at(message.index)
        is_blank = self._journal.is_blank
        if message.index <= applied and not is_blank:
            if is_last:
                self._verified(node_id, message.term, applied, applied + 1)
            return
        if own is not None and own[2] == message.index_term and not is_blank:
            # Installing it would drop later entries, which this voter has acknowledged.
            if is_last:
                self._verified(node_id, message.term, message.index, message.index + 1)
            return
        try:
            snapshot = self._snapshots.collect(node_id, connection_number, message)
        except MetadataError as error:
            log.warning("a snapshot from node %d is dropped: %s", node_id, error)
            snapshot = None
        if snapshot is None:
            self._verified(node_id, message.term, 0, None)
            return
        self._install(snapshot)
        self._journal.replaced_by(snapshot)
        self._pass_append(node_id, message.term, {"commit_index": 0, "serialized": snapshot})

    def _progress(self, node_id: int, message: AppendResponse) -> None:
        if message.term != self._library.term:
            return
        if message.reset and message.next_index < GENESIS_INDEX and node_id in self._library.nodes:
            if node_id not in self._empty_voters:
                self._empty_voters.add(node_id)
                log.warning(
                    "voter %d has lost its metadata, and gets none: remove it (kafka-metadata-quorum.sh remove-controller); it "
                    "can be added again",
                    node_id,
                )
            return
        end = self._journal.last_index + 1
        if message.success and message.next_index > end:
            log.warning("node %d claims entries that its leader does not have", node_id)
            return
        next_index = min(message.next_index, end)
        reset = message.reset and next_index > self._library.match_index(node_id)  # or it is an old one
        self._pass_on(
            node_id,
            {
                "type": "next_node_idx",
                "next_node_idx": max(1, next_index),
                "reset": reset,
                "success": message.success,
            },
        )
        if message.success:
            self._reset_to.pop(node_id, None)
        elif reset and next_index < self._reset_to.get(node_id, end + 1):
            # Send at once. A repeated request waits for the next heartbeat: otherwise each doubled answer would be answered
            # twice.
            self._reset_to[node_id] = next_index
            self._library.send_soon()
