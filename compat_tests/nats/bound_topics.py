"""Binds topics to NATS as an admin does, and waits for bindings."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import nats
import nats.errors
from confluent_kafka.admin import AdminClient
from nats.aio.client import Client as NatsClient

from compat_tests.harness.asking import ask, ask_for_topic
from compat_tests.harness.broker import Broker
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.confluent_admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from compat_tests.harness.eventually import eventually_async


def bind(
    broker: Broker | Cluster,
    topic: str,
    configs: Mapping[str, str],
    *,
    partitions: int = 1,
    replicas: int = 1,
) -> None:
    """Creates the topic with these configs, or sets them on an existing topic."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    if topic not in admin.list_topics(timeout=30).topics:
        ask_for_topic(admin, NewTopic(topic, partitions, replicas, config=dict(configs)))
        return
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    ask(lambda: admin.incremental_alter_configs([resource])[resource].result(30))


def await_subscribed(url: str, topic: str, partitions: int = 1) -> None:
    """Waits until brokers report each partition of the binding as running: earlier messages may be lost. `url` is the
    server's, with a user who may ask the brokers."""
    asyncio.run(_await_subscribed(url, topic, set(range(partitions))))


async def _await_subscribed(url: str, topic: str, wanted: set[int]) -> None:
    client = await nats.connect(url)
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox)
    taken: set[int] = set()

    async def are_subscribed() -> bool:
        await client.publish("$BARNABAS.BINDINGS", b"", reply=inbox)
        with contextlib.suppress(nats.errors.TimeoutError):
            while True:
                answer = json.loads((await answers.next_msg(timeout=0.1)).data)
                for each in answer["bindings"]:
                    if each["topic"] == topic and each["state"] == "running":
                        taken.update(each["partitions"])
        return wanted <= taken

    await eventually_async(are_subscribed, message=lambda: taken)
    await client.close()


async def bindings_of(client: NatsClient, subject: bytes = b"", *, broker: int = 1) -> dict[str, Any]:
    """Answer of a broker about its bindings for the subject. Other brokers on the server answer as well, perhaps
    first."""
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox)
    await client.publish("$BARNABAS.BINDINGS", subject, reply=inbox)
    while True:
        answer: dict[str, Any] = json.loads((await answers.next_msg(timeout=30)).data)
        if answer["bindings"] and answer["broker"] == broker:
            await answers.unsubscribe()
            return answer


def await_running(cluster: Cluster, *topics: str) -> None:
    """Waits until all brokers report the bindings of these topics as running; each broker leads a partition of each
    topic."""
    asyncio.run(_await_running(cluster, set(topics)))


async def _await_running(cluster: Cluster, topics: set[str]) -> None:
    client = await nats.connect(cluster.nodes[1].settings["nats.servers"])
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox)
    ready: dict[int, set[str]] = {}

    async def all_run() -> bool:
        await client.publish("$BARNABAS.BINDINGS", b"", reply=inbox)
        with contextlib.suppress(nats.errors.TimeoutError):
            while True:
                answer = json.loads((await answers.next_msg(timeout=0.1)).data)
                running = {each["topic"] for each in answer["bindings"] if each["state"] == "running"}
                ready[answer["broker"]] = running
        return all(topics <= ready.get(node, set()) for node in cluster.nodes)

    await eventually_async(all_run, message=lambda: ready)
    await client.close()


def await_standbys(cluster: Cluster, topic: str, partitions: int) -> None:
    """Waits until each broker could lead each partition without missing a message; all brokers are replicas.

    Followers of a new topic are in the ISR before they know it (barnabas/nats/ingress/standby.py). After two marks
    they know it, and a follower sends its third mark only then.
    """
    asyncio.run(_await_standbys(cluster, topic, partitions))


async def _await_standbys(cluster: Cluster, topic: str, partitions: int) -> None:
    client = await nats.connect(cluster.nodes[1].settings["nats.servers"])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    prefix = f"_BARNABAS.{admin.describe_cluster().result(30).cluster_id}.{topic}"
    answers = await client.subscribe(f"{prefix}.ends.*")
    counts: Counter[tuple[str, str]] = Counter()  # by follower and partition of another leader

    async def all_are() -> bool:
        await client.publish(f"{prefix}.call", b"")
        with contextlib.suppress(nats.errors.TimeoutError):
            while True:
                answer = await answers.next_msg(timeout=0.6)
                for partition, (_, end_offset, _) in json.loads(answer.data)["ends"].items():
                    counts[answer.subject, partition] += end_offset >= 0
        known = Counter(partition for (_, partition), count in counts.items() if count >= 3)
        return all(known[str(index)] >= len(cluster.nodes) - 1 for index in range(partitions))

    await eventually_async(all_are, message=lambda: counts)
    await client.close()
