"""MirrorMaker 2 between Apache Kafka and the broker under test, both ways at once.

It copies records with keys, headers and timestamps into topics with the same partitions, copies topic settings and
translates the offsets of consumer groups.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from compat_tests.company.read import read_all
from compat_tests.harness.apache_broker import ApacheBroker
from compat_tests.harness.broker import Broker
from compat_tests.harness.confluent_admin import ConfigResource, ResourceType
from compat_tests.harness.fixture_types import UniqueName
from compat_tests.harness.java_program import JavaProgram
from compat_tests.harness.java_tools import JavaTools
from compat_tests.harness.topics import create_topic

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(180)]

MIRROR_MAKER = "org.apache.kafka.connect.mirror.MirrorMaker"
PARTITIONS = 3
RECORDS = 600
GROUP = "readers"


@pytest.fixture
def apache(tmp_path_factory: pytest.TempPathFactory, java_tools: JavaTools) -> Iterator[Broker]:
    """An Apache Kafka on the other side."""
    other = ApacheBroker(tmp_path_factory.mktemp("apache"), tools=java_tools)
    other.start()
    yield other
    if other.alive():
        other.kill()


def test_both_ways(broker: Broker, apache: Broker, unique: UniqueName, tmp_path: Path) -> None:
    there, back = unique("there"), unique("back")
    for source, topic in ((apache, there), (broker, back)):
        settings = {"max.message.bytes": "123456", "retention.ms": "-1"}
        create_topic(source.bootstrap, topic, PARTITIONS, settings)
        _fill(source, topic)
    properties = tmp_path / "mirror.properties"
    properties.write_text(_properties(apache, broker, there, back))

    with JavaProgram(MIRROR_MAKER, [str(properties)], tmp_path) as mirror:
        for source, target, topic, copy in (
            (apache, broker, there, f"apache.{there}"),
            (broker, apache, back, f"tested.{back}"),
        ):
            mirror.wait_until(partial(_holds_all, target, copy), 90)
            assert read_all(target.bootstrap, copy) == read_all(source.bootstrap, topic)
            mirror.wait_until(partial(_has_setting, target, copy))
            mirror.wait_until(partial(_committed_follows, source, topic, target, copy))


def _fill(broker: Broker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": "lz4"})
    for number in range(RECORDS):
        producer.produce(
            topic,
            f"value {number}".encode(),
            key=f"key {number}".encode(),
            partition=number % PARTITIONS,
            headers=[("number", str(number).encode())],
        )
    producer.flush()


def _committed(broker: Broker, topic: str) -> int:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    wanted = ConsumerGroupTopicPartitions(GROUP, [TopicPartition(topic, 0)])
    (found,) = admin.list_consumer_group_offsets([wanted])[GROUP].result(10).topic_partitions
    return int(found.offset)


def _holds_all(broker: Broker, topic: str) -> bool:
    return _count(broker, topic) == RECORDS


def _has_setting(broker: Broker, topic: str) -> bool:
    return _setting(broker, topic, "max.message.bytes") == "123456"


def _committed_follows(source: Broker, topic: str, target: Broker, copy: str) -> bool:
    """Whether the group's offset is translated; MirrorMaker may place it before the original, never after.

    It translates only offsets of records that it has copied, so the topic and the group advance meanwhile.
    """
    producer = Producer({"bootstrap.servers": source.bootstrap})
    for _ in range(20):
        producer.produce(topic, b"more", partition=0)
    producer.flush()
    consumer = Consumer({"bootstrap.servers": source.bootstrap, "group.id": GROUP})
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), 10, cached=False)
    consumer.commit(offsets=[TopicPartition(topic, 0, end)], asynchronous=False)
    consumer.close()
    time.sleep(1)  # a round of MirrorMaker's checkpoints, before the next records and commit
    return 0 < _committed(target, copy) <= end


def _count(broker: Broker, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "count"})
    try:
        if topic not in consumer.list_topics(timeout=10).topics:
            return 0
        return sum(
            consumer.get_watermark_offsets(TopicPartition(topic, index), 10, cached=False)[1]
            for index in range(PARTITIONS)
        )
    except KafkaException:  # Apache Kafka names a new topic before it serves it
        return 0
    finally:
        consumer.close()


def _setting(broker: Broker, topic: str, name: str) -> str:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, topic)
    return str(admin.describe_configs([resource])[resource].result(10)[name].value)


def _properties(apache: Broker, tested: Broker, there: str, back: str) -> str:
    flow = {
        "enabled": "true",
        "sync.group.offsets.enabled": "true",
        "groups": GROUP,
        "emit.checkpoints.interval.seconds": "1",
        "sync.group.offsets.interval.seconds": "1",
        "refresh.topics.interval.seconds": "2",
        "refresh.groups.interval.seconds": "2",
        "sync.topic.configs.interval.seconds": "2",
        "offset.lag.max": "10",
        "consumer.auto.offset.reset": "earliest",
    }
    settings = {
        "clusters": "apache, tested",
        "apache.bootstrap.servers": apache.bootstrap,
        "tested.bootstrap.servers": tested.bootstrap,
        **{f"apache->tested.{name}": value for name, value in flow.items()},
        **{f"tested->apache.{name}": value for name, value in flow.items()},
        "apache->tested.topics": there,
        "tested->apache.topics": back,
        "replication.factor": "1",
        **{f"{kind}.topic.replication.factor": "1" for kind in ("checkpoints", "heartbeats", "offset-syncs")},
        **{f"{kind}.storage.replication.factor": "1" for kind in ("config", "offset", "status")},
        "dedicated.mode.enable.internal.rest": "false",
        "offset.flush.interval.ms": "1000",
    }
    return "".join(f"{name} = {value}\n" for name, value in settings.items())
