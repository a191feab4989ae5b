"""Compacted topics as clients see them: the last record of each key stays, offsets stay, keyless records are
refused, and the groups' own compacted topic loses no committed offset."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer
from kafka.structs import TopicPartition as PythonTopicPartition

from compat_tests.harness.asking import ask
from compat_tests.harness.broker import Broker
from compat_tests.harness.clients import CLIENTS, PLAIN, Client, Sample
from compat_tests.harness.confluent_admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import BrokerFactory, TopicFactory
from compat_tests.harness.topics import create_topic

EAGER = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0", "segment.ms": "1000"}
ROUNDS, KEYS = 6, 10


@pytest.fixture
def eager_broker(fresh_broker: BrokerFactory) -> Broker:
    """A broker whose cleaner runs continuously."""
    return fresh_broker({"log.cleaner.backoff.ms": "50", "offsets.topic.num.partitions": "1"})


def bytes_in(folder: Path) -> int:
    """Size of a partition's segments; one may be removed meanwhile."""
    total = 0
    for path in folder.glob("*.log"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def read_offsets(broker: Broker, topic: str, start: int = 0) -> list[int]:
    """Offsets of every record from `start` on, up to the end of the partition."""
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, consumer_timeout_ms=30_000)
    partition = PythonTopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, start)
    end = consumer.end_offsets([partition])[partition]
    found = []
    while consumer.position(partition) < end:
        for records in consumer.poll(1000).values():
            found += [record.offset for record in records]
    consumer.close()
    return found


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_the_last_record_of_each_key_stays(
    eager_broker: Broker, unique: Callable[[str], str], codec: str
) -> None:
    broker = eager_broker
    topic = create_topic(broker.bootstrap, unique("compacted"), configs=EAGER)
    start = int(time.time() * 1000) - 60_000
    for number in range(ROUNDS):
        samples = [
            Sample(b"k%d" % key, b"%d" % number * 50, timestamp=start + 5000 * number) for key in range(KEYS)
        ]
        PLAIN.produce(broker.bootstrap, topic, samples, codec)
    last = (ROUNDS - 1) * KEYS
    expected = list(range(last - KEYS, last + KEYS))  # the active segment is not cleaned
    eventually(lambda: read_offsets(broker, topic) == expected)
    assert read_offsets(broker, topic, 7) == expected
    for client in CLIENTS:
        found = client.consume(broker.bootstrap, topic, 2 * KEYS)
        assert [one.offset for one in found] == expected
        assert found[0].sample.value == b"%d" % (ROUNDS - 2) * 50
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap)
    partition = PythonTopicPartition(topic, 0)
    assert consumer.offsets_for_times({partition: start})[partition].offset == expected[0]
    assert consumer.beginning_offsets([partition])[partition] == 0
    assert consumer.end_offsets([partition])[partition] == last + KEYS
    consumer.close()
    broker.restart()
    assert read_offsets(broker, topic) == expected


@pytest.mark.parametrize("client", CLIENTS, ids=lambda one: one.name)
def test_records_without_a_key_are_refused(topic: TopicFactory, broker: Broker, client: Client) -> None:
    name = topic(configs={"cleanup.policy": "compact"})
    refusal = "UnknownError" if client.name == "aiokafka" else r"(?i)invalid.?record|InvalidRecord|87"
    with pytest.raises(Exception, match=refusal):  # aiokafka has no class for this error code
        client.produce(broker.bootstrap, name, [Sample(None, b"v")], "none")
    assert client.produce(broker.bootstrap, name, [Sample(b"", b"v")], "none") == [0]


def test_committed_offsets_survive_the_compaction_of_their_topic(eager_broker: Broker) -> None:
    broker = eager_broker
    topic = create_topic(broker.bootstrap, "orders")
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, b"v")
    producer.flush()
    settings = {"bootstrap.servers": broker.bootstrap, "enable.auto.commit": False}
    consumers = {name: Consumer({**settings, "group.id": name}) for name in ("first", "second")}
    consumers["first"].commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in (
            ("segment.ms", "50"),
            ("min.cleanable.dirty.ratio", "0.0"),
            ("delete.retention.ms", "0"),
        )
    ]
    resource = ConfigResource(ResourceType.TOPIC, "__consumer_offsets", incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(30)
    for number in range(40):
        for name, consumer in consumers.items():
            consumer.commit(
                offsets=[TopicPartition(topic, 0, number + (name == "second"))], asynchronous=False
            )
        time.sleep(0.03)  # segment.ms: the log rolls as time passes
    admin.delete_consumer_groups(["second"])["second"].result(30)
    consumers["first"].commit(offsets=[TopicPartition(topic, 0, 77)], asynchronous=False)
    segments = broker.log_dir / "__consumer_offsets-0"
    eventually(lambda: bytes_in(segments) < 3000)
    broker.restart()
    consumer = Consumer({**settings, "group.id": "first", "bootstrap.servers": broker.bootstrap})
    found: list[TopicPartition] = []
    ask(
        lambda: found.extend(consumer.committed([TopicPartition(topic, 0)]))
    )  # the coordinator is loading first
    assert [each.offset for each in found] == [77]
    groups = admin.list_consumer_groups().result(30).valid
    assert "second" not in [group.group_id for group in groups]
    for one in (*consumers.values(), consumer):
        one.close()
