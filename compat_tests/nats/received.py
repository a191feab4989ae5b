"""Contents of a bound topic, compared with the published messages."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import kafka
from confluent_kafka import Consumer, TopicPartition
from kafka import KafkaConsumer
from kafka.consumer.fetcher import ConsumerRecord

from compat_tests.harness.broker import Broker
from compat_tests.harness.cluster import Cluster
from compat_tests.nats.publishers import Sent

QUIET_S = 0.3  # wait for unexpected records after the expected number has arrived


def by_subject(bootstrap: str, topic: str, partitions: int, count: int, timeout: float = 60) -> Sent:
    """Payloads of the topic's records by subject, in partition order: `count` of them, and any surplus."""
    found: Sent = {}
    for record in records(bootstrap, topic, partitions, count, timeout):
        found.setdefault(dict(record.headers)["nats.subject"].decode(), []).append(record.value or b"")
    return found


def read(broker: Broker | Cluster, topic: str, count: int, partitions: int = 1) -> list[ConsumerRecord]:
    """`count` records, in each partition's order; asserts that there are no more."""
    consumer = KafkaConsumer(
        bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
    )
    consumer.assign([kafka.TopicPartition(topic, index) for index in range(partitions)])
    consumer.seek_to_beginning()
    records: list[ConsumerRecord] = []
    deadline = time.monotonic() + 60
    while len(records) < count and time.monotonic() < deadline:
        for found in consumer.poll(timeout_ms=200).values():
            records += found
    for found in consumer.poll(timeout_ms=200).values():
        records += found
    consumer.close()
    assert len(records) == count, [record.value for record in records][-20:]
    return records


class Received(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]


def by_topic(
    bootstrap: str, partitions: Mapping[str, int], count: int, timeout: float = 60
) -> dict[str, Sent]:
    """As `by_subject` for several topics with this number of partitions: `count` records in all."""
    found: dict[str, Sent] = {topic: {} for topic in partitions}
    for (topic, _), listed in _consume(bootstrap, partitions, count, timeout).items():
        for record in listed:
            subject = dict(record.headers)["nats.subject"].decode()
            found[topic].setdefault(subject, []).append(record.value or b"")
    return found


def records(bootstrap: str, topic: str, partitions: int, count: int, timeout: float = 60) -> list[Received]:
    """Records of the topic, each partition's in order: `count` of them, and any surplus."""
    found = _consume(bootstrap, {topic: partitions}, count, timeout)
    return [record for listed in found.values() for record in listed]


def _consume(
    bootstrap: str, partitions: Mapping[str, int], count: int, timeout: float
) -> dict[tuple[Any, Any], list[Received]]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "received",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    places = [(topic, index) for topic in partitions for index in range(partitions[topic])]
    consumer.assign([TopicPartition(topic, index, 0) for topic, index in places])
    found: dict[tuple[Any, Any], list[Received]] = {place: [] for place in places}
    total = 0
    deadline = time.monotonic() + timeout
    quiet_at = 0.0
    while time.monotonic() < deadline:
        messages = consumer.consume(1000, 0.1)
        for message in messages:
            assert message.error() is None, message.error()
            headers = cast("list[tuple[str, bytes]]", message.headers() or [])
            record = Received(message.key(), message.value(), headers)
            found[message.topic(), message.partition()].append(record)
            total += 1
        if total >= count and not messages:
            quiet_at = quiet_at or time.monotonic() + QUIET_S
            if time.monotonic() > quiet_at:
                break
    consumer.close()
    return found


def check(found: Sent, sent: Sent) -> None:
    """Asserts that each message is found once, and each subject is in order."""
    wrong: list[str] = []
    for subject in sorted({*found, *sent}):
        mine, theirs = found.get(subject, []), sent.get(subject, [])
        if mine != theirs:
            missing = Counter(theirs) - Counter(mine)
            doubled = Counter(mine) - Counter(theirs)
            wrong.append(
                f"{subject}: {len(theirs)} sent, {len(mine)} found; missing {_some(missing)}, too many "
                f"{_some(doubled)}{'' if missing or doubled else ', in another order'}"
            )
    assert not wrong, f"{len(wrong)} subjects:\n" + "\n".join(wrong)


def _some(counts: Counter[bytes]) -> str:
    return f"{counts.total()} {[value.decode() for value in sorted(counts)[:10]]}"
