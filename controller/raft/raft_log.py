"""RaftMetadataLog: the metadata log of a voter, a MetadataLog over the Raft engine.

- A group is proposed on this node only while it leads, with a number, the term, and the offset that it was decided for. It has
  succeeded when this command has been applied here and fitted the state. Reports of the library do not count.
- This node leads when the library does, and the barrier that this node appended at the beginning of its term has been applied, and
  so has everything that earlier leaders committed. A leader that has paused appends another barrier: until that is applied it
  decides nothing, because another node may lead. Earlier proposals stay in flight. Listeners are not notified of a pause. So one in the
  step in which this node begins to lead counts only after that step: they would take it for a node that does not lead, for good.
- A group that was appended can't be withdrawn. When the leadership is lost, or a majority is silent for COMMIT_TIMEOUT_S, it fails
  with NotController, and may still be committed later. A leader that stays appends a barrier behind it, and decides nothing until that is
  applied: what it decided without the group could be applied on top of it.
- A change of the voters is an entry of the same log (voters.py). It succeeds when it has been applied here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from barnabas.controller.metadata.committed_groups import CommittedGroup, CommittedGroups
from barnabas.controller.metadata.errors import MetadataError, NotController
from barnabas.controller.metadata.metadata_log import Apply, Done, Replace
from barnabas.controller.metadata.quorum_info import QuorumInfo, QuorumReplica
from barnabas.controller.raft.commands import (
    Barrier,
    CommittedState,
    Group,
    NoCommand,
    Voters,
    command_in,
    decode_command,
    encode_command,
)
from barnabas.controller.raft.engine import JOURNAL_BYTES_MIN, RaftEngine, VoterChange
from barnabas.controller.raft.files import Genesis, RaftFiles, Snapshot
from barnabas.controller.raft.library import COMMAND_BYTES_MAX, LEADER
from barnabas.controller.raft.messages import Entry
from barnabas.controller.raft.peers import RaftPeers
from barnabas.controller.raft.voters import UNKNOWN_DIRECTORY, Directory, Voter, VoterSet, ids_of, voter_set
from barnabas.runtime.interface import Runtime
from barnabas.storage.disk.disk import Disk

COMMIT_TIMEOUT_S: Final = 5.0
TRANSFER_S: Final = 0.3  # to wait for the follower that was asked to take over

log = logging.getLogger("barnabas.raft")


class _Proposal(NamedTuple):
    records: Sequence[bytes]
    done: Done
    deadline: float


class _PendingVoters(NamedTuple):
    payload: bytes
    done: Done
    deadline: float


class RaftMetadataLog:
    """A MetadataLog among voters: those that the log names, and `voters` while it names none. Files are in `directory`. A first
    start begins with `genesis` (records, offset of the last), which is the same on every voter; without it, missing files are an
    error, unless the node `joins`: then it begins with the leader's snapshot. `election_delay_s`: see RaftEngine.
    `own_directory`: the metadata directory as the voters are known by theirs. `on_error`: this node is silent or has halted."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        runtime: Runtime,
        node_id: int,
        voters: Sequence[Voter],
        peers: RaftPeers,
        genesis: Genesis | None = None,
        *,
        joins: bool = False,
        journal_bytes_min: int = JOURNAL_BYTES_MIN,
        election_delay_s: float | None = None,
        own_directory: Directory = UNKNOWN_DIRECTORY,
        on_error: Callable[[Exception], object] = lambda _: None,
    ) -> None:
        assert joins or voters
        self._own_directory = own_directory
        self._disk = disk
        self._directory = directory
        self._runtime = runtime
        self._node_id = node_id
        self._configured = voter_set(voters)
        self._joins = joins
        self._peers = peers
        self._genesis = genesis
        self._journal_bytes_min = journal_bytes_min
        self._election_delay_s = election_delay_s
        self._on_error = on_error
        self._engine: RaftEngine
        self._state = CommittedState(0, -1)
        self._groups = CommittedGroups(-1)
        self._proposals: dict[int, _Proposal] = {}  # by number, oldest first
        self._pending_voters: _PendingVoters | None = None
        self._sequence = 0
        self._decided_offset = -1  # of the last record proposed here
        self._barriers = 0  # appended in this term, and not applied yet
        self._announced_offset = -1
        self._active_term = 0  # the term in which this node decides; 0: none
        self._is_activating = False  # listeners are being notified of that
        self._transferring_until = float("-inf")
        self._leadership_listeners: list[Callable[[bool, int], None]] = []
        self._commit_listeners: list[Callable[[], object]] = []
        self._voter_listeners: list[Callable[[], object]] = []
        self._announced_voters: tuple[int, VoterSet] = (0, ())
        self._answered_ms: dict[int, int] = {}
        self._caught_up_ms: dict[int, int] = {}
        self._apply: Apply
        self._snapshot: Callable[[], list[bytes]]
        self._replace: Replace
        self._is_open = False
        self._closed = False

    # MetadataLog

    @property
    def is_leader(self) -> bool:
        if not self._active_term:
            return False
        library = self._engine.library
        return (
            self._engine.is_working
            and library.state == LEADER
            and library.term == self._active_term
            and not self._barriers
            and (self._is_activating or not self._engine.has_paused)
            and self._runtime.monotonic() >= self._transferring_until
        )

    @property
    def term(self) -> int:
        return self._engine.library.term if self._is_open else 0

    @property
    def leader_id(self) -> int | None:
        """The leader that this node knows, itself included; None for none."""
        return self._engine.library.leader_id if self._is_open else None

    def on_leadership(self, callback: Callable[[bool, int], None]) -> None:
        self._leadership_listeners.append(callback)

    def on_commit(self, callback: Callable[[], object]) -> None:
        """Call back after groups have been applied here; `read_committed` has them."""
        self._commit_listeners.append(callback)

    def open(self, apply: Apply, snapshot: Callable[[], list[bytes]], replace: Replace) -> int:
        self._apply, self._snapshot, self._replace = apply, snapshot, replace
        files = RaftFiles(self._disk, self._directory)
        loaded = files.load(self._genesis, joins=self._joins)
        self.install_snapshot(loaded.snapshot)
        engine = self._engine = RaftEngine(
            files,
            loaded,
            self._runtime,
            self._node_id,
            self._configured,
            self._peers,
            self,
            self._journal_bytes_min,
            self._election_delay_s,
            self._own_directory,
        )
        engine.open()
        self._announced_offset = self._state.offset
        self._announced_voters = self.committed_voters
        self._is_open = True
        return self._state.offset

    def serve(self) -> None:
        self._engine.serve()

    def propose(self, records: Sequence[bytes], done: Done) -> None:
        if not self.is_leader or self._closed:
            done(NotController("this node is not the active controller"))
            return
        group = Group(
            self._active_term, self._decided_offset + 1, self._node_id, self._sequence + 1, list(records)
        )
        payload = encode_command(group)
        if len(payload) > COMMAND_BYTES_MAX:
            done(
                MetadataError(
                    f"a change of the metadata of {len(payload)} bytes is too large to be made in one step"
                )
            )
            return
        self._sequence += 1
        self._decided_offset += len(records)
        deadline = self._runtime.monotonic() + COMMIT_TIMEOUT_S
        self._proposals[self._sequence] = _Proposal(records, done, deadline)
        self._engine.submit(payload)

    def close(self) -> None:
        self._closed = True
        if self._is_open:
            self._engine.close()
            self._resign("the controller is closed")

    # For the network (RaftReceiver)

    def peer_connected(
        self, node_id: int, connection_number: int, directory: Directory = UNKNOWN_DIRECTORY
    ) -> None:
        self._engine.peer_connected(node_id, connection_number, directory)

    def peer_disconnected(self, node_id: int) -> None:
        self._engine.peer_disconnected(node_id)

    def received(self, node_id: int, connection_number: int, message: bytes) -> None:
        self._engine.received(node_id, connection_number, message)

    # Voters

    @property
    def voters(self) -> VoterSet:
        """The last set in this node's log, committed or not."""
        return self._engine.journal.voters.last

    @property
    def are_voters_recorded(self) -> bool:
        """Whether the log names the voters. Only then can they change."""
        return self._engine.journal.voters.are_recorded

    @property
    def is_voter_change_open(self) -> bool:
        """Whether a change of the voters may not be committed yet."""
        voters, library = self._engine.journal.voters, self._engine.library
        return self._pending_voters is not None or voters.index > library.commit_index

    def on_voters(self, callback: Callable[[], object]) -> None:
        """Call back after other voters have been committed, or the same ones have been recorded."""
        self._voter_listeners.append(callback)

    @property
    def committed_voters(self) -> tuple[int, VoterSet]:
        """The last set of voters that is known to be committed here, and the index of an entry up to which it is; 0 while the log
        names none."""
        return self._engine.journal.voters.committed(self._engine.library.applied_index)

    def is_caught_up(self, node_id: int) -> bool:
        """As leader: whether this node is connected, and has all committed entries on disk."""
        library = self._engine.library
        return node_id in self._engine.observers() and library.match_index(node_id) >= library.commit_index

    def observer_directory(self, node_id: int) -> Directory:
        """The metadata directory of a connected controller."""
        return self._engine.directory_of(node_id)

    def change_voters(
        self, voters: Sequence[Voter], done: Done, appended: Callable[[], object] | None = None
    ) -> None:
        """Make these the voters, which differ by one at most. As with `propose`, NotController means that the outcome is not known.
        `is_voter_change_open` must be false. `appended`: called when this leader has the change in its log."""
        if not self.is_leader or self._closed or self.is_voter_change_open:
            done(NotController("this node is not the active controller, or is changing the voters"))
            return
        chosen = voter_set(voters)
        payload = encode_command(Voters(self._active_term, list(chosen)))
        deadline = self._runtime.monotonic() + COMMIT_TIMEOUT_S
        self._pending_voters = _PendingVoters(payload, done, deadline)
        refused = "the voters can't change while an earlier change is not committed"
        self._engine.change_voters(
            VoterChange(
                self._active_term,
                chosen,
                payload,
                appended or (lambda: None),
                lambda: self._end_voter_change(refused),
            )
        )

    def _end_voter_change(self, why: str) -> None:
        """The outcome of a change of the voters is not known. With an empty text it has been made."""
        pending, self._pending_voters = self._pending_voters, None
        if pending is not None:
            self._call(pending.done, NotController(why) if why else None)

    # For others

    def read_committed(self, after_offset: int, bytes_max: int = 1 << 20) -> list[CommittedGroup] | None:
        """Whole groups after that record, of about `bytes_max`; [] when there are none yet; None when they are no longer kept:
        then use `read_snapshot`."""
        return self._groups.after(after_offset, bytes_max)

    def read_snapshot(self) -> tuple[list[bytes], int]:
        """Records that lead to the applied state, and the offset of the last record applied."""
        return self._snapshot(), self._state.offset

    def transfer_leadership(self) -> bool:
        """Before this node stops: ask a follower that has all entries to become the leader. True when one was asked; it leads a
        moment later, see `on_leadership`. Until then nothing can be proposed here."""
        if not self.is_leader or not self._engine.transfer_leadership():
            return False
        self._transferring_until = self._runtime.monotonic() + TRANSFER_S
        self._runtime.call_later(TRANSFER_S + 0.01, self._engine.wake)
        return True

    def describe(self) -> QuorumInfo:
        """The quorum as this node knows it, without listeners, and without brokers that observe it. Only the leader knows the
        progress of other nodes."""
        library = self._engine.library
        leads = library.state == LEADER
        now_ms = self._runtime.time_ms()

        def replica(node_id: int, directory_id: bytes) -> QuorumReplica:
            if node_id == self._node_id:
                end = self._end_offset_at(self._engine.journal.last_index)
                progress = end, now_ms, now_ms
            elif leads:
                end = self._end_offset_at(library.match_index(node_id))
                progress = end, self._answered_ms.get(node_id, -1), self._caught_up_ms.get(node_id, -1)
            else:
                progress = -1, -1, -1
            end, fetched_ms, caught_up_ms = progress
            found = QuorumReplica(node_id, end, last_fetch_ms=fetched_ms, last_caught_up_ms=caught_up_ms)
            return replace(found, directory_id=directory_id) if directory_id else found

        leader_id = library.leader_id
        return QuorumInfo(
            -1 if leader_id is None else leader_id,
            library.term,
            self._state.offset + 1,
            [replica(voter.node_id, voter.directory_id) for voter in self.voters],
            observers=[
                replica(node_id, self._engine.directory_of(node_id).directory_id)
                for node_id in self._engine.observers()
            ]
            if leads
            else [],
            voted_for=-1 if library.voted_for is None else library.voted_for,
        )

    # StateMachine

    def apply_command(self, payload: bytes) -> None:
        """An exception halts this voter: its image must not lack a change that others have applied."""
        try:
            command = decode_command(payload)
        except NoCommand as error:
            log.error("an entry of the metadata log can't be read and changes nothing: %s", error)
            return
        if isinstance(command, Voters):
            log.info("the voters are %s", ",".join(map(str, ids_of(command.voters))))
            if self._pending_voters is not None and payload == self._pending_voters.payload:
                self._end_voter_change("")
            return
        if isinstance(command, Barrier):
            self._state.apply(command)
            if command.node_id == self._node_id and command.term == self._engine.first_command_term:
                self._barriers = max(0, self._barriers - 1)
            return
        proposal = None
        if command.node_id == self._node_id and command.term == self._active_term:
            proposal = self._proposals.pop(command.sequence, None)
        if not self._state.apply(command):
            log.warning("a change of the metadata was decided on another state, and is dropped")
            if proposal is not None:
                self._call(proposal.done, NotController("the metadata has changed in between"))
            return
        records = command.records if proposal is None else proposal.records
        self._apply(records)
        self._groups.append(records)
        if proposal is not None:
            self._call(proposal.done, None)
        elif self._active_term:
            # It had failed here, and later proposals were decided without it.
            self._fail_all("a change that had failed was made after all")

    def _call(self, done: Done, error: Exception | None) -> None:
        """The change is decided: an exception of the proposer changes nothing."""
        try:
            done(error)
        except Exception:
            log.exception("a change of the metadata was answered, and its proposer failed on that")

    def take_snapshot(self, previous: Entry, last: Entry) -> Snapshot:
        voters = self._engine.journal.voters.recorded_at(last.index)
        return Snapshot(
            previous,
            last,
            self._state.term,
            self._state.offset,
            self._snapshot(),
            None if voters is None else list(voters),
        )

    def install_snapshot(self, snapshot: Snapshot) -> None:
        self._replace(snapshot.records, snapshot.offset)
        self._state = CommittedState(snapshot.state_term, snapshot.offset)
        self._groups.restart(snapshot.offset)

    # Leadership

    def step_taken(self) -> None:
        engine, library = self._engine, self._engine.library
        leads = engine.is_working and library.state == LEADER
        if self._active_term and (not leads or library.term != self._active_term):
            self._resign("this node has ceased to be the active controller")
        entered = engine.first_command_term == library.term
        if leads and entered and not self._barriers and not self._active_term:
            self._activate(library.term)
        if self._proposals or self._pending_voters is not None:
            self._expire()
        if self.committed_voters != self._announced_voters:
            self._announced_voters = self.committed_voters
            for callback in self._voter_listeners:
                callback()
        if self._state.offset != self._announced_offset:
            self._announced_offset = self._state.offset
            for callback in self._commit_listeners:
                callback()

    def first_command(self, term: int) -> bytes:
        self._barriers = 0
        return self.confirmation(term)

    def confirmation(self, term: int) -> bytes:
        self._barriers += 1
        return encode_command(Barrier(term, self._node_id))

    def _activate(self, term: int) -> None:
        self._active_term = term
        self._decided_offset = self._state.offset
        self._answered_ms.clear()
        self._caught_up_ms.clear()
        log.info("node %d is the active controller of term %d", self._node_id, term)
        self._is_activating = True
        try:
            for callback in self._leadership_listeners:
                callback(True, term)
        finally:
            self._is_activating = False

    def _resign(self, why: str) -> None:
        if not self._active_term:
            return
        self._active_term = 0
        self._transferring_until = float("-inf")
        self._fail_all(why)
        self._end_voter_change(f"{why}; whether the voters have changed is not known")
        for callback in self._leadership_listeners:
            callback(False, self._engine.library.term)

    def _expire(self) -> None:
        now = self._runtime.monotonic()
        silent = f"no majority of the controllers has answered for {COMMIT_TIMEOUT_S:.0f} s"
        if self._proposals and now >= next(iter(self._proposals.values())).deadline:
            if self._active_term:
                self._engine.submit(self.confirmation(self._active_term))
            self._fail_all(silent)
        if self._pending_voters is not None and now >= self._pending_voters.deadline:
            self._end_voter_change(silent)

    def _fail_all(self, why: str) -> None:
        """The outcome of the proposals is unknown. The next decision starts from the applied state."""
        proposals, self._proposals = self._proposals, {}
        self._decided_offset = self._state.offset
        for proposal in proposals.values():
            self._call(proposal.done, NotController(f"{why}; whether the change is made is not known"))

    def failed(self, error: Exception) -> None:
        self._on_error(error)

    def progressed(self, node_id: int) -> None:
        now_ms = self._runtime.time_ms()
        self._answered_ms[node_id] = now_ms
        if self._engine.library.match_index(node_id) >= self._engine.journal.last_index:
            self._caught_up_ms[node_id] = now_ms

    def _end_offset_at(self, index: int) -> int:
        """One past the last record in the entries up to this one."""
        entries = self._engine.journal.entries
        for command, entry_index, _ in reversed(entries):
            if entry_index > index:
                continue
            try:
                found = command_in(command)
            except MetadataError:
                continue  # of a newer version
            if isinstance(found, Group):
                return found.base_offset + len(found.records)
        return -1 if index < self._engine.journal.first_index else self._state.offset + 1
