"""Bindings that are changed while messages come: nothing is missing, nothing is there twice."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient

from compat_tests.harness.broker import Broker
from compat_tests.harness.confluent_admin import NewPartitions
from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.harness.nats_server import NatsServer, NatsServerFactory
from compat_tests.nats.bound_topics import bind
from compat_tests.nats.publishers import SteadyPublisher
from compat_tests.nats.received import by_subject, check

pytestmark = pytest.mark.barnabas_only

TOPIC = "changing"


@pytest.fixture
def server(nats_server: NatsServerFactory) -> NatsServer:
    return nats_server()


@pytest.fixture
def broker(fresh_broker: BrokerFactory, server: NatsServer) -> Broker:
    return fresh_broker({"nats.servers": server.url})


def test_keys_change(server: NatsServer, broker: Broker) -> None:
    bind(broker, TOPIC, {"nats.subjects": "c.>"})
    publisher = SteadyPublisher(server, lambda number: f"c.{number % 40}", alike="c.alike")
    publisher.await_more(500)
    for number in range(20):
        bind(broker, TOPIC, {"nats.key": ("token:2", "none", "subject", "reply")[number % 4]})
        publisher.await_more(100)
    sent = publisher.finish()
    check(by_subject(broker.bootstrap, TOPIC, 1, publisher.count), sent)


def test_what_else_can_change(server: NatsServer, broker: Broker) -> None:
    """Subjects that stay wanted through all of it miss nothing, whatever subscription brings them."""
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
    """A subject may move to another partition then, as a key of any producer; its messages are all there, once."""
    bind(broker, TOPIC, {"nats.subjects": "c.>"})
    publisher = SteadyPublisher(server, lambda number: f"c.{number % 40}", alike="c.alike")
    publisher.await_more(500)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for count in (2, 3, 7, 20):
        admin.create_partitions([NewPartitions(TOPIC, count)])[TOPIC].result(15)
        publisher.await_more(300)
    sent = publisher.finish()
    found = by_subject(broker.bootstrap, TOPIC, 20, publisher.count)
    check(
        {subject: sorted(values) for subject, values in found.items()},
        {subject: sorted(values) for subject, values in sent.items()},
    )
