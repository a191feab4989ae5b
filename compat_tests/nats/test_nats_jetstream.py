"""Messages of a stream are in a topic exactly once and in order, whatever fails meanwhile."""

from __future__ import annotations

import threading

import kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer

from compat_tests.harness.broker import Broker
from compat_tests.harness.confluent_admin import NewPartitions
from compat_tests.harness.eventually import eventually
from compat_tests.harness.nats_server import NatsServer
from compat_tests.nats.bound_topics import await_subscribed, bind
from compat_tests.nats.streams import Streams, check_exactly, numbered, read_all, records

pytestmark = pytest.mark.barnabas_only

BINDING = {"nats.subjects": "orders.>", "nats.mode": "jetstream"}


@pytest.mark.every_nats_server
def test_old_and_new_messages_of_a_stream_are_in_the_topic(broker: Broker, server: NatsServer) -> None:
    before, after = numbered(0, 3000), numbered(3000, 2000)
    with Streams(server) as streams:
        streams.add("ORDERS", "orders.>")
        streams.publish(before)
        bind(broker, "orders", BINDING, partitions=4)
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


@pytest.mark.every_nats_server
@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
def test_a_server_that_restarts(broker: Broker, server: NatsServer, kill: bool) -> None:
    published = numbered(0, 2000)
    with Streams(server) as streams:
        streams.add("ORDERS", "orders.>")
    bind(broker, "orders", BINDING, partitions=2)
    with Streams(server) as streams:
        streams.publish(published)
    for _ in range(2):
        server.restart(kill=kill)
        more = numbered(len(published), 2000)
        with Streams(server) as streams:
            streams.publish(more)
        published += more
    check_exactly(read_all(broker, "orders", len(published)), published)


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
def test_a_broker_that_restarts_while_messages_are_published(
    broker: Broker, server: NatsServer, kill: bool
) -> None:
    published: list[tuple[str, bytes]] = []
    with Streams(server) as streams:
        streams.add("ORDERS", "orders.>")
        bind(broker, "orders", BINDING, partitions=4)
        is_over = threading.Event()

        def publish() -> None:
            while not is_over.is_set():
                more = numbered(len(published), 500)
                streams.publish(more)
                published.extend(more)

        thread = threading.Thread(target=publish)
        thread.start()
        for _ in range(2):
            wanted = len(published) + 1000
            eventually(lambda wanted=wanted: len(published) >= wanted)
            if kill:
                broker.kill()
            else:
                broker.stop()
            broker.start()
        is_over.set()
        thread.join()
    found = read_all(broker, "orders", len(published))
    check_exactly(found, published)


def stored_positions(broker: Broker) -> list[list[str]]:
    """Committed stream and sequence of each of three partitions of `orders`."""
    group = KafkaConsumer(
        bootstrap_servers=broker.bootstrap, group_id="barnabas-jetstream-orders", enable_auto_commit=False
    )
    wanted = [kafka.TopicPartition("orders", index) for index in range(3)]
    found = [group.committed(each, metadata=True) for each in wanted]
    group.close()
    return [each.metadata.split(" ")[:2] for each in found if each is not None]


def test_records_that_retention_removed_are_not_stored_again(broker: Broker, server: NatsServer) -> None:
    published = numbered(0, 1000)
    with Streams(server) as streams:
        streams.add("ORDERS", "orders.>")
        streams.publish(published)
        bind(broker, "orders", BINDING, partitions=3)
        assert len(read_all(broker, "orders", 1000)) == 1000
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        eventually(lambda: stored_positions(broker) == [["ORDERS", "1000"]] * 3)
        everything = [TopicPartition("orders", index, -1) for index in range(3)]
        for future in admin.delete_records(everything).values():
            future.result(30)
        broker.kill()
        broker.start()
        streams.publish(numbered(1000, 10))
    found = records(read_all(broker, "orders", 10))
    assert sorted(sequence for _, _, sequence, _ in found) == list(range(1001, 1011))


def test_a_binding_that_starts_at_new_messages_keeps_its_start(broker: Broker, server: NatsServer) -> None:
    with Streams(server) as streams:
        streams.add("ORDERS", "orders.>")
        streams.publish(numbered(0, 100))
        bind(broker, "orders", {**BINDING, "nats.start": "new"}, partitions=3)
        await_subscribed(server.url, "orders", 3)
        eventually(lambda: stored_positions(broker) == [["ORDERS", "100"]] * 3)
        broker.stop()
        streams.publish(numbered(100, 50))  # new, though no broker was running
        broker.start()
        streams.publish(numbered(150, 50))
    found = records(read_all(broker, "orders", 100))
    assert sorted(sequence for _, _, sequence, _ in found) == list(range(101, 201))


def test_added_partitions_get_later_messages(broker: Broker, server: NatsServer) -> None:
    published = numbered(0, 300)
    with Streams(server) as streams:
        streams.add("ORDERS", "orders.>")
        streams.publish(published)
        bind(broker, "orders", BINDING, partitions=2)
        assert len(read_all(broker, "orders", 300)) == 300
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_partitions([NewPartitions("orders", 5)])["orders"].result(30)
        more = numbered(300, 300)
        streams.publish(more)
    found = read_all(broker, "orders", 600)
    check_exactly(found, published + more)
    assert {message.partition() for message in found} == set(range(5))


def test_a_paused_and_changed_binding_continues_at_its_position(broker: Broker, server: NatsServer) -> None:
    published = numbered(0, 200)
    with Streams(server) as streams:
        streams.add("ORDERS", "orders.>")
        bind(broker, "orders", BINDING, partitions=2)
        streams.publish(published)
        bind(broker, "orders", {"nats.paused": "true"})
        more = numbered(200, 200)
        streams.publish(more)
        count = len(read_all(broker, "orders", 401, seconds=1))
        assert count <= 200
        bind(broker, "orders", {"nats.paused": "false", "nats.key": "token:2"})
        check_exactly(read_all(broker, "orders", 400), published + more)
