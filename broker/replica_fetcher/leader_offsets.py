"""Asks the leader of a fetcher's partitions for their special offsets (ListOffsets)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.storage.errors import StorageError
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from barnabas.broker.cluster.peer_client import InterBrokerClient
    from barnabas.broker.replica_fetcher.state import FetchState

    Failed = Callable[[list[FetchState], BaseException | None], object]

LIST_OFFSETS: Final = 2
LIST_OFFSETS_VERSION: Final = 11
LATEST: Final = -1
EARLIEST: Final = -2
EARLIEST_LOCAL: Final = -4  # KIP-405
LATEST_TIERED: Final = -5  # KIP-1005
EARLIEST_PENDING_UPLOAD: Final = -6  # KIP-1023

Offsets = list[int]  # one for each kind that was asked for


class LeaderOffsets:
    """See the module. All calls on the loop's thread."""

    def __init__(
        self,
        client: InterBrokerClient,
        node_id: int,
        is_current: Callable[[FetchState], bool],
    ) -> None:
        self._client = client
        self._node_id = node_id
        self._is_current = is_current
        self._asked: dict[int, tuple[list[FetchState], Failed]] = {}  # by number of the question
        self._number = 0

    def ask(
        self,
        states: list[FetchState],
        kinds: Sequence[int],
        received: Callable[[Iterator[tuple[FetchState, Offsets]]], object],
        failed: Failed,
    ) -> None:
        """`received` gets the offsets of those that are still fetched and have no error, in the order of `kinds`; `failed(states, error)`
        those that the leader refuses, and with None all where the connection is lost."""
        self._number += 1
        number = self._number
        self._asked[number] = states, failed
        answers: list[dict[tuple[str, int], tuple[int, int]]] = []

        def answered(response: ListOffsetsResponse) -> None:
            answers.append(_offsets(response))
            if len(answers) == len(kinds) and self._asked.pop(number, None) is not None:
                received(self._without_errors(states, answers, failed))

        for kind in kinds:
            self._client.send(
                LIST_OFFSETS,
                LIST_OFFSETS_VERSION,
                _list_offsets(self._node_id, states, kind),
                answered,
                answer_max_bytes=4096 + 512 * len(states),
            )

    def connection_lost(self) -> None:
        """Questions get no answer."""
        asked, self._asked = self._asked, {}
        for states, failed in asked.values():
            failed(states, None)

    def _without_errors(
        self,
        states: list[FetchState],
        answers: list[dict[tuple[str, int], tuple[int, int]]],
        failed: Failed,
    ) -> Iterator[tuple[FetchState, Offsets]]:
        missing = (-1, ErrorCode.UNKNOWN_SERVER_ERROR)
        for state in states:
            if not self._is_current(state):
                continue
            key = (state.partition.topic, state.partition.partition)
            found = [answer.get(key, missing) for answer in answers]
            error = next((error for _, error in found if error), 0)
            if error:
                code = ErrorCode.of(error)
                failed([state], StorageError(code, f"the leader's offsets: {code.name}"))
            else:
                yield state, [offset for offset, _ in found]


def _list_offsets(replica_id: int, states: list[FetchState], timestamp: int) -> ListOffsetsRequest:
    topics: dict[str, ListOffsetsTopic] = {}
    for state in states:
        name = state.partition.topic
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = ListOffsetsTopic(name, [])
        topic.partitions.append(
            ListOffsetsPartition(
                partition_index=state.partition.partition,
                current_leader_epoch=state.leader_epoch,
                timestamp=timestamp,
            )
        )
    return ListOffsetsRequest(replica_id=replica_id, topics=list(topics.values()))


def _offsets(response: ListOffsetsResponse) -> dict[tuple[str, int], tuple[int, int]]:
    """(offset, error) by topic and partition."""
    return {
        (topic.name, part.partition_index): (part.offset, part.error_code)
        for topic in response.topics
        for part in topic.partitions
    }
