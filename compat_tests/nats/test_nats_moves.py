"""New leaders that joined the ISR a moment ago, or were out of sync before, and leaders whose own connection breaks.

A follower joins the ISR when it has everything that the leader has (barnabas/nats/ingress/standby.py), and takes over
when it has more than the leader (ingress/gap_tracker.py), so no message is missing or duplicated. Short forms;
BARNABAS_CHAOS_ROUNDS sets the number of rounds (`make chaos-nats`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient

from compat_tests.harness.asking import ask_for_topic
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.confluent_admin import NewTopic
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import ClusterFactory
from compat_tests.harness.leader_moves import reassign
from compat_tests.harness.nats_server import NatsServer
from compat_tests.nats.bound_topics import await_running, await_standbys, await_subscribed, bind
from compat_tests.nats.publishers import SteadyPublisher
from compat_tests.nats.received import by_subject, check
from compat_tests.nats.relay import Relay

pytestmark = pytest.mark.barnabas_only

ROUNDS = int(os.environ.get("BARNABAS_CHAOS_ROUNDS", "0"))
PARTITIONS = 3
MOVES = [([1], [2]), ([1, 2], [3, 2]), ([2, 3], [1])]


def subjects_of(topic: str) -> Callable[[int], str]:
    return lambda number: f"{topic}.{number % 13}"


def assert_no_gaps(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        assert "may be missing" not in node.log_text()


@pytest.mark.timeout(300 + 180 * ROUNDS)
def test_partitions_that_move_to_brokers_out_of_sync(server: NatsServer, cluster: Cluster) -> None:
    for number, (before, after) in enumerate(MOVES * (1 + 3 * ROUNDS)):
        topic = f"move-{number}"
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        configs = {"nats.subjects": f"{topic}.>", "min.insync.replicas": "1"}
        ask_for_topic(admin, NewTopic(topic, 1, replica_assignment=[before], config=configs))
        await_subscribed(server.url, topic)
        publisher = SteadyPublisher(server, subjects_of(topic), per_second=2000)
        publisher.await_more(1000)
        reassign(cluster, topic, 0, after)
        publisher.await_more(1000)
        sent = publisher.finish()
        check(by_subject(cluster.bootstrap, topic, 1, publisher.count), sent)
        assert_no_gaps(cluster)


@pytest.mark.timeout(300 + 180 * ROUNDS)
@pytest.mark.parametrize("is_clean", [pytest.param(True, marks=pytest.mark.long), False])
def test_leaders_that_stop_when_others_have_just_joined(
    server: NatsServer, cluster: Cluster, is_clean: bool
) -> None:
    topic = "rolling"
    configs = {"nats.subjects": "r.>", "min.insync.replicas": "2"}
    bind(cluster, topic, configs, partitions=PARTITIONS, replicas=3)
    cluster.wait_until_whole()
    await_running(cluster, topic)
    await_standbys(cluster, topic, PARTITIONS)
    publisher = SteadyPublisher(server, subjects_of("r"), per_second=1500)
    publisher.await_more(1000)
    for node in sorted(cluster.nodes) * (1 + 3 * ROUNDS):
        if is_clean:
            cluster.stop(node)
        else:
            cluster.kill(node)
            publisher.await_more(300)
        cluster.start(node, whole=False)
        cluster.wait_until_whole(120)
    publisher.await_more(1000)
    sent = publisher.finish()
    check(by_subject(cluster.bootstrap, topic, PARTITIONS, publisher.count), sent)
    assert_no_gaps(cluster)


@pytest.mark.timeout(300 + 180 * ROUNDS)
def test_leaders_whose_own_connection_breaks(server: NatsServer, fresh_cluster: ClusterFactory) -> None:
    relays = {node: Relay(server) for node in (1, 2, 3)}
    cluster = fresh_cluster(
        node_settings={node: {"nats.servers": relay.url} for node, relay in relays.items()}
    )
    topic = "lonely"
    configs = {"nats.subjects": "l.>", "min.insync.replicas": "2"}
    bind(cluster, topic, configs, partitions=PARTITIONS, replicas=3)
    cluster.wait_until_whole()
    await_running(cluster, topic)
    await_standbys(cluster, topic, PARTITIONS)
    publisher = SteadyPublisher(server, subjects_of("l"), per_second=1500)
    publisher.await_more(3000)
    for number in range(4 * (1 + 2 * ROUNDS)):
        victim = cluster.leader(topic, number % PARTITIONS)
        led = [index for index in range(PARTITIONS) if cluster.leader(topic, index) == victim]
        if number % 2:
            relays[victim].break_off()
        else:
            relays[victim].refuse()
        eventually(lambda: all(cluster.leader(topic, index) != victim for index in led), 60)  # noqa: B023 - called here
        relays[victim].refuse(False)
        eventually(lambda: is_no_gap_open(cluster, topic), 60)
        publisher.await_more(4500)  # all followers have restarted their counts
    sent = publisher.finish()
    check(by_subject(cluster.bootstrap, topic, PARTITIONS, publisher.count), sent)
    for node in cluster.nodes.values():
        assert not re.search(r"published from \S+ to \S+ .* may be missing", node.log_text())
    for relay in relays.values():
        relay.close()


def is_no_gap_open(cluster: Cluster, topic: str) -> bool:
    """Whether each reported gap has ended without a loss."""
    texts = [node.log_text() for node in cluster.nodes.values()]
    begun = sum(
        len(re.findall(rf"topic {topic}: messages published from \S+ on may", text)) for text in texts
    )
    ended = sum(len(re.findall(rf"topic {topic}: none of the messages", text)) for text in texts)
    return begun == ended
