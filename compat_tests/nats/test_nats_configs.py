"""Binds topics to NATS with ordinary Kafka tools: topic configs that are set, described and refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from kafka.admin._topics import NewTopic as PythonNewTopic

from compat_tests.harness.broker import Broker
from compat_tests.harness.confluent_admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourceType,
)
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import BrokerFactory, UniqueName
from compat_tests.harness.java_tools import JavaTools
from compat_tests.harness.nats_server import NatsServerFactory
from compat_tests.harness.topics import create_topic

pytestmark = pytest.mark.barnabas_only

SECRET = "never-shown"


@pytest.fixture
def bound(fresh_broker: BrokerFactory, nats_server: NatsServerFactory) -> Broker:
    """A broker connected to a nats-server."""
    return fresh_broker(
        {
            "nats.servers": nats_server().url,
            "nats.connection.east.servers": f"nats://ingest:{SECRET}@127.0.0.1:1",
            "nats.connection.west.servers": "127.0.0.1:1",
            "nats.connection.west.token": SECRET,
        }
    )


def _refusal(asked: Callable[[], object]) -> str:
    with pytest.raises(KafkaException) as raised:
        asked()
    error: KafkaError = raised.value.args[0]
    assert error.code() == KafkaError.INVALID_CONFIG
    return str(error.str())


def _set(admin: AdminClient, topic: str, *, validate_only: bool = False, **configs: str) -> None:
    entries = [
        ConfigEntry(f"nats.{name.replace('_', '.')}", text, incremental_operation=AlterConfigOpType.SET)
        for name, text in configs.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource], validate_only=validate_only)[resource].result(30)


def _described(admin: AdminClient, kind: object, name: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(kind, name)
    found: dict[str, ConfigEntry] = admin.describe_configs([resource])[resource].result(30)
    return found


def test_bindings_are_created_described_and_refused(bound: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": bound.bootstrap})
    create_topic(bound.bootstrap, "orders", 2, {"nats.subjects": "orders.>,x.*", "nats.key": "token:2"})
    found = _described(admin, ResourceType.TOPIC, "orders")
    assert found["nats.subjects"].value == "orders.>,x.*"
    assert found["nats.subjects"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert (found["nats.mode"].value, found["nats.mode"].is_default) == ("core", True)

    _set(admin, "orders", subjects="orders.>", mode="jetstream", stream="ORDERS")
    _set(admin, "orders", subjects="orders.>", mode="jetstream", stream="ORDERS")
    assert _described(admin, ResourceType.TOPIC, "orders")["nats.stream"].value == "ORDERS"

    def create(**configs: str) -> None:
        wanted = {f"nats.{name.replace('_', '.')}": text for name, text in configs.items()}
        admin.create_topics([NewTopic("new", 1, 1, config=wanted)])["new"].result(30)

    assert '"a..b" is no subject of NATS' in _refusal(lambda: create(subjects="a..b"))
    assert "come back for ever" in _refusal(lambda: create(subjects="a.>", publish_subject="a.b"))
    assert "nats.connection.south.servers" in _refusal(lambda: create(subjects="a", connection="south"))
    assert "cleanup.policy=compact" in _refusal(lambda: create(mode="kv", bucket="b"))
    assert "new" not in admin.list_topics(timeout=30).topics
    assert "murmur2, fnv1a or token:N" in _refusal(lambda: _set(admin, "orders", partitioner="crc"))
    assert "cycle" in _refusal(lambda: _cycle(admin, bound))
    _set(admin, "orders", validate_only=True, key="none")
    assert "catastrophe" in _refusal(lambda: _set(admin, "orders", validate_only=True, key="catastrophe"))
    assert _described(admin, ResourceType.TOPIC, "orders")["nats.key"].value == "token:2"


def _cycle(admin: AdminClient, broker: Broker) -> None:
    create_topic(broker.bootstrap, "there", 1, {"nats.subjects": "a.>", "nats.publish.subject": "b.{key}"})
    create_topic(broker.bootstrap, "back", 1, {"nats.subjects": "b.*"})
    _set(admin, "back", publish_subject="a.{partition}")


def test_kafka_python_binds_a_topic_and_connections_keep_their_secrets(bound: Broker) -> None:
    client = KafkaAdminClient(bootstrap_servers=bound.bootstrap)
    configs = {"nats.subjects": "metrics.>", "nats.connection": "west"}
    client.create_topics([PythonNewTopic("metrics", 1, 1, topic_configs=configs)])
    client.close()
    admin = AdminClient({"bootstrap.servers": bound.bootstrap})
    assert _described(admin, ResourceType.TOPIC, "metrics")["nats.subjects"].value == "metrics.>"
    shown = _described(admin, ResourceType.BROKER, "1")
    assert SECRET not in repr({name: entry.value for name, entry in shown.items()})
    assert shown["nats.connection.east.servers"].value == "nats://[hidden]@127.0.0.1:1"
    assert shown["nats.connection.west.token"].is_sensitive
    assert all(shown[name].is_read_only for name in shown if name.startswith("nats."))


def test_without_nats_servers_the_error_says_how_to_start(
    fresh_broker: BrokerFactory, unique: UniqueName
) -> None:
    broker = fresh_broker()
    name = unique("topic")
    message = _refusal(lambda: create_topic(broker.bootstrap, name, 1, {"nats.subjects": "a"}))
    assert "--set nats.servers=nats://HOST:4222" in message


def test_kafka_configs(bound: Broker, java_tools: JavaTools) -> None:
    create_topic(bound.bootstrap, "orders")

    def run(*words: str, status: int = 0) -> str:
        entity = ("--bootstrap-server", bound.bootstrap, "--entity-type", "topics", "--entity-name", "orders")
        return java_tools.run("kafka-configs", *entity, *words, status=status).output

    run("--alter", "--add-config", "nats.subjects=[orders.>,x.*],nats.key=token:1")
    eventually(lambda: "nats.subjects=orders.>,x.*" in run("--describe"))
    everything = run("--describe", "--all")
    assert "nats.subjects=orders.>,x.* sensitive=false" in everything
    assert "nats.mode=core sensitive=false" in everything
    refused = run("--alter", "--add-config", "nats.subjects=[orders.>,x..y]", status=1)
    assert '"x..y" is no subject of NATS: a token between dots is empty' in refused
    run("--alter", "--delete-config", "nats.subjects,nats.key")
    eventually(lambda: "nats.subjects=orders" not in run("--describe"))
