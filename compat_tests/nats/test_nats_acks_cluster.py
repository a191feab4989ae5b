"""Publishers that retry until they are acknowledged, while leaders move and one is killed: each message is in the
topic once, at the offset of its acknowledgement."""

from __future__ import annotations

import asyncio
import random

import nats
import nats.errors
import pytest
from nats.js.client import JetStreamContext
from nats.js.errors import APIError, NoStreamResponseError

from compat_tests.harness.cluster import Cluster
from compat_tests.harness.eventually import eventually_async
from compat_tests.harness.leader_moves import move_leader
from compat_tests.harness.nats_server import NatsServer
from compat_tests.nats.bound_topics import bind
from compat_tests.nats.streams import read_all

pytestmark = pytest.mark.barnabas_only

TOPIC = "acknowledged"
WRITERS = 20
MOVES = 5


async def store(stream: JetStreamContext, identity: str) -> int:
    """Publishes until acknowledged; returns the sequence of the acknowledgement."""
    headers = {"Nats-Msg-Id": identity}
    ack = await eventually_async(
        lambda: stream.publish("a.b", identity.encode(), timeout=0.5, headers=headers),
        retry_on=(nats.errors.TimeoutError, NoStreamResponseError, APIError),
    )
    return ack.seq


async def publish_meanwhile(server: NatsServer, cluster: Cluster) -> dict[str, int]:
    """Sequences by message id."""
    client = await nats.connect(server.url)
    stream = client.jetstream(timeout=30)
    sequences: dict[str, int] = {}
    is_over = False

    async def write(writer: int) -> None:
        number = 0
        while not is_over:
            identity = f"{writer}-{number}"
            sequences[identity] = await store(stream, identity)
            number += 1

    writers = [asyncio.create_task(write(number)) for number in range(WRITERS)]
    await eventually_async(lambda: len(sequences) >= 100)
    for _ in range(MOVES):
        replicas = random.sample(sorted(cluster.nodes), 3)
        await asyncio.to_thread(move_leader, cluster, TOPIC, 0, replicas)
        await asyncio.sleep(random.random() / 2)  # the leader moves at a random point of the clients' work
    victim = await asyncio.to_thread(cluster.leader, TOPIC, 0)
    await asyncio.to_thread(cluster.kill, victim)
    before = len(sequences)
    await eventually_async(lambda: len(sequences) >= before + 300 or any(writer.done() for writer in writers))
    is_over = True
    await asyncio.gather(*writers)
    await client.close()
    return sequences


def test_a_retried_message_is_stored_once(server: NatsServer, cluster: Cluster) -> None:
    configs = {"nats.subjects": "a.>", "nats.acks": "reply", "min.insync.replicas": "2"}
    bind(cluster, TOPIC, configs, replicas=3)
    cluster.wait_until_whole()
    sequences = asyncio.run(publish_meanwhile(server, cluster))
    found: dict[str, list[int]] = {}
    for record in read_all(cluster, TOPIC, len(sequences)):
        found.setdefault(record.value().decode(), []).append(record.offset() + 1)
    expected = {identity: [sequence] for identity, sequence in sequences.items()}
    others = {identity for identity in {*expected, *found} if expected.get(identity) != found.get(identity)}
    assert not others, [(each, expected.get(each), found.get(each)) for each in sorted(others)][:20]
