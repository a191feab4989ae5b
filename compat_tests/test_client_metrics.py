"""Metrics that clients push (KIP-714): librdkafka and Java clients, and Kafka's tool for the subscriptions."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, Producer

from compat_tests.harness.broker import Broker
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import BrokerFactory, UniqueName
from compat_tests.harness.java_tools import JavaTools
from compat_tests.harness.metrics import LISTENER, metrics, page
from compat_tests.harness.topics import create_topic


def subscribe(java_tools: JavaTools, broker: Broker, name: str, *options: str) -> str:
    result = java_tools.run(
        "kafka-client-metrics",
        *("--bootstrap-server", broker.bootstrap, "--alter", "--name", name, *options),
    )
    return result.stdout


@pytest.mark.jvm
def test_kafka_client_metrics_tool(broker: Broker, java_tools: JavaTools, unique: UniqueName) -> None:
    name = unique("subscription")
    server = ("--bootstrap-server", broker.bootstrap)
    said = subscribe(
        java_tools, broker, name, "--metrics", "org.apache.kafka.producer.", "--interval", "1000",
        "--match", "client_id=none",
    )  # fmt: skip
    assert said.strip() == f"Altered client metrics config for {name}."

    def described() -> str:
        return java_tools.run("kafka-client-metrics", *server, "--describe", "--name", name).stdout

    eventually(lambda: "interval.ms=1000" in described())
    assert "match=client_id=none" in described()
    assert name in java_tools.run("kafka-client-metrics", *server, "--list").stdout.split()
    java_tools.run("kafka-client-metrics", *server, "--delete", "--name", name)
    eventually(lambda: name not in java_tools.run("kafka-client-metrics", *server, "--list").stdout.split())


@pytest.mark.jvm
@pytest.mark.barnabas_only
def test_clients_push_what_is_subscribed(fresh_broker: BrokerFactory, java_tools: JavaTools) -> None:
    broker = fresh_broker({LISTENER: "127.0.0.1:0"})
    create_topic(broker.bootstrap, "topic", 1)
    subscribe(java_tools, broker, "all", "--metrics", "*", "--interval", "100")
    server = ("--bootstrap-server", broker.bootstrap)
    of_java = java_tools.start(
        "kafka-verifiable-producer",
        *server,
        "--topic",
        "topic",
        "--max-messages",
        "100000",
        "--throughput",
        "50",
    )
    own = {"bootstrap.servers": broker.bootstrap, "client.id": "of-librdkafka"}
    producer = Producer(own)
    consumer = Consumer({**own, "group.id": "group", "auto.offset.reset": "earliest"})
    consumer.subscribe(["topic"])

    def shows(*parts: str) -> bool:
        producer.produce("topic", b"x")
        producer.poll(0)
        consumer.consume(100, 0.05)
        return any(all(part in line for part in parts) for line in page(broker).splitlines())

    java = 'client_software_name="apache-kafka-java"'
    librdkafka = 'client_id="of-librdkafka",client_software_name="confluent-kafka-python"'
    eventually(lambda: shows("kafka_client_producer_request_total", java), 60)
    eventually(lambda: shows("kafka_client_producer_connection_creation_total", librdkafka), 60)
    eventually(lambda: shows("kafka_client_consumer_connection_creation_total", librdkafka), 60)
    assert shows("# TYPE kafka_client_producer_connection_creation_total counter")
    assert metrics(broker)["kafka_server_client_metrics_plugin_error_count", ""] == 0
    assert metrics(broker)["kafka_server_client_metrics_instance_count", ""] >= 3
    of_java.stop()
    of_java.wait()
    consumer.close()
