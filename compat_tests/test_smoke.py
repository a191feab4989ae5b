"""The main path: one producer, one consumer, one topic, with each client."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer

from compat_tests.harness.broker import Broker
from compat_tests.harness.fixture_types import TopicFactory


def test_kafka_python(broker: Broker, topic: TopicFactory) -> None:
    name = topic()
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    assert producer.send(name, b"hello", key=b"k").get(30).offset == 0
    producer.close()
    consumer = KafkaConsumer(
        name, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=30_000
    )
    record = next(iter(consumer))
    consumer.close()
    assert (record.offset, record.key, record.value) == (0, b"k", b"hello")


def test_confluent(broker: Broker, topic: TopicFactory) -> None:
    name = topic()
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(name, b"hello", b"k")
    assert producer.flush(30) == 0
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": name, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([name])
    message = consumer.poll(30)
    consumer.close()
    assert message is not None
    assert (message.offset(), message.key(), message.value()) == (0, b"k", b"hello")


def test_aiokafka(broker: Broker, topic: TopicFactory) -> None:
    name = topic()

    async def scenario() -> tuple[int, bytes | None, bytes | None]:
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap)
        await producer.start()
        await producer.send_and_wait(name, b"hello", key=b"k")
        await producer.stop()
        consumer = AIOKafkaConsumer(name, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        record = await asyncio.wait_for(consumer.getone(), 30)
        await consumer.stop()
        return record.offset, record.key, record.value

    assert asyncio.run(scenario()) == (0, b"k", b"hello")
