"""A simulated client that poses as each of the followers, and claims that they have all that their leader has.

A leader that served it would acknowledge records that no other replica has. Each answer must be an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from compat_tests.simulation.history import History, Topic, Violation
from compat_tests.simulation.wire_client import Client, NoResponse

FETCH, LIST_OFFSETS, LIST_OFFSETS_VERSION = 1, 2, 8
LATEST = -1
DEBUGGER = -2  # the replica id that reads up to the log's end, committed or not
BROKER_EPOCH = 1 << 40  # higher than the epoch of any registered broker


class UnauthenticatedFollower:
    """Runs until `should_continue` returns false. `broker_ids`: ids of the cluster's brokers."""

    def __init__(
        self,
        client: Client,
        history: History,
        broker_ids: Sequence[int],
        pace_s: float,
        should_continue: Callable[[], bool],
    ) -> None:
        self._client = client
        self._history = history
        self._broker_ids = broker_ids
        self._pace_s = pace_s
        self._should_continue = should_continue

    async def run(self) -> None:
        client = self._client
        while self._should_continue():
            if not client.brokers or client.random.random() < 0.1:
                await client.refresh()
            topics = [each for each in self._history.topics.values() if each.topic_id and not each.is_deleted]
            if topics:
                try:
                    await self._pose(client.random.choice(topics))
                except NoResponse:
                    client.brokers.clear()
            await client.pause(self._pace_s)

    async def _pose(self, topic: Topic) -> None:
        client = self._client
        partition = client.random.randrange(topic.partitions)
        address, _ = client.leader(topic.topic_id, partition)
        if address is None:
            return
        asked = [ListOffsetsTopic(topic.name, [ListOffsetsPartition(partition, -1, LATEST)])]
        request = ListOffsetsRequest(DEBUGGER, 0, asked)
        answer = await client.ask(address, LIST_OFFSETS, LIST_OFFSETS_VERSION, request)
        end_offset = answer.topics[0].partitions[0].offset
        if end_offset < 0:
            return
        for broker_id in self._broker_ids:
            version = client.random.choice((13, 17, 18))
            wanted = [FetchPartition(partition, -1, end_offset, -1, 0, 1 << 20)]
            fetch = FetchRequest(session_epoch=0, topics=[FetchTopic(topic.name, topic.topic_id, wanted)])
            if version < 15:
                fetch.replica_id = broker_id
            else:
                fetch.replica_state = ReplicaState(broker_id, BROKER_EPOCH)
            answer = await client.ask(address, FETCH, version, fetch)
            error = ErrorCode(answer.error_code or answer.responses[0].partitions[0].error_code)
            if error is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise Violation(f"{client.name} fetches as broker {broker_id}: {error.name}")
            self._history.count("unauthenticated followers refused")
