"""Messages of a durable consumer: no message is lost, and each is acknowledged when its record is committed."""

from __future__ import annotations

import asyncio
import threading

import pytest
from confluent_kafka.admin import AdminClient

from compat_tests.harness.broker import Broker
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.harness.nats_server import NatsServer
from compat_tests.nats.bound_topics import bind
from compat_tests.nats.streams import (
    Streams,
    check_at_least_once,
    check_exactly,
    numbered,
    read_all,
)

pytestmark = pytest.mark.barnabas_only

BINDING = {"nats.subjects": "orders.>", "nats.mode": "jetstream", "nats.delivery": "at-least-once"}


@pytest.mark.every_nats_server
def test_everything_is_acknowledged_and_in_order(broker: Broker, server: NatsServer) -> None:
    published = numbered(0, 5000)
    with Streams(server) as streams:
        streams.add("ORDERS", "orders.>")
        streams.publish(published)
        bind(broker, "orders", {**BINDING, "nats.durable": "taker"}, partitions=4)
        found = read_all(broker, "orders", 5000)
        info = streams.acknowledged("ORDERS", "taker")
    check_exactly(found, published)  # nothing failed, so nothing was redelivered
    assert info.ack_floor.stream_seq == 5000
    assert info.config.max_deliver == -1


@pytest.mark.every_nats_server
def test_a_work_queue_is_emptied(broker: Broker, server: NatsServer) -> None:
    published = numbered(0, 1000)
    with Streams(server) as streams:
        streams.add("ORDERS", "orders.>", retention="workqueue")
        streams.publish(published)
        bind(broker, "orders", BINDING, partitions=2)
        check_exactly(read_all(broker, "orders", 1000), published)
        eventually(lambda: not streams.run(streams.jetstream.stream_info("ORDERS")).state.messages)


@pytest.mark.every_nats_server
@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
def test_a_server_that_restarts(broker: Broker, server: NatsServer, kill: bool) -> None:
    published = numbered(0, 3000)
    with Streams(server) as streams:
        streams.add("ORDERS", "orders.>")
        bind(broker, "orders", BINDING, partitions=2)
        streams.publish(published)
    server.restart(kill=kill)
    more = numbered(3000, 2000)
    with Streams(server) as streams:
        streams.publish(more)
    found = read_all(broker, "orders", 5000)
    check_at_least_once(found, published + more)


def test_a_broker_that_is_killed(broker: Broker, server: NatsServer) -> None:
    published = numbered(0, 20_000)
    with Streams(server) as streams:
        streams.add("ORDERS", "orders.>")
        streams.publish(published)
    bind(broker, "orders", BINDING, partitions=2)
    broker.kill()
    broker.start()
    check_at_least_once(read_all(broker, "orders", len(published)), published)


