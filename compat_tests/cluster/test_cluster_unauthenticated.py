"""Unauthenticated clients that pose as followers: a leader acknowledges nothing because of them, and a running broker
stays registered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from barnabas.testing.external.raw_client import RawClient
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from barnabas.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.wire.messages.unregister_broker import UnregisterBrokerRequest
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.cluster_work import create_topic
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import ClusterFactory
from compat_tests.harness.java_tools import JavaTools

pytestmark = pytest.mark.barnabas_only

SESSION_MS, LAG_MS = "60000", "600000"  # no broker is fenced, and no ISR shrinks, during a test
REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.fixture
def cluster(fresh_cluster: ClusterFactory, tmp_path: Path) -> Iterator[Cluster]:
    secret = tmp_path / "secret"
    secret.write_text("a long and well kept secret, 0123456789")
    secret.chmod(0o600)
    made = fresh_cluster(
        settings={
            "barnabas.controller.secret.file": str(secret),
            "min.insync.replicas": "2",
            "broker.session.timeout.ms": SESSION_MS,
            "replica.lag.time.max.ms": LAG_MS,
        }
    )
    yield made
    for node in made.nodes.values():
        assert "Traceback" not in node.log_text()


class UnauthenticatedFollower:
    """Poses as a follower of topic "t", partition 0, at a broker's client listener."""

    def __init__(self, address: str) -> None:
        self.client = RawClient(int(address.rpartition(":")[2]))
        topics = [MetadataRequestTopic(name="t")]
        metadata = self.client.ask(3, 12, MetadataRequest(topics=topics))
        self.topic_id = metadata.topics[0].topic_id

    def fetch(self, replica_id: int, offset: int, version: int) -> int:
        """Error code of a Fetch as this replica."""
        topic = FetchTopic("t", self.topic_id, [FetchPartition(0, -1, offset, -1, 0, 1 << 20)])
        request = FetchRequest(max_bytes=1 << 20, topics=[topic])
        if version < 15:
            request.replica_id = replica_id
        else:
            request.replica_state = ReplicaState(replica_id, 1 << 40)
        answer = self.client.ask(1, version, request)
        return int(answer.error_code or answer.responses[0].partitions[0].error_code)

    def end_offset(self, replica_id: int) -> tuple[int, int]:
        """(error, offset) of ListOffsets for the latest offset."""
        topics = [ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, -1)])]
        request = ListOffsetsRequest(replica_id=replica_id, topics=topics)
        answer = self.client.ask(2, 7, request).topics[0].partitions[0]
        return answer.error_code, answer.offset


def test_a_fetch_of_an_unauthenticated_follower_acknowledges_nothing(cluster: Cluster) -> None:
    """One of three replicas is paused, then two; an unauthenticated client fetches in their name, from the log's
    end."""
    create_topic(cluster, "t", replicas=3)
    cluster.wait_until_whole()
    leader = cluster.leader("t", 0)
    first, second = (node for node in cluster.nodes if node != leader)
    acknowledged: list[int] = []

    def delivered(error: object, message: object) -> None:
        assert error is None
        acknowledged.append(1)

    follower = UnauthenticatedFollower(cluster.addresses[leader])
    producers = []
    sent = 0
    for suspended in (first, second):
        cluster.suspend(suspended)
        # Of one request on a connection of its own: one behind another that waits may be read when that has timed out, and is sent twice.
        producer = Producer(
            {
                "bootstrap.servers": cluster.addresses[leader],
                "acks": "all",
                "linger.ms": 100,
                "message.timeout.ms": 600_000,
            }
        )
        producers.append(producer)
        for _ in range(5):
            producer.produce("t", b"%d" % sent, partition=0, on_delivery=delivered)
            sent += 1
        eventually(lambda expected=sent: _log_end(cluster, leader) == expected, 60)
        for version in range(4, 19):
            for replica_id in (first, second):
                assert follower.fetch(replica_id, sent, version) == REFUSED
                assert follower.end_offset(replica_id) == (REFUSED, -1)
        assert follower.end_offset(-1) == (0, 0)
        for each in producers:
            each.poll(0)
        assert not acknowledged
    cluster.resume(first)
    cluster.resume(second)
    for each in producers:
        each.flush(120)
    assert len(acknowledged) == sent
    cluster.kill(leader)
    cluster.wait_until_led("t", timeout=180)  # a new controller may wait for the end of the session
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g"})
    try:
        eventually(lambda: _end(consumer) == sent, 120)
    finally:
        consumer.close()
    words = f"says that it is of broker {first}, and its connection is not authenticated"
    assert cluster.nodes[leader].log_text().count(words) == 1


def _log_end(cluster: Cluster, node: int) -> int:
    """A leader's log end, committed or not (replica id -2 is Kafka's debugging consumer)."""
    return UnauthenticatedFollower(cluster.addresses[node]).end_offset(-2)[1]


def _end(consumer: Consumer) -> int:
    """The high watermark; -1 while the leader is unknown."""
    try:
        return int(consumer.get_watermark_offsets(TopicPartition("t", 0), timeout=10)[1])
    except KafkaException:
        return -1


def test_a_running_broker_can_not_be_unregistered(cluster: Cluster, java_tools: JavaTools) -> None:
    for node in cluster.nodes:
        client = RawClient(int(cluster.addresses[1].rpartition(":")[2]))
        answer = client.ask(64, 0, UnregisterBrokerRequest(broker_id=node))
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert "is running" in answer.error_message
    where = ("--bootstrap-server", cluster.addresses[1])
    refused = java_tools.run("kafka-cluster", "unregister", *where, "--id", "3", status=None)
    assert "Broker 3 is running" in refused.output
    cluster.wait_until_known()
    cluster.stop(3)
    gone = java_tools.run("kafka-cluster", "unregister", *where, "--id", "3")
    assert "Broker 3 is no longer registered" in gone.output
    cluster.start(3)
    cluster.wait_until_known()
