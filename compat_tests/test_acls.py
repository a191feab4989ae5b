"""ACLs with real clients: kafka-acls.sh administers them, and clients are refused and served by them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import GroupAuthorizationFailedError, TopicAuthorizationFailedError

from compat_tests.conform.brokers import WITH_AUTHORIZER
from compat_tests.harness.broker import Broker
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import BrokerFactory, UniqueName
from compat_tests.harness.java_tools import JavaTools
from compat_tests.harness.topics import create_topic

Acls = Callable[..., str]
ALICE, BOB = "u0", "u1"  # each password is the name


@pytest.fixture
def secured(fresh_broker: BrokerFactory) -> Broker:
    """Who comes in on PLAINTEXT is a super user; users come in on SASL_PLAINTEXT."""
    return fresh_broker(WITH_AUTHORIZER)


@pytest.fixture
def acls(java_tools: JavaTools, secured: Broker) -> Acls:
    def run(*arguments: str) -> str:
        where = ("--bootstrap-server", secured.listeners["PLAINTEXT"])
        return java_tools.run("kafka-acls", *where, *arguments).stdout

    return run


def confluent(broker: Broker, user: str, **more: str) -> dict[str, str]:
    return {
        "bootstrap.servers": broker.listeners["SASL_PLAINTEXT"],
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": user,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def kafka_python(broker: Broker, user: str) -> dict[str, str]:
    return {
        "bootstrap_servers": broker.listeners["SASL_PLAINTEXT"],
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": user,
        "sasl_plain_password": user,
    }


def entries(printed: str) -> list[str]:
    """The entries that kafka-acls prints, which come in no order."""
    return sorted(line.strip() for line in printed.splitlines() if "(principal=" in line)


def test_kafka_acls_adds_lists_and_removes(acls: Acls, unique: UniqueName) -> None:
    name = unique("orders")
    acls("--add", "--allow-principal", f"User:{ALICE}", "--producer", "--topic", name)
    acls(
        "--add", "--deny-principal", f"User:{BOB}", "--deny-host", "10.0.0.1", "--operation", "Read",
        "--topic", name, "--resource-pattern-type", "prefixed",
    )  # fmt: skip

    def listed(*arguments: str) -> list[str]:
        return entries(acls("--list", "--topic", name, *arguments))

    produces = [
        f"(principal=User:{ALICE}, host=*, operation={operation}, permissionType=ALLOW)"
        for operation in ("CREATE", "DESCRIBE", "WRITE")
    ]
    denied = f"(principal=User:{BOB}, host=10.0.0.1, operation=READ, permissionType=DENY)"
    eventually(lambda: len(listed("--resource-pattern-type", "any")) == 4)
    assert listed() == produces
    assert listed("--resource-pattern-type", "match") == sorted([*produces, denied])
    assert listed("--resource-pattern-type", "prefixed") == [denied]
    assert entries(acls("--list", "--principal", f"User:{BOB}")) == [denied]
    acls("--remove", "--force", "--allow-principal", f"User:{ALICE}", "--operation", "Write", "--topic", name)
    eventually(lambda: listed() == produces[:2])
    acls("--remove", "--force", "--topic", name, "--resource-pattern-type", "any")
    eventually(lambda: listed("--resource-pattern-type", "any") == [])


def test_clients_are_refused_and_served(secured: Broker, acls: Acls, unique: UniqueName) -> None:
    name, group = unique("orders"), unique("group")
    create_topic(secured.listeners["PLAINTEXT"], name)
    with (
        closing(KafkaProducer(**kafka_python(secured, ALICE))) as refused,
        pytest.raises(TopicAuthorizationFailedError),
    ):
        refused.send(name, b"x").get(20)
    assert delivered(secured, ALICE, name) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    acls("--add", "--allow-principal", f"User:{ALICE}", "--producer", "--topic", name)
    eventually(lambda: delivered(secured, ALICE, name) is None)
    producer = KafkaProducer(**kafka_python(secured, ALICE))
    assert producer.send(name, b"x").get(20).offset == 1
    producer.close()

    assert delivered(secured, BOB, name) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    with (
        closing(KafkaConsumer(name, group_id=group, **kafka_python(secured, BOB))) as refused_reader,
        pytest.raises((GroupAuthorizationFailedError, TopicAuthorizationFailedError)),
    ):
        refused_reader.poll(20_000)
    acls("--add", "--allow-principal", f"User:{BOB}", "--consumer", "--topic", name, "--group", group)
    eventually(lambda: read(secured, BOB, name, group) == [b"x", b"x"])
    acls("--remove", "--force", "--topic", name)
    eventually(lambda: delivered(secured, ALICE, name) == KafkaError.TOPIC_AUTHORIZATION_FAILED)


def delivered(broker: Broker, user: str, topic: str) -> int | None:
    """The error of a record sent; None: it is in the log."""
    errors: list[KafkaError | None] = []
    producer = Producer(confluent(broker, user, message_timeout_ms="15000"))
    producer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(20)
    (error,) = errors
    return None if error is None else error.code()


def read(broker: Broker, user: str, topic: str, group: str) -> list[bytes]:
    """The first two records, or none where the user may not read them."""
    consumer = Consumer(confluent(broker, user, group_id=group, auto_offset_reset="earliest"))
    consumer.subscribe([topic])
    try:
        messages = consumer.consume(2, 15)
        if any(each.error() for each in messages):
            return []
        return [each.value() or b"" for each in messages]
    except KafkaException:
        return []
    finally:
        consumer.close()
