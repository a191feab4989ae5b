"""Kafka Streams' word count, at least once: internal topics, a changelog to restore from, records deleted."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from compat_tests.company.read import read_all
from compat_tests.harness.broker import Broker
from compat_tests.harness.confluent_admin import ConfigResource, OffsetSpec, ResourceType
from compat_tests.harness.fixture_types import TopicFactory, UniqueName
from compat_tests.harness.java_program import JavaProgram

pytestmark = pytest.mark.jvm

SOURCE = Path(__file__).parent / "java" / "WordCount.java"
FIRST = ["the quick brown fox", "jumps over the lazy dog", "the end"] * 100
SECOND = ["the fox again", "and the dog"] * 100


def test_word_count_survives_the_loss_of_its_state(
    broker: Broker, topic: TopicFactory, unique: UniqueName, tmp_path: Path
) -> None:
    lines, counts, application = topic(2), topic(2), unique("word-count")
    state = tmp_path / "state"
    arguments = [broker.bootstrap, application, lines, counts, str(state)]

    _say(broker, lines, FIRST)
    with JavaProgram(SOURCE, arguments, tmp_path) as program:
        program.wait_until(lambda: _counts(broker, counts) == _expected(FIRST))

    shutil.rmtree(state)  # so that the counts come back from the changelog topic
    _say(broker, lines, SECOND)
    with JavaProgram(SOURCE, arguments, tmp_path) as program:
        program.wait_until(lambda: _counts(broker, counts) == _expected(FIRST + SECOND))
        repartition = f"{application}-counts-repartition"
        program.wait_until(lambda: _purged(broker, repartition))

    configs = _configs(broker, f"{application}-counts-changelog")
    assert configs["cleanup.policy"] == "compact"


def _say(broker: Broker, topic: str, lines: list[str]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number, line in enumerate(lines):
        producer.produce(topic, line.encode(), key=str(number).encode())
    producer.flush()


def _counts(broker: Broker, topic: str) -> dict[str, int]:
    """The last count of every word."""
    return {key.decode(): int(value or 0) for key, value in read_all(broker.bootstrap, topic)}


def _expected(lines: list[str]) -> dict[str, int]:
    return dict(Counter(word for line in lines for word in line.split()))


def _purged(broker: Broker, repartition_topic: str) -> bool:
    """Whether Streams has deleted what it has read (DeleteRecords) and nothing is left to read."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    partitions = [TopicPartition(repartition_topic, index) for index in range(2)]
    first = admin.list_offsets({one: OffsetSpec.earliest() for one in partitions})
    last = admin.list_offsets({one: OffsetSpec.latest() for one in partitions})
    return all(
        first[one].result(10).offset == last[one].result(10).offset > 0
        for one in partitions
        if last[one].result(10).offset
    )


def _configs(broker: Broker, topic: str) -> dict[str, str]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, topic)
    return {
        name: entry.value for name, entry in admin.describe_configs([resource])[resource].result(10).items()
    }
