"""A simulated admin: creates topics, adds partitions, moves replicas, elects leaders, deletes topics and records.

It retries until an answer is final. Where the outcome of a change is unknown, the checkers accept both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from barnabas.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from barnabas.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from barnabas.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from barnabas.wire.messages.elect_leaders import ElectLeadersRequest
from compat_tests.simulation.history import History, Topic, Violation, name
from compat_tests.simulation.wire_client import Client, NoResponse

DELETE_RECORDS = 21
CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS, ELECT_LEADERS, REASSIGN = 19, 20, 37, 43, 45
VERSIONS = {CREATE_TOPICS: 7, DELETE_TOPICS: 6, CREATE_PARTITIONS: 3, ELECT_LEADERS: 2, REASSIGN: 1}
TIMEOUT_MS = 2000


class Admin:
    """Runs until `should_continue` returns false. `nodes`: ids of the brokers that can hold replicas."""

    def __init__(
        self,
        client: Client,
        history: History,
        nodes: list[int],
        replicas: int,
        should_continue: Callable[[], bool],
    ) -> None:
        self._client = client
        self._history = history
        self._nodes = nodes
        self._replicas = replicas
        self._should_continue = should_continue
        self._created = 0

    async def run(self) -> None:
        client = self._client
        while self._should_continue():
            await client.pause(1.0)
            step = client.random.choice(
                [
                    self._create_one,
                    self._delete,
                    self._reassign,
                    self._reassign,
                    self._elect,
                    self._add_partitions,
                    self._delete_records,
                ]
            )
            await step()

    async def create(self, topic_name: str, partitions: int, configs: dict[str, str]) -> Topic:
        """Creates a topic, and retries until it exists."""
        topic = Topic(topic_name, configs.get("unclean.leader.election.enable") != "true", configs=configs)
        wanted = CreatableTopic(
            topic_name,
            partitions,
            self._replicas,
            configs=[CreatableTopicConfig(key, value) for key, value in configs.items()],
        )
        self._history.topics[topic_name] = topic
        while self._should_continue():
            answer = await self._ask(CREATE_TOPICS, CreateTopicsRequest([wanted], TIMEOUT_MS))
            error = ErrorCode(answer.topics[0].error_code) if answer is not None else None
            if error is ErrorCode.NONE:
                topic.partitions = partitions
                topic.topic_id = answer.topics[0].topic_id
                self._history.count("topics created")
                return topic
            if error is ErrorCode.TOPIC_ALREADY_EXISTS:
                await self._client.refresh()
                known = self._client.topics.get(topic_name)
                if known is not None:
                    topic.partitions = partitions
                    topic.topic_id = known.topic_id
                    return topic
            await self._client.pause(0.2)
            await self._client.refresh()
        return topic

    async def _create_one(self) -> None:
        if self._created < 3:
            self._created += 1
            partitions = self._client.random.randint(1, 2)
            await self.create(f"late-{self._client.name}-{self._created}", partitions, {})

    def _some_topic(self) -> Topic | None:
        topics = [topic for topic in self._history.topics.values() if topic.topic_id and not topic.is_deleted]
        return self._client.random.choice(topics) if topics else None

    async def _delete(self) -> None:
        topic = self._some_topic()
        if topic is None or not topic.name.startswith("late-"):
            return
        topic.is_deleted = True
        while self._should_continue():
            answer = await self._ask(
                DELETE_TOPICS, DeleteTopicsRequest([DeleteTopicState(None, topic.topic_id)], [], TIMEOUT_MS)
            )
            if answer is not None and answer.responses[0].error_code in (
                ErrorCode.NONE,
                ErrorCode.UNKNOWN_TOPIC_ID,
            ):
                self._history.count("topics deleted")
                return
            await self._client.pause(0.2)
            await self._client.refresh()

    async def _reassign(self) -> None:
        topic = self._some_topic()
        if topic is None or (len(self._nodes) <= self._replicas and self._client.random.random() < 0.5):
            return
        replicas = self._client.random.sample(self._nodes, self._replicas)
        partition = self._client.random.randrange(topic.partitions)
        wanted = ReassignablePartition(partition, replicas)
        if self._client.random.random() < 0.1:
            wanted.replicas = None  # cancel the reassignment
        answer = await self._ask(
            REASSIGN,
            AlterPartitionReassignmentsRequest(TIMEOUT_MS, True, [ReassignableTopic(topic.name, [wanted])]),
        )
        if answer is not None and not answer.error_code:
            code = answer.responses[0].partitions[0].error_code if answer.responses else 0
            self._history.count(f"reassign {ErrorCode(code).name}")

    async def _elect(self) -> None:
        answer = await self._ask(ELECT_LEADERS, ElectLeadersRequest(0, None, TIMEOUT_MS))
        if answer is not None and not answer.error_code:
            self._history.count("elections of preferred leaders")

    async def _delete_records(self) -> None:
        """Deletes some of the committed records, but never in the topic that keeps everything."""
        client, history = self._client, self._history
        topic = self._some_topic()
        if topic is None or topic.name == "safe" or topic.is_compacted:
            return
        partition = topic.topic_id, client.random.randrange(topic.partitions)
        end = history.end_before(partition, 1 << 30)
        address, _ = client.leader(*partition)
        if end < 1 or address is None:
            await client.refresh()
            return
        offset = client.random.randint(1, max(1, end // 2))
        history.requested_starts[partition] = max(offset, history.requested_starts.get(partition, 0))
        wanted = [DeleteRecordsTopic(topic.name, [DeleteRecordsPartition(partition[1], offset)])]
        try:
            answer = await client.ask(address, DELETE_RECORDS, 2, DeleteRecordsRequest(wanted, TIMEOUT_MS))
        except NoResponse:
            await client.refresh()
            return
        found = answer.topics[0].partitions[0]
        history.count(f"delete records {ErrorCode(found.error_code).name}")
        if found.error_code == ErrorCode.NONE and found.low_watermark < offset:
            raise Violation(
                f"records up to {offset} of {name(partition)} are deleted up to {found.low_watermark}"
            )

    async def _add_partitions(self) -> None:
        topic = self._some_topic()
        if topic is None or topic.partitions > 3 or self._client.random.random() < 0.7:
            return
        wanted = topic.partitions + 1
        answer = await self._ask(
            CREATE_PARTITIONS,
            CreatePartitionsRequest([CreatePartitionsTopic(topic.name, wanted, None)], TIMEOUT_MS),
        )
        if answer is not None and answer.results[0].error_code == ErrorCode.NONE:
            topic.partitions = max(topic.partitions, wanted)

    async def _ask(self, key: int, message: Any) -> Any:
        try:
            return await self._client.ask(self._client.any_address(), key, VERSIONS[key], message)
        except NoResponse:
            return None


async def reassign(client: Client, topic: str, partition: int, replicas: list[int]) -> bool:
    """Ask for the partition to move to these brokers; whether that is accepted."""
    wanted = ReassignablePartition(partition, replicas)
    request = AlterPartitionReassignmentsRequest(TIMEOUT_MS, True, [ReassignableTopic(topic, [wanted])])
    try:
        answer = await client.ask(client.any_address(), REASSIGN, VERSIONS[REASSIGN], request)
    except NoResponse:
        await client.refresh()
        return False
    return not answer.error_code
