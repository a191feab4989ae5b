"""A simulated client that ignores metadata: it repeatedly asks one broker for the ends of partitions and the
committed offsets of groups, and any leader may have set them.

A broker that answers reports a state that was current at most `History.stale_s` before the request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from compat_tests.simulation.consumers import LATEST, LIST_OFFSETS, LIST_OFFSETS_VERSION
from compat_tests.simulation.groups import OFFSET_FETCH, VERSIONS, check_committed
from compat_tests.simulation.history import History, Partition, Topic, Violation, name
from compat_tests.simulation.wire_client import Address, Client, NoResponse

TIMEOUT_S = 1.0
PAUSE_S = 0.15


class Observer:
    """Runs until `should_continue` returns false."""

    def __init__(
        self,
        client: Client,
        history: History,
        address: Address,
        groups: Sequence[str],
        should_continue: Callable[[], bool],
    ) -> None:
        self._client = client
        self._history = history
        self._address = address
        self._groups = groups
        self._should_continue = should_continue

    async def run(self) -> None:
        client = self._client
        while self._should_continue():
            topics = [
                topic
                for topic in self._history.topics.values()
                if topic.topic_id and topic.is_safe and not topic.is_deleted
            ]
            try:
                if topics:
                    await self._ask_for_ends(topics)
                    topic = client.random.choice(topics)
                    partition = topic.topic_id, client.random.randrange(topic.partitions)
                    await self._ask_for_offset(client.random.choice(self._groups), partition)
            except NoResponse:
                pass
            await client.pause(PAUSE_S)

    async def _ask_for_ends(self, topics: list[Topic]) -> None:
        client, history = self._client, self._history
        asked_at = client.now()
        request = ListOffsetsRequest(
            -1,
            0,
            [
                ListOffsetsTopic(
                    topic.name,
                    [ListOffsetsPartition(index, -1, LATEST) for index in range(topic.partitions)],
                )
                for topic in topics
            ],
        )
        answer = await client.ask(
            self._address, LIST_OFFSETS, LIST_OFFSETS_VERSION, request, timeout_s=TIMEOUT_S
        )
        for topic, returned in zip(topics, answer.topics, strict=True):
            for found in returned.partitions:
                if found.error_code != ErrorCode.NONE:
                    continue
                partition = topic.topic_id, found.partition_index
                before = history.end_answered(partition, asked_at)
                if found.offset < before and not topic.is_deleted:
                    raise Violation(
                        f"{client.name}: {name(partition)} ends at {found.offset} by {self._address[0]}, leader in "
                        f"epoch {found.leader_epoch}; {before} was the answer {history.stale_s:.1f} s earlier"
                    )
                history.count("ends returned to observers")
                history.saw_end(partition, found.leader_epoch, found.offset, client.now())

    async def _ask_for_offset(self, group_id: str, partition: Partition) -> None:
        client, history = self._client, self._history
        asked_at = client.now()
        wanted = OffsetFetchRequestGroup(
            group_id, None, -1, [OffsetFetchRequestTopics("", partition[0], [partition[1]])]
        )
        request = OffsetFetchRequest(groups=[wanted], require_stable=False)
        answer = await client.ask(
            self._address, OFFSET_FETCH, VERSIONS[OFFSET_FETCH], request, timeout_s=TIMEOUT_S
        )
        group = answer.groups[0]
        if group.error_code != ErrorCode.NONE:
            return
        found = group.topics[0].partitions[0]
        if found.error_code == ErrorCode.NONE:
            check_committed(history, group_id, partition, found.committed_offset, asked_at - history.stale_s)
            history.count("offsets returned to observers")
