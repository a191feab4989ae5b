"""Stock NATS publishers and stock Kafka consumers, connected by a topic config."""

from __future__ import annotations

import asyncio
import json
import time

import nats
import pytest
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

from compat_tests.harness.broker import Broker
from compat_tests.harness.eventually import eventually_async
from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.harness.nats_server import NatsServer
from compat_tests.nats.bound_topics import bind
from compat_tests.nats.publishers import publish
from compat_tests.nats.received import read

pytestmark = pytest.mark.barnabas_only


@pytest.mark.every_nats_server
def test_messages_are_records(server: NatsServer, broker: Broker) -> None:
    bind(broker, "orders", {"nats.subjects": "orders.>"})
    before_ms = time.time() * 1000

    async def work(client: NatsClient) -> None:
        for number in range(100):
            await client.publish(f"orders.{number % 3}", b"%d" % number)
        await client.publish("orders.with", b"", reply="answers.here", headers={"Color": "blue", "a": "1"})
        await client.publish("elsewhere", b"x")

    publish(server, work)
    records = read(broker, "orders", 101)
    assert [record.value for record in records] == [b"%d" % number for number in range(100)] + [b""]
    assert [record.key for record in records] == [
        *(b"orders.%d" % (number % 3) for number in range(100)),
        b"orders.with",
    ]
    assert records[0].headers == [("nats.subject", b"orders.0")]
    assert records[-1].headers == [
        ("nats.subject", b"orders.with"),
        ("nats.reply", b"answers.here"),
        ("Color", b"blue"),
        ("a", b"1"),
    ]
    assert all(before_ms - 1 <= record.timestamp <= time.time() * 1000 + 1 for record in records)


@pytest.mark.every_nats_server
def test_a_stock_jetstream_publish_is_acknowledged(server: NatsServer, broker: Broker) -> None:
    bind(broker, "acked", {"nats.subjects": "acked.*", "nats.acks": "reply"})
    answers: list[tuple[str, int, bool | None]] = []

    async def work(client: NatsClient) -> None:
        stream = client.jetstream(timeout=30)
        for name in ("a", "b", "a"):
            answer = await stream.publish(f"acked.{name}", name.encode(), headers={"Nats-Msg-Id": name})
            answers.append((answer.stream, answer.seq, answer.duplicate))

    publish(server, work)
    assert answers == [("acked", 1, None), ("acked", 2, None), ("acked", 1, True)]
    assert [record.value for record in read(broker, "acked", 2)] == [b"a", b"b"]


def test_requests_without_the_ack_header_are_not_answered(server: NatsServer, broker: Broker) -> None:
    """The broker answers a request only if the message asks it to."""
    bind(broker, "asked", {"nats.subjects": "asked.>"})

    async def work(client: NatsClient) -> None:
        async def answer(message: Msg) -> None:
            await asyncio.sleep(0.05)  # the broker would have answered by then
            await message.respond(b"the answer")

        subscription = await client.subscribe("asked.one", cb=answer)
        assert (await client.request("asked.one", b"question", timeout=30)).data == b"the answer"
        await subscription.unsubscribe()
        acknowledgement = await client.request("asked.two", b"x", timeout=30, headers={"Kafka-Ack": "leader"})
        assert json.loads(acknowledgement.data)["seq"] == 2

    publish(server, work)
    read(broker, "asked", 2)


def test_a_binding_is_changed_and_removed_while_it_runs(server: NatsServer, broker: Broker) -> None:
    bind(broker, "moving", {"nats.subjects": "one.>"})

    async def first(client: NatsClient) -> None:
        await client.publish("one.a", b"1")
        await client.publish("two.a", b"not yet")

    publish(server, first)
    bind(broker, "moving", {"nats.subjects": "two.>,three.c", "nats.key": "token:2"})

    async def second(client: NatsClient) -> None:
        await client.publish("one.a", b"no more")
        await client.publish("two.b", b"2")
        await client.publish("three.c", b"3")

    publish(server, second)
    bind(broker, "moving", {"nats.subjects": ""})

    async def third(client: NatsClient) -> None:
        await client.publish("two.b", b"not subscribed")

    publish(server, third)
    assert [(record.key, record.value) for record in read(broker, "moving", 3)] == [
        (b"one.a", b"1"),
        (b"b", b"2"),
        (b"c", b"3"),
    ]


@pytest.mark.every_nats_server
def test_kafka_clients_work_while_nats_is_down(server: NatsServer, broker: Broker) -> None:
    bind(broker, "bound", {"nats.subjects": "p"})

    async def one(client: NatsClient) -> None:
        await client.publish("p", b"before")

    publish(server, one)
    read(broker, "bound", 1)
    server.kill()
    assert [record.value for record in read(broker, "bound", 1)] == [b"before"]
    bind(broker, "later", {"nats.subjects": "l"})
    server.start()

    async def two(client: NatsClient) -> None:
        await eventually_async(  # until the broker has reconnected
            lambda: client.request("l", b"x", timeout=1, headers={"Kafka-Ack": "all"}),
            retry_on=(nats.errors.NoRespondersError, nats.errors.TimeoutError),
        )
        await client.publish("p", b"after")

    publish(server, two)
    assert [record.value for record in read(broker, "bound", 2)] == [b"before", b"after"]


def test_bound_topics_without_a_server_are_logged(server: NatsServer, fresh_broker: BrokerFactory) -> None:
    """nats.servers is missing or misspelt at a start."""
    broker = fresh_broker({"nats.servers": server.url})
    bind(broker, "forgotten", {"nats.subjects": "f.>"})
    broker.stop()
    del broker.settings["nats.servers"]
    broker.start()
    assert "1 topic is bound to NATS, and this broker has no nats.servers" in broker.log_text()
    assert "(forgotten)" in broker.log_text()
