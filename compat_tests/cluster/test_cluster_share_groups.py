"""A share group under load in a cluster whose leaders, share coordinators and group coordinators die and move.

The short form is one round of three; BARNABAS_CHAOS_ROUNDS sets rounds of all six, in random order.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from barnabas.broker.coordinator.topic import partition_for
from barnabas.broker.share_coordinator.state import SharePartitionKey
from barnabas.controller.operations.internal_topics import GROUP_METADATA_TOPIC, SHARE_GROUP_STATE_TOPIC
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from compat_tests.conform.client import Connection
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.cluster_work import create_topic
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import ClusterFactory, UniqueName
from compat_tests.harness.java_shares import ShareClients
from compat_tests.harness.leader_moves import move_leader
from compat_tests.harness.loads import PARTITIONS
from compat_tests.harness.share_work import ShareWork

pytestmark = pytest.mark.jvm

ROUNDS = int(os.environ.get("BARNABAS_CHAOS_ROUNDS", "1"))
COORDINATORS = 3  # partitions of each internal topic
SETTINGS = {
    "offsets.topic.num.partitions": str(COORDINATORS),
    "offsets.topic.replication.factor": "3",
    "share.coordinator.state.topic.num.partitions": str(COORDINATORS),
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "group.share.min.heartbeat.interval.ms": "100",
    "group.share.heartbeat.interval.ms": "200",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": "5000",
    "group.share.assignment.interval.ms": "0",
}
LEADER, SHARE_COORDINATOR, GROUP_COORDINATOR = "leader", "share coordinator", "group coordinator"
SHORT = ((LEADER, "dies"), (SHARE_COORDINATOR, "moves"), (GROUP_COORDINATOR, "dies"))
LONG = tuple(
    (which, how) for which in (LEADER, SHARE_COORDINATOR, GROUP_COORDINATOR) for how in ("dies", "moves")
)


@pytest.fixture
def shares() -> Iterator[ShareClients]:
    clients = ShareClients()
    yield clients
    clients.close()


def topic_id_of(cluster: Cluster, topic: str) -> bytes:
    host, _, port = cluster.addresses[1].rpartition(":")
    wanted = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
    return bytes(Connection(host, int(port)).ask(wanted, 12).topics[0].topic_id)


def dies(cluster: Cluster, topic: str, partition: int) -> Callable[[], object]:
    """Kill the leader of the partition; returns what starts it again."""
    node = cluster.leader(topic, partition)
    cluster.kill(node)

    def restore() -> None:
        cluster.start(node)
        cluster.wait_until_whole()

    return restore


def moves(cluster: Cluster, topic: str, partition: int) -> Callable[[], object]:
    leader = cluster.leader(topic, partition)
    others = [node for node in sorted(cluster.nodes) if node != leader]
    move_leader(cluster, topic, partition, [*others, leader])
    eventually(lambda: cluster.leader(topic, partition) == others[0])
    return lambda: None


@pytest.mark.timeout(180 + 150 * ROUNDS)
def test_no_record_is_lost_while_leaders_and_coordinators_die_and_move(
    fresh_cluster: ClusterFactory, shares: ShareClients, unique: UniqueName, tmp_path: Path
) -> None:
    cluster = fresh_cluster(settings=SETTINGS)
    group = unique("group")
    topic = create_topic(cluster, unique("topic"), PARTITIONS, configs={"min.insync.replicas": "2"})
    key = SharePartitionKey(group, topic_id_of(cluster, topic), 0).text
    places = {
        LEADER: (topic, 0),
        SHARE_COORDINATOR: (SHARE_GROUP_STATE_TOPIC, partition_for(key, COORDINATORS)),
        GROUP_COORDINATOR: (GROUP_METADATA_TOPIC, partition_for(group, COORDINATORS)),
    }
    work = ShareWork(shares, cluster, topic, group, tmp_path)
    cluster.on_close.append(work.abandon)
    for _ in range(ROUNDS):
        for which, how in SHORT if ROUNDS == 1 else random.sample(LONG, len(LONG)):
            work.await_progress()
            restore = (dies if how == "dies" else moves)(cluster, *places[which])
            work.await_progress()
            restore()
    assert work.verify() > 500
