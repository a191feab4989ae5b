"""pysyncobj's SyncObj for one voter: the only code that uses its internals.

The library takes clock, randomness, journal, snapshots, codec and poller from names of its module. They are replaced whenever it
is entered and restored afterwards, so several nodes with different clocks can run in one process. Its private fields are read,
and a few written, by name; a test covers every name used here.

Messages are not checked here but in transport.py.

Voters come and go with the entries of the journal (voters.py); the library's own changes of membership are not used. It undoes a
change by doing the opposite, forgets changes that are in its log when it restarts, and counts a leader that removes itself. Here the
whole set is replaced. Nodes that are connected and do not vote are observers, its `readonly` nodes: they get all entries, and count for
nothing. The library always counts the node that it runs on. On a node that is no voter there is one more voter, which never
answers (`_NEVER_ANSWERS`): then a majority needs as many others as it would without this node, as m + 1 voters and an answer of this node's own
ask for more than m / 2 of the m voters.
"""

from __future__ import annotations

import random  # noqa: TID251 - the type only
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import TracebackType
from typing import Any, Final

from pysyncobj import syncobj as module
from pysyncobj.config import SyncObjConf
from pysyncobj.node import Node
from pysyncobj.syncobj import SyncObj, replicated
from pysyncobj.transport import Transport

from barnabas.controller.raft.journal import RaftJournal
from barnabas.controller.raft.snapshots import RaftSnapshots

# Without a message from the leader. When a leader dies its connections break, which is noticed sooner (election.py). These are
# for a silent leader, and long enough for one whose loop or machine is busy.
ELECTION_TIMEOUT_MIN_S: Final = 0.3
ELECTION_TIMEOUT_MAX_S: Final = 0.5
HEARTBEAT_S: Final = 0.05
LEADER_FALLBACK_S: Final = 0.6  # without answers of a majority; then a leader steps down
BATCH_BYTES: Final = 8 << 20  # far above the largest command: the library's chunks of entries are never used
COMMAND_BYTES_MAX: Final = 4 << 20

FOLLOWER: Final = 0
CANDIDATE: Final = 1
LEADER: Final = 2
_REGULAR: Final = 0  # the kind of entry that carries a command
_PRIVATE: Final = "_SyncObj__"
_NEVER_ANSWERS: Final = -1  # id of the voter that never answers


class CommandCodec:
    """In place of the pickle module: the one argument of the one replicated method is bytes already."""

    @staticmethod
    def loads(data: bytes) -> tuple[int, tuple[bytes]]:
        return 0, (data,)

    @staticmethod
    def dumps(value: object) -> bytes:
        raise TypeError(f"not for the wire: {type(value)}")


class _NoPoller:
    """Only the event loop waits."""

    def poll(self, timeout: float) -> None: ...

    def subscribe(self, *args: object) -> None: ...

    def unsubscribe(self, *args: object) -> None: ...


class Consensus(SyncObj):
    """The replicated object, with one method."""

    def __init__(
        self,
        node: Node,
        others: Sequence[Node],
        conf: SyncObjConf,
        transport: Transport,
        apply: Callable[[bytes], None],
    ) -> None:
        self._apply_payload = apply
        SyncObj.__init__(self, node, others, conf=conf, transport=transport)

    @replicated  # type: ignore[untyped-decorator]
    def apply(self, payload: bytes) -> None:
        self._apply_payload(payload)


