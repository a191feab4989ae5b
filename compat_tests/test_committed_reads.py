"""Reading a log with transactions: what read_committed consumers get from a partition that Apache Kafka wrote.

The partition's files are those of the storage tests; they replace the files of an empty partition while the broker is
down.
"""

from __future__ import annotations

import asyncio
import shutil
import struct
import time
from pathlib import Path

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition

from compat_tests.harness import raw
from compat_tests.harness.broker import Broker
from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.harness.raw import RawConnection
from compat_tests.harness.topics import create_topic, wait_until_served

CAPTURED = Path(__file__).resolve().parents[1] / "storage" / "log" / "tests" / "captured" / "transactions"
TOPIC = "transactions"
COMMITTED = [0, 1, 2, 5, 6, 7, 9, 12, 13, 16, 17, 23, 24, 25, 28, 30, 31, 34, 35]
LAST_STABLE_OFFSET = 40
END = 49
CONFIGS = {"retention.ms": "-1", "index.interval.bytes": "200"}


@pytest.fixture
def transactions(fresh_broker: BrokerFactory) -> Broker:
    """A broker that serves the captured partition."""
    broker = fresh_broker()
    create_topic(broker.bootstrap, TOPIC, configs=CONFIGS)
    broker.stop()
    for captured in CAPTURED.iterdir():
        shutil.copy(captured, broker.log_dir / f"{TOPIC}-0" / captured.name)
    broker.start()
    wait_until_served(AdminClient({"bootstrap.servers": broker.bootstrap}), TOPIC)
    return broker


def test_consumers_get_the_committed_records(transactions: Broker) -> None:
    bootstrap = transactions.bootstrap
    reader = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "c", "isolation.level": "read_committed"}
    )
    assert reader.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=30) == (0, LAST_STABLE_OFFSET)
    reader.assign([TopicPartition(TOPIC, 0, 0)])
    offsets = [message.offset() for message in reader.consume(len(COMMITTED), 30)]
    assert offsets == COMMITTED
    assert reader.consume(1, 0.3) == []
    reader.close()

    python = KafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", consumer_timeout_ms=30_000
    )
    partition = PythonPartition(TOPIC, 0)
    python.assign([partition])
    python.seek(partition, 0)
    assert [next(python).offset for _ in COMMITTED] == COMMITTED
    assert python.end_offsets([partition]) == {partition: LAST_STABLE_OFFSET}
    python.close()

    async def read() -> list[int]:
        consumer = AIOKafkaConsumer(
            TOPIC, bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            return [(await asyncio.wait_for(consumer.getone(), 30)).offset for _ in COMMITTED]
        finally:
            await consumer.stop()

    assert asyncio.run(read()) == COMMITTED


def fetch(
    broker: Broker, offset: int, max_bytes: int, *, committed: bool
) -> tuple[int, int, list[tuple[int, int]] | None, int]:
    """(high watermark, last stable offset, aborted transactions, bytes) as Fetch 4 answers."""
    body = struct.pack(">iiiib", -1, 0, 1, 1 << 20, committed)
    partition = struct.pack(">iqi", 0, offset, max_bytes)
    body += raw.array([raw.string(TOPIC) + raw.array([partition])])
    with RawConnection(broker.bootstrap) as connection:
        answer = connection.ask(raw.request(1, 4, body))
    position = 4 + 4 + 2 + len(TOPIC) + 4
    index, error, high_watermark, stable, count = struct.unpack_from(">ihqqi", answer, position)
    assert (index, error) == (0, 0)
    position += 26
    aborted = [struct.unpack_from(">qq", answer, position + 16 * number) for number in range(max(0, count))]
    position += 16 * max(0, count)
    (size,) = struct.unpack_from(">i", answer, position)
    return high_watermark, stable, aborted if count >= 0 else None, size


# (offset, partition_max_bytes) -> (aborted transactions as (producer id, first offset), bytes), of Apache Kafka
ANSWERS = {
    (0, 1): ([], 90),
    (0, 300): ([(0, 3)], 300),
    (0, 5000): ([(0, 3), (2, 14)], 1416),
    (12, 5000): ([(2, 14)], 360),
    (16, 1): ([(2, 14)], 90),
    (16, 1000): ([(2, 14), (0, 21)], 1000),
    (16, 5000): ([(2, 14), (0, 21), (2, 32)], 1482),
    (30, 1): ([], 90),
    (30, 5000): ([(2, 32)], 270),
    (39, 5000): ([(0, 39)], 90),
    (40, 5000): ([], 0),
}


def test_fetch_names_the_aborted_transactions(transactions: Broker) -> None:
    for (offset, max_bytes), (aborted, size) in ANSWERS.items():
        answer = fetch(transactions, offset, max_bytes, committed=True)
        assert answer == (END, LAST_STABLE_OFFSET, aborted, size), (offset, max_bytes)
    assert fetch(transactions, 0, 5000, committed=False) == (END, LAST_STABLE_OFFSET, None, 1416)


def test_an_open_transaction_does_not_end_the_wait_of_a_committed_fetch(transactions: Broker) -> None:
    """Records behind the last stable offset end the wait of a read_uncommitted fetch, not of a read_committed one."""
    body = struct.pack(">iiiib", -1, 400, 1, 1 << 20, 1)
    body += raw.array([raw.string(TOPIC) + raw.array([struct.pack(">iqi", 0, LAST_STABLE_OFFSET, 5000)])])
    with RawConnection(transactions.bootstrap) as waiting, RawConnection(transactions.bootstrap) as writing:
        started = time.monotonic()
        waiting.send(raw.request(1, 4, body))
        time.sleep(0.1)  # until the fetch waits, which nothing shows
        assert raw.produce(writing, TOPIC, raw.good_batch(b"plain")) == (0, END)
        waiting.receive()
        assert time.monotonic() - started >= 0.39
