"""A binding in a cluster: leaders move and die, and each message is in the topic, once and in order.

Short forms; BARNABAS_CHAOS_ROUNDS sets the number of rounds (`make chaos-nats`).
"""

from __future__ import annotations

import os
import random

import pytest

from compat_tests.harness.cluster import Cluster
from compat_tests.harness.leader_moves import move_leader
from compat_tests.harness.nats_server import NatsServer
from compat_tests.nats.bound_topics import await_running, await_standbys, bind
from compat_tests.nats.publishers import SteadyPublisher
from compat_tests.nats.received import by_subject, check

pytestmark = pytest.mark.barnabas_only

ROUNDS = int(os.environ.get("BARNABAS_CHAOS_ROUNDS", "1"))
TOPIC = "moving"
PARTITIONS = 3


def bind_in(cluster: Cluster) -> None:
    bind(
        cluster,
        TOPIC,
        {"nats.subjects": "m.>", "min.insync.replicas": "2"},
        partitions=PARTITIONS,
        replicas=3,
    )
    cluster.wait_until_whole()
    await_running(cluster, TOPIC)
    await_standbys(cluster, TOPIC, PARTITIONS)


@pytest.mark.timeout(300 + 60 * ROUNDS)
def test_leaders_that_move(server: NatsServer, cluster: Cluster) -> None:
    bind_in(cluster)
    publisher = SteadyPublisher(server, lambda number: f"m.{number % 40}", alike="m.alike")
    # Followers can take over from a mark on, and marks are half a second apart; one that leads earlier records a gap.
    publisher.await_more(6000)
    for number in range(10 if ROUNDS == 1 else 50 * ROUNDS):
        replicas = random.sample(sorted(cluster.nodes), 3)
        move_leader(cluster, TOPIC, number % PARTITIONS, replicas)
        publisher.await_more(random.randrange(50, 400))
    publisher.await_more(1000)
    sent = publisher.finish()
    for node in cluster.nodes.values():
        assert "may be missing" not in node.log_text()
    check(by_subject(cluster.bootstrap, TOPIC, PARTITIONS, publisher.count), sent)


@pytest.mark.timeout(300 + 150 * ROUNDS)
def test_leaders_that_are_killed(server: NatsServer, cluster: Cluster) -> None:
    bind_in(cluster)
    publisher = SteadyPublisher(server, lambda number: f"m.{number % 40}", alike="m.alike")
    publisher.await_more(1000)
    for _ in range(1 if ROUNDS == 1 else 20 * ROUNDS):
        victim = cluster.leader(TOPIC, random.randrange(PARTITIONS))
        cluster.kill(victim)
        publisher.await_more(4000)
        cluster.start(victim)
        cluster.wait_until_whole()
        publisher.await_more(2000)
    sent = publisher.finish()
    for node in cluster.nodes.values():
        assert "may be missing" not in node.log_text()
    check(by_subject(cluster.bootstrap, TOPIC, PARTITIONS, publisher.count), sent)
