"""Limits: large records, large fetches, automatic topic creation, several listeners, a full disk."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import MessageSizeTooLargeError

from barnabas.testing.ports import free_port
from compat_tests.harness import raw
from compat_tests.harness.barnabas_broker import BarnabasBroker
from compat_tests.harness.broker import Broker
from compat_tests.harness.clients import CLIENTS, Sample
from compat_tests.harness.confluent_admin import NewTopic
from compat_tests.harness.eventually import eventually, stays
from compat_tests.harness.fixture_types import BrokerFactory, TopicFactory, UniqueName
from compat_tests.harness.raw import RawConnection
from compat_tests.harness.topics import create_topic


def test_records_up_to_the_limit_and_above(broker: Broker, topic: TopicFactory) -> None:
    name = topic(configs={"max.message.bytes": "2000000"})
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap, "message.max.bytes": 10_000_000}
    )
    outcome: list[KafkaError | None] = []
    for size in (1_999_900, 2_000_100, 10):
        producer.produce(name, os.urandom(size), on_delivery=lambda error, _: outcome.append(error))
        assert producer.flush(30) == 0
    assert outcome[0] is None
    assert outcome[1] is not None
    assert outcome[1].code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert outcome[2] is None, "the partition still takes records"
    assert [len(one.sample.value or b"") for one in CLIENTS[0].consume(broker.bootstrap, name, 2)] == [
        1_999_900,
        10,
    ]


def test_a_record_above_the_brokers_default_limit(broker: Broker, topic: TopicFactory) -> None:
    name = topic()
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, max_request_size=10_000_000)
    with pytest.raises(MessageSizeTooLargeError):
        producer.send(name, b"x" * 1_100_000).get(30)
    producer.close()


def test_a_record_larger_than_the_fetch_limits_is_read(broker: Broker, topic: TopicFactory) -> None:
    name = topic(configs={"max.message.bytes": "6000000"})
    value = os.urandom(5_000_000)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, max_request_size=10_000_000)
    producer.send(name, value).get(30)
    producer.close()
    consumer = KafkaConsumer(
        name,
        bootstrap_servers=broker.bootstrap,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=1000,
        fetch_max_bytes=1000,
        consumer_timeout_ms=30_000,
    )
    assert next(consumer).value == value
    consumer.close()


def test_large_fetches(broker: Broker, topic: TopicFactory) -> None:
    """80 MB through requests of up to 50 MB, every byte compared."""
    name = topic(partitions=4)
    block = os.urandom(100_000)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
    for number in range(800):
        producer.produce(name, b"%06d" % number + block, partition=number % 4)
        producer.poll(0)
    assert producer.flush(60) == 0
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "unused",
            "fetch.max.bytes": 50_000_000,
            "max.partition.fetch.bytes": 20_000_000,
            "fetch.message.max.bytes": 20_000_000,
            "receive.message.max.bytes": 100_000_000,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(name, partition, 0) for partition in range(4)])
    seen: list[int] = []
    deadline = time.monotonic() + 60
    while len(seen) < 800 and time.monotonic() < deadline:
        for message in consumer.consume(100, 1):
            value = message.value() or b""
            assert value[6:] == block
            seen.append(int(value[:6]))
    consumer.close()
    assert sorted(seen) == list(range(800))


def test_producing_creates_the_topic(broker: Broker, unique: UniqueName) -> None:
    for client in CLIENTS:
        name = unique("auto")
        now = int(time.time() * 1000)
        assert client.produce(broker.bootstrap, name, [Sample(b"k", b"v", timestamp=now)]) == [0]
        assert client.consume(broker.bootstrap, name, 1)[0].sample.value == b"v"


def test_metadata_creates_a_topic_only_if_the_client_allows_it(broker: Broker, unique: UniqueName) -> None:
    """With raw requests, as the libraries differ in when they set allow_auto_topic_creation (Metadata 4)."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for allow in (False, True):
        name = unique("auto")
        body = raw.array([raw.string(name)]) + bytes([allow])
        with RawConnection(broker.bootstrap) as connection:
            connection.ask(raw.request(3, 4, body))
        if allow:
            eventually(lambda name=name: name in admin.list_topics(timeout=30).topics)
        else:
            stays(lambda name=name: name not in admin.list_topics(timeout=30).topics, 0.5)


def test_auto_creation_switched_off(fresh_broker: BrokerFactory) -> None:
    broker = fresh_broker({"auto.create.topics.enable": "false"})
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 2000})
    outcome: list[KafkaError | None] = []
    producer.produce("missing", b"v", on_delivery=lambda error, _: outcome.append(error))
    producer.flush(30)
    assert outcome[0] is not None
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    assert "missing" not in admin.list_topics(timeout=30).topics
    with pytest.raises(KafkaException):
        admin.create_topics([NewTopic("a b", 1, 1)])["a b"].result(30)


