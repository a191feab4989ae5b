"""Monitoring of running bindings, and servers that are unreachable, reject the credentials, or refuse a
subscription."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from typing import Any

import nats
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from nats.aio.client import Client as NatsClient
from prometheus_client.parser import text_string_to_metric_families

from compat_tests.harness.broker import Broker
from compat_tests.harness.confluent_admin import ConfigResource, ResourceType
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.harness.nats_server import NatsServer, NatsServerFactory
from compat_tests.nats.bound_topics import await_subscribed, bind
from compat_tests.nats.publishers import publish
from compat_tests.nats.received import read

pytestmark = pytest.mark.barnabas_only

SECRET = "never-shown-7f3a"
Metrics = dict[
    tuple[str, str], float
]  # by sample name and topic (or connection and direction), all modes and states


def page(broker: Broker) -> str:
    port = re.findall(r"metrics are at http://127\.0\.0\.1:(\d+)/metrics", broker.log_text())[-1]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return str(answer.read().decode())


OF_THE_BROKER = (
    "kafka_log_log_logendoffset",
    "kafka_server_replicamanager_leadercount",
    "kafka_controller_kafkacontroller_activecontrollercount",
    "process_resident_memory_bytes",
)


def metrics(broker: Broker, mode: str = "core") -> Metrics:
    found: Metrics = {}
    for family in text_string_to_metric_families(page(broker)):
        assert family.documentation
        for sample in family.samples:
            labels = sample.labels
            if not sample.name.startswith(("barnabas_nats_", *OF_THE_BROKER)):
                continue  # others have labels of their own
            if labels.get("mode", mode) != mode or labels.get("partition", "0") != "0":
                continue
            what = labels["way"] if "way" in labels else labels.get("topic", "")
            if "state" in labels:
                if not sample.value:
                    continue
                what = f"{what} {labels['state']}"
            assert (sample.name, what) not in found
            found[sample.name, what] = sample.value
    return found


def state(broker: Broker, topic: str) -> str:
    return " ".join(
        what.split(" ")[1]
        for name, what in metrics(broker)
        if name == "barnabas_nats_binding_state" and what.split(" ")[0] == topic
    )


async def bindings(client: NatsClient, subject: bytes = b"") -> dict[str, Any]:
    answer = json.loads((await client.request("$BARNABAS.BINDINGS", subject, timeout=30)).data)
    return {each["topic"]: each for each in answer["bindings"]}


def check_kafka_works(broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    failures: list[object] = []
    producer.produce("plain", b"x", on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(30) == 0
    assert not failures


def check_secret_is_not_shown(broker: Broker) -> None:
    resource = ConfigResource(ResourceType.BROKER, "1")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    shown = admin.describe_configs([resource])[resource].result(30)
    assert shown["nats.password"].is_sensitive
    assert SECRET not in repr({name: entry.value for name, entry in shown.items()})
    assert SECRET not in page(broker)
    assert SECRET not in broker.log_text()
    assert SECRET not in broker.stdout_text()


def test_messages_that_the_server_accepts_and_the_topic_refuses(
    fresh_broker: BrokerFactory, nats_server: NatsServerFactory
) -> None:
    """The server and the topic have their default size limits."""
    server = nats_server(jetstream=True)
    broker = fresh_broker({"nats.servers": server.url, "barnabas.metrics.listener": "127.0.0.1:0"})
    payload = bytes(1_048_500)
    bind(broker, "core", {"nats.subjects": "core.>"})
    bind(broker, "streams", {"nats.subjects": "streams.>", "nats.mode": "jetstream", "nats.stream": "S"})
    bind(broker, "roomy", {"nats.subjects": "roomy.>", "max.message.bytes": "2000000"})

    async def work(client: NatsClient) -> None:
        await client.jetstream().add_stream(name="S", subjects=["streams.>"])
        for topic in ("core", "streams", "roomy"):
            await client.publish(f"{topic}.a", payload)

    await_subscribed(server.url, "core")
    await_subscribed(server.url, "roomy")
    publish(server, work)
    eventually(lambda: metrics(broker)["barnabas_nats_appended_total", "roomy"] == 1)
    eventually(lambda: metrics(broker)["barnabas_nats_too_large_total", "core"] == 1)
    eventually(lambda: metrics(broker, "jetstream")["barnabas_nats_too_large_total", "streams"] == 1)
    exceeds = "barnabas_nats_max_payload_exceeds_topic"
    assert [metrics(broker)[exceeds, topic] for topic in ("core", "streams", "roomy")] == [1, 1, 0]
    text = broker.log_text()
    assert "1048500 bytes on core.a" in text
    assert "1048500 bytes on streams.a" in text
    warnings = [line for line in text.splitlines() if "and the server takes 1048576 (max_payload)" in line]
    assert len(warnings) == 2
    assert "roomy" not in "".join(warnings)

    async def listed(client: NatsClient) -> None:
        by_topic = await bindings(client)
        assert "raise max.message.bytes of the topic to" in by_topic["core"]["warning"]
        assert by_topic["core"]["ways"][0]["too_large"] == 1
        assert "warning" not in by_topic["roomy"]

    publish(server, listed)


def test_metrics_and_bindings_answers(fresh_broker: BrokerFactory, nats_server: NatsServerFactory) -> None:
    server = nats_server()
    broker = fresh_broker({"nats.servers": server.url, "barnabas.metrics.listener": "127.0.0.1:0"})

    async def nothing(client: NatsClient) -> None:
        assert await bindings(client) == {}

    eventually(lambda: metrics(broker)["barnabas_nats_connection_connected", "out"] == 1)
    publish(server, nothing)  # the broker answers before any topic is bound
    bind(broker, "orders", {"nats.subjects": "orders.>", "nats.acks": "reply"})
    bind(broker, "paused", {"nats.subjects": "orders.>", "nats.paused": "true"})
    bind(broker, "outward", {"nats.publish.subject": "out.{key}"})

    eventually(lambda: metrics(broker, "publish").get(("barnabas_nats_binding_state", "outward running")))

    async def work(client: NatsClient) -> None:
        for number in range(20):
            headers = {"Nats-Msg-Id": str(number // 2)}
            await client.request(f"orders.{number}", b"x" * 100, timeout=30, headers=headers)
        by_topic = await bindings(client)
        states = {topic: (each["state"], each["expected_acks"]) for topic, each in by_topic.items()}
        assert states == {"orders": ("running", 1), "outward": ("running", 0), "paused": ("paused", 0)}
        (way,) = by_topic["orders"]["ways"]
        assert (way["messages_in"], way["appended"], way["duplicates"]) == (20, 10, 10)
        assert list(await bindings(client, b"orders.a")) == ["orders", "paused"]

    publish(server, work)
    found = metrics(broker)
    expected = {"messages_in": 20, "appended": 10, "duplicates": 10, "refused": 0, "acks": 20, "gaps": 0}
    for name, value in expected.items():
        assert found[f"barnabas_nats_{name}_total", "orders"] == value, name
    assert found["barnabas_nats_bytes_in_total", "orders"] > 10 * 100
    assert found["barnabas_nats_ack_latency_seconds", "orders"] > 0
    assert found["barnabas_nats_binding_state", "paused paused"] == 1
    assert found["kafka_log_log_logendoffset", "orders"] == 10
    assert found["kafka_server_replicamanager_leadercount", ""] == 3 + 50  # with the positions of `outward`
    assert found["kafka_controller_kafkacontroller_activecontrollercount", ""] == 1
    assert found["process_resident_memory_bytes", ""] > 10_000_000


def server_with(password: str, permissions: str = "") -> str:
    return (
        f"authorization {{ users: [ {{user: kafka, password: {password}{permissions}}}, "
        "{user: app, password: app} ] }\n"
    )


def broker_at(fresh_broker: BrokerFactory, server: NatsServer, **settings: str) -> Broker:
    return fresh_broker(
        {
            "nats.servers": server.url,
            "nats.user": "kafka",
            "nats.password": SECRET,
            "barnabas.metrics.listener": "127.0.0.1:0",
            **settings,
        }
    )


async def publish_as_app(server: NatsServer) -> None:
    client = await nats.connect(server.url, user="app", password="app")
    await client.publish("orders.a", b"x")
    await client.flush()
    await client.close()


def test_a_wrong_password(fresh_broker: BrokerFactory, nats_server: NatsServerFactory) -> None:
    server = nats_server(config=server_with("another"))
    broker = broker_at(fresh_broker, server)
    bind(broker, "orders", {"nats.subjects": "orders.>"})
    bind(broker, "plain", {})
    assert state(broker, "orders") == "connecting"
    eventually(lambda: metrics(broker)["barnabas_nats_gap_open", "orders"] == 1)
    check_kafka_works(broker)
    said = [line for line in broker.log_text().splitlines() if "Authorization Violation" in line]
    assert 1 <= len(said) <= 4, said  # once per connection, and in the gap; not at each attempt
    server.reload(server_with(SECRET))
    eventually(lambda: state(broker, "orders") == "running")
    assert metrics(broker)["barnabas_nats_gap_open", "orders"] == 0
    asyncio.run(publish_as_app(server))
    read(broker, "orders", 1)
    check_secret_is_not_shown(broker)


def test_a_refused_subscription(fresh_broker: BrokerFactory, nats_server: NatsServerFactory) -> None:
    forbidden = ', permissions: {subscribe: {deny: ["orders.>"]}}'
    server = nats_server(config=server_with(SECRET, forbidden))
    broker = broker_at(fresh_broker, server)
    bind(broker, "orders", {"nats.subjects": "orders.>"})
    bind(broker, "plain", {"nats.subjects": "plain.>"})
    eventually(lambda: state(broker, "orders") == "blocked")
    assert state(broker, "plain") == "running"
    assert metrics(broker)["barnabas_nats_gap_open", "orders"] == 1
    assert metrics(broker)["barnabas_nats_gap_open", "plain"] == 0
    assert 'Permissions Violation for Subscription to "orders.>"' in broker.log_text()

    async def check_state() -> None:
        client = await nats.connect(server.url, user="app", password="app")
        answer = (await bindings(client))["orders"]
        assert answer["state"].startswith("blocked: the server refuses the subscription")
        await client.close()

    asyncio.run(check_state())
    check_kafka_works(broker)
    server.reload(server_with(SECRET))
    eventually(lambda: state(broker, "orders") == "running")
    eventually(lambda: metrics(broker)["barnabas_nats_gap_open", "orders"] == 0)
    assert broker.log_text().count("has refused something") == 1  # though the broker subscribed again
    asyncio.run(publish_as_app(server))
    read(broker, "orders", 1)


def test_an_unreachable_server(fresh_broker: BrokerFactory, nats_server: NatsServerFactory) -> None:
    server = nats_server(config=server_with(SECRET))
    server.stop()
    broker = broker_at(fresh_broker, server)
    bind(broker, "orders", {"nats.subjects": "orders.>"})
    bind(broker, "plain", {})
    assert state(broker, "orders") == "connecting"
    check_kafka_works(broker)
    assert metrics(broker)["barnabas_nats_connection_connected", "in"] == 0
    server.start()
    eventually(lambda: state(broker, "orders") == "running")
    asyncio.run(publish_as_app(server))
    read(broker, "orders", 1)
    gap = next(line for line in broker.log_text().splitlines() if "s) may be missing" in line)
    assert "not reached" in gap
    check_secret_is_not_shown(broker)
    server.kill()
    broker.restart()  # does not wait for the server
    check_kafka_works(broker)
