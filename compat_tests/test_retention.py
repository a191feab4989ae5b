"""Retention as clients see it: the log start moves, by size and by time, with settings changed at run time."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from compat_tests.harness import raw
from compat_tests.harness.confluent_admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.harness.raw import RawConnection
from compat_tests.harness.topics import create_topic

OFFSET_OUT_OF_RANGE = 1
SETTINGS = {"log.retention.check.interval.ms": "300", "log.initial.task.delay.ms": "300"}
MEGABYTE = 1 << 20


def test_retention_moves_the_logs_start(fresh_broker: BrokerFactory) -> None:
    broker = fresh_broker(SETTINGS)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    configs = {
        "segment.bytes": str(MEGABYTE),
        "retention.bytes": str(2 * MEGABYTE + MEGABYTE // 2),
        "retention.ms": "-1",
        "file.delete.delay.ms": "100",
    }
    create_topic(broker.bootstrap, "t", 1, configs)

    def earliest() -> int:
        wanted = TopicPartition("t", 0)
        return int(admin.list_offsets({wanted: OffsetSpec.earliest()})[wanted].result(30).offset)

    now_ms = int(time.time() * 1000)
    value = bytes(MEGABYTE // 4)  # three to a segment
    with RawConnection(broker.bootstrap) as connection:
        for offset in range(30):
            batch = raw.batch(raw.record(value), timestamp=now_ms - (3_600_000 if offset < 24 else 0))
            assert raw.produce(connection, "t", batch) == (0, offset)
        start = eventually(earliest)
        eventually(lambda: earliest() == earliest() >= 18)
        start = earliest()
        assert start % 3 == 0
        assert 30 - start >= 10  # at least retention.bytes remain
        assert raw.fetch(connection, "t", start - 1)[0] == OFFSET_OUT_OF_RANGE
        assert raw.fetch(connection, "t", start)[0] == 0
        consumer = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest")
        partition = kafka.TopicPartition("t", 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        assert next(consumer).offset == start
        consumer.close()

        entry = ConfigEntry("retention.ms", "1800000", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, "t", incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(30)
        eventually(lambda: earliest() == 24)  # the segments with records of an hour ago

    folder = Path(broker.log_dir) / "t-0"
    eventually(lambda: sorted(int(path.stem) for path in folder.glob("*.log")) == [24, 27])
    eventually(lambda: not list(folder.glob("*.deleted")))


@pytest.mark.barnabas_only
def test_retention_by_number_of_messages(fresh_broker: BrokerFactory) -> None:
    """Of a topic, then of the broker's default, which is changed while it runs."""
    broker = fresh_broker(SETTINGS)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    create_topic(
        broker.bootstrap,
        "t",
        1,
        {"segment.bytes": str(MEGABYTE), "barnabas.retention.messages": "10", "retention.ms": "-1"},
    )

    def earliest() -> int:
        wanted = TopicPartition("t", 0)
        return int(admin.list_offsets({wanted: OffsetSpec.earliest()})[wanted].result(30).offset)

    def change(kind: ResourceType, name: str, operation: AlterConfigOpType, value: str) -> None:
        entry = ConfigEntry("barnabas.retention.messages", value, incremental_operation=operation)
        resource = ConfigResource(kind, name, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(30)

    with RawConnection(broker.bootstrap) as connection:
        for offset in range(30):
            batch = raw.good_batch(bytes(MEGABYTE // 4))  # three to a segment
            assert raw.produce(connection, "t", batch) == (0, offset)
    eventually(lambda: earliest() == 18)
    change(ResourceType.BROKER, "1", AlterConfigOpType.SET, "5")
    change(ResourceType.TOPIC, "t", AlterConfigOpType.DELETE, "")
    eventually(lambda: earliest() == 24)


def test_a_fetch_that_waits_below_the_new_start_is_answered(fresh_broker: BrokerFactory) -> None:
    """The fetch waits for more bytes than exist, and retention deletes the records at its offset."""
    broker = fresh_broker(SETTINGS)
    create_topic(broker.bootstrap, "t", 1, {"retention.ms": "-1"})
    answers: list[int] = []
    # Kafka answers after the whole wait; here the fetch's wait is longer than the test's
    max_wait_ms = 600_000 if broker.kind == "barnabas" else 20_000

    def wait() -> None:
        with RawConnection(broker.bootstrap) as connection:
            connection.socket.settimeout(100)
            error, _, _ = raw.fetch(connection, "t", 0, min_bytes=1 << 20, max_wait_ms=max_wait_ms)
            answers.append(error)

    with RawConnection(broker.bootstrap) as connection:
        for _ in range(3):
            assert raw.produce(connection, "t", raw.good_batch(b"x"))[0] == 0
    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.5)  # until the fetch waits, which nothing shows
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_records([TopicPartition("t", 0, 3)])[TopicPartition("t", 0)].result(30)
    waiting.join(60)
    (error,) = answers
    if broker.kind == "barnabas":
        assert error == OFFSET_OUT_OF_RANGE