def test_listeners_answer_with_their_own_addresses(fresh_broker: BrokerFactory) -> None:
    inside, outside = free_port(), free_port()
    broker = fresh_broker(
        {
            "listeners": f"INSIDE://127.0.0.1:{inside},OUTSIDE://127.0.0.1:{outside}",
            "advertised.listeners": f"INSIDE://127.0.0.1:{inside},OUTSIDE://localhost:{outside}",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "INSIDE",
        }
    )
    create_topic(broker.bootstrap, "topic", configs={"retention.ms": "-1"})
    expected: dict[str, tuple[str | None, int]] = {
        f"127.0.0.1:{inside}": ("127.0.0.1", inside),
        f"127.0.0.1:{outside}": ("localhost", outside),
    }
    for number, (address, advertised) in enumerate(expected.items()):
        brokers = AdminClient({"bootstrap.servers": address}).list_topics(timeout=30).brokers.values()
        assert [(one.host, one.port) for one in brokers] == [advertised]
        assert CLIENTS[0].produce(address, "topic", [Sample(None, b"%d" % number)]) == [number]
    for address in expected:
        found = CLIENTS[2].consume(address, "topic", 2)
        assert [one.sample.value for one in found] == [b"0", b"1"]


def _fill(broker: Broker, topic: str) -> list[bytes]:
    """Produce 200 KB batches until the broker refuses one or ends; the acknowledged values."""
    acknowledged: list[bytes] = []
    try:
        with RawConnection(broker.bootstrap) as connection:
            for number in range(500):
                value = b"%06d" % number + os.urandom(200_000)
                error, offset = raw.produce(connection, topic, raw.good_batch(value))
                if error:
                    return acknowledged
                assert offset == number
                acknowledged.append(value)
    except (OSError, EOFError):
        return acknowledged
    raise AssertionError("the disk never filled")


def _check(broker: Broker, topic: str, acknowledged: list[bytes]) -> None:
    with RawConnection(broker.bootstrap) as connection:
        for offset, value in enumerate(acknowledged):
            error, _, records = raw.fetch(connection, topic, offset)
            assert error == 0
            assert value in records, f"acknowledged record {offset} is gone"


def _ends_with_a_whole_batch(partition: Path) -> None:
    """Assert that a refused batch leaves no partial batch in the log."""
    for log in partition.glob("*.log"):
        content, position = log.read_bytes(), 0
        while position < len(content):
            assert len(content) - position > 12
            position += 12 + int.from_bytes(content[position + 8 : position + 12], "big")
        assert position == len(content), f"{log.name} ends within a batch"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 48 MB."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("may not mount here; the test with a file size limit covers unprivileged runs")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=False)


def test_a_full_disk(fresh_broker: BrokerFactory, small_disk: Path) -> None:
    """Produces are refused, no acknowledged record is lost, and with free space the broker takes records again."""
    broker = fresh_broker({"log.dirs": str(small_disk / "data"), "log.index.size.max.bytes": "4096"})
    create_topic(broker.bootstrap, "topic")
    (small_disk / "filler").write_bytes(bytes(16 << 20))
    acknowledged = _fill(broker, "topic")
    assert acknowledged
    if broker.kind == "barnabas":  # Kafka halts when its only log directory fails
        assert broker.alive()
        _check(broker, "topic", acknowledged)
        _ends_with_a_whole_batch(small_disk / "data" / "topic-0")
        (small_disk / "filler").unlink()
        with RawConnection(broker.bootstrap) as connection:  # with free space it continues without a restart
            for offset in range(len(acknowledged), len(acknowledged) + 5):
                value = b"%06d" % offset + os.urandom(200_000)
                assert raw.produce(connection, "topic", raw.good_batch(value)) == (0, offset)
                acknowledged.append(value)
    (small_disk / "filler").unlink(missing_ok=True)
    broker.restart(kill=True)
    _check(broker, "topic", acknowledged)
    with RawConnection(broker.bootstrap) as connection:
        error, offset = eventually(
            lambda: [
                found for found in [raw.produce(connection, "topic", raw.good_batch(b"room"))] if not found[0]
            ]
        )[0]
    assert (error, offset) == (0, offset)
    assert offset >= len(acknowledged)


@pytest.mark.barnabas_only
def test_a_file_that_can_not_grow(fresh_broker: BrokerFactory) -> None:
    """A full disk without privileges: writes beyond 4 MB fail with EFBIG."""
    broker = fresh_broker(start=False)
    assert isinstance(broker, BarnabasBroker)
    broker.preexec = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, 4 << 20))
    broker.settings["log.index.size.max.bytes"] = "4096"
    broker.start()
    create_topic(broker.bootstrap, "topic")
    create_topic(broker.bootstrap, "other")
    acknowledged = _fill(broker, "topic")
    assert 15 <= len(acknowledged) <= 20
    assert broker.alive()
    _check(broker, "topic", acknowledged)
    broker.preexec = None
    broker.restart(kill=True)
    _check(broker, "topic", acknowledged)
    with RawConnection(broker.bootstrap) as connection:
        assert raw.produce(connection, "topic", raw.good_batch(b"room")) == (0, len(acknowledged))
