"""Stock Kafka producers and stock NATS subscribers, connected by a topic config."""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections.abc import Callable
from typing import Any

import nats
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from nats.js.api import AckPolicy, ConsumerConfig

from compat_tests.harness.broker import Broker
from compat_tests.harness.clients import CLIENTS, CODECS, PLAIN, Sample
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.eventually import eventually
from compat_tests.harness.java_tools import JavaTools
from compat_tests.harness.leader_moves import move_leader
from compat_tests.harness.nats_server import NatsServer
from compat_tests.nats.bound_topics import bind

pytestmark = pytest.mark.barnabas_only

CONFLUENT = CLIENTS[2]
TOTAL = int(os.environ.get("BARNABAS_NATS_MESSAGES", "100000")) // 4
SUBJECTS = 1000
ROUNDS = int(os.environ.get("BARNABAS_CHAOS_ROUNDS", "1"))


def samples(first: int, count: int) -> list[Sample]:
    return [Sample(b"key-%d" % (number % 7), b"%d" % number) for number in range(first, first + count)]


def stream_of(server: NatsServer, *subjects: str) -> None:
    async def run() -> None:
        client = await nats.connect(server.url)
        await client.jetstream(timeout=30).add_stream(name="OUT", subjects=list(subjects))
        await client.close()

    asyncio.run(run())


def stored(server: NatsServer) -> list[tuple[str, bytes]]:
    """All messages of the stream, in order."""

    async def run() -> list[tuple[str, bytes]]:
        client = await nats.connect(server.url)
        jetstream = client.jetstream(timeout=30)
        count = (await jetstream.stream_info("OUT")).state.messages
        found = []
        if count:
            subscription = await jetstream.subscribe(">", stream="OUT", ordered_consumer=True)
            for _ in range(count):
                message = await subscription.next_msg(timeout=30)
                found.append((message.subject, message.data))
        await client.close()
        return found

    return asyncio.run(run())


def stored_count(server: NatsServer) -> int:
    """Number of messages in the stream."""

    async def run() -> int:
        client = await nats.connect(server.url)
        count = (await client.jetstream(timeout=30).stream_info("OUT")).state.messages
        await client.close()
        return count

    return asyncio.run(run())


def subscribed(server: NatsServer, subject: str, count: int, meanwhile: Callable[[], object]) -> list[Any]:
    """The first `count` messages, published while or after `meanwhile` runs in a thread."""

    async def run() -> list[Any]:
        client = await nats.connect(server.url)
        subscription = await client.subscribe(subject)
        await client.flush()  # sends PING before buffered messages:
        await client.flush()  # ... so a second time
        await asyncio.get_running_loop().run_in_executor(None, meanwhile)
        found = [await subscription.next_msg(timeout=30) for _ in range(count)]
        await client.close()
        return found

    return asyncio.run(run())


def test_what_kafka_clients_produce_is_published(server: NatsServer, broker: Broker) -> None:
    bind(broker, "out", {"nats.publish.subject": "out.{key}"}, partitions=2)
    rounds = [(client, codec) for client in CLIENTS for codec in CODECS]

    def produce() -> None:
        for number, (client, codec) in enumerate(rounds):
            client.produce(broker.bootstrap, "out", samples(100 * number, 100), codec)

    found = subscribed(server, "out.*", 100 * len(rounds), produce)
    assert [(message.subject, message.data) for message in found] == [
        (f"out.key-{number % 7}", b"%d" % number)
        for first in range(0, 100 * len(rounds), 100)
        for number in range(first, first + 100)
    ]
    assert found[0].headers["Barnabas-Hops"].endswith("/out")


def test_kafka_tools_show_the_lag_and_move_the_position(
    server: NatsServer, broker: Broker, java_tools: JavaTools
) -> None:
    stream_of(server, "out.>")
    bind(broker, "out", {"nats.publish.subject": "out.x", "nats.publish.jetstream": "true"})
    PLAIN.produce(broker.bootstrap, "out", samples(0, 10))

    def groups(*words: str) -> str:
        server_words = ("--bootstrap-server", broker.bootstrap)
        return java_tools.run("kafka-consumer-groups", *server_words, *words).output

    def described() -> str:
        return groups("--describe", "--group", "nats-out")

    eventually(lambda: re.search(r"nats-out\s+out\s+0\s+10\s+10\s+0\s", described()))
    assert "Empty" in groups("--describe", "--group", "nats-out", "--state")
    bind(broker, "out", {"nats.paused": "true"})
    PLAIN.produce(broker.bootstrap, "out", samples(10, 5))
    assert re.search(r"nats-out\s+out\s+0\s+10\s+15\s+5\s", described())
    groups("--reset-offsets", "--group", "nats-out", "--topic", "out", "--execute", "--to-offset", "13")
    bind(broker, "out", {"nats.paused": "false"})
    eventually(lambda: re.search(r"nats-out\s+out\s+0\s+15\s+15\s+0\s", described()))
    assert [data for _, data in stored(server)] == [b"%d" % number for number in (*range(10), 13, 14)]


def test_a_topic_that_is_created_again_is_published_from_its_first_record(
    server: NatsServer, broker: Broker
) -> None:
    """Its offsets are those of the deleted topic, and the stream still remembers these messages."""
    stream_of(server, "out.>")
    configs = {"nats.publish.subject": "out.x", "nats.publish.jetstream": "true"}
    for first in (0, 5):
        bind(broker, "out", configs)
        PLAIN.produce(broker.bootstrap, "out", samples(first, 5))
        eventually(lambda: stored_count(server) == first + 5)  # noqa: B023 - called at once
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.delete_topics(["out"])["out"].result(30)
    assert [data for _, data in stored(server)] == [b"%d" % number for number in range(10)]


