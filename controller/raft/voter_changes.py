"""Adding and removing voters (KIP-853): the rules, in Kafka's order and words, and the change of the log.

Kafka asks the new voter for its version of the protocol, by ApiVersions. Here it has to be linked as a controller with this directory,
which only a release that knows such entries can be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from barnabas.controller.metadata.decision import ApiError
from barnabas.controller.raft.voters import Voter, VoterSet
from barnabas.wire.errors import ErrorCode
from barnabas.wire.primitives import ZERO_UUID
from barnabas.wire.uuids import uuid_to_string

if TYPE_CHECKING:
    from barnabas.controller.raft.raft_log import RaftMetadataLog

LISTENERS_MAX: Final = 100  # of a voter
HOST_LENGTH_MAX: Final = 255

Listener = tuple[str, str, int]  # name, host, port
Answer = Callable[[ApiError | None], object]


class VoterChanges:
    """Of the quorum of `raft`. `listener`: name of the listener through which controllers call each other."""

    def __init__(self, raft: RaftMetadataLog | None, cluster_id: str, listener: str) -> None:
        """`raft`: None on a node that is alone, whose log can't name voters."""
        self._raft = raft
        self._cluster_id = cluster_id
        self._listener = listener

    @property
    def is_possible(self) -> bool:
        """Whether there is a quorum of which voters can be added or removed."""
        return self._raft is not None

    def add(
        self,
        kraft_version: int,
        cluster_id: str | None,
        node_id: int,
        directory_id: bytes,
        listeners: Sequence[Listener],
        answer: Answer,
        *,
        ack_when_committed: bool,
    ) -> None:
        """`kraft_version`: the finalized level. `answer(None)` once the voter is added, or, where it need not be committed, appended;
        `answer(error)` otherwise. NOT_CONTROLLER: it is not known whether it is added."""
        try:
            self._check_cluster(cluster_id)
            check_key("Add", node_id, directory_id)
            host, port = self._endpoint(listeners)
            raft = self._raft_that_changes("adding", kraft_version)
            check_new(raft, node_id, directory_id)
        except ApiError as error:
            answer(error)
            return
        new = Voter(node_id, host, port, *raft.observer_directory(node_id))
        _change(raft, (*raft.voters, new), answer, ack_when_committed=ack_when_committed)

    def remove(
        self, kraft_version: int, cluster_id: str | None, node_id: int, directory_id: bytes, answer: Answer
    ) -> None:
        """As `add`. A leader that is removed answers, and then resigns."""
        try:
            self._check_cluster(cluster_id)
            check_key("Remove", node_id, directory_id)
            raft = self._raft_that_changes("removing", kraft_version)
        except ApiError as error:
            answer(error)
            return
        voters = raft.voters
        kept = tuple(
            voter for voter in voters if (voter.node_id, voter.directory_id) != (node_id, directory_id)
        )
        if len(kept) == len(voters) or not kept:
            text = f"Cannot remove voter {key_text(node_id, directory_id)} from the set of voters {set_text(voters)}"
            answer(ApiError(ErrorCode.VOTER_NOT_FOUND, text))
            return
        _change(raft, kept, answer, ack_when_committed=True)

    # The rules, each an ApiError

    def _check_cluster(self, cluster_id: str | None) -> None:
        if cluster_id is not None and cluster_id != self._cluster_id:
            text = f'The given id "{cluster_id[:100]}" doesn\'t match the cluster id "{self._cluster_id}"'
            raise ApiError(ErrorCode.INCONSISTENT_CLUSTER_ID, text)

    def _endpoint(self, listeners: Sequence[Listener]) -> tuple[str, int]:
        found = {name: (host, port) for name, host, port in listeners[:LISTENERS_MAX]}
        host, port = found.get(self._listener, ("", 0))
        if host and len(host) <= HOST_LENGTH_MAX and port and len(listeners) <= LISTENERS_MAX:
            return host, port
        named = ", ".join(
            f"ListenerName({name})={host}/<unresolved>:{port}" for name, host, port in listeners[:3]
        )
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Add voter request didn't include the endpoint (Endpoints(endpoints={{{named[:1000]}}})) for the default "
            f"listener ListenerName({self._listener})",
        )

    def _raft_that_changes(self, doing: str, kraft_version: int) -> RaftMetadataLog:
        """The log, if its voters can change now."""
        raft = self._raft
        if raft is None or (raft.is_leader and kraft_version < 1):
            level = 0 if raft is None else kraft_version
            text = f"Cluster doesn't support {doing} voter because the kraft.version feature is {level}"
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, text)
        if not raft.is_leader:
            text = "Request timed out waiting for leader to establish HWM and fence previous voter changes"
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, text)
        if raft.is_voter_change_open or not raft.are_voters_recorded:
            text = "Request timed out waiting for leader to handle previous voter change request"
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, text)
        return raft


def _change(
    raft: RaftMetadataLog, voters: Sequence[Voter], answer: Answer, *, ack_when_committed: bool
) -> None:
    is_answered = False

    def reply(error: ApiError | None) -> None:
        nonlocal is_answered
        if not is_answered:
            is_answered = True
            answer(error)

    def done(error: Exception | None) -> None:
        reply(None if error is None else ApiError(ErrorCode.NOT_CONTROLLER, str(error)))

    raft.change_voters(voters, done, None if ack_when_committed else lambda: reply(None))


def check_new(raft: RaftMetadataLog, node_id: int, directory_id: bytes) -> None:
    """ApiError unless the node can become a voter now: it follows the log with this directory, and has what is committed."""
    key = key_text(node_id, directory_id)
    if any(voter.node_id == node_id for voter in raft.voters):
        text = f"The voter id for {key} is already part of the set of voters {set_text(raft.voters)}."
        raise ApiError(ErrorCode.DUPLICATE_VOTER, text)
    if raft.observer_directory(node_id).directory_id != directory_id:
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT, f"New voter {key} is not ready to receive requests")
    if not raft.is_caught_up(node_id):
        text = f"Aborted add voter operation for {key} since it is lagging behind"
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT, text)


def check_key(what: str, node_id: int, directory_id: bytes) -> None:
    """ApiError unless these can be a voter's ids."""
    if node_id < 0 or directory_id == ZERO_UUID:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{what} voter request didn't include a valid voter")


def key_text(node_id: int, directory_id: bytes) -> str:
    return f"ReplicaKey(id={node_id}, directoryId={uuid_to_string(directory_id)})"


def set_text(voters: VoterSet) -> str:
    return f"[{', '.join(key_text(voter.node_id, voter.directory_id) for voter in voters)}]"