def test_a_clean_stop_leaves_no_message_pending_and_the_next_start_fetches_at_once(
    broker: Broker, server: NatsServer
) -> None:
    published = numbered(0, 100)
    stopped_often = threading.Event()
    with Streams(server) as streams:
        streams.add("ORDERS", "orders.>")
        bind(broker, "orders", {**BINDING, "nats.durable": "taker"}, partitions=2)
        streams.publish(published)
        read_all(broker, "orders", 100)

        def taken() -> int:
            info = streams.run(streams.jetstream.consumer_info("ORDERS", "taker"))
            return int(info.delivered.stream_seq)

        def is_at_rest() -> bool:
            info = streams.run(streams.jetstream.consumer_info("ORDERS", "taker"))
            return not info.num_ack_pending and not info.num_waiting

        async def publish() -> None:
            while not stopped_often.is_set():
                some = numbered(len(published), 20)
                for subject, payload in some:
                    await streams.jetstream.publish_async(subject, payload, wait_stall=30)
                published.extend(some)
                await asyncio.sleep(0.01)  # the rate: some 2,000 a second

        publishing = streams.begin(publish())
        for _ in range(3):
            before = taken()
            eventually(lambda before=before: taken() > before)
            broker.stop()
            eventually(is_at_rest)  # the server handles acknowledgements a little later
            broker.start()
        stopped_often.set()
        publishing.result(60)
        found = read_all(broker, "orders", len(published), distinct=True)
        info = streams.run(streams.jetstream.consumer_info("ORDERS", "taker"))
    check_exactly(found, published)
    assert info.num_redelivered in (None, 0)
    assert "they are waited for" not in broker.log_text()


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_refused_message_blocks_later_ones_until_it_is_stored(
    broker: Broker, server: NatsServer, delivery: str
) -> None:
    published = [*numbered(0, 100), ("orders.0", b"x" * 3000), *numbered(101, 100)]
    with Streams(server) as streams:
        streams.add("ORDERS", "orders.>")
        streams.publish(published)
    bind(broker, "orders", {**BINDING, "nats.delivery": delivery, "max.message.bytes": "2000"})
    assert len(read_all(broker, "orders", 101, seconds=1)) == 100
    bind(broker, "orders", {"max.message.bytes": "100000"})
    check_exactly(read_all(broker, "orders", 201), published)


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_refused_message_is_a_dead_letter(broker: Broker, server: NatsServer, delivery: str) -> None:
    published = [*numbered(0, 100), ("orders.bad", b"x" * 3000), *numbered(101, 100)]
    with Streams(server) as streams:
        streams.add("ORDERS", "orders.>")
        streams.publish(published[:100])
        streams.publish(published[100:101], {"Own": "kept"})
        streams.publish(published[101:])
    bind(broker, "dead", {})
    limits = {"max.message.bytes": "2000", "nats.dead.letter.topic": "dead"}
    if delivery == "at-least-once":
        limits["nats.max.deliver"] = "2"
    bind(broker, "orders", {**BINDING, **limits, "nats.delivery": delivery}, partitions=2)
    good = published[:100] + published[101:]
    found = read_all(broker, "orders", 200)
    assert sorted(message.value() for message in found) == sorted(value for _, value in good)
    (letter,) = read_all(broker, "dead", 1)
    headers = dict(letter.headers())
    assert (letter.key(), letter.value()) == (b"orders.bad", b"x" * 3000)
    assert (headers["nats.stream"], headers["nats.seq"], headers["Own"]) == (b"ORDERS", b"101", b"kept")
    assert b"max.message.bytes" in headers["nats.error"]


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_the_topic_of_dead_letters_is_created_on_demand(
    broker: Broker, server: NatsServer, delivery: str
) -> None:
    published = [("orders.0", b"0"), ("orders.bad", b"x" * 20_000), ("orders.0", b"1")]
    with Streams(server) as streams:
        streams.add("ORDERS", "orders.>")
        streams.publish(published)
    limits = {"max.message.bytes": "5000", "nats.dead.letter.topic": "dead"}
    if delivery == "at-least-once":
        limits["nats.max.deliver"] = "1"
    bind(broker, "orders", {**BINDING, **limits, "nats.delivery": delivery})
    found = read_all(broker, "orders", 2)
    assert [message.value() for message in found] == [b"0", b"1"]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    eventually(lambda: "dead" in admin.list_topics(timeout=30).topics)
    (letter,) = read_all(broker, "dead", 1)
    headers = dict(letter.headers())
    assert (letter.key(), headers["nats.topic"]) == (b"orders.bad", b"orders")
    assert b"max.message.bytes" in headers["nats.error"]


def test_a_missing_topic_of_dead_letters_is_logged_once_a_minute(
    fresh_broker: BrokerFactory, server: NatsServer
) -> None:
    broker = fresh_broker({"nats.servers": server.url, "auto.create.topics.enable": "false"})
    published = [("orders.0", b"0"), ("orders.bad", b"x" * 20_000), *numbered(2, 50)]
    limits = {"max.message.bytes": "5000", "nats.dead.letter.topic": "dead", "nats.max.deliver": "1"}
    with Streams(server) as streams:
        streams.add("ORDERS", "orders.>")
        streams.publish(published)
        bind(broker, "orders", {**BINDING, **limits, "nats.durable": "taker"})

        def deliveries() -> int:
            info = streams.run(streams.jetstream.consumer_info("ORDERS", "taker"))
            return int(info.delivered.consumer_seq)

        eventually(lambda: "there is no topic dead for dead letters: create it" in broker.log_text())
        eventually(lambda: deliveries() > 4 * len(published))
    lines = [line for line in broker.log_text().splitlines() if "dead letters" in line]
    assert len(lines) == 1
    assert "topic orders: " in lines[0]
    bind(broker, "dead", {})
    assert len({message.value() for message in read_all(broker, "orders", 51, distinct=True)}) == 51
    assert read_all(broker, "dead", 1)[0].key() == b"orders.bad"


def test_without_dead_letters_a_message_is_dropped_after_its_attempts(
    broker: Broker, server: NatsServer
) -> None:
    published = [*numbered(0, 20), ("orders.bad", b"x" * 3000), *numbered(21, 20)]
    limits = {"max.message.bytes": "2000", "nats.max.deliver": "2", "nats.durable": "taker"}
    with Streams(server) as streams:
        streams.add("ORDERS", "orders.>")
        streams.publish(published)
        bind(broker, "orders", {**BINDING, **limits})
        found = read_all(broker, "orders", 40)
        info = streams.acknowledged("ORDERS", "taker")
    assert [message.value() for message in found] == [value for _, value in published if len(value) < 3000]
    assert (info.num_ack_pending, info.ack_floor.stream_seq) == (0, 41)
