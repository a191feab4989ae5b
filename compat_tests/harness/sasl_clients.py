"""A record sent and read by each client library with SASL, and what each says when it is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import confluent_kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from kafka import KafkaConsumer, KafkaProducer

RoundTrip = Callable[[str, str, str, str, str], "bytes | None"]


class Login(NamedTuple):
    """How a client authenticates itself."""

    mechanism: str
    user: str
    password: str

    def jaas(self) -> str:
        """As Java's clients take it."""
        module = "plain.Plain" if self.mechanism == "PLAIN" else "scram.Scram"
        return (
            f"org.apache.kafka.common.security.{module}LoginModule required "
            f'username="{self.user}" password="{self.password}";'
        )

    def java(self) -> str:
        """The file of --command-config."""
        return f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={self.mechanism}\nsasl.jaas.config={self.jaas()}\n"

    def python(self) -> dict[str, Any]:
        """Arguments of kafka-python's and aiokafka's classes."""
        return {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.user,
            "sasl_plain_password": self.password,
        }

    def librdkafka(self) -> dict[str, Any]:
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.user,
            "sasl.password": self.password,
        }


def kafka_python(bootstrap: str, topic: str, login: Login) -> bytes | None:
    """Sends a record to a topic and reads it back."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, **login.python())
    try:
        producer.send(topic, b"kafka-python").get(30)
    finally:
        producer.close()
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        consumer_timeout_ms=30_000,
        **login.python(),
    )
    try:
        return bytes(next(iter(consumer)).value)
    finally:
        consumer.close()


def aiokafka(bootstrap: str, topic: str, login: Login) -> bytes | None:
    """The same."""

    async def scenario() -> bytes | None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, **login.python())
        try:
            await producer.start()
            await producer.send_and_wait(topic, b"aiokafka")
        finally:
            await producer.stop()
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest", **login.python()
        )
        try:
            await consumer.start()
            return (await asyncio.wait_for(consumer.getone(), 30)).value
        finally:
            await consumer.stop()

    return asyncio.run(scenario())


def confluent(bootstrap: str, topic: str, login: Login) -> bytes | None:
    """The same."""
    failed: list[confluent_kafka.KafkaError] = []
    settings = {"bootstrap.servers": bootstrap, "error_cb": failed.append, **login.librdkafka()}
    producer = confluent_kafka.Producer({**settings, "message.timeout.ms": 10_000})
    producer.produce(topic, b"confluent")
    while len(producer) and not any(each.code() == each._AUTHENTICATION for each in failed):
        producer.poll(0.1)
    if failed:
        producer.purge()
        raise confluent_kafka.KafkaException(failed[0])
    consumer = confluent_kafka.Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = consumer.poll(30)
    consumer.close()
    return None if message is None else message.value()


CLIENTS = {"kafka-python": kafka_python, "aiokafka": aiokafka, "confluent": confluent}
