"""Racks: replicas are spread over racks, and a consumer with a rack reads from a follower in it (KIP-392)."""

from __future__ import annotations

import json

import confluent_kafka

from compat_tests.harness.clients import PLAIN, Sample
from compat_tests.harness.cluster_work import QUIET, create_topic
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import ClusterFactory

RACKS = {1: "east", 2: "west", 3: "west"}
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def test_a_consumer_reads_in_its_own_rack(fresh_cluster: ClusterFactory) -> None:
    cluster = fresh_cluster(
        settings={"replica.selector.class": SELECTOR},
        node_settings={node: {"broker.rack": rack} for node, rack in RACKS.items()},
    )
    create_topic(cluster, "spread", 6, replicas=2)
    for (topic, _), state in cluster.metadata().partitions.items():
        if topic == "spread":
            assert {RACKS[node] for node in state.replicas} == {"east", "west"}, state
    create_topic(cluster, "near", assignment=[[2, 1]], configs={"min.insync.replicas": "1"})
    PLAIN.produce(cluster.bootstrap, "near", [Sample(None, b"%d" % number) for number in range(10)])
    seen_at: list[int] = []

    def note(text: str) -> None:
        partition = json.loads(text)["topics"].get("near", {}).get("partitions", {}).get("0")
        if partition is not None:
            seen_at.append(partition["broker"])

    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "unused",
            "client.rack": "east",
            "statistics.interval.ms": 100,
            "stats_cb": note,
            **QUIET,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition("near", 0, 0)])
    values: list[bytes | None] = []

    def read(count: int) -> bool:
        values.extend(message.value() for message in consumer.consume(100, 0.2) if message.error() is None)
        return len(values) >= count and seen_at[-1:] == [1]

    eventually(lambda: read(10))
    PLAIN.produce(cluster.bootstrap, "near", [Sample(None, b"10")])
    eventually(lambda: read(11))
    assert values == [b"%d" % number for number in range(11)]
    cluster.kill(1)
    PLAIN.produce(cluster.bootstrap, "near", [Sample(None, b"11")])
    eventually(lambda: len(values) >= 12 or read(12))
    consumer.close()
    assert values[11] == b"11", "the leader serves consumers whose rack has no replica"
