"""RaftMetadataLog: the metadata log of a voter, a MetadataLog over the Raft engine.

- A group is proposed on this node only while it leads, with the term and the offset it was decided for, and a
  number. It has succeeded when this very command has been applied here and fitted the state it met: that alone is
  success, whatever the library reports.
- To lead means that the library leads and the barrier that this node entered at the beginning of its term has been
  applied, and with it everything that earlier leaders have committed. A leader that has slept enters another barrier: until
  that has been applied it decides nothing, as another may lead; proposals made before stay in flight.
- A group that has been entered can't be taken back. When the leadership is lost, or a majority is silent for
  COMMIT_TIMEOUT_S, it fails with NotController, and may still be committed later; what is proposed next is measured
  against the state without it, so only one of the two can be applied.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from barnabas.controller.metadata.committed_groups import CommittedGroup, CommittedGroups
from barnabas.controller.metadata.errors import MetadataError, NotController
from barnabas.controller.metadata.metadata_log import Apply, Done, Replace
from barnabas.controller.metadata.quorum_info import QuorumInfo, QuorumReplica
from barnabas.controller.raft.commands import (
    Barrier,
    CommittedState,
    Group,
    NoCommand,
    decode_command,
    encode_command,
)
from barnabas.controller.raft.engine import JOURNAL_BYTES_MIN, RaftEngine
from barnabas.controller.raft.files import Genesis, RaftFiles, Snapshot
from barnabas.controller.raft.library import COMMAND_BYTES_MAX, LEADER
from barnabas.controller.raft.messages import Entry
from barnabas.controller.raft.peers import RaftPeers
from barnabas.runtime.interface import Runtime
from barnabas.storage.disk.disk import Disk

COMMIT_TIMEOUT_S: Final = 5.0
HAND_OVER_S: Final = 0.3  # to wait for the follower that was asked to take over

log = logging.getLogger("barnabas.raft")


class _Proposal(NamedTuple):
    records: Sequence[bytes]
    done: Done
    deadline: float


class RaftMetadataLog:
    """A MetadataLog among `voters`. Files in `directory`; a first start begins with `genesis` (records, offset of
    the last), the same on every voter; without it, files that are missing are refused. `election_delay_s`: see
    RaftEngine. `on_error`: this node is silent or has halted."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        runtime: Runtime,
        node_id: int,
        voters: Sequence[int],
        peers: RaftPeers,
        genesis: Genesis | None = None,
        *,
        journal_bytes_min: int = JOURNAL_BYTES_MIN,
        election_delay_s: float | None = None,
        on_error: Callable[[Exception], object] = lambda _: None,
    ) -> None:
        assert node_id in voters
        self._disk = disk
        self._directory = directory
        self._runtime = runtime
        self._node_id = node_id
        self._others = sorted(set(voters) - {node_id})
        self._peers = peers
        self._genesis = genesis
        self._journal_bytes_min = journal_bytes_min
        self._election_delay_s = election_delay_s
        self._on_error = on_error
        self._engine: RaftEngine
        self._state = CommittedState(0, -1)
        self._groups = CommittedGroups(-1)
        self._proposals: dict[int, _Proposal] = {}  # by number, oldest first
        self._sequence = 0
        self._decided_offset = -1  # of the last record proposed here
        self._barriers = 0  # entered in this term, and not applied yet
        self._announced_offset = -1
        self._active_term = 0  # the term in which this node decides; 0: it does not
        self._handing_over_until = float("-inf")
        self._leadership_listeners: list[Callable[[bool, int], None]] = []
        self._commit_listeners: list[Callable[[], object]] = []
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
            and not self._engine.has_slept
            and self._runtime.monotonic() >= self._handing_over_until
        )

    @property
    def term(self) -> int:
        return self._engine.library.term if self._is_open else 0

    @property
    def leader_id(self) -> int | None:
        """Whom this node takes for the leader, itself included; None when it hears of none."""
        return self._engine.library.leader_id if self._is_open else None

    def on_leadership(self, callback: Callable[[bool, int], None]) -> None:
        self._leadership_listeners.append(callback)

    def on_commit(self, callback: Callable[[], object]) -> None:
        """Call back after groups have been applied here; `read_committed` has them."""
        self._commit_listeners.append(callback)

    def open(self, apply: Apply, snapshot: Callable[[], list[bytes]], replace: Replace) -> int:
        self._apply, self._snapshot, self._replace = apply, snapshot, replace
        files = RaftFiles(self._disk, self._directory)
        loaded = files.load(self._genesis)
        self.install_snapshot(loaded.snapshot)
        engine = self._engine = RaftEngine(
            files,
            loaded,
            self._runtime,
            self._node_id,
            self._others,
            self._peers,
            self,
            self._journal_bytes_min,
            self._election_delay_s,
        )
        engine.open()
        self._announced_offset = self._state.offset
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

    def peer_connected(self, node_id: int, connection_number: int) -> None:
        self._engine.peer_connected(node_id, connection_number)

    def peer_disconnected(self, node_id: int) -> None:
        self._engine.peer_disconnected(node_id)

    def received(self, node_id: int, connection_number: int, message: bytes) -> None:
        self._engine.received(node_id, connection_number, message)

    # For others

    def read_committed(self, after_offset: int, bytes_max: int = 1 << 20) -> list[CommittedGroup] | None:
        """Groups behind that record, whole, about `bytes_max` of them; [] when there are none yet; None when only
        `read_snapshot` helps."""
        return self._groups.after(after_offset, bytes_max)

    def read_snapshot(self) -> tuple[list[bytes], int]:
        """Records that lead to the state of everything applied here, and the offset of the last one applied."""
        return self._snapshot(), self._state.offset

    def hand_over(self) -> bool:
        """At the end of this node's service: ask the follower that is on level to lead. True when it was asked; it
        leads a moment later, see `on_leadership`. Nothing can be proposed here meanwhile."""
        if not self.is_leader or not self._engine.hand_over():
            return False
        self._handing_over_until = self._runtime.monotonic() + HAND_OVER_S
        self._runtime.call_later(HAND_OVER_S + 0.01, self._engine.wake)
        return True

    def describe(self) -> QuorumInfo:
        """The quorum as this node sees it, without directories, listeners and observers. Only the leader knows the
        others' progress."""
        library = self._engine.library
        leads = library.state == LEADER
        now_ms = self._runtime.time_ms()
        voters = []
        for node_id in sorted([self._node_id, *self._others]):
            if node_id == self._node_id:
                end = self._end_offset_at(self._engine.journal.last_index)
                progress = end, now_ms, now_ms
            elif leads:
                end = self._end_offset_at(library.match_index(node_id))
                progress = end, self._answered_ms.get(node_id, -1), self._caught_up_ms.get(node_id, -1)
            else:
                progress = -1, -1, -1
            end, last_fetch_ms, last_caught_up_ms = progress
            voters.append(
                QuorumReplica(node_id, end, last_fetch_ms=last_fetch_ms, last_caught_up_ms=last_caught_up_ms)
            )
        leader_id = library.leader_id
        return QuorumInfo(
            -1 if leader_id is None else leader_id, library.term, self._state.offset + 1, voters
        )

    # StateMachine

    def apply_command(self, payload: bytes) -> None:
        """What is raised halts this voter: the image must not go on without something that others have."""
        try:
            command = decode_command(payload)
        except NoCommand as error:
            log.error("an entry of the metadata log can't be read and changes nothing: %s", error)
            return
        if isinstance(command, Barrier):
            self._state.takes(command)
            if command.node_id == self._node_id and command.term == self._engine.first_command_term:
                self._barriers = max(0, self._barriers - 1)
            return
        proposal = None
        if command.node_id == self._node_id and command.term == self._active_term:
            proposal = self._proposals.pop(command.sequence, None)
        if not self._state.takes(command):
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
            # It was given up here, and what has been decided since knows nothing of it.
            self._fail_all("a change that had been given up was made after all")

    def _call(self, done: Done, error: Exception | None) -> None:
        """The state is what it is, whatever the proposer makes of it."""
        try:
            done(error)
        except Exception:
            log.exception("a change of the metadata was answered, and its proposer failed on that")

    def take_snapshot(self, previous: Entry, last: Entry) -> Snapshot:
        return Snapshot(previous, last, self._state.term, self._state.offset, self._snapshot())

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
        if self._proposals:
            self._expire()
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
        for callback in self._leadership_listeners:
            callback(True, term)

    def _resign(self, why: str) -> None:
        if not self._active_term:
            return
        self._active_term = 0
        self._handing_over_until = float("-inf")
        self._fail_all(why)
        for callback in self._leadership_listeners:
            callback(False, self._engine.library.term)

    def _expire(self) -> None:
        oldest = next(iter(self._proposals.values()))
        if self._runtime.monotonic() >= oldest.deadline:
            self._fail_all(f"no majority of the controllers has answered for {COMMIT_TIMEOUT_S:.0f} s")

    def _fail_all(self, why: str) -> None:
        """Nothing is known of any of them; what is decided next starts from what has been applied."""
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
        """Behind the last record among the entries up to this one."""
        entries = self._engine.journal.entries
        for command, entry_index, _ in reversed(entries):
            if entry_index > index or command[:1] != b"\x00":
                continue
            try:
                found = decode_command(command[1:])
            except (NoCommand, MetadataError):
                continue
            if isinstance(found, Group):
                return found.base_offset + len(found.records)
        return -1 if index < self._engine.journal.first_index else self._state.offset + 1
