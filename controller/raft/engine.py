"""One voter: drives the library from the event loop, and syncs its log before it sends messages that depend on it.

A voter works in steps: an input arrives (a message, a command, a timer), the library is entered, and afterwards its changes are
written to disk and its messages sent, in this order (outbox.py).

- The library is ticked when there is something to do: a command, an entry to commit or apply, a heartbeat or an election that is
  due. An idle voter wakes some 30 times a second for a few microseconds.
- Syncs run in a thread, one at a time; changes made meanwhile go with the next. On the loop a sync would save the switch to the
  thread (0.1 ms) while the disk is idle. But it waits for other writers of the same file system, for seconds under load, and
  would block the node. Heartbeats need no sync, so a slow disk does not make a leader step down.
- The election clock counts only time in which this voter could receive: at most CLOCK_STEP_MAX_S between two readings. After a
  busy loop or a stopped process, input is read first. A leader that was paused for an election timeout may have been replaced: it
  stays the leader, and appends a command whose commit confirms that it still is (`confirmation`).
- voter_state.py has its states, and the effects of a failed write or command.
- A change of the voters is appended only as voters.py allows. A leader that is no voter resigns when that is committed. A node that
  is no voter does the same as one that is, except that it neither campaigns nor is counted.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, TypeVar

from barnabas.controller.metadata.errors import MetadataError
from barnabas.controller.raft.election import Election
from barnabas.controller.raft.files import Changes, Loaded, RaftFiles, Snapshot
from barnabas.controller.raft.journal import RaftJournal
from barnabas.controller.raft.library import (
    ELECTION_TIMEOUT_MAX_S,
    ELECTION_TIMEOUT_MIN_S,
    LEADER,
    RaftLibrary,
)
from barnabas.controller.raft.messages import (
    Append,
    AppendResponse,
    BadMessage,
    Entry,
    Heartbeat,
    Message,
    PreVote,
    RequestPreVote,
    RequestVote,
    SnapshotChunk,
    StaleTerm,
    TimeoutNow,
    Vote,
    decode_message,
    encode_message,
)
from barnabas.controller.raft.outbox import Outbox
from barnabas.controller.raft.peers import RaftPeers
from barnabas.controller.raft.snapshots import RaftSnapshots
from barnabas.controller.raft.transport import Contradiction, GuardedTransport
from barnabas.controller.raft.voter_state import Event, State, VoterState
from barnabas.controller.raft.voters import UNKNOWN_DIRECTORY, Directory, VoterSet, ids_of, is_single_change
from barnabas.runtime.interface import Runtime, Timer

CLOCK_STEP_MAX_S: Final = 0.05
CLOCK_READ_S: Final = 0.04  # between two readings of a follower
FIRST_ELECTION_S: Final = 0.1  # at most, from the start to the first pre-vote
SINGLE_VOTER_TICK_S: Final = 0.5
HOUSEKEEPING_S: Final = 1.0  # the library has something to do once a second
DISK_RETRY_S: Final = 1.0
SLOW_WRITE_S: Final = 5.0  # then it is logged: without its journal a leader has no majority
JOURNAL_BYTES_MIN: Final = 1 << 20  # the journal may always grow to this size
JOURNAL_TO_SNAPSHOT: Final = 4  # and to this many times the size of the snapshot

T = TypeVar("T")

log = logging.getLogger("barnabas.raft")


class StateMachine(Protocol):
    """The user of a voter's log. All calls on the loop's thread; the first three come from within the library."""

    def apply_command(self, payload: bytes) -> None:
        """Apply a committed command; called for each, in order. An exception halts this voter."""
        ...

    def take_snapshot(self, previous: Entry, last: Entry) -> Snapshot:
        """The state directly after the entry `last`."""
        ...

    def install_snapshot(self, snapshot: Snapshot) -> None: ...

    def first_command(self, term: int) -> bytes:
        """The command with which a leader begins its term."""
        ...

    def confirmation(self, term: int) -> bytes:
        """The command of a leader that has paused."""
        ...

    def progressed(self, node_id: int) -> None:
        """This leader has received a response of a voter."""
        ...

    def step_taken(self) -> None:
        """A step has ended."""
        ...

    def failed(self, error: Exception) -> None:
        """This voter is silent or has halted."""
        ...


class VoterChange(NamedTuple):
    """A change to append in this term: `appended` is called, or `refused`. `payload`: the command."""

    term: int
    voters: VoterSet
    payload: bytes
    appended: Callable[[], object]
    refused: Callable[[], object]


class RaftEngine:
    """See the module. `configured`: the voters while the log names none. `election_delay_s`: from the start to the first pre-vote; None: random."""

    def __init__(
        self,
        files: RaftFiles,
        loaded: Loaded,
        runtime: Runtime,
        node_id: int,
        configured: VoterSet,
        peers: RaftPeers,
        machine: StateMachine,
        journal_bytes_min: int = JOURNAL_BYTES_MIN,
        election_delay_s: float | None = None,
        directory: Directory = UNKNOWN_DIRECTORY,
    ) -> None:
        self.journal_bytes_min = journal_bytes_min
        self._directory = directory
        self.first_command_term = 0  # the term in which it was appended, 0 where this node does not lead
        self._machine = machine
        self._election_delay_s = election_delay_s
        self._node_id = node_id
        self._files = files
        self._runtime = runtime
        self._peers = peers
        self.journal = RaftJournal(loaded.content, configured, is_blank=loaded.is_blank)
        self.journal.begin_after(loaded.snapshot)
        self.journal.rewrite()
        self.snapshots = RaftSnapshots(
            self.journal, loaded.snapshot, loaded.encoded, machine.take_snapshot, journal_bytes_min
        )
        self._outbox = Outbox(self._send_now)
        self._now = 0.0
        self._clock_read_at = runtime.monotonic()
        self.library = RaftLibrary(
            node_id,
            ids_of(self.journal.voters.last),
            self._is_in(self.journal.voters.last),
            self._make_transport,
            self.journal,
            self.snapshots,
            self._clock,
            runtime.random,
            self._halting(machine.apply_command),
        )
        self.journal.on_voters = self._voters_changed
        self._election = Election(node_id, directory, self.library, self._send_now, runtime.random.random)
        self._connections: dict[int, int] = {}
        self._directories: dict[int, Directory] = {}  # node id -> that of its connection
        self._voter_change: VoterChange | None = None
        self._commands: deque[bytes] = deque()
        self._outgoing: list[tuple[int, Message]] = []
        self._commit_index_at_start = loaded.content.commit_index
        self._state = VoterState()
        self._in_library = False
        self._tick_is_due = False
        self._write_began_at = 0.0
        self._is_slow_write_logged = False
        self._timer: Timer | None = None
        self._timer_at = float("inf")  # on the runtime's clock
        self._housekeeping_at = 0.0
        self.failure: Exception | None = None  # the reason why it has halted

    def _make_transport(self, library: RaftLibrary) -> GuardedTransport:
        install = self._halting(self._machine.install_snapshot)
        self._transport = GuardedTransport(library, self.journal, self.snapshots, self._put, install)
        return self._transport

    # Start and end

    def open(self) -> None:
        """Blocking: apply what is known to be committed. MetadataError, OSError."""
        with self.library:
            self._in_library = True
            try:
                self.library.start_at(self.snapshots.index, self._commit_index_at_start)
            finally:
                self._in_library = False
        if self.failure is not None:
            raise self.failure
        changes = self.journal.take_changes()
        self._files.write(changes)
        self._outbox.synced(changes.number)

    def serve(self) -> None:
        self._state.apply(Event.SERVE)
        self._clock_read_at = self._runtime.monotonic()
        with self.library:
            alone = self.library.is_alone
            self.library.elect_at(self._now + (-1.0 if alone else self._first_election_s()))
        self.wake()

    def _first_election_s(self) -> float:
        if self._election_delay_s is not None:
            return self._election_delay_s
        return FIRST_ELECTION_S * self._runtime.random.random()

    def close(self) -> None:
        """From now on nothing is sent or applied. A write in its thread ends by itself."""
        self._state.apply(Event.CLOSE)
        if self._timer is not None:
            self._timer.cancel()
        self._commands.clear()
        self._voter_change = None
        self._outbox.clear()

    @property
    def is_working(self) -> bool:
        return self._state.is_working

    @property
    def has_paused(self) -> bool:
        """Whether others may have elected a leader since this voter last read the clock. Input may be handled before timers."""
        elapsed = self._runtime.monotonic() - self._clock_read_at
        return elapsed >= ELECTION_TIMEOUT_MIN_S and not self.library.is_alone

    # Input

    def submit(self, payload: bytes) -> None:
        """Append a command at the next tick, if this node leads then."""
        self._commands.append(payload)
        self.wake()

    def change_voters(self, change: VoterChange) -> None:
        """Append a set of voters at the next tick, if it is allowed then."""
        self._voter_change = change
        self.wake()

    def observers(self) -> list[int]:
        """Node ids of the connected nodes that do not vote."""
        return sorted(node_id for node_id in self._connections if node_id not in self.library.voter_ids)

    def directory_of(self, node_id: int) -> Directory:
        """The metadata directory of a connected node."""
        return self._directories.get(node_id, UNKNOWN_DIRECTORY)

    def wake(self) -> None:
        """Tick at the loop's next turn."""
        if not self._tick_is_due and self.is_working:
            self._tick_is_due = True
            self._runtime.call_soon(self._tick)

    def peer_connected(
        self, node_id: int, connection_number: int, directory: Directory = UNKNOWN_DIRECTORY
    ) -> None:
        if self._in_library:
            self._runtime.call_soon(lambda: self.peer_connected(node_id, connection_number, directory))
            return
        if node_id in self._connections:
            self.peer_disconnected(node_id)
        self._connections[node_id] = connection_number
        self._directories[node_id] = directory
        if self._has_other_directory(node_id):
            log.warning(
                "node %d has the id of a voter and another metadata directory, or an emptied one: it counts for nothing. Remove that "
                "voter (kafka-metadata-quorum.sh remove-controller), then add the node",
                node_id,
            )
        with self.library:
            self.library.lost(node_id)
            self.library.connected(node_id)
            self.library.send_soon()
        self.wake()

    def peer_disconnected(self, node_id: int) -> None:
        if self._in_library:
            self._runtime.call_soon(lambda: self.peer_disconnected(node_id))
            return
        if self._connections.pop(node_id, None) is None:
            return
        self._read_clock()
        self._directories.pop(node_id, None)
        self._outbox.drop(node_id)
        with self.library:
            self.library.lost(node_id)
            self.snapshots.disconnected(node_id)
        self._election.disconnected(node_id, self._now)
        if self.is_working:
            self._set_timer()

    def received(self, node_id: int, connection_number: int, data: bytes) -> None:
        if not self.is_working or self._connections.get(node_id) != connection_number:
            return
        try:
            message = decode_message(data)
        except BadMessage as error:
            log.warning("a message from node %d can't be read: %s", node_id, error)
            return
        if isinstance(message, Vote | PreVote | AppendResponse) and self._has_other_directory(node_id):
            return  # it is not the voter that would count
        self._step(lambda: self._take(node_id, connection_number, message))

    def _has_other_directory(self, node_id: int) -> bool:
        """Whether a node has the id of a voter, and not the directory with that voter's vote and entries."""
        directory = self.directory_of(node_id)
        return any(
            voter.node_id == node_id and not voter.is_node(node_id, directory)
            for voter in self.journal.voters.last
        )

    def transfer_leadership(self) -> bool:
        """As leader: ask a follower to become the leader; False when none has all entries."""
        if not self.is_working or self.library.state != LEADER:
            return False
        sent: list[bool] = []
        self._step(lambda: sent.append(self.library.transfer_leadership()))
        return sent == [True]

    # Steps

    def _clock(self) -> float:
        return self._now

    def _read_clock(self) -> None:
        """Advance the election clock."""
        moment = self._runtime.monotonic()
        elapsed, self._clock_read_at = moment - self._clock_read_at, moment
        self._now += min(elapsed, CLOCK_STEP_MAX_S)
        library = self.library
        if elapsed < ELECTION_TIMEOUT_MIN_S or library.state != LEADER or library.is_alone:
            return
        if self.first_command_term == library.term:
            log.info(
                "the leader of term %d has paused for %.1f s: asking for a majority", library.term, elapsed
            )
            self.submit(self._machine.confirmation(library.term))

    def _step(self, action: Callable[[], object]) -> None:
        assert not self._in_library, "steps do not nest"
        self._read_clock()
        self._in_library = True
        try:
            with self.library:
                action()
                self._begin_to_lead()
                self._resign_when_removed()
                self._transport.resume(self._connections)
        except Contradiction as error:
            self._halt(MetadataError(f"the controllers' logs contradict each other: {error}"))
        except Exception as error:
            if self.failure is None:
                log.exception("the metadata log has failed")
                self._halt(error)
        finally:
            self._in_library = False
        self._after_step()

    def _begin_to_lead(self) -> None:
        """Append the first command of a leader, in the same frame as the library's own."""
        library = self.library
        if library.state != LEADER or not self.is_working:
            self.first_command_term = 0
        elif self.first_command_term != library.term:
            self.first_command_term = library.term
            library.submit(self._machine.first_command(library.term))
            library.tick()

    def _resign_when_removed(self) -> None:
        """The removal of this leader has been applied: another one has to lead."""
        library = self.library
        is_removed = not library.is_voter and self.journal.voters.index <= library.applied_index
        if library.state == LEADER and is_removed:
            log.info("node %d is no voter any more, and resigns", self._node_id)
            library.resign()
            self.first_command_term = 0

    def _voters_changed(self) -> None:
        """From within the library, or from the transport."""
        voters = self.journal.voters.last
        self.library.set_voters(ids_of(voters), is_voter=self._is_in(voters))

    def _is_in(self, voters: VoterSet) -> bool:
        """Whether this node, with its directory, is one of them."""
        return any(voter.is_node(self._node_id, self._directory) for voter in voters)

    def _append_voters(self, change: VoterChange) -> None:
        """Append it in a tick of its own: commands that wait take the next one."""
        before = self.journal.voters.index
        if self._may_change_voters(change):
            self.library.submit(change.payload)
            self.library.tick()
        if self.journal.voters.index > before:
            change.appended()
        else:
            change.refused()
        self.wake()

    def _may_change_voters(self, change: VoterChange) -> bool:
        """The rules of voters.py for a leader."""
        library, voters = self.library, self.journal.voters
        return (
            library.state == LEADER
            and library.term == change.term == self.first_command_term
            and voters.index <= library.commit_index
            and is_single_change(voters.last, change.voters)
        )

    def _after_step(self) -> None:
        self._flush()
        self._machine.step_taken()
        if self._state.is_over:
            return
        self._sync()
        self._set_timer()

    def _tick(self) -> None:
        self._tick_is_due = False
        if not self.is_working or (self._state.is_writing and self.library.is_alone):
            return  # a single voter commits only entries that are on disk
        self._step(self._tick_library)

    def _tick_library(self) -> None:
        library = self.library
        if not self._election.may_campaign:
            library.elect_at(self._now + ELECTION_TIMEOUT_MAX_S)
        elif not library.is_alone and self._election.due(self._now):
            self._election.ask(self._now)
        if self._voter_change is not None:
            change, self._voter_change = self._voter_change, None
            self._append_voters(change)
            return
        while self._commands:
            library.submit(self._commands.popleft())
        self._consider_snapshot()
        library.tick()
        if self._has_work():
            self.wake()

    def _has_work(self) -> bool:
        """Whether a tick would do something now."""
        library = self.library
        if library.commit_index > library.applied_index:
            return True
        if library.state != LEADER:
            return False
        if library.is_alone:
            return library.commit_index < self.journal.last_index
        return library.next_heartbeat <= 0.0 or self._can_commit()

    def _can_commit(self) -> bool:
        library = self.library
        if library.commit_index >= self.journal.last_index:
            return False
        matches = sorted(library.match_index(node_id) for node_id in library.nodes)
        return matches[-library.others_needed] > library.commit_index

    def _consider_snapshot(self) -> None:
        """Shorten a journal that exceeds its bound: by a snapshot when its entries do, else by rewriting it."""
        bound = (
            max(self.journal_bytes_min, JOURNAL_TO_SNAPSHOT * self.snapshots.size) + self.journal_bytes_min
        )
        if self.journal.bytes > bound and not self.snapshots.is_writing:
            self.library.force_compaction()
        elif self._files.journal_size > 2 * (bound + self.journal.bytes) and not self._state.is_writing:
            self.journal.rewrite()

    def _take(self, node_id: int, connection_number: int, message: Message) -> None:
        library, election = self.library, self._election
        if self.journal.is_blank and isinstance(message, RequestPreVote | RequestVote):
            return  # it is no voter, or one that has lost its promises
        if isinstance(message, RequestPreVote):
            election.asked(node_id, message, self._now)
        elif isinstance(message, PreVote):
            if message.term > library.term:
                self._transport.adopt(node_id, message.term)
            elif election.answered(node_id, message):
                library.elect_at(float("-inf"))
                library.tick()
        elif isinstance(message, StaleTerm):
            if message.term > library.term:
                self._transport.adopt(node_id, message.term)
        elif isinstance(message, Append | SnapshotChunk | Heartbeat):
            if message.term < library.term:
                self._send_now(node_id, StaleTerm(library.term))
                return
            election.heard(node_id, self._now)
            self._transport.deliver(node_id, connection_number, message)
        else:
            self._transport.deliver(node_id, connection_number, message)
            if isinstance(message, AppendResponse):
                self._machine.progressed(node_id)
            elif isinstance(message, TimeoutNow) and election.due(self._now):
                library.tick()
        if self._has_work():
            self.wake()

    def _halting(self, apply: Callable[[T], None]) -> Callable[[T], None]:
        """`apply`, called from within the library: an exception leaves the argument unapplied and halts this voter."""

        def apply_or_halt(argument: T) -> None:
            try:
                apply(argument)
            except Exception as error:
                self._halt(error)
                raise

        return apply_or_halt

    def _halt(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
            self._state.apply(Event.HALT)
            log.critical("this node no longer takes part in the cluster's metadata: %s", error)
            self._outbox.clear()
            self._machine.failed(error)

    # Output

    def _put(self, node_id: int, message: Message) -> None:
        """A message of the library: it waits for the changes before it."""
        journal = self.journal
        self._outbox.put(node_id, message, journal.change_number, journal.term_change_number)

    def _send_now(self, node_id: int, message: Message) -> None:
        """Send at the end of the step: a connection that breaks calls back."""
        self._outgoing.append((node_id, message))

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        for node_id, message in outgoing:
            if node_id in self._connections and not self._state.is_over:
                self._peers.send(node_id, encode_message(message))

    def _sync(self) -> None:
        if self._state.state is State.RUNNING and self.journal.has_changes:
            self._write()
        elif self._state.is_writing and not self._is_slow_write_logged:
            elapsed = self._runtime.monotonic() - self._write_began_at
            if elapsed > SLOW_WRITE_S:
                self._is_slow_write_logged = True
                log.warning("a write to %s has taken %.0f s so far", self._files.journal_path, elapsed)

    def _write(self) -> None:
        changes = self.journal.take_changes()
        self._state.apply(Event.WRITE)
        self._write_began_at = self._runtime.monotonic()
        self._is_slow_write_logged = False
        self._runtime.run_in_thread(
            lambda: self._files.write(changes), lambda encoded, error: self._synced(changes, encoded, error)
        )

    def _synced(self, changes: Changes, encoded: bytes | None, error: BaseException | None) -> None:
        was_silent = self._state.is_silent
        self._state.apply(Event.WRITTEN if error is None else Event.REFUSED)
        if self._state.is_over:
            return
        if error is not None:
            self._disk_refused(changes, error, is_new=not was_silent)
            return
        if was_silent:
            log.warning("%s can be written again", self._files.journal_path)
        if encoded is not None and changes.snapshot is not None:
            self.snapshots.written(changes.snapshot, encoded)
            self.wake()
        self._outbox.synced(changes.number)
        if self.library.is_alone or self._has_work():
            self.wake()
        self._after_step()

    def _disk_refused(self, changes: Changes, error: BaseException, *, is_new: bool) -> None:
        log.error("%s can't be written, this node falls silent: %s", self._files.journal_path, error)
        self.journal.write_again(changes)
        self._outbox.clear()
        self._commands.clear()
        self._voter_change = None
        self.first_command_term = 0
        if is_new:
            self._machine.step_taken()
            self._machine.failed(error if isinstance(error, Exception) else OSError(str(error)))
        self._runtime.call_later(DISK_RETRY_S, self._retry_disk)

    def _retry_disk(self) -> None:
        if not self._state.is_over:
            self._write()

    # The timer

    def _set_timer(self) -> None:
        """Wake when the next heartbeat, election or reading of the clock is due."""
        library = self.library
        if library.state == LEADER:
            waits = not library.has_followers or (library.is_alone and self._state.is_writing)
            wait = SINGLE_VOTER_TICK_S if waits else library.next_heartbeat - self._now
        else:
            wait = min(library.election_deadline - self._now, CLOCK_READ_S)
        wait = max(wait, 0.0) + 0.001  # the library acts after its deadlines, not at them
        at = self._clock_read_at + wait
        if self._timer is not None:
            if self._timer_at <= at + 0.002 and self._timer_at >= self._clock_read_at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._runtime.call_later(wait, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        if self.is_working:
            self._read_clock()
            if self._is_due():
                self._tick()
            if self._timer is None:
                self._set_timer()

    def _is_due(self) -> bool:
        library = self.library
        if library.state == LEADER or self._now > library.election_deadline or self._has_work():
            return True
        if self._now < self._housekeeping_at:
            return False
        self._housekeeping_at = self._now + HOUSEKEEPING_S
        return True
