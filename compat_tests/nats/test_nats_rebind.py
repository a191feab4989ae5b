"""Bindings that change while messages are published: no message is missing or duplicated."""

from __future__ import annotations

from collections import Counter

import pytest
from confluent_kafka.admin import AdminClient

from compat_tests.harness.broker import Broker
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.confluent_admin import NewPartitions
from compat_tests.harness.nats_server import NatsServer
from compat_tests.nats.bound_topics import await_running, bind
from compat_tests.nats.publishers import SteadyPublisher
from compat_tests.nats.received import by_subject, check

pytestmark = pytest.mark.barnabas_only

TOPIC = "changing"


def test_the_key_config_changes(server: NatsServer, broker: Broker) -> None:
    bind(broker, TOPIC, {"nats.subjects": "c.>"})
    publisher = SteadyPublisher(server, lambda number: f"c.{number % 40}", alike="c.alike")
    publisher.await_more(500)
    for number in range(20):
        bind(broker, TOPIC, {"nats.key": ("token:2", "none", "subject", "reply")[number % 4]})
        publisher.await_more(100)
    sent = publisher.finish()
    check(by_subject(broker.bootstrap, TOPIC, 1, publisher.count), sent)


def test_other_configs_change(server: NatsServer, broker: Broker) -> None:
    """Subjects that stay bound throughout miss no message, whichever subscription delivers them."""
    bind(broker, TOPIC, {"nats.subjects": "c.>"})
    publisher = SteadyPublisher(server, lambda number: f"c.{number % 40}", alike="c.alike")
    publisher.await_more(500)
    for number, change in enumerate(
        [
            {"nats.subjects": "c.>,d.>"},
            {"nats.subjects": "c.*,d.e"},
            {"nats.subjects": ">"},
            {"nats.exclude": "d.>"},
            {"nats.subjects": "*.*,c.*"},
            {"nats.subjects": "c.>"},
            {"nats.exclude": ""},
            {"nats.dedup.window.ms": "5000"},
            {"nats.dedup.window.ms": "0"},
            {"nats.acks": "reply", "nats.buffer.bytes": "100000"},
            {"nats.dedup.window.ms": "50000", "nats.partitioner": "fnv1a"},
        ]
    ):
        bind(broker, TOPIC, change)
        publisher.await_more(100 + 30 * number)
    sent = publisher.finish()
    check(by_subject(broker.bootstrap, TOPIC, 1, publisher.count), sent)


def test_partitions_are_added(server: NatsServer, broker: Broker) -> None:
    """A subject may then move to another partition, as a producer's key does; each of its messages is stored once."""
    bind(broker, TOPIC, {"nats.subjects": "c.>"})
    publisher = SteadyPublisher(server, lambda number: f"c.{number % 40}", alike="c.alike")
    publisher.await_more(500)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for count in (2, 3, 7, 20):
        admin.create_partitions([NewPartitions(TOPIC, count)])[TOPIC].result(30)
        publisher.await_more(300)
    sent = publisher.finish()
    found = by_subject(broker.bootstrap, TOPIC, 20, publisher.count)
    check(
        {subject: sorted(values) for subject, values in found.items()},
        {subject: sorted(values) for subject, values in sent.items()},
    )


def test_the_brokers_of_a_cluster_change_a_binding_together(server: NatsServer, cluster: Cluster) -> None:
    """Messages move to partitions with other leaders. Only messages that are published while the server delivers the
    mark may be lost or duplicated."""
    bind(cluster, TOPIC, {"nats.subjects": "c.>"}, partitions=3, replicas=2)
    bind(cluster, "made", {"nats.subjects": "c.>", "nats.topic.template": "{1}"}, partitions=2, replicas=2)
    cluster.wait_until_whole()
    await_running(cluster, TOPIC)
    publisher = SteadyPublisher(server, lambda number: f"c.{number % 40}", alike="c.alike")
    publisher.await_more(500)
    for number in range(4):
        bind(cluster, TOPIC, {"nats.key": ("token:2", "none", "subject", "reply")[number % 4]})
        publisher.await_more(200)
    bind(cluster, "made", {"nats.key": "token:2"})
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for topic, count in ((TOPIC, 4), ("c", 3), (TOPIC, 9), ("c", 6)):
        admin.create_partitions([NewPartitions(topic, count)])[topic].result(30)
        publisher.await_more(1500)
    sent = publisher.finish()
    for topic, count in ((TOPIC, 9), ("c", 6)):
        found = by_subject(cluster.bootstrap, topic, count, publisher.count)
        wrong: Counter[bytes] = Counter()
        for subject, values in sent.items():
            theirs, ours = Counter(values), Counter(found.get(subject, []))
            wrong += (theirs - ours) + (ours - theirs)
        assert wrong.total() <= 2, (topic, wrong)
