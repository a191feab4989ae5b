"""Creates, fills and reads the topics of the examples with plain Kafka clients, without Spark.

It uses two different clients to show that any client works.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs do not re-export NewTopic
    AdminClient,
    NewTopic,
)
from kafka import KafkaConsumer, TopicPartition

PARTITIONS = 4
_TIMEOUT_S = 120
# Records with times of 2013 would be deleted at the first check of the default retention, seven days.
FOREVER = {"retention.ms": "-1"}


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a topic; timestamp in ms since 1970, 0 for the time of sending."""

    key: str | None
    value: str | None  # None: the key is deleted
    timestamp: int = 0


def create_topics(
    bootstrap: str, topics: Mapping[str, Mapping[str, str]], partitions: int = PARTITIONS
) -> None:
    """Create topics (name to configs) empty; those that an earlier run left behind are deleted first.

    They have as many replicas as the broker gives a topic by default.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    present = [name for name in topics if name in admin.list_topics(timeout=20).topics]
    if present:
        for deleted in admin.delete_topics(present, operation_timeout=20).values():
            deleted.result()
    deadline = time.monotonic() + _TIMEOUT_S
    while left := [name for name in present if name in admin.list_topics(timeout=20).topics]:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{left} are still there {_TIMEOUT_S} s after their deletion")
        time.sleep(0.1)
    new = [NewTopic(name, partitions, config=dict(configs)) for name, configs in topics.items()]
    for created in admin.create_topics(new, operation_timeout=20).values():
        created.result()


def produce(
    bootstrap: str,
    topic: str,
    records: Iterable[Record],
    progress: Callable[[int], None] = lambda _: None,
    every: int = 100_000,
) -> int:
    """Send all records and return the number of acknowledged ones, each of them in the topic once.

    `progress` gets the number so far, after every so many. Raises KafkaException when one could not be delivered.
    """
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 20,
            "queue.buffering.max.messages": 200_000,
            "log_level": 2,
        }
    )
    acknowledged = 0
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        nonlocal acknowledged
        if error is not None:
            failures.append(error)
            return
        acknowledged += 1
        if acknowledged % every == 0:
            progress(acknowledged)

    for record in records:
        while True:
            try:
                producer.produce(
                    topic, record.value, record.key, timestamp=record.timestamp, on_delivery=delivered
                )
                break
            except BufferError:  # the client's queue is full: let it deliver some
                producer.poll(0.1)
        producer.poll(0)
    producer.flush(60)
    if failures:
        raise KafkaException(failures[0])
    return acknowledged


def read_all(bootstrap: str, topic: str) -> Iterator[Record]:
    """The current records of the topic, in the order of each partition."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    try:
        partitions = [TopicPartition(topic, p) for p in sorted(consumer.partitions_for_topic(topic) or ())]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            for records in consumer.poll(timeout_ms=1000).values():
                for record in records:
                    yield Record(_text(record.key), _text(record.value), record.timestamp)
    finally:
        consumer.close()


def _text(found: bytes | None) -> str | None:
    return None if found is None else found.decode()