class RaftLibrary:
    """One SyncObj. It runs only inside `with library:`."""

    def __init__(
        self,
        node_id: int,
        voter_ids: Sequence[int],
        is_voter: bool,
        make_transport: Callable[[RaftLibrary], Transport],
        journal: RaftJournal,
        snapshots: RaftSnapshots,
        clock: Callable[[], float],
        randomness: random.Random,
        apply: Callable[[bytes], None],
    ) -> None:
        self._node_id = node_id
        self._known: dict[int, Node] = {}
        self.voter_ids = frozenset(voter_ids)
        self.is_voter = is_voter  # with its directory
        self.nodes: Mapping[int, Node] = self._others()  # the other voters
        self.journal = journal
        self._replaced: dict[str, object] = {
            "monotonicTime": clock,
            "random": randomness,
            "pickle": CommandCodec,
            "createJournal": lambda _: journal,
            "Serializer": lambda *_: snapshots,
            "createPoller": lambda _: _NoPoller(),
            "PIPE_NOTIFIER_ENABLED": False,
        }
        self._saved: dict[str, object] = {}
        conf = SyncObjConf(
            autoTick=False,
            raftMinTimeout=ELECTION_TIMEOUT_MIN_S,
            raftMaxTimeout=ELECTION_TIMEOUT_MAX_S,
            appendEntriesPeriod=HEARTBEAT_S,
            leaderFallbackTimeout=LEADER_FALLBACK_S,
            connectionTimeout=1.0,
            connectionRetryTime=1.0,
            appendEntriesUseBatch=False,  # send at once
            appendEntriesBatchSizeBytes=BATCH_BYTES,
            commandsWaitLeader=False,  # without a leader a command fails at once
            commandsQueueSize=0,
            dynamicMembershipChange=False,
            useFork=False,
            journalFile=None,
            fullDumpFile=None,
            logCompactionMinEntries=1 << 60,  # see force_compaction
            logCompactionMinTime=1 << 60,
        )
        with self:
            self._raft: SyncObj = Consensus(Node(node_id), self._counted(), conf, make_transport(self), apply)
        self._clock = clock

    def __enter__(self) -> None:
        assert not self._saved, "the library is not entered twice"
        names: dict[str, Any] = vars(module)
        for name, value in self._replaced.items():
            self._saved[name] = names[name]
            names[name] = value

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        vars(module).update(self._saved)
        self._saved.clear()

    def _get(self, name: str) -> Any:
        return getattr(self._raft, _PRIVATE + name)

    def _set(self, name: str, value: object) -> None:
        assert hasattr(self._raft, _PRIVATE + name), name
        setattr(self._raft, _PRIVATE + name, value)

    # Voters

    def node(self, node_id: int) -> Node:
        """The library's object of a voter or an observer."""
        found = self._known.get(node_id)
        if found is None:
            found = self._known[node_id] = Node(node_id)
        return found

    def _others(self) -> dict[int, Node]:
        return {node_id: self.node(node_id) for node_id in sorted(self.voter_ids) if node_id != self._node_id}

    def _counted(self) -> list[Node]:
        """The nodes that the library counts beside this one."""
        others = list(self.nodes.values())
        return others if self.is_voter else [*others, self.node(_NEVER_ANSWERS)]

    @property
    def is_alone(self) -> bool:
        """Whether this node is the only voter."""
        return self.is_voter and not self.nodes

    def is_majority(self, node_ids: AbstractSet[int]) -> bool:
        """Whether these nodes, this one among them or not, are a majority of the voters."""
        return 2 * len(self.voter_ids & node_ids) > len(self.voter_ids)

    @property
    def others_needed(self) -> int:
        """How many other voters make a majority, together with this node where it is a voter."""
        return (len(self.voter_ids) // 2 + 1) - (1 if self.is_voter else 0)

    def set_voters(self, voter_ids: Sequence[int], *, is_voter: bool) -> None:
        """The voters from now on; `is_voter`: this node is one of them. Progress of observers that become voters is kept. That of voters that become observers may be
        another directory's."""
        left = self.nodes.keys() - set(voter_ids)
        self.voter_ids = frozenset(voter_ids)
        self.is_voter = is_voter
        self.nodes = self._others()
        for node_id in left:
            self._forget_progress(self.node(node_id))
            self._follow(self.node(node_id))
        counted = set(self._counted())
        heard: dict[Node, float] = self._get("lastResponseTime")
        for node in counted:
            self._follow(node)
            heard.setdefault(node, self._clock())
        self._set("otherNodes", counted)
        connected: set[Node] = self._get("connectedNodes")
        self._set("readonlyNodes", {node for node in connected if node.id not in self.voter_ids})

    def _follow(self, node: Node) -> None:
        """As leader, begin to send to this node at the end of the log."""
        next_indexes: dict[Node, int] = self._get("raftNextIndex")
        matches: dict[Node, int] = self._get("raftMatchIndex")
        next_indexes.setdefault(node, self.journal.last_index + 1)
        matches.setdefault(node, 0)

    @property
    def has_followers(self) -> bool:
        """Whether there is a node to which a leader sends."""
        return bool(self.nodes or self._get("readonlyNodes"))

    def resign(self) -> None:
        """Cease to lead, and ask a voter that has all entries to take over."""
        self.transfer_leadership()
        self._set("raftState", FOLLOWER)
        self._set("raftLeader", None)

    # State

    @property
    def state(self) -> int:
        """FOLLOWER, CANDIDATE or LEADER."""
        state: int = self._get("raftState")
        return state

    @property
    def term(self) -> int:
        term: int = self._get("raftCurrentTerm")
        return term

    @property
    def leader_id(self) -> int | None:
        """The leader that this node knows."""
        leader: Node | None = self._get("raftLeader")
        return None if leader is None else int(leader.id)

    @property
    def voted_for(self) -> int | None:
        """The node that this one has voted for in this term."""
        node_id: int | None = self._get("votedForNodeId")
        return node_id

    @property
    def commit_index(self) -> int:
        index: int = self._get("raftCommitIndex")
        return index

    @property
    def applied_index(self) -> int:
        index: int = self._get("raftLastApplied")
        return index

    @property
    def election_deadline(self) -> float:
        deadline: float = self._get("raftElectionDeadline")
        return deadline

    @property
    def next_heartbeat(self) -> float:
        moment: float = self._get("newAppendEntriesTime")
        return moment

    def match_index(self, node_id: int) -> int:
        """As leader: index of the last entry that this node is known to have on disk."""
        matches: dict[Node, int] = self._get("raftMatchIndex")
        return matches.get(self.node(node_id), 0)

    # Input

    def start_at(self, applied_index: int, commit_index: int) -> None:
        """Entries up to `applied_index` have been applied; apply those up to `commit_index`."""
        self._set("raftLastApplied", applied_index)
        self._set("raftCommitIndex", max(applied_index, min(commit_index, self.journal.last_index)))
        self._get("applyLogEntries")()

    def tick(self) -> None:
        self._raft.doTick(0)

    def submit(self, payload: bytes) -> None:
        """Append a command at the next tick, if this node leads then; otherwise drop it."""
        self._raft._applyCommand(payload, None, _REGULAR)

    def connected(self, node_id: int) -> None:
        node = self.node(node_id)
        self._get("onNodeConnected")(node)
        if node_id not in self.nodes:
            self._follow(node)
            self._get("readonlyNodes").add(node)

    def disconnected(self, node_id: int) -> None:
        """Send nothing more, until it is connected again."""
        self._get("onNodeDisconnected")(self.node(node_id))

    def lost(self, node_id: int) -> None:
        """The connection is closed. An observer may come back with less than it had."""
        node = self.node(node_id)
        self.disconnected(node_id)
        if node_id not in self.nodes:
            self._get("readonlyNodes").discard(node)
            self._forget_progress(node)

    def _forget_progress(self, node: Node) -> None:
        for name in ("raftNextIndex", "raftMatchIndex"):
            self._get(name).pop(node, None)

    def elect_at(self, moment: float) -> None:
        self._set("raftElectionDeadline", moment)

    def send_soon(self) -> None:
        """Let the leader send at the next tick, before the next heartbeat is due."""
        self._set("newAppendEntriesTime", 0.0)

    def force_compaction(self) -> None:
        """Take a snapshot at the next tick."""
        self._raft.forceLogCompaction()

    def transfer_leadership(self) -> bool:
        """Ask a follower that has all entries to become the leader; False when none has."""
        sent: list[bool] = []
        self._raft.transferLeadership(None, lambda _, reason: sent.append(reason == 0))
        return sent == [True]
