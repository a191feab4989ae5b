"""Topics for one test, created, filled, read, trimmed and deleted by a plain client, so that only Spark is under test.
Names are unique, so that tests can share a broker."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs leave NewPartitions out
    AdminClient,
    NewPartitions,
)

from compat_tests.harness.eventually import eventually
from compat_tests.harness.topics import create_topic

Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True)
class Record:
    """A record of the plain client; timestamp in ms, 0 for the time of sending."""

    value: bytes | None
    key: bytes | None = None
    partition: int = 0
    headers: Headers = field(default_factory=list)
    timestamp: int = 0


class Topics:
    """Operations on topics of the broker at `bootstrap`."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def name(self, hint: str) -> str:
        """A name that no other test has, without creating the topic."""
        return f"{hint}-{uuid.uuid4().hex[:8]}"

    def create(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Create the topic and return its name."""
        return create_topic(self.bootstrap, name, partitions, config)

    def create_unique(self, hint: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Create a topic under a name of its own."""
        return self.create(self.name(hint), partitions, config)

    def add_partitions(self, name: str, total: int) -> None:
        """Grow the topic to `total` partitions and wait until they are listed."""
        grown = self._admin.create_partitions([NewPartitions(name, total)], operation_timeout=20)
        grown[name].result()
        eventually(lambda: len(self._admin.list_topics(name, timeout=10).topics[name].partitions) == total)

    def delete(self, name: str) -> None:
        """Delete the topic and wait until the broker no longer lists it."""
        self._admin.delete_topics([name], operation_timeout=20)[name].result()
        eventually(lambda: name not in self._admin.list_topics(timeout=10).topics)

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Drop every record below the offset given for each partition."""
        upto = [TopicPartition(topic, partition, offset) for partition, offset in before.items()]
        for deleted in self._admin.delete_records(upto).values():
            deleted.result()

    def produce(self, topic: str, records: Iterable[Record], codec: str = "none") -> None:
        """Send the records and return when every one is acknowledged."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "compression.type": codec, "linger.ms": 5})
        failures: list[str] = []

        def delivered(error: object, _message: Message) -> None:
            if error is not None:
                failures.append(str(error))

        for record in records:
            producer.produce(
                topic,
                record.value,
                record.key,
                record.partition,
                on_delivery=delivered,
                timestamp=record.timestamp,
                headers=list(record.headers),
            )
        left = producer.flush(30)
        assert left == 0, f"{left} records were not acknowledged within 30 s"
        assert not failures, failures[0]

    def produce_values(self, topic: str, values: Sequence[str], partitions: int = 1) -> None:
        """Send values without keys, dealt out over the partitions one after the other."""
        self.produce(topic, [Record(v.encode(), partition=i % partitions) for i, v in enumerate(values)])

    def read(self, topic: str) -> list[Record]:
        """Everything that the topic holds, partition by partition in the order of offsets."""
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "unused", "enable.auto.commit": False}
        consumer = Consumer(settings)
        try:
            partitions = sorted(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
            return [record for p in partitions for record in _read_partition(consumer, topic, p)]
        finally:
            consumer.close()


def _read_partition(consumer: Consumer, topic: str, partition: int) -> list[Record]:
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
    consumer.assign([TopicPartition(topic, partition, low)])
    records: list[Record] = []
    while low < high:
        message = consumer.poll(20)
        assert message is not None, f"{topic}-{partition}: nothing at offset {low}, the end is {high}"
        error = message.error()
        if error is not None:
            raise KafkaException(error)
        _, timestamp = message.timestamp()
        records.append(Record(message.value(), message.key(), partition, _headers(message), timestamp))
        low = (message.offset() or 0) + 1
    return records


def _headers(message: Message) -> Headers:
    headers = message.headers() or []
    pairs = headers.items() if isinstance(headers, dict) else headers
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in pairs]
