"""Bound topics in queue groups: a single broker is one member among others; in a cluster each broker is a member.
Each message goes to one member, and is in the topic once, independent of its partition's leader."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random

import nats
import nats.errors
import pytest
from nats.aio.msg import Msg

from compat_tests.harness.broker import Broker
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.eventually import eventually_async
from compat_tests.harness.leader_moves import move_leader
from compat_tests.harness.nats_server import NatsServer
from compat_tests.nats.bound_topics import await_subscribed, bind
from compat_tests.nats.publishers import Sent, SteadyPublisher, settled
from compat_tests.nats.received import by_subject, check
from compat_tests.nats.streams import read_all

pytestmark = pytest.mark.barnabas_only

COUNT = 1000
ROUNDS = int(os.environ.get("BARNABAS_CHAOS_ROUNDS", "1"))
TOPIC = "shared"
PARTITIONS = 3
GROUP = {"nats.subjects": "jobs.>", "nats.queue.group": "workers"}


def test_members_share(server: NatsServer, broker: Broker) -> None:
    bind(broker, "jobs", {"nats.subjects": "jobs.>", "nats.queue.group": "workers"}, partitions=3)
    theirs: list[bytes] = []

    async def run() -> None:
        async def take(message: Msg) -> None:
            theirs.append(message.data)

        member = await nats.connect(server.url)
        await member.subscribe("jobs.>", queue="workers", cb=take)
        await settled(member)
        publisher = await nats.connect(server.url)
        for number in range(COUNT):
            await publisher.publish(f"jobs.{number % 7}", b"%d" % number)
        await settled(publisher)
        await settled(member)  # a client drops messages that arrive after its drain
        await publisher.close()
        await member.drain()

    asyncio.run(run())
    found = by_subject(broker.bootstrap, "jobs", 3, COUNT - len(theirs))
    ours = [value for values in found.values() for value in values]
    assert ours  # the server chooses members, not always evenly
    assert theirs
    assert sorted(map(int, [*ours, *theirs])) == list(range(COUNT))


def make_members(server: NatsServer, cluster: Cluster, replicas: int, **configs: str) -> None:
    """Creates the topic, and waits until all brokers are in the group."""
    named = {name.replace("_", "."): value for name, value in configs.items()}
    bind(cluster, TOPIC, {**GROUP, **named}, partitions=PARTITIONS, replicas=replicas)
    cluster.wait_until_whole()
    await_subscribed(server.url, TOPIC, PARTITIONS)


def in_any_order(found: Sent) -> Sent:
    """Sorts the payloads: members process messages concurrently."""
    return {subject: sorted(values) for subject, values in found.items()}


@pytest.mark.parametrize("replicas", [1, 3])
def test_members_of_a_cluster_produce_for_each_other(
    server: NatsServer, cluster: Cluster, replicas: int
) -> None:
    make_members(server, cluster, replicas, nats_acks="reply")

    sent: Sent = {}

    async def run() -> None:
        client = await nats.connect(server.url)
        stream = client.jetstream(timeout=30)
        for number in range(300):
            subject, payload = f"jobs.{number % 17}", b"%d" % number
            await stream.publish(subject, payload, timeout=10)
            sent.setdefault(subject, []).append(payload)
        await client.close()

    asyncio.run(run())
    found = by_subject(cluster.bootstrap, TOPIC, PARTITIONS, 300)
    check(found, sent)  # messages stay in order when each answer is awaited


def test_leaders_that_move_lose_nothing(server: NatsServer, cluster: Cluster) -> None:
    make_members(server, cluster, 3, min_insync_replicas="2")
    publisher = SteadyPublisher(server, lambda number: f"jobs.{number % 40}")
    publisher.await_more(1000)
    for number in range(10):
        move_leader(cluster, TOPIC, number % PARTITIONS, random.sample(sorted(cluster.nodes), 3))
        publisher.await_more(random.randrange(50, 400))
    publisher.await_more(1000)
    sent = publisher.finish()
    check(in_any_order(by_subject(cluster.bootstrap, TOPIC, PARTITIONS, publisher.count)), in_any_order(sent))


@pytest.mark.parametrize("replicas", [1, 3])
def test_brokers_that_are_restarted_lose_nothing(server: NatsServer, cluster: Cluster, replicas: int) -> None:
    make_members(server, cluster, replicas)
    publisher = SteadyPublisher(server, lambda number: f"jobs.{number % 40}")
    publisher.await_more(1000)
    restarted = sorted(cluster.nodes) if replicas == 1 or ROUNDS > 1 else [cluster.leader(TOPIC, 0)]
    for node in restarted:
        assert cluster.nodes[node].stop() == 0  # a single signal: with a second one it would end at once
        cluster.start(node)
        publisher.await_more(500)
    sent = publisher.finish()
    check(in_any_order(by_subject(cluster.bootstrap, TOPIC, PARTITIONS, publisher.count)), in_any_order(sent))


async def publish_while_one_dies(server: NatsServer, cluster: Cluster) -> list[tuple[int, int, bytes]]:
    """(partition, offset, payload) of acknowledged messages."""
    client = await nats.connect(server.url)
    acknowledged: list[tuple[int, int, bytes]] = []
    is_over = False

    async def write(writer: int) -> None:
        number = 0
        while not is_over:
            payload = b"%d-%d" % (writer, number)
            with contextlib.suppress(nats.errors.TimeoutError, nats.errors.NoRespondersError):
                answer = json.loads((await client.request(f"jobs.{number}", payload, timeout=1)).data)
                acknowledged.append((answer["partition"], answer["seq"] - 1, payload))
            number += 1

    writers = [asyncio.create_task(write(number)) for number in range(20)]
    await eventually_async(lambda: len(acknowledged) >= 200)
    victim = await asyncio.to_thread(cluster.leader, TOPIC, 0)
    await asyncio.to_thread(cluster.kill, victim)
    for _ in range(2):  # before the others have noticed, and afterwards
        wanted = len(acknowledged) + 500
        await eventually_async(lambda wanted=wanted: len(acknowledged) >= wanted)
    is_over = True
    await asyncio.gather(*writers)
    await client.close()
    return acknowledged


def test_acknowledged_messages_are_in_the_log(server: NatsServer, cluster: Cluster) -> None:
    make_members(server, cluster, 3, nats_acks="reply", min_insync_replicas="2")
    acknowledged = asyncio.run(publish_while_one_dies(server, cluster))
    found = {
        (record.partition(), record.offset()): record.value()
        for record in read_all(cluster, TOPIC, len(acknowledged))
    }
    assert len(set(found.values())) == len(found)
    for partition, offset, payload in acknowledged:
        assert found[partition, offset] == payload
