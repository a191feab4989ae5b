"""Messages that a stream holds, in a topic exactly once and in their order, whatever goes down meanwhile."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from compat_tests.harness.broker import Broker
from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.harness.nats_server import NatsServer, NatsServerFactory
from compat_tests.nats.bound_topics import bind
from compat_tests.nats.streams import Streams

pytestmark = pytest.mark.barnabas_only

Record = tuple[int, str, int, bytes]  # partition, subject, sequence, value


@pytest.fixture
def server(nats_server: NatsServerFactory) -> NatsServer:
    return nats_server(jetstream=True)


@pytest.fixture
def broker(fresh_broker: BrokerFactory, server: NatsServer) -> Broker:
    return fresh_broker({"nats.servers": server.url, "offsets.topic.num.partitions": "1"})


def read_all(broker: Broker, topic: str, count: int, seconds: float = 60) -> list[Any]:
    """All records of the topic, `count` at least, and whatever else comes within a moment."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "reader", "enable.auto.commit": False}
    )
    partitions = consumer.list_topics(topic, timeout=15).topics[topic].partitions
    consumer.assign([TopicPartition(topic, index, 0) for index in sorted(partitions)])
    found: list[Any] = []
    deadline = time.monotonic() + seconds
    try:
        while len(found) < count and time.monotonic() < deadline:
            found += consumer.consume(10_000, 0.2)
        found += consumer.consume(10_000, 0.5)
    finally:
        consumer.close()
    return found


def records(found: list[Any]) -> list[Record]:
    """Sorted by partition, each partition in the order of its log."""
    listed = []
    for message in found:
        headers = dict(message.headers())
        listed.append(
            (message.partition(), headers["nats.subject"].decode(), int(headers["nats.seq"]), message.value())
        )
    return sorted(listed, key=lambda record: record[0])


def check_exactly(found: list[Any], published: list[tuple[str, bytes]]) -> None:
    """Every message is there once, under its number, and each partition is in the stream's order."""
    listed = records(found)
    by_sequence = {sequence: (subject, value) for _, subject, sequence, value in listed}
    assert len(by_sequence) == len(listed), "a message is there twice"
    assert [by_sequence.get(number + 1) for number in range(len(published))] == published
    for partition in {record[0] for record in listed}:
        sequences = [record[2] for record in listed if record[0] == partition]
        assert sequences == sorted(sequences)


def numbered(first: int, count: int, subjects: int = 20) -> list[tuple[str, bytes]]:
    return [(f"orders.{number % subjects}", b"%d" % number) for number in range(first, first + count)]


def test_what_a_stream_holds_and_what_comes_is_in_the_topic(broker: Broker, server: NatsServer) -> None:
    before, after = numbered(0, 3000), numbered(3000, 2000)
    with Streams(server) as streams:
        streams.add("ORDERS", "orders.>")
        streams.publish(before)
        bind(broker, "orders", {"nats.subjects": "orders.>", "nats.mode": "jetstream"}, partitions=4)
        streams.publish(after)
        stored = streams.stored_times("ORDERS", [1, 5000])
    found = read_all(broker, "orders", 5000)
    check_exactly(found, before + after)
    assert {message.partition() for message in found} == {0, 1, 2, 3}
    for message in found:
        headers = dict(message.headers())
        assert message.key() == headers["nats.subject"]
        assert headers["nats.stream"] == b"ORDERS"
        assert message.timestamp()[1] == int(headers["nats.timestamp"]) // 1_000_000
    times = {int(dict(m.headers())["nats.seq"]): int(dict(m.headers())["nats.timestamp"]) for m in found}
    assert [times[1], times[5000]] == stored


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
def test_a_server_that_goes_and_comes_back(broker: Broker, server: NatsServer, kill: bool) -> None:
    published = numbered(0, 2000)
    with Streams(server) as streams:
        streams.add("ORDERS", "orders.>")
    bind(broker, "orders", {"nats.subjects": "orders.>", "nats.mode": "jetstream"}, partitions=2)
    with Streams(server) as streams:
        streams.publish(published)
    for _ in range(3):
        server.restart(kill=kill)
        more = numbered(len(published), 2000)
        with Streams(server) as streams:
            streams.publish(more)
        published += more
    check_exactly(read_all(broker, "orders", len(published)), published)


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
def test_a_broker_that_goes_and_comes_back_while_messages_come(
    broker: Broker, server: NatsServer, kill: bool
) -> None:
    published: list[tuple[str, bytes]] = []
    with Streams(server) as streams:
        streams.add("ORDERS", "orders.>")
        bind(broker, "orders", {"nats.subjects": "orders.>", "nats.mode": "jetstream"}, partitions=4)
        is_over = threading.Event()

        def publish() -> None:
            while not is_over.is_set():
                more = numbered(len(published), 500)
                streams.publish(more)
                published.extend(more)

        thread = threading.Thread(target=publish)
        thread.start()
        for _ in range(3):
            time.sleep(0.5)
            if kill:
                broker.kill()
            else:
                broker.stop()
            broker.start()
        is_over.set()
        thread.join()
    found = read_all(broker, "orders", len(published))
    check_exactly(found, published)
