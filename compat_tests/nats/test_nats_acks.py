"""Acknowledged publishing: stock JetStream clients on bound topics, duplicates, expectations, and unrelated
requests."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import nats
import nats.errors
import pytest
from nats.aio.client import Client as NatsClient
from nats.js.errors import APIError, BadRequestError

from compat_tests.harness.broker import Broker
from compat_tests.harness.eventually import eventually_async
from compat_tests.harness.nats_server import NatsServer
from compat_tests.nats.bound_topics import bind, bindings_of
from compat_tests.nats.publishers import publish
from compat_tests.nats.received import read

pytestmark = pytest.mark.barnabas_only


def refused(code: int, text: str) -> Any:
    return pytest.raises(APIError, match=f"err_code={code} description='{text}")


def test_a_stock_jetstream_publisher_sees_the_topic_as_a_stream(server: NatsServer, broker: Broker) -> None:
    bind(broker, "orders", {"nats.subjects": "orders.>", "nats.acks": "reply"})

    async def work(client: NatsClient) -> None:
        stream = client.jetstream(timeout=30)
        ack = await stream.publish("orders.a", b"0", stream="orders")
        assert (ack.stream, ack.seq, ack.duplicate) == ("orders", 1, None)
        futures = [await stream.publish_async("orders.b", b"%d" % number) for number in range(1, 500)]
        acks = await asyncio.gather(*futures)
        assert [each.seq for each in acks] == list(range(2, 501))
        ack = await stream.publish("orders.c", b"500", headers={"Kafka-Ack": "leader"})
        assert ack.seq == 501

    publish(server, work)
    assert [record.value for record in read(broker, "orders", 501)] == [b"%d" % each for each in range(501)]


def test_each_partition_has_its_own_sequence(server: NatsServer, broker: Broker) -> None:
    bind(
        broker,
        "orders",
        {"nats.subjects": "orders.*", "nats.acks": "reply", "nats.partitioner": "token:2"},
        partitions=3,
    )

    async def work(client: NatsClient) -> None:
        stream = client.jetstream(timeout=30)
        sequences = [(await stream.publish(f"orders.{number % 3}", b"x")).seq for number in range(6)]
        assert sequences == [1, 1, 1, 2, 2, 2]
        answer = await client.request("orders.2", b"x", timeout=30)
        assert answer.data == b'{"stream":"orders","partition":2,"seq":3}'

    publish(server, work)


def test_a_duplicate_is_stored_once_also_after_a_kill(server: NatsServer, broker: Broker) -> None:
    bind(broker, "orders", {"nats.subjects": "orders.>", "nats.acks": "reply"})

    async def first(client: NatsClient) -> None:
        stream = client.jetstream(timeout=30)
        for number in range(20):
            ack = await stream.publish("orders.a", b"x", headers={"Nats-Msg-Id": f"id-{number}"})
            assert (ack.seq, ack.duplicate) == (number + 1, None)
        ack = await stream.publish("orders.b", b"y", headers={"Nats-Msg-Id": "id-7"})
        assert (ack.seq, ack.duplicate) == (8, True)

    async def again(client: NatsClient) -> None:
        stream = client.jetstream(timeout=30)
        for number in (19, 0, 7):
            ack = await publish_until_answered(stream, "orders.a", {"Nats-Msg-Id": f"id-{number}"})
            assert (ack.seq, ack.duplicate) == (number + 1, True)
        ack = await stream.publish("orders.a", b"x", headers={"Nats-Expected-Last-Msg-Id": "id-19"})
        assert (ack.seq, ack.duplicate) == (21, None)

    publish(server, first)
    broker.kill()
    broker.start()
    publish(server, again)
    read(broker, "orders", 21)


async def publish_until_answered(stream: Any, subject: str, headers: dict[str, str]) -> Any:
    """Retries, because the broker may not have subscribed yet."""
    return await eventually_async(
        lambda: stream.publish(subject, b"x", timeout=2, headers=headers),
        retry_on=(nats.errors.TimeoutError, nats.js.errors.NoStreamResponseError),
    )


def test_the_duplicate_window_ends(server: NatsServer, broker: Broker) -> None:
    bind(
        broker, "orders", {"nats.subjects": "orders.>", "nats.acks": "reply", "nats.dedup.window.ms": "2000"}
    )
    bind(broker, "all", {"nats.subjects": "all.>", "nats.acks": "reply", "nats.dedup.window.ms": "0"})

    async def work(client: NatsClient) -> None:
        stream = client.jetstream(timeout=30)
        headers = {"Nats-Msg-Id": "a"}
        answers = [await stream.publish("orders.a", b"x", headers=headers) for _ in range(2)]
        await asyncio.sleep(2.1)  # the window of 2 s ends
        answers.append(await stream.publish("orders.a", b"x", headers=headers))
        assert [(each.seq, each.duplicate) for each in answers] == [(1, None), (1, True), (2, None)]
        answers = [await stream.publish("all.a", b"x", headers=headers) for _ in range(2)]
        assert [(each.seq, each.duplicate) for each in answers] == [(1, None), (2, None)]

    publish(server, work)


def test_expectations_are_met_or_refused(server: NatsServer, broker: Broker) -> None:
    bind(broker, "orders", {"nats.subjects": "orders.>", "nats.acks": "reply"})

    async def work(client: NatsClient) -> None:
        stream = client.jetstream(timeout=30)

        async def expecting(name: str, value: str) -> int:
            return (await stream.publish("orders.a", b"x", headers={name: value})).seq

        assert await expecting("Nats-Expected-Last-Sequence", "0") == 1
        assert await expecting("Nats-Expected-Last-Sequence", "1") == 2
        with refused(10071, "wrong last sequence: 2"):
            await expecting("Nats-Expected-Last-Sequence", "1")
        with refused(10060, "expected stream does not match"):
            await stream.publish("orders.a", b"x", stream="others")
        with refused(10166, "per-message TTL is disabled"):
            await stream.publish("orders.a", b"x", msg_ttl=5)
        with refused(10003, "a topic keeps no last sequence per subject"):
            await expecting("Nats-Expected-Last-Subject-Sequence", "0")
        with pytest.raises(BadRequestError):
            await expecting("Nats-Incr", "1")

    publish(server, work)
    read(broker, "orders", 2)


def test_optimistic_writers_never_overwrite_each_other(server: NatsServer, broker: Broker) -> None:
    bind(broker, "orders", {"nats.subjects": "orders.>", "nats.acks": "reply"})

    async def work(client: NatsClient) -> None:
        stream = client.jetstream(timeout=30)

        stored: list[int] = []

        async def write() -> None:
            count, last = 0, 0
            while count < 20:
                try:
                    headers = {"Nats-Expected-Last-Sequence": str(last)}
                    last = (await stream.publish("orders.a", b"x", headers=headers)).seq
                except APIError as error:
                    last = int(str(error.description).removeprefix("wrong last sequence: "))
                else:
                    stored.append(last)
                    count += 1

        await asyncio.gather(*(write() for _ in range(5)))
        assert sorted(stored) == list(range(1, 101))

    publish(server, work)
    read(broker, "orders", 100)


def test_a_message_that_is_too_large_is_answered_with_an_error(server: NatsServer, broker: Broker) -> None:
    bind(broker, "orders", {"nats.subjects": "orders.>", "nats.acks": "reply", "max.message.bytes": "2000"})

    async def work(client: NatsClient) -> None:
        stream = client.jetstream(timeout=30)
        with refused(10054, "MESSAGE_TOO_LARGE"):
            await stream.publish("orders.a", b"x" * 3000, headers={"Nats-Msg-Id": "a"})
        assert (await stream.publish("orders.a", b"x", headers={"Nats-Msg-Id": "a"})).seq == 1

    publish(server, work)


def test_requests_without_the_ack_header_get_no_answer_of_the_broker(
    server: NatsServer, broker: Broker
) -> None:
    """With a service on a bound subject, or a stream beside the topic, publishers get only the answers of those."""
    bind(broker, "orders", {"nats.subjects": "orders.>"})
    bind(broker, "beside", {"nats.subjects": "beside.>"})

    async def work(client: NatsClient) -> None:
        async def serve(message: Any) -> None:
            await asyncio.sleep(0.05)  # the broker would have answered by then
            await message.respond(b"the service")

        await client.subscribe("orders.service", cb=serve)
        assert (await client.request("orders.service", b"x", timeout=30)).data == b"the service"
        answer = await client.request("orders.a", b"x", timeout=30, headers={"Kafka-Ack": "all"})
        assert answer.data == b'{"stream":"orders","partition":0,"seq":2}'
        with pytest.raises(nats.errors.TimeoutError):
            await client.request("orders.a", b"x", timeout=0.3)

        stream = client.jetstream(timeout=30)
        await stream.add_stream(name="KEPT", subjects=["beside.>"])
        for number in range(3):
            headers = {"Nats-Expected-Stream": "KEPT", "Nats-Expected-Last-Sequence": str(number)}
            ack = await stream.publish("beside.a", b"x", headers=headers)
            assert (ack.stream, ack.seq) == ("KEPT", number + 1)
        with refused(10071, "wrong last sequence: 3"):
            await stream.publish("beside.a", b"x", headers={"Nats-Expected-Last-Sequence": "1"})

    publish(server, work)
    read(broker, "orders", 3)
    read(broker, "beside", 4)  # all messages of the subject, also those that the stream refused


def test_with_acks_off_no_publisher_is_answered(server: NatsServer, broker: Broker) -> None:
    bind(broker, "orders", {"nats.subjects": "orders.>", "nats.acks": "off"})

    async def work(client: NatsClient) -> None:
        with pytest.raises(nats.errors.TimeoutError):
            await client.request("orders.a", b"x", timeout=0.5, headers={"Kafka-Ack": "all"})

    publish(server, work)
    read(broker, "orders", 1)


def test_the_bindings_answer_has_the_number_of_expected_acks(server: NatsServer, broker: Broker) -> None:
    bind(broker, "orders", {"nats.subjects": "orders.>"}, partitions=2)
    bind(broker, "all", {"nats.subjects": ">"})

    async def work(client: NatsClient) -> None:
        answer = await bindings_of(client, b"orders.a")
        by_topic = {each["topic"]: (each["partitions"], each["expected_acks"]) for each in answer["bindings"]}
        assert by_topic == {"all": ([0], 1), "orders": ([0, 1], 1)}
        assert {each["state"] for each in answer["bindings"]} == {"running"}

        inbox = client.new_inbox()
        answers = await client.subscribe(inbox, max_msgs=2)
        await client.publish("orders.a", b"x", reply=inbox, headers={"Kafka-Ack": "all"})
        acks = [json.loads((await answers.next_msg(timeout=30)).data) for _ in range(2)]
        assert sorted(each["stream"] for each in acks) == ["all", "orders"]

    publish(server, work)
    read(broker, "all", 1)  # requests to the broker are not stored
