"""Client quotas as real clients meet them: they learn for how long they are throttled, and keep the rate."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import confluent_kafka
import pytest
from kafka import KafkaProducer

from barnabas.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from barnabas.wire.messages.describe_client_quotas import DescribeClientQuotasRequest
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from compat_tests.conform.client import CLIENT_ID, Connection
from compat_tests.harness.broker import Broker
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import TopicFactory, UniqueName
from compat_tests.harness.java_tools import JavaTools

RATE = 100_000  # bytes a second; twice as many may come at once (quota.window.num)
VALUE = b"x" * 10_000
VALUES = 35


class Quotas:
    """Sets quotas of client ids, and waits until the broker has them."""

    def __init__(self, broker: Broker) -> None:
        host, _, port = broker.bootstrap.rpartition(":")
        self._connection = Connection(host, int(port))

    def set(self, client_id: str, key: str, value: float | None) -> None:
        entry = EntryData([EntityData("client-id", client_id)], [OpData(key, value or 0.0, value is None)])
        (answer,) = self._connection.ask(AlterClientQuotasRequest([entry]), 1).entries
        assert answer.error_code == 0
        eventually(lambda: self._is_set(client_id, key) == (value is not None))

    def _is_set(self, client_id: str, key: str) -> bool:
        entries = self._connection.ask(DescribeClientQuotasRequest(), 1).entries
        return any(
            [part.entity_name for part in each.entity] == [client_id]
            and key in [one.key for one in each.values]
            for each in entries
        )

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def quotas(broker: Broker) -> Iterator[Quotas]:
    found = Quotas(broker)
    yield found
    found.close()


def throttle_times(events: list[confluent_kafka.ThrottleEvent]) -> list[float]:
    return [event.throttle_time for event in events if event.throttle_time > 0]


def test_a_producer_of_librdkafka_learns_that_it_is_throttled(
    broker: Broker, topic: TopicFactory, unique: UniqueName, quotas: Quotas
) -> None:
    name, client_id = topic(), unique("producer")
    quotas.set(client_id, "producer_byte_rate", RATE)
    events: list[confluent_kafka.ThrottleEvent] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "client.id": client_id,
            "linger.ms": 500,  # all in one request: more than may come at once, however slow the machine is
            "throttle_cb": events.append,
        }
    )
    failed: list[object] = []
    for _ in range(VALUES):
        producer.produce(name, VALUE, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(60) == 0
    assert not failed
    eventually(lambda: producer.poll(0.1) >= 0 and bool(throttle_times(events)))
    assert max(throttle_times(events)) < 60


def test_a_consumer_of_librdkafka_learns_that_it_is_throttled(
    broker: Broker, topic: TopicFactory, unique: UniqueName, quotas: Quotas
) -> None:
    name, client_id = topic(), unique("consumer")
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "batch.size": 50_000})
    for _ in range(VALUES):
        producer.produce(name, VALUE)
    assert producer.flush(60) == 0
    quotas.set(client_id, "consumer_byte_rate", RATE)
    events: list[confluent_kafka.ThrottleEvent] = []
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "client.id": client_id,
            "group.id": unique("group"),
            "enable.auto.commit": False,
            "max.partition.fetch.bytes": RATE,
            "throttle_cb": events.append,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(name, 0, 0)])
    values: list[bytes] = []

    def has_all() -> bool:
        while message := consumer.poll(0.5):
            assert message.error() is None
            values.append(message.value() or b"")
        return len(values) >= VALUES

    eventually(has_all, 90)
    consumer.close()
    assert values == [VALUE] * VALUES
    assert throttle_times(events)


def test_a_producer_of_kafka_python_logs_its_throttle(
    broker: Broker,
    topic: TopicFactory,
    unique: UniqueName,
    quotas: Quotas,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name, client_id = topic(), unique("producer")
    quotas.set(client_id, "producer_byte_rate", RATE)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, client_id=client_id)
    producer.send(name, VALUE * VALUES).get(60)  # more than may come at once, however slow the machine is
    producer.close()
    assert "ProduceResponse throttled by broker" in caplog.text


def test_topics_that_are_created_by_their_name_count_towards_a_quota(
    broker: Broker, quotas: Quotas, unique: UniqueName
) -> None:
    names = [unique("topic") for _ in range(3)]
    request = MetadataRequest([MetadataRequestTopic(name=name) for name in names])
    quotas.set(
        CLIENT_ID, "controller_mutation_rate", 0.001
    )  # one topic, and another after a quarter of an hour
    host, _, port = broker.bootstrap.rpartition(":")
    connection = Connection(host, int(port))

    def errors() -> list[int]:
        answer = connection.ask(request, 9)
        assert answer.throttle_time_ms == 0
        return sorted(topic.error_code for topic in answer.topics)

    eventually(lambda: 0 in errors())
    try:
        assert errors() == errors() == [0, 3, 3]
    finally:
        quotas.set(CLIENT_ID, "controller_mutation_rate", None)
    eventually(lambda: errors() == [0, 0, 0])
    connection.close()


@pytest.mark.jvm
def test_kafka_configs_sets_and_describes_quotas(
    broker: Broker, unique: UniqueName, java_tools: JavaTools
) -> None:
    user, client_id = unique("user"), unique("client")

    def configs(*words: str) -> str:
        return java_tools.run("kafka-configs", "--bootstrap-server", broker.bootstrap, *words).stdout

    def has(entity: tuple[str, ...], wanted: set[str]) -> bool:
        return set(re.findall(r"\w+(?:_rate|_percentage)=[\d.]+", configs("--describe", *entity))) == wanted

    entities: dict[tuple[str, ...], str] = {
        ("--entity-type", "users", "--entity-name", user): "producer_byte_rate=1024,request_percentage=12.5",
        ("--entity-type", "clients", "--entity-name", client_id): "consumer_byte_rate=2048",
        (
            *("--entity-type", "users", "--entity-name", user),
            *("--entity-type", "clients", "--entity-default"),
        ): "controller_mutation_rate=3.5",
        ("--entity-type", "ips", "--entity-name", "10.20.30.40"): "connection_creation_rate=7",
    }
    for entity, values in entities.items():
        configs("--alter", "--add-config", values, *entity)
        wanted = {
            f"{key}={float(number)}" for key, _, number in (one.partition("=") for one in values.split(","))
        }
        eventually(partial(has, entity, wanted))
    for entity, values in entities.items():
        keys = ",".join(value.partition("=")[0] for value in values.split(","))
        configs("--alter", "--delete-config", keys, *entity)
        eventually(partial(has, entity, set()))
