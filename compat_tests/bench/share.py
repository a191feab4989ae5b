"""Delivery in share groups (KIP-932), for `bench.groups`: members that fetch and accept records as fast as answers come.

Each member has a partition of its own, filled before, and one request in flight, which accepts what the last one brought. The members
share one process and its one thread, which decodes the answers; so records a second are those of the broker and of this client, CPU is
the broker's alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from uuid import uuid4

from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.messages.share_fetch import (
    AcknowledgementBatch,
    FetchPartition,
    FetchTopic,
    ShareFetchRequest,
)
from barnabas.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from compat_tests.bench import driver, prepared
from compat_tests.bench.group_members import MemberConnection
from compat_tests.bench.workloads import Measures
from compat_tests.conform.client import Connection
from compat_tests.harness.broker import Broker
from compat_tests.harness.process_usage import cpu_seconds

# name, records in a batch of the log; each record has 100 bytes
SHAPES = (("batches of 100", 100), ("single records", 1))
_VALUE_SIZE = 100
_GROUP_RESOURCE = 32
_ACCEPT = 1
_MAX_RECORDS = 500  # max.poll.records of Kafka's client
_JOIN_TIMEOUT_S = 60
_HEARTBEAT_S = 0.5


async def _joined(broker: Broker, group: str, topic: str, partitions: int) -> None:
    """A member that has joined until all partitions are assigned; it leaves again, the delivery states stay."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(MemberConnection, broker.host, broker.port)
    member_id, epoch, assigned = uuid4().hex, 0, 0
    async with asyncio.timeout(_JOIN_TIMEOUT_S):
        while assigned < partitions:
            names = [topic] if epoch == 0 else None
            answer = await connection.ask(
                ShareGroupHeartbeatRequest(group, member_id, epoch, subscribed_topic_names=names), 1
            )
            if answer.error_code == 0:
                epoch = answer.member_epoch
                topics = [] if answer.assignment is None else answer.assignment.topic_partitions
                assigned = max(assigned, sum(len(each.partitions) for each in topics))
            await asyncio.sleep(_HEARTBEAT_S)
    connection.transport.close()


class _Consumer:
    """A member with a share session on one partition. Membership is not asked for by the leader."""

    def __init__(self, connection: MemberConnection, group: str, topic_id: bytes, index: int) -> None:
        self.connection = connection
        self._group = group
        self._topic_id = topic_id
        self._index = index
        self._member_id = uuid4().hex
        self._epoch = 0
        self._acquired: list[AcknowledgementBatch] = []

    async def fetch(self) -> int:
        """Accept what the last answer brought and fetch more; how many records that were."""
        partition = FetchPartition(self._index, self._acquired)
        request = ShareFetchRequest(
            self._group,
            self._member_id,
            self._epoch,
            max_wait_ms=500,
            min_bytes=1,
            max_records=_MAX_RECORDS,
            batch_size=_MAX_RECORDS,
            topics=[FetchTopic(self._topic_id, [partition])],
        )
        answer = await self.connection.ask(request, 1)
        assert answer.error_code == 0, answer
        self._epoch += 1
        found = [each for topic in answer.responses for each in topic.partitions]
        assert not any(each.error_code or each.acknowledge_error_code for each in found), found
        self._acquired = [
            AcknowledgementBatch(each.first_offset, each.last_offset, [_ACCEPT])
            for partition_data in found
            for each in partition_data.acquired_records
        ]
        return sum(each.last_offset - each.first_offset + 1 for each in self._acquired)

    async def consume(self, count: int) -> int:
        """Fetch until as many are accepted; how many requests that took."""
        requests = 0
        while count > 0 or self._acquired:
            count -= await self.fetch()
            requests += 1
        return requests


async def _deliver(
    broker: Broker, group: str, topic_id: bytes, partitions: int, records: int
) -> tuple[float, float, int]:
    """(seconds, CPU seconds, requests) until all records are accepted."""
    loop = asyncio.get_running_loop()
    consumers = []
    for index in range(partitions):
        _, connection = await loop.create_connection(MemberConnection, broker.host, broker.port)
        consumers.append(_Consumer(connection, group, topic_id, index))
    cpu, started = cpu_seconds(broker.pid), time.perf_counter()
    requests = sum(await asyncio.gather(*(consumer.consume(records) for consumer in consumers)))
    measured = time.perf_counter() - started, cpu_seconds(broker.pid) - cpu, requests
    for consumer in consumers:
        consumer.connection.transport.close()
    return measured


def _fill(broker: Broker, topic: str, partitions: int, records: int, in_batch: int) -> None:
    """As many records in each partition."""
    connection = Connection(broker.host, broker.port)
    batch = prepared.batch(in_batch, _VALUE_SIZE)
    for index in range(partitions):
        data = [TopicProduceData(topic, partition_data=[PartitionProduceData(index, batch)])]
        request = ProduceRequest(acks=1, timeout_ms=30_000, topic_data=data)
        for _ in range(records // in_batch):
            answer = connection.ask(request, 9, 30)
            assert not answer.responses[0].partition_responses[0].error_code, answer
    connection.close()


def measure_share(
    broker: Broker, name: str, in_batch: int, round_name: str, partitions: int, records: int
) -> Measures:
    """One topic of `partitions`, with as many members; `records` in each."""
    topic = group = f"share-{in_batch}-{round_name}"
    connection = Connection(broker.host, broker.port)
    answer = connection.ask(CreateTopicsRequest([CreatableTopic(topic, partitions, 1)], 60_000), 7, 60)
    assert answer.topics[0].error_code == 0, answer
    topic_id = bytes(answer.topics[0].topic_id)
    driver.wait_until_served(broker.bootstrap, topic)
    earliest = AlterableConfig("share.auto.offset.reset", 0, "earliest")
    resource = AlterConfigsResource(_GROUP_RESOURCE, group, [earliest])
    assert not connection.ask(IncrementalAlterConfigsRequest([resource]), 1).responses[0].error_code
    connection.close()
    _fill(broker, topic, partitions, records, in_batch)
    asyncio.run(_joined(broker, group, topic, partitions))
    seconds, used, requests = asyncio.run(_deliver(broker, group, topic_id, partitions, records))
    total = records * partitions
    return {
        f"share, {name}: records/s": total / seconds,
        f"share, {name}: CPU us a record": used / total * 1e6,
        f"share, {name}: CPU us a ShareFetch": used / requests * 1e6,
    }


def measure_shares(broker: Broker, round_name: str, partitions: int, records: Sequence[int]) -> Measures:
    """All shapes, with as many records each as `records` says."""
    measures: Measures = {}
    for (name, in_batch), count in zip(SHAPES, records, strict=True):
        measures |= measure_share(broker, name, in_batch, round_name, partitions, count)
    return measures
