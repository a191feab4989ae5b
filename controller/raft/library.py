"""pysyncobj's SyncObj for one voter: the only code that uses its internals.

The library takes clock, randomness, journal, snapshots, codec and poller from names of its module. They are replaced whenever it
is entered and restored afterwards, so several nodes with different clocks can run in one process. Its private fields are read,
and a few written, by name; a test covers every name used here.

Messages are not checked here but in transport.py.
"""

from __future__ import annotations

import random  # noqa: TID251 - the type only
from collections.abc import Callable, Mapping, Sequence
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
        others: Sequence[int],
        make_transport: Callable[[RaftLibrary], Transport],
        journal: RaftJournal,
        snapshots: RaftSnapshots,
        clock: Callable[[], float],
        randomness: random.Random,
        apply: Callable[[bytes], None],
    ) -> None:
        self.nodes: Mapping[int, Node] = {other: Node(other) for other in sorted(others)}
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
            self._raft: SyncObj = Consensus(
                Node(node_id), list(self.nodes.values()), conf, make_transport(self), apply
            )

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
        """As leader: index of the last entry that this voter is known to have on disk."""
        matches: dict[Node, int] = self._get("raftMatchIndex")
        return matches.get(self.nodes[node_id], 0)

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
        self._get("onNodeConnected")(self.nodes[node_id])

    def disconnected(self, node_id: int) -> None:
        self._get("onNodeDisconnected")(self.nodes[node_id])

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
