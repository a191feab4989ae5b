"""Topics bound to NATS, as an admin binds them."""

from __future__ import annotations

import asyncio
import contextlib
import json
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
    """Create the topic with these configs; where it exists, set them."""
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


def await_taken(url: str, topic: str, partitions: int = 1) -> None:
    """Until brokers say that they take what is published for each partition: what comes before is nobody's. `url` is the
    server's, with a user who may ask them."""
    asyncio.run(_await_taken(url, topic, set(range(partitions))))


async def _await_taken(url: str, topic: str, wanted: set[int]) -> None:
    client = await nats.connect(url)
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox)
    taken: set[int] = set()

    async def are_taken() -> bool:
        await client.publish("$BARNABAS.BINDINGS", b"", reply=inbox)
        with contextlib.suppress(nats.errors.TimeoutError):
            while True:
                told = json.loads((await answers.next_msg(timeout=0.1)).data)
                for each in told["bindings"]:
                    if each["topic"] == topic and each["state"] == "running":
                        taken.update(each["partitions"])
        return wanted <= taken

    await eventually_async(are_taken, message=lambda: taken)
    await client.close()


async def told_of(client: NatsClient, subject: bytes = b"", *, broker: int = 1) -> dict[str, Any]:
    """What a broker answers that has bindings for the subject. Others on the same server answer as well, perhaps first."""
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox)
    await client.publish("$BARNABAS.BINDINGS", subject, reply=inbox)
    while True:
        answer: dict[str, Any] = json.loads((await answers.next_msg(timeout=30)).data)
        if answer["bindings"] and answer["broker"] == broker:
            await answers.unsubscribe()
            return answer


def await_running(cluster: Cluster, *topics: str) -> None:
    """Until all brokers say that they take what is published for these, each of which is led by all of them."""
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
                told = json.loads((await answers.next_msg(timeout=0.1)).data)
                running = {each["topic"] for each in told["bindings"] if each["state"] == "running"}
                ready[told["broker"]] = running
        return all(topics <= ready.get(node, set()) for node in cluster.nodes)

    await eventually_async(all_run, message=lambda: ready)
    await client.close()