def test_the_command_in_the_log_skips_a_record(
    server: NatsServer, broker: Broker, java_tools: JavaTools
) -> None:
    bind(broker, "out", {"nats.publish.subject": "out.{key}"})
    keys = (b"a", None, b"b")
    CONFLUENT.produce(
        broker.bootstrap, "out", [Sample(key, b"%d" % number) for number, key in enumerate(keys)]
    )
    command = eventually(lambda: re.search(r"kafka-consumer-groups\.sh (.* --execute)", broker.log_text()))
    assert command is not None
    found = subscribed(
        server,
        "out.b",
        1,
        lambda: java_tools.run("kafka-consumer-groups", *command[1].split()),
    )
    assert found[0].data == b"2"
    eventually(lambda: "out-0 is published again, up to offset 3" in broker.log_text())


def test_a_broker_that_is_killed_publishes_each_record_once_to_a_stream(
    server: NatsServer, broker: Broker
) -> None:
    stream_of(server, "out.>")
    bind(broker, "out", {"nats.publish.subject": "out.{partition}", "nats.publish.jetstream": "true"})
    for round_number in range(4):
        CONFLUENT.produce(broker.bootstrap, "out", samples(2000 * round_number, 2000))
        broker.kill()
        if round_number == 1:
            server.restart(kill=True)
        broker.start()
    eventually(lambda: stored_count(server) >= 8000)
    assert [data for _, data in stored(server)] == [b"%d" % number for number in range(8000)]


@pytest.mark.timeout(300 + 300 * ROUNDS)
def test_leaders_that_move_and_die_publish_each_record_once_to_a_stream(
    server: NatsServer, cluster: Cluster
) -> None:
    """In partition order; nats-server is killed once as well."""
    partitions = 2
    stream_of(server, "out.>")
    configs = {
        "nats.publish.subject": "out.{partition}",
        "nats.publish.jetstream": "true",
        "min.insync.replicas": "2",
    }
    bind(cluster, "out", configs, partitions=partitions, replicas=3)
    cluster.wait_until_whole()
    produced = 0

    def produce(count: int) -> None:
        nonlocal produced
        for partition in range(partitions):
            CONFLUENT.produce(cluster.bootstrap, "out", samples(produced, count), partition=partition)
        produced += count

    produce(500)
    for number in range(3 if ROUNDS == 1 else 50 * ROUNDS):
        move_leader(cluster, "out", number % partitions, random.sample(sorted(cluster.nodes), 3))
        produce(500)
    for _ in range(1 if ROUNDS == 1 else 20 * ROUNDS):
        server.restart(kill=True)
        produce(500)
        victim = cluster.leader("out", 0)
        cluster.kill(victim)
        produce(500)
        cluster.start(victim)
        cluster.wait_until_whole()
        produce(500)
    wanted = partitions * produced
    eventually(
        lambda: stored_count(server) >= wanted,
        timeout=60 * (1 + ROUNDS),
        message=lambda: f"{stored_count(server)} of {wanted} messages in the stream",
    )
    found = stored(server)
    for partition in range(partitions):
        values = [data for subject, data in found if subject == f"out.{partition}"]
        assert values == [b"%d" % number for number in range(produced)]


@pytest.mark.every_nats_server
def test_subjects_to_topics_to_subjects(server: NatsServer, broker: Broker) -> None:
    """Through two topics and back, without a loop."""
    bind(broker, "first", {"nats.subjects": "a.>", "nats.publish.subject": "b.{key}"})
    bind(broker, "second", {"nats.subjects": "b.>", "nats.key": "token:3", "nats.publish.subject": "c.{key}"})

    async def run() -> list[Any]:
        client = await nats.connect(server.url)
        subscription = await client.subscribe("c.>")
        for number in range(50):
            await client.publish(f"a.{number}", b"%d" % number, headers={"n": str(number)})
        found = [await subscription.next_msg(timeout=30) for _ in range(50)]
        await client.close()
        return found

    found = asyncio.run(run())
    assert [(each.subject, each.data, each.headers["n"]) for each in found] == [
        (f"c.{number}", b"%d" % number, str(number)) for number in range(50)
    ]
    assert re.fullmatch(r"(.+)/first,\1/second", found[0].headers["Barnabas-Hops"])


@pytest.mark.timeout(300 + TOTAL // 1000)
def test_many_records_over_many_subjects_of_a_stream(server: NatsServer, broker: Broker) -> None:
    """Each record once, and each subject's in the order of production."""
    stream_of(server, "out.>")
    configs = {"nats.publish.subject": "out.{key}", "nats.publish.jetstream": "true"}
    bind(broker, "out", configs, partitions=8)
    found: dict[str, list[int]] = {}

    async def run() -> None:
        client = await nats.connect(server.url)
        # A pull consumer: a slow push consumer drops messages.
        consumer = ConsumerConfig(ack_policy=AckPolicy.NONE)
        subscription = await client.jetstream(timeout=30).pull_subscribe(">", stream="OUT", config=consumer)
        producing = asyncio.get_running_loop().run_in_executor(None, produce_many, broker.bootstrap)
        received = 0
        while received < TOTAL:
            messages = await subscription.fetch(1000, timeout=30)
            received += len(messages)
            for message in messages:
                found.setdefault(message.subject, []).append(int(message.data))
        await producing
        with pytest.raises(nats.errors.TimeoutError):
            await subscription.fetch(1, timeout=0.2)
        await client.close()

    asyncio.run(run())
    assert found == {f"out.s{each}": list(range(each, TOTAL, SUBJECTS)) for each in range(SUBJECTS)}


def produce_many(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "enable.idempotence": True})
    for number in range(TOTAL):
        while True:
            try:
                producer.produce("out", b"%d" % number, b"s%d" % (number % SUBJECTS))
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0
