"""Separate controllers and brokers; a broker that lost its disk; a single node that grows to three."""

from __future__ import annotations

import pytest

from compat_tests.harness.clients import CLIENTS, Sample
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.cluster_files import compare_replicas
from compat_tests.harness.cluster_work import Work, create_topic
from compat_tests.harness.eventually import eventually, stays
from compat_tests.harness.fixture_types import ClusterFactory

SEPARATE = {1: "controller", 2: "controller", 3: "controller", 11: "broker", 12: "broker"}
TWO = {
    "offsets.topic.replication.factor": "2",
    "default.replication.factor": "2",
    "min.insync.replicas": "1",
    "transaction.state.log.replication.factor": "2",
}
SAMPLES = [Sample(b"k%d" % (number % 7), b"v%d" % number * 50) for number in range(300)]


def _values(cluster: Cluster, topic: str) -> list[Sample]:
    return [one.sample for one in CLIENTS[2].consume(cluster.bootstrap, topic, len(SAMPLES))]


@pytest.mark.timeout(300)
def test_separate_controllers_and_brokers(fresh_cluster: ClusterFactory) -> None:
    """The active controller dies, then a broker dies, then a broker restarts without its data."""
    cluster = fresh_cluster(SEPARATE, settings=TWO)
    assert sorted(cluster.metadata().brokers) == [11, 12]
    create_topic(cluster, "topic", replicas=2, partitions=2)
    CLIENTS[2].produce(cluster.bootstrap, "topic", SAMPLES)
    dead = cluster.active_controller()
    cluster.kill(dead)
    assert cluster.active_controller() != dead
    create_topic(cluster, "after", replicas=2)
    leader = cluster.leader("topic")
    cluster.kill(leader)
    eventually(lambda: cluster.leader("topic") != leader)
    assert _values(cluster, "topic") == SAMPLES

    cluster.wipe(leader)
    cluster.start(dead, leader)
    cluster.wait_until_whole()
    assert compare_replicas(cluster, "topic") > 0
    survivor = next(node for node in cluster.addresses if node != leader)
    cluster.stop(survivor)  # the other broker has replicated its data
    assert cluster.leader("topic") == leader
    assert _values(cluster, "topic") == SAMPLES


@pytest.mark.barnabas_only
def test_one_node_grows_to_three_with_its_topics(fresh_cluster: ClusterFactory) -> None:
    """First started alone, without any cluster setting, then with the same directory as one of three."""
    cluster = fresh_cluster(start=False)
    first = cluster.nodes[1]
    kept = dict(first.settings)
    first.settings.clear()
    first.settings.update({"listeners": kept["advertised.listeners"], "log.dirs": kept["log.dirs"]})
    first.start()
    create_topic(cluster, "topic", replicas=1, partitions=2)
    CLIENTS[2].produce(cluster.bootstrap, "topic", SAMPLES)
    alone = cluster.metadata(1)
    first.stop()

    first.settings.clear()
    first.settings.update(kept)
    cluster.start()
    grown = cluster.metadata(3)
    assert grown.cluster_id == alone.cluster_id
    assert sorted(grown.brokers) == [1, 2, 3]
    assert grown.partitions["topic", 0].replicas == (1,)
    assert _values(cluster, "topic") == SAMPLES
    work = Work(cluster)
    work.await_progress()
    cluster.kill(1)
    work.await_progress()
    cluster.start(1)
    assert work.verify() > 20
    assert _values(cluster, "topic") == SAMPLES


def test_a_further_broker_joins_a_running_cluster(fresh_cluster: ClusterFactory) -> None:
    cluster = fresh_cluster()
    cluster.add(4, "broker")
    cluster.start(4)
    create_topic(cluster, "topic", assignment=[[4, 1, 2]])
    CLIENTS[2].produce(cluster.bootstrap, "topic", SAMPLES)
    cluster.stop(4)
    assert cluster.leader("topic") in (1, 2)
    assert _values(cluster, "topic") == SAMPLES


def test_the_last_two_of_three_restart_alone(fresh_cluster: ClusterFactory) -> None:
    """The last two nodes in sync die together, and restart without the third."""
    cluster = fresh_cluster()
    create_topic(cluster, "topic")
    cluster.kill(1)
    CLIENTS[2].produce(cluster.bootstrap, "topic", SAMPLES)
    eventually(lambda: sorted(cluster.partition("topic", 0).isr) == [2, 3])
    cluster.kill(2, 3)
    cluster.start(2, 3)
    assert cluster.leader("topic") in (2, 3)
    assert _values(cluster, "topic") == SAMPLES


@pytest.mark.barnabas_only
def test_voters_by_address_only(fresh_cluster: ClusterFactory) -> None:
    """controller.quorum.bootstrap.servers: the quorum forms when all voters have met; afterwards two of three are
    enough."""
    cluster = fresh_cluster(start=False)
    for node in cluster.nodes.values():
        del node.settings["controller.quorum.voters"]
        node.settings["controller.quorum.bootstrap.servers"] = ",".join(cluster.controllers.values())
    for one in (1, 2):
        cluster.nodes[one].launch()
    stays(lambda: [cluster.nodes[one].stdout_text() for one in (1, 2)] == ["", ""], 2)
    cluster.nodes[3].launch()
    for node in cluster.nodes.values():
        node.wait()
    cluster.wait_until_known()
    create_topic(cluster, "topic")
    quorum = cluster.quorum()
    assert quorum is not None
    assert sorted(quorum.voters) == [1, 2, 3]
    cluster.kill(1, 2, 3)
    cluster.start(2, 3)
    assert sorted(cluster.metadata().brokers) == [2, 3]
