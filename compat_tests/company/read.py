"""Reads all current records of a topic with librdkafka: the committed ones, or with `committed=False` those of open and aborted
transactions too."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition


def read_all(
    bootstrap: str, topic: str, timeout: float = 30, *, committed: bool = True
) -> list[tuple[bytes, bytes | None]]:
    """(key or b"", value) of every record, partition by partition, up to each one's end as of now (with `committed`, up to the
    first open transaction)."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "read-all",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",  # from 0: librdkafka takes half a second to ask for the beginning
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    try:
        found: list[tuple[bytes, bytes | None]] = []
        for index in sorted(consumer.list_topics(topic, timeout).topics[topic].partitions):
            consumer.assign([TopicPartition(topic, index, 0)])
            while True:
                message = consumer.poll(timeout)
                if message is None:
                    raise AssertionError(f"{topic}-{index}: neither a record nor the end within {timeout} s")
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    break
                if error is not None:
                    raise KafkaException(error)
                found.append((_bytes(message.key()) or b"", _bytes(message.value())))
        return found
    finally:
        consumer.close()


def _bytes(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data
