"""Three Python clients behind one small interface, so that one test fits them all.

`produce` sends records with a codec and waits for every acknowledgement; `consume` reads a partition from
an offset. Each call opens and closes its own client: nothing is carried from test to test.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import confluent_kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from compat_tests.harness.raw import STARTED_MS

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

Header = tuple[str, bytes | None]


def _headers(found: Any) -> tuple[Header, ...]:
    return tuple((name, value) for name, value in found or ())


@dataclass(frozen=True)
class Sample:
    """A record as every client can send and return it; timestamp in milliseconds."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    timestamp: int = STARTED_MS


@dataclass(frozen=True)
class Read:
    """A record that was read."""

    offset: int
    sample: Sample = field(compare=True)


class Client(Protocol):
    """What each client library is asked to do."""

    name: str

    def produce(
        self, bootstrap: str, topic: str, samples: Sequence[Sample], codec: str = "none", partition: int = 0
    ) -> list[int]:
        """Send in order, acks=all; the acknowledged offsets."""

    def consume(
        self, bootstrap: str, topic: str, count: int, partition: int = 0, offset: int = 0
    ) -> list[Read]:
        """Read `count` records from an offset; fewer after 30 seconds without any."""


class KafkaPython:
    """kafka-python."""

    name = "kafka-python"

    def produce(
        self, bootstrap: str, topic: str, samples: Sequence[Sample], codec: str = "none", partition: int = 0
    ) -> list[int]:
        """See Client.produce."""
        producer = KafkaProducer(
            bootstrap_servers=bootstrap, compression_type=None if codec == "none" else codec, linger_ms=20
        )
        futures = [
            producer.send(
                topic,
                key=one.key,
                value=one.value,
                headers=list(one.headers),
                timestamp_ms=one.timestamp,
                partition=partition,
            )
            for one in samples
        ]
        offsets = [future.get(30).offset for future in futures]
        producer.close()
        return offsets

    def consume(
        self, bootstrap: str, topic: str, count: int, partition: int = 0, offset: int = 0
    ) -> list[Read]:
        """See Client.consume."""
        consumer = KafkaConsumer(bootstrap_servers=bootstrap, consumer_timeout_ms=30_000)
        where = TopicPartition(topic, partition)
        consumer.assign([where])
        consumer.seek(where, offset)
        found: list[Read] = []
        if count:
            for record in consumer:
                headers = tuple((name, value) for name, value in record.headers)
                found.append(Read(record.offset, Sample(record.key, record.value, headers, record.timestamp)))
                if len(found) == count:
                    break
        consumer.close()
        return found


class AioKafka:
    """aiokafka."""

    name = "aiokafka"

    def produce(
        self, bootstrap: str, topic: str, samples: Sequence[Sample], codec: str = "none", partition: int = 0
    ) -> list[int]:
        """See Client.produce."""

        async def run() -> list[int]:
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                compression_type=None if codec == "none" else codec,
                acks="all",
                linger_ms=20,
            )
            await producer.start()
            try:
                sent = [
                    await producer.send(
                        topic,
                        key=one.key,
                        value=one.value,
                        headers=list(one.headers),
                        timestamp_ms=one.timestamp,
                        partition=partition,
                    )
                    for one in samples
                ]
                return [(await asyncio.wait_for(future, 30)).offset for future in sent]
            finally:
                await producer.stop()

        return asyncio.run(run())

    def consume(
        self, bootstrap: str, topic: str, count: int, partition: int = 0, offset: int = 0
    ) -> list[Read]:
        """See Client.consume."""

        async def run() -> list[Read]:
            consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
            await consumer.start()
            where = AioTopicPartition(topic, partition)
            consumer.assign([where])
            consumer.seek(where, offset)
            found: list[Read] = []
            try:
                while len(found) < count:
                    batches = await consumer.getmany(timeout_ms=30_000, max_records=count - len(found))
                    if not batches:
                        break
                    for record in batches[where]:
                        headers = tuple((name, value) for name, value in record.headers)
                        found.append(
                            Read(record.offset, Sample(record.key, record.value, headers, record.timestamp))
                        )
                return found
            finally:
                await consumer.stop()

        return asyncio.run(run())


class Confluent:
    """confluent-kafka, that is librdkafka."""

    name = "confluent-kafka"

    def __init__(self, *, idempotent: bool = True) -> None:
        # one request at a time keeps the order over retries, too
        self._order = {"enable.idempotence": True} if idempotent else {"max.in.flight": 1}

    def produce(
        self, bootstrap: str, topic: str, samples: Sequence[Sample], codec: str = "none", partition: int = 0
    ) -> list[int]:
        """See Client.produce."""
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": codec,
                "linger.ms": 20,
                **self._order,
            }
        )
        offsets: list[int] = []
        errors: list[object] = []

        def delivered(error: object, message: confluent_kafka.Message) -> None:
            if error is not None:
                errors.append(error)
            else:
                offsets.append(message.offset() or 0)

        for one in samples:
            producer.produce(
                topic,
                value=one.value,
                key=one.key,
                headers=list(one.headers),
                timestamp=one.timestamp,
                partition=partition,
                on_delivery=delivered,
            )
        assert producer.flush(30) == 0
        assert not errors, errors
        return offsets

    def consume(
        self, bootstrap: str, topic: str, count: int, partition: int = 0, offset: int = 0
    ) -> list[Read]:
        """See Client.consume."""
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False}
        )
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, offset)])
        found: list[Read] = []
        deadline = time.monotonic() + 30
        while len(found) < count and time.monotonic() < deadline:
            for message in consumer.consume(count - len(found), timeout=0.5):
                assert message.error() is None, message.error()
                headers = _headers(message.headers())
                sample = Sample(message.key(), message.value(), headers, message.timestamp()[1])
                found.append(Read(message.offset() or 0, sample))
                deadline = time.monotonic() + 30
        consumer.close()
        return found


CLIENTS: tuple[Client, ...] = (KafkaPython(), AioKafka(), Confluent())
# For tests that need records: librdkafka waits for half a second or a whole one before it asks for a producer's id.
PLAIN: Client = Confluent(idempotent=False)
