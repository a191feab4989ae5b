"""A broker whose account has only the permissions of docs/nats.md runs every kind of binding."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import nats
import pytest
from nats.aio.client import Client as NatsClient

from compat_tests.harness.broker import Broker
from compat_tests.harness.clients import PLAIN, Sample
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import BrokerFactory, ClusterFactory
from compat_tests.harness.nats_server import NatsServer, NatsServerFactory
from compat_tests.nats.bound_topics import await_subscribed, bind
from compat_tests.nats.received import by_subject
from compat_tests.nats.streams import read_all

pytestmark = pytest.mark.barnabas_only

BROKER = {
    "subscribe": ["orders.>", "events.>", "_INBOX.>", "$BARNABAS.BINDINGS", "_BARNABAS.>"],
    "publish": ["_INBOX.>", "_BARNABAS.>", "$JS.API.>", "$JS.ACK.>", "copies.*", "$KV.stock.>"],
}
USERS = f"""
authorization {{ users: [
  {{user: people, password: pw}},
  {{user: broker, password: pw, permissions: {json.dumps(BROKER)}}}
] }}
"""


@pytest.fixture
def server(nats_server: NatsServerFactory) -> NatsServer:
    return nats_server(jetstream=True, config=USERS)


def _url(server: NatsServer, user: str) -> str:
    return server.url.replace("//", f"//{user}:pw@")


def _with_people(server: NatsServer, work: Callable[[NatsClient], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        client = await nats.connect(_url(server, "people"))
        try:
            return await work(client)
        finally:
            await client.drain()

    return asyncio.run(run())


def _count(broker: Broker, topic: str, count: int) -> None:
    assert len(read_all(broker, topic, count)) == count


def test_every_kind_of_binding(server: NatsServer, fresh_broker: BrokerFactory) -> None:
    async def prepare(client: NatsClient) -> None:
        stream = client.jetstream(timeout=30)
        await stream.add_stream(name="EVENTS", subjects=["events.>"])
        await stream.publish("events.1", b"1")
        bucket = await stream.create_key_value(bucket="stock")
        await bucket.put("apples", b"1")

    async def use(client: NatsClient) -> tuple[bytes, bytes, list[str]]:
        copies = await client.subscribe("copies.*")
        await client.flush()
        answer = await client.request("orders.1", b"x", headers={"Kafka-Ack": "all"}, timeout=30)
        copy = await copies.next_msg(timeout=30)
        listing = await client.request("$BARNABAS.BINDINGS", b"", timeout=30)
        states = [f"{each['topic']} {each['state']}" for each in json.loads(listing.data)["bindings"]]
        return answer.data, copy.data, states

    _with_people(server, prepare)
    broker = fresh_broker({"nats.servers": _url(server, "broker")})
    bind(broker, "orders", {"nats.subjects": "orders.>", "nats.publish.subject": "copies.{partition}"})
    once = {"nats.subjects": "events.>", "nats.mode": "jetstream"}
    bind(broker, "once", once)
    bind(broker, "often", {**once, "nats.delivery": "at-least-once"})
    bind(broker, "stock", {"nats.mode": "kv", "nats.bucket": "stock", "cleanup.policy": "compact"})
    for topic in ("once", "often", "stock"):
        _count(broker, topic, 1)
    PLAIN.produce(broker.bootstrap, "stock", [Sample(b"pears", b"2")])

    async def pears(client: NatsClient) -> bytes | None:
        try:
            return (await (await client.jetstream(timeout=30).key_value("stock")).get("pears")).value
        except nats.js.errors.KeyNotFoundError:
            return None

    eventually(lambda: _with_people(server, pears) == b"2")
    answer, copy, states = _with_people(server, use)
    assert json.loads(answer)["seq"] == 1
    assert copy == b"x"
    assert states == [f"{topic} running" for topic in ("often", "once", "orders", "stock")]
    assert "Permissions Violation" not in broker.log_text()
    assert "Violation" not in server.log_text()


def test_a_missing_permission_is_reported(server: NatsServer, fresh_broker: BrokerFactory) -> None:
    broker = fresh_broker({"nats.servers": _url(server, "broker")})
    bind(broker, "secrets", {"nats.subjects": "secrets.>"})

    async def state(client: NatsClient) -> str:
        answer = await client.request("$BARNABAS.BINDINGS", b"", timeout=30)
        return str(json.loads(answer.data)["bindings"][0]["state"])

    eventually(lambda: "blocked: the server refuses the subscription" in _with_people(server, state))


def test_a_cluster(server: NatsServer, fresh_cluster: ClusterFactory) -> None:
    cluster = fresh_cluster(settings={"nats.servers": _url(server, "broker")})
    bind(cluster, "orders", {"nats.subjects": "orders.>", "min.insync.replicas": "2"}, replicas=3)
    await_subscribed(_url(server, "people"), "orders")

    async def publish(client: NatsClient) -> None:
        for number in range(200):
            await client.publish("orders.1", b"%d" % number)
            await asyncio.sleep(0.002)  # the rate: messages reach the broker one at a time

    _with_people(server, publish)
    found = by_subject(cluster.bootstrap, "orders", 1, 200)
    assert found == {"orders.1": [b"%d" % number for number in range(200)]}
    assert "Violation" not in server.log_text()
