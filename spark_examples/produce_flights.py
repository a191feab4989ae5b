"""A plain Kafka client writes every flight as one JSON record, keyed by its carrier.

A record's timestamp (CreateTime) is the scheduled hour of departure, so that the topic can be searched by
the time of the flight. Those times are of 2013: under the default retention of seven days a broker would
delete them at its first check, hence `retention.ms=-1`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs do not re-export NewTopic
    AdminClient,
    NewTopic,
)

PARTITIONS = 4


def create_topics(bootstrap: str, names: Sequence[str]) -> None:
    """Create the topics empty; those that an earlier run left behind are deleted first."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    present = [name for name in names if name in admin.list_topics(timeout=20).topics]
    if present:
        for deleted in admin.delete_topics(present, operation_timeout=20).values():
            deleted.result()
    topics = [NewTopic(name, PARTITIONS, 1, config={"retention.ms": "-1"}) for name in names]
    for created in admin.create_topics(topics, operation_timeout=20).values():
        created.result()


def produce_flights(
    bootstrap: str, topic: str, flights: pandas.DataFrame, progress: Callable[[int], None]
) -> int:
    """Send all flights and return the number of acknowledged records.

    `progress` gets the number of acknowledged records, every 50,000 and at the end.
    Raises KafkaException when a record could not be delivered.
    """
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 20,
            "queue.buffering.max.messages": 200_000,
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
        if acknowledged % 50_000 == 0:
            progress(acknowledged)

    lines = (flights.to_json(orient="records", lines=True) or "").splitlines()
    hours = pandas.to_datetime(flights["time_hour"])
    timestamps = hours.map(lambda hour: int(hour.timestamp() * 1000))
    for line, carrier, timestamp in zip(lines, flights["carrier"], timestamps, strict=True):
        while True:
            try:
                producer.produce(topic, line, carrier, timestamp=timestamp, on_delivery=delivered)
                break
            except BufferError:  # the client's queue is full: let it deliver some
                producer.poll(0.1)
        producer.poll(0)
    producer.flush(60)
    if failures:
        raise KafkaException(failures[0])
    progress(acknowledged)
    return acknowledged
