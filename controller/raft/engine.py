"""One voter: drives the library from the event loop, and keeps its log on disk before it sends what depends on it.

Everything happens in steps: an input arrives (a message, a command, a timer), the library is entered, and afterwards its
changes are written to disk and its messages sent, in this order (outbox.py).

- The library is ticked when there is something to do: a command, something to commit or apply, a heartbeat or an
  election that is due. An idle voter wakes some 30 times a second for a few microseconds.
- Syncing takes place in a thread, one job at a time; changes made meanwhile go with the next. On the loop it would save
  the thread's handover (0.1 ms) while the disk is idle, but a sync waits for other writers of the same file system, for
  seconds under load, and would block the node. Heartbeats need no sync, so a slow disk does not make a leader step down.
- The election clock counts only time in which this voter could receive: no more than ATTENTION_S between two readings. A
  loop that was busy, or a process that was stopped, reads its input first. A leader that was paused for an election timeout
  may have been replaced: it stays the leader, and enters a command by which it learns whether it still is (`confirmation`).
- Its states, and what a disk or a command that fails does, are in voter_state.py.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from barnabas.controller.metadata.errors import MetadataError
from barnabas.controller.raft.append_guard import Contradiction
from barnabas.controller.raft.election import Election
from barnabas.controller.raft.files import Changes, Loaded, RaftFiles, Snapshot, Written
from barnabas.controller.raft.journal import RaftJournal
from barnabas.controller.raft.library import ELECTION_TIMEOUT_MIN_S, LEADER, RaftLibrary
from barnabas.controller.raft.messages import (
    Alive,
    Append,
    AskSupport,
    BadMessage,
    Chunk,
    Entry,
    Message,
    Progress,
    StaleTerm,
    Support,
    TakeOver,
    decode_message,
    encode_message,
)
from barnabas.controller.raft.outbox import Outbox
from barnabas.controller.raft.peers import RaftPeers
from barnabas.controller.raft.snapshots import RaftSnapshots
from barnabas.controller.raft.transport import GuardedTransport
from barnabas.controller.raft.voter_state import Event, State, VoterState
from barnabas.runtime.interface import Runtime, Timer

ATTENTION_S: Final = 0.05
LOOK_S: Final = 0.04  # between a follower's readings of the clock
FIRST_ELECTION_S: Final = 0.1  # at most, from the start to the first pre-vote
ALONE_LOOK_S: Final = 0.5
HOUSEKEEPING_S: Final = 1.0  # the library has something to do once a second
DISK_RETRY_S: Final = 1.0
JOURNAL_BYTES_MIN: Final = 1 << 20  # the journal may always grow to this size
JOURNAL_TO_SNAPSHOT: Final = 4  # and to this many times the size of the snapshot

log = logging.getLogger("barnabas.raft")


class StateMachine(Protocol):
    """What a voter's log is for. All calls on the loop's thread, but the first three from within the library."""

    def apply_command(self, payload: bytes) -> None:
        """Every committed command, in order. What is raised halts this voter."""
        ...

    def take_snapshot(self, previous: Entry, last: Entry) -> Snapshot:
        """The state right behind the entry `last`."""
        ...

    def install_snapshot(self, snapshot: Snapshot) -> None: ...

    def first_command(self, term: int) -> bytes:
        """With which a leader begins its term."""
        ...

    def confirmation(self, term: int) -> bytes:
        """The command of a leader that has slept."""
        ...

    def progressed(self, node_id: int) -> None:
        """This leader has received an answer of a voter."""
        ...

    def step_taken(self) -> None:
        """The library has been left."""
        ...

    def failed(self, error: Exception) -> None:
        """This voter is silent or has halted."""
        ...


class RaftEngine:
    """See the module. `election_delay_s`: from the start to the first pre-vote; None: random."""

    def __init__(
        self,
        files: RaftFiles,
        loaded: Loaded,
        runtime: Runtime,
        node_id: int,
        others: list[int],
        peers: RaftPeers,
        machine: StateMachine,
        journal_bytes_min: int = JOURNAL_BYTES_MIN,
        election_delay_s: float | None = None,
    ) -> None:
        self.journal_bytes_min = journal_bytes_min
        self.first_command_term = 0  # the term in which it was entered, 0 where this node does not lead
        self._machine = machine
        self._election_delay_s = election_delay_s
        self._node_id = node_id
        self._files = files
        self._runtime = runtime
        self._peers = peers
        self.journal = RaftJournal(loaded.content)
        self.journal.write_anew()
        self.snapshots = RaftSnapshots(
            self.journal, loaded.snapshot, loaded.encoded, machine.take_snapshot, journal_bytes_min
        )
        self._outbox = Outbox(self._send_now)
        transport = GuardedTransport(self.journal, self.snapshots, self._put, self._install_snapshot)
        self._now = 0.0
        self._looked_at = runtime.monotonic()
        self.library = RaftLibrary(
            node_id,
            others,
            transport,
            self.journal,
            self.snapshots,
            self._clock,
            runtime.random,
            self._apply_payload,
        )
        transport.serve(self.library)
        self._transport = transport
        self._election = Election(node_id, self.library, self._send_now, runtime.random.random)
        self._connections: dict[int, int] = {}
        self._commands: deque[bytes] = deque()
        self._outgoing: list[tuple[int, Message]] = []
        self._commit_index_at_start = loaded.content.commit_index
        self._state = VoterState()
        self._inside = False  # the library has been entered
        self._tick_is_due = False
        self._timer: Timer | None = None
        self._timer_at = float("inf")  # on the runtime's clock
        self._housekeeping_at = 0.0
        self.failure: Exception | None = None  # why it has halted

    # Start and end

    def open(self) -> None:
        """Blocking: apply what is known to be committed. MetadataError, OSError."""
        with self.library:
            self._inside = True
            try:
                self.library.start_at(self.snapshots.index, self._commit_index_at_start)
            finally:
                self._inside = False
        if self.failure is not None:
            raise self.failure
        changes = self.journal.take_changes()
        self._files.write(changes)
        self._outbox.synced(changes.number)

    def serve(self) -> None:
        self._state.apply(Event.SERVE)
        self._looked_at = self._runtime.monotonic()
        with self.library:
            alone = not self.library.nodes
            self.library.elect_at(self._now + (-1.0 if alone else self._first_election_s()))
        self.wake()

    def _first_election_s(self) -> float:
        if self._election_delay_s is not None:
            return self._election_delay_s
        return FIRST_ELECTION_S * self._runtime.random.random()

    def close(self) -> None:
        """Nothing is sent or applied any more. A job in its thread ends by itself."""
        self._state.apply(Event.CLOSE)
        if self._timer is not None:
            self._timer.cancel()
        self._commands.clear()
        self._outbox.clear()

    @property
    def is_working(self) -> bool:
        return self._state.is_working

    @property
    def has_slept(self) -> bool:
        """Whether others may have elected a leader since this voter has last read the clock. Input may be handled before
        the timers."""
        elapsed = self._runtime.monotonic() - self._looked_at
        return elapsed >= ELECTION_TIMEOUT_MIN_S and bool(self.library.nodes)

    # What comes in

    def submit(self, payload: bytes) -> None:
        """Enter a command, if this node still leads then."""
        self._commands.append(payload)
        self.wake()

    def wake(self) -> None:
        """Tick at the loop's next turn."""
        if not self._tick_is_due and self.is_working:
            self._tick_is_due = True
            self._runtime.call_soon(self._tick)

    def peer_connected(self, node_id: int, connection_number: int) -> None:
        if self._inside:
            self._runtime.call_soon(lambda: self.peer_connected(node_id, connection_number))
            return
        if node_id not in self.library.nodes:
            log.warning("node %d has connected as a controller, and is no voter", node_id)
            return
        if node_id in self._connections:
            self.peer_disconnected(node_id)
        self._connections[node_id] = connection_number
        with self.library:
            self.library.connected(node_id)
            self.library.send_soon()
        self._election.connected(node_id)
        self.wake()

    def peer_disconnected(self, node_id: int) -> None:
        if self._inside:
            self._runtime.call_soon(lambda: self.peer_disconnected(node_id))
            return
        if self._connections.pop(node_id, None) is None:
            return
        self._look()
        self._outbox.drop(node_id)
        with self.library:
            self.library.disconnected(node_id)
            self.snapshots.disconnected(node_id)
        self._election.disconnected(node_id, self._now)
        if self.is_working:
            self._arm()

    def received(self, node_id: int, connection_number: int, data: bytes) -> None:
        if not self.is_working or self._connections.get(node_id) != connection_number:
            return
        try:
            message = decode_message(data)
        except BadMessage as error:
            log.warning("a message from node %d can't be read: %s", node_id, error)
            return
        self._step(lambda: self._take(node_id, connection_number, message))

    def hand_over(self) -> bool:
        """As leader: ask a follower to take over; False when none has all entries."""
        if not self.is_working or self.library.state != LEADER:
            return False
        sent: list[bool] = []
        self._step(lambda: sent.append(self.library.hand_over()))
        return sent == [True]

    # Steps

    def _clock(self) -> float:
        return self._now

    def _look(self) -> None:
        """Advance the election clock."""
        moment = self._runtime.monotonic()
        elapsed, self._looked_at = moment - self._looked_at, moment
        self._now += min(elapsed, ATTENTION_S)
        library = self.library
        if elapsed < ELECTION_TIMEOUT_MIN_S or library.state != LEADER or not library.nodes:
            return
        if self.first_command_term == library.term:
            log.info(
                "the leader of term %d has slept for %.1f s: asking for a majority", library.term, elapsed
            )
            self.submit(self._machine.confirmation(library.term))

    def _step(self, action: Callable[[], object]) -> None:
        assert not self._inside, "steps do not nest"
        self._look()
        self._inside = True
        try:
            with self.library:
                action()
                self._begin_to_lead()
                self._transport.resume(self._connections)
        except Contradiction as error:
            self._halt(MetadataError(f"the controllers' logs contradict each other: {error}"))
        except Exception as error:
            if self.failure is None:
                log.exception("the metadata log has failed")
                self._halt(error)
        finally:
            self._inside = False
        self._after_step()

    def _begin_to_lead(self) -> None:
        """A leader's first command goes to disk together with the library's own."""
        library = self.library
        if library.state != LEADER or not self.is_working:
            self.first_command_term = 0
        elif self.first_command_term != library.term:
            self.first_command_term = library.term
            library.submit(self._machine.first_command(library.term))
            library.tick()

    def _after_step(self) -> None:
        self._flush()
        self._machine.step_taken()
        if self._state.is_over:
            return
        self._sync()
        self._arm()

    def _tick(self) -> None:
        self._tick_is_due = False
        if not self.is_working or (self._state.is_writing and not self.library.nodes):
            return  # a voter that is alone counts only entries on disk
        self._step(self._tick_library)

    def _tick_library(self) -> None:
        library = self.library
        if library.nodes and self._election.due(self._now):
            self._election.ask(self._now)
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
        if not library.nodes:
            return library.commit_index < self.journal.last_index
        return library.next_heartbeat <= 0.0 or self._can_commit()

    def _can_commit(self) -> bool:
        library = self.library
        if library.commit_index >= self.journal.last_index:
            return False
        matches = sorted(library.match_index(node_id) for node_id in library.nodes)
        return matches[len(matches) // 2] > library.commit_index

    def _consider_snapshot(self) -> None:
        """Shorten the journal where it has outgrown its bound: of entries, by a snapshot; of what else is written
        into it, by writing it anew."""
        bound = (
            max(self.journal_bytes_min, JOURNAL_TO_SNAPSHOT * self.snapshots.size) + self.journal_bytes_min
        )
        if self.journal.bytes > bound and not self.snapshots.is_writing:
            self.library.force_compaction()
        elif self._files.journal_size > 2 * (bound + self.journal.bytes) and not self._state.is_writing:
            self.journal.write_anew()

    def _take(self, node_id: int, connection_number: int, message: Message) -> None:
        library, election = self.library, self._election
        if isinstance(message, AskSupport):
            election.asked(node_id, message, self._now)
        elif isinstance(message, Support):
            if message.term > library.term:
                self._transport.adopt(node_id, message.term)
            elif election.answered(node_id, message):
                library.elect_at(float("-inf"))
                library.tick()
        elif isinstance(message, StaleTerm):
            if message.term > library.term:
                self._transport.adopt(node_id, message.term)
        elif isinstance(message, Append | Chunk | Alive):
            if message.term < library.term:
                self._send_now(node_id, StaleTerm(library.term))
                return
            election.heard(node_id, self._now)
            self._transport.deliver(node_id, connection_number, message)
        else:
            self._transport.deliver(node_id, connection_number, message)
            if isinstance(message, Progress):
                self._machine.progressed(node_id)
            elif isinstance(message, TakeOver) and election.due(self._now):
                library.tick()
        if self._has_work():
            self.wake()

    def _apply_payload(self, payload: bytes) -> None:
        """Called by the library. What is raised here leaves the entry unapplied, and this voter halted."""
        try:
            self._machine.apply_command(payload)
        except Exception as error:
            self._halt(error)
            raise

    def _install_snapshot(self, snapshot: Snapshot) -> None:
        try:
            self._machine.install_snapshot(snapshot)
        except Exception as error:
            self._halt(error)
            raise

    def _halt(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
            self._state.apply(Event.HALT)
            log.critical("this node takes no part in the cluster's metadata any more: %s", error)
            self._outbox.clear()
            self._machine.failed(error)

    # What goes out

    def _put(self, node_id: int, message: Message) -> None:
        """From the library: in the order of its changes."""
        journal = self.journal
        self._outbox.put(node_id, message, journal.change_number, journal.term_change_number)

    def _send_now(self, node_id: int, message: Message) -> None:
        """Sent once the library has been left: a connection that breaks on it calls back."""
        self._outgoing.append((node_id, message))

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        for node_id, message in outgoing:
            if node_id in self._connections and not self._state.is_over:
                self._peers.send(node_id, encode_message(message))

    def _sync(self) -> None:
        if self._state.state is State.RUNNING and self.journal.has_changes:
            self._write()

    def _write(self) -> None:
        changes = self.journal.take_changes()
        self._state.apply(Event.WRITE)
        self._runtime.run_in_thread(
            lambda: self._files.write(changes), lambda written, error: self._synced(changes, written, error)
        )

    def _synced(self, changes: Changes, written: Written | None, error: BaseException | None) -> None:
        was_silent = self._state.is_silent
        self._state.apply(Event.REFUSED if written is None else Event.WRITTEN)
        if self._state.is_over:
            return
        if written is None:
            self._disk_refused(changes, error, is_new=not was_silent)
            return
        if was_silent:
            log.warning("%s can be written again", self._files.journal_path)
        if written.encoded is not None and changes.snapshot is not None:
            self.snapshots.written(changes.snapshot, written.encoded)
            self.wake()
        self._outbox.synced(changes.number)
        if not self.library.nodes or self._has_work():
            self.wake()
        self._after_step()

    def _disk_refused(self, changes: Changes, error: BaseException | None, *, is_new: bool) -> None:
        log.error("%s can't be written, this node falls silent: %s", self._files.journal_path, error)
        self.journal.write_again(changes)
        self._outbox.clear()
        self._commands.clear()
        self.first_command_term = 0
        if is_new:
            self._machine.step_taken()
            self._machine.failed(error if isinstance(error, Exception) else OSError(str(error)))
        self._runtime.call_later(DISK_RETRY_S, self._retry_disk)

    def _retry_disk(self) -> None:
        if not self._state.is_over:
            self._write()

    # The timer

    def _arm(self) -> None:
        """Wake when the next thing is due."""
        library = self.library
        if library.state == LEADER:
            wait = library.next_heartbeat - self._now if library.nodes else ALONE_LOOK_S
        else:
            wait = min(library.election_deadline - self._now, LOOK_S)
        wait = max(wait, 0.0) + 0.001  # the library's deadlines must have passed, not come
        at = self._looked_at + wait
        if self._timer is not None:
            if self._timer_at <= at + 0.002 and self._timer_at >= self._looked_at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._runtime.call_later(wait, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        if self.is_working:
            self._look()
            if self._is_due():
                self._tick()
            if self._timer is None:
                self._arm()

    def _is_due(self) -> bool:
        library = self.library
        if library.state == LEADER or self._now > library.election_deadline or self._has_work():
            return True
        if self._now < self._housekeeping_at:
            return False
        self._housekeeping_at = self._now + HOUSEKEEPING_S
        return True
