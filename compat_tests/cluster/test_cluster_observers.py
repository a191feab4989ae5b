"""Observers: a consumer with a rack reads from one, which delays no acknowledgement and never leads."""

from __future__ import annotations

import json

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from compat_tests.harness.asking import ask_for_topic
from compat_tests.harness.clients import PLAIN, Sample
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.cluster_view import PartitionView
from compat_tests.harness.cluster_work import QUIET
from compat_tests.harness.confluent_admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import ClusterFactory

pytestmark = pytest.mark.barnabas_only

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
OBSERVERS = "barnabas.observers"


def view(cluster: Cluster) -> PartitionView:
    return cluster.metadata(1).partitions["far", 0]


def alter(cluster: Cluster, *entries: ConfigEntry) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    resource = ConfigResource(ResourceType.TOPIC, "far", incremental_configs=list(entries))
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


class FarConsumer:
    """A consumer in the observer's rack, which notes the broker that it reads from."""

    def __init__(self, cluster: Cluster) -> None:
        self.values: list[bytes | None] = []
        self.broker = -1
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": "unused",
                "client.rack": "far",
                "statistics.interval.ms": 100,
                "stats_cb": self._note,
                **QUIET,
            }
        )
        self._consumer.assign([confluent_kafka.TopicPartition("far", 0, 0)])

    def _note(self, text: str) -> None:
        partition = json.loads(text)["topics"].get("far", {}).get("partitions", {}).get("0")
        if partition is not None:
            self.broker = partition["broker"]

    def has(self, count: int) -> bool:
        self.values += [
            message.value() for message in self._consumer.consume(100, 0.2) if message.error() is None
        ]
        return len(self.values) >= count

    def close(self) -> None:
        self._consumer.close()


def produce(cluster: Cluster, first: int, end: int) -> None:
    """With acks=all."""
    PLAIN.produce(cluster.bootstrap, "far", [Sample(None, b"%d" % number) for number in range(first, end)])


def test_a_consumer_far_away_reads_from_an_observer(fresh_cluster: ClusterFactory) -> None:
    cluster = fresh_cluster(
        settings={"replica.selector.class": SELECTOR, "unclean.leader.election.enable": "true"},
        node_settings={node: {"broker.rack": rack} for node, rack in {1: "a", 2: "a", 3: "far"}.items()},
    )
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    configs = {"retention.ms": "-1", "min.insync.replicas": "2", OBSERVERS: "3"}
    ask_for_topic(admin, NewTopic("far", 1, 2, config=configs))
    state = eventually(lambda: cluster.metadata(1).partitions.get(("far", 0)))
    assert state is not None
    assert (sorted(state.replicas[:2]), state.replicas[2], sorted(state.isr)) == ([1, 2], 3, [1, 2])
    produce(cluster, 0, 10)
    consumer = FarConsumer(cluster)
    eventually(lambda: consumer.has(10) and consumer.broker == 3)

    # Records are acknowledged while the observer answers nothing, and reach it afterwards.
    cluster.suspend(3)
    produce(cluster, 10, 20)
    cluster.resume(3)
    eventually(lambda: consumer.has(20))
    cluster.restart(3)
    produce(cluster, 20, 30)
    eventually(lambda: consumer.has(30) and consumer.broker == 3)
    assert consumer.values == [b"%d" % number for number in range(30)]
    assert sorted(view(cluster).isr) == [1, 2]
    consumer.close()

    alter(cluster, ConfigEntry(OBSERVERS, "", incremental_operation=AlterConfigOpType.DELETE))
    eventually(lambda: sorted(view(cluster).replicas) == [1, 2])
    assert sorted(view(cluster).isr) == [1, 2]
    alter(cluster, ConfigEntry(OBSERVERS, "3", incremental_operation=AlterConfigOpType.APPEND))
    eventually(lambda: view(cluster).replicas[2:] == (3,))
    again = FarConsumer(cluster)
    eventually(lambda: again.has(30) and again.broker == 3)
    again.close()
