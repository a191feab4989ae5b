"""Thousands of partitions on one broker: memory and open files are bounded, and each partition keeps its records."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat_tests.bench.partitions import create_topic, is_served, open_files
from compat_tests.harness import raw
from compat_tests.harness.broker import Broker
from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.harness.raw import RawConnection

TOPICS = ("many-a", "many-b")
PER_TOPIC = 1000
BYTES_PER_PARTITION_MAX = 8 << 10
OPEN_FILES_MAX = 1200  # somewhat more than a thousand segments, the rest listeners and connections


def _write(connection: RawConnection, text: str) -> None:
    """Write a different record to each partition."""
    for topic in TOPICS:
        for first in range(0, PER_TOPIC, 250):
            wanted = range(first, first + 250)
            batches = {index: raw.good_batch(f"{text} {topic} {index}".encode()) for index in wanted}
            answers = raw.produce_many(connection, topic, batches)
            assert {error for error, _ in answers.values()} == {0}


def _check(connection: RawConnection, texts: list[str]) -> None:
    """Assert that every seventh partition holds exactly these records."""
    for topic in TOPICS:
        for index in range(0, PER_TOPIC, 7):
            error, end, records = raw.fetch(connection, topic, 0, index)
            assert (error, end) == (0, len(texts))
            positions = [records.find(f"{text} {topic} {index}".encode()) for text in texts]
            assert positions == sorted(positions)
            assert positions[0] > 0


@pytest.mark.barnabas_only
def test_memory_and_open_files_of_two_thousand_partitions(fresh_broker: BrokerFactory) -> None:
    broker = fresh_broker()
    with RawConnection(broker.bootstrap) as connection:
        create_topic(connection, "warm-up", 1)
        assert is_served(connection, "warm-up", 1)
        bare = broker.resident_bytes()
        for topic in TOPICS:
            create_topic(connection, topic, PER_TOPIC)
            assert is_served(connection, topic, PER_TOPIC), "the answer comes when all partitions exist"
        _assert_memory(broker, bare)
        idle = open_files(broker)
        assert idle < 100, "an idle partition keeps no file open"
        _write(connection, "first")
        assert open_files(broker) < OPEN_FILES_MAX
        _write(connection, "second")
        assert open_files(broker) < OPEN_FILES_MAX
        _check(connection, ["first", "second"])
        _assert_memory(broker, bare)
    texts = ["first", "second"]
    for kill in (False, True):
        broker.restart(kill=kill)
        with RawConnection(broker.bootstrap) as connection:
            assert all(is_served(connection, topic, PER_TOPIC) for topic in TOPICS)
            assert open_files(broker) < 100
            _check(connection, texts)
            _assert_memory(broker, bare)
            texts.append(f"after restart, {kill=}")
            _write(connection, texts[-1])
            _check(connection, texts)
    with RawConnection(broker.bootstrap) as connection:
        for topic in TOPICS:
            body = raw.array([raw.string(topic)]) + (10_000).to_bytes(4, "big")
            connection.ask(raw.request(20, 1, body))  # DeleteTopics
        assert not any(is_served(connection, topic, 1) for topic in TOPICS)
    names = [path.name for path in Path(broker.log_dir).glob("many-*")]
    assert all(name.endswith("-delete") for name in names)


def _assert_memory(broker: Broker, bare: int) -> None:
    """Check the memory that the topics add to a broker without them."""
    each = (broker.resident_bytes() - bare) / (len(TOPICS) * PER_TOPIC)
    assert each < BYTES_PER_PARTITION_MAX
