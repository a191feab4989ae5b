"""Positions in consumer groups, read and written as consumers without membership do.

The position of publishing a topic's records is kept in an ordinary group, so that all Kafka tools show its lag and can reset
it. The group has no members (generation -1, no member id): it is Empty, the state in which offsets can be reset. Its
coordinator, this broker or another one, gets OffsetFetch and OffsetCommit in version 10, which names topics by id: a topic
that is deleted and created again has no position.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from barnabas.broker.cluster.peer_client import Answered
from barnabas.broker.cluster.peers import PeerTerms
from barnabas.nats.cluster.peers import peers_of
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from barnabas.broker.extension import ExtensionHost

OFFSET_COMMIT: Final = 8
OFFSET_FETCH: Final = 9
VERSION: Final = 10  # of both
TIMEOUT_S: Final = 10.0
WITHOUT_MEMBERSHIP: Final = -1
_TERMS: Final = PeerTerms(
    purpose="nats-positions",
    request_timeout_s=TIMEOUT_S,
    connection_timeout_s=TIMEOUT_S,
    timeout_error=ErrorCode.REQUEST_TIMED_OUT,
    disconnect_error=ErrorCode.COORDINATOR_NOT_AVAILABLE,
    gives_up_sent=True,
)


class Position(msgspec.Struct, frozen=True):
    """`offset` is the next one to process. `leader_epoch` is that of the record before it, -1 when unknown."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


Fetched: TypeAlias = "Callable[[ErrorCode, dict[int, Position]], object]"


class Positions:
    """Requests to the coordinators of groups, for all bindings of a broker. All calls on the loop's thread.

    Nothing is retried here: the caller gets the error (COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR,
    COORDINATOR_LOAD_IN_PROGRESS, ...) and asks again later.
    """

    def __init__(self, host: ExtensionHost) -> None:
        self._host = host
        self._peers = peers_of(host, _TERMS)

    def fetch(self, group: str, topic_id: bytes, partitions: Iterable[int], fetched: Fetched) -> None:
        """Calls `fetched(NONE, positions by partition)`, without the partitions that have none, or `fetched(error, {})`.
        Waits for commits that are not stable yet."""
        topic = OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=sorted(partitions))
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=group, topics=[topic])], require_stable=True
        )
        self._ask(group, OFFSET_FETCH, request, partial(_read_positions, fetched))

    def commit(
        self,
        group: str,
        topic_id: bytes,
        positions: Mapping[int, Position],
        committed: Callable[[ErrorCode], object],
    ) -> None:
        """Calls `committed(NONE)` once the group's log has them. UNKNOWN_MEMBER_ID: the group has members, and only members may
        commit."""
        topic = OffsetCommitRequestTopic(
            topic_id=topic_id,
            partitions=[
                OffsetCommitRequestPartition(
                    partition_index=index,
                    committed_offset=position.offset,
                    committed_leader_epoch=position.leader_epoch,
                    committed_metadata=position.metadata,
                )
                for index, position in sorted(positions.items())
            ],
        )
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=WITHOUT_MEMBERSHIP,
            member_id="",
            topics=[topic],
        )
        self._ask(group, OFFSET_COMMIT, request, partial(_read_commit, committed))

    def close(self) -> None:
        """No callback that waits for another broker is called any more."""
        self._peers.close()

    # -- the coordinator

    def _ask(self, group: str, api_key: int, request: msgspec.Struct, answered: Answered) -> None:
        def found(error: ErrorCode, node_id: int) -> None:
            if error:
                answered(None, error)
            elif node_id == self._host.node_id:
                self._host.ask_here(api_key, VERSION, request, answered)
            else:
                self._peers.ask(node_id, api_key, VERSION, request, answered)

        self._host.groups.topic.find(group, found)


def _read_positions(fetched: Fetched, response: Any, error: ErrorCode) -> None:
    if response is None:
        fetched(error, {})
        return
    (group,) = response.groups if len(response.groups) == 1 else (None,)
    partitions = [] if group is None else [each for topic in group.topics for each in topic.partitions]
    code = (
        ErrorCode.UNKNOWN_SERVER_ERROR
        if group is None
        else next((each.error_code for each in (group, *partitions) if each.error_code), ErrorCode.NONE)
    )
    if code:
        fetched(ErrorCode.of(code), {})
        return
    fetched(
        ErrorCode.NONE,
        {
            each.partition_index: Position(
                each.committed_offset, each.committed_leader_epoch, each.metadata or ""
            )
            for each in partitions
            if each.committed_offset >= 0
        },
    )


def _read_commit(committed: Callable[[ErrorCode], object], response: Any, error: ErrorCode) -> None:
    if response is None:
        committed(error)
        return
    codes = [each.error_code for topic in response.topics for each in topic.partitions]
    committed(ErrorCode.of(next((code for code in codes if code), ErrorCode.NONE)))
