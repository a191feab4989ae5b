"""Records of every shape through every pair of clients and every codec."""

from __future__ import annotations

import confluent_kafka
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from compat_tests.harness.broker import Broker
from compat_tests.harness.clients import CLIENTS, CODECS, PLAIN, Client, Read, Sample
from compat_tests.harness.fixture_types import TopicFactory
from compat_tests.harness.raw import STARTED_MS

SHAPES = [
    Sample(b"key", b"value"),
    Sample(None, b"no key"),
    Sample(b"tombstone", None),
    Sample(b"", b""),
    Sample(b"headers", b"v", (("a", b"1"), ("a", b"2"), ("empty", b""), ("naïve", "ü".encode()))),
    Sample(b"binary", bytes(range(256)) * 40, timestamp=STARTED_MS + 123),
    Sample(b"later", b"v", timestamp=STARTED_MS + 5000),
    Sample(b"earlier again", b"v", timestamp=STARTED_MS - 1),
    Sample(b"null header", b"v", (("nothing", None),)),
]
NO_NULL_HEADERS = ("kafka-python",)  # it reads null headers but refuses to send them


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", CLIENTS, ids=lambda one: one.name)
def test_every_client_reads_what_every_client_wrote(
    broker: Broker, topic: TopicFactory, writer: Client, codec: str
) -> None:
    name = topic()
    shapes = SHAPES[:-1] if writer.name in NO_NULL_HEADERS else SHAPES
    assert writer.produce(broker.bootstrap, name, shapes, codec) == list(range(len(shapes)))
    expected = [Read(offset, sample) for offset, sample in enumerate(shapes)]
    for reader in CLIENTS:
        assert reader.consume(broker.bootstrap, name, len(shapes)) == expected, reader.name


@pytest.mark.parametrize("reader", CLIENTS, ids=lambda one: one.name)
def test_reading_from_the_middle_of_a_batch(broker: Broker, topic: TopicFactory, reader: Client) -> None:
    name = topic()
    samples = [Sample(b"%d" % number, b"x" * 50) for number in range(100)]
    PLAIN.produce(broker.bootstrap, name, samples, "gzip")
    found = reader.consume(broker.bootstrap, name, 37, offset=63)
    assert [one.offset for one in found] == list(range(63, 100))
    assert found[0].sample.key == b"63"


@pytest.mark.parametrize("topic_codec", ["gzip", "zstd", "uncompressed"])
def test_the_topic_decides_the_codec(broker: Broker, topic: TopicFactory, topic_codec: str) -> None:
    name = topic(configs={"compression.type": topic_codec})
    samples = [Sample(b"k%d" % number, b"v" * 500) for number in range(20)]
    PLAIN.produce(broker.bootstrap, name, samples, "lz4")
    assert [one.sample for one in CLIENTS[0].consume(broker.bootstrap, name, 20)] == samples


def test_log_append_time_replaces_the_clients_time(broker: Broker, topic: TopicFactory) -> None:
    name = topic(configs={"message.timestamp.type": "LogAppendTime"})
    for codec in ("none", "gzip"):
        PLAIN.produce(broker.bootstrap, name, [Sample(b"k", b"v", timestamp=1_000)], codec)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused"})
    consumer.assign([confluent_kafka.TopicPartition(name, 0, 0)])
    messages = [consumer.poll(30), consumer.poll(30)]
    consumer.close()
    for message in messages:
        assert message is not None
        kind, timestamp = message.timestamp()
        assert kind == confluent_kafka.TIMESTAMP_LOG_APPEND_TIME
        assert timestamp > 1_700_000_000_000


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_acks(broker: Broker, topic: TopicFactory, acks: int | str) -> None:
    name = topic()
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, acks=acks, enable_idempotence=False)
    for number in range(10):
        producer.send(name, b"%d" % number)
    producer.flush(30)
    producer.close()
    found = CLIENTS[0].consume(broker.bootstrap, name, 10)
    assert [one.sample.value for one in found] == [b"%d" % number for number in range(10)]


def test_ten_thousand_records_in_order_over_partitions(broker: Broker, topic: TopicFactory) -> None:
    name = topic(partitions=4)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "compression.type": "lz4"}
    )
    for number in range(10_000):
        producer.produce(name, b"%d" % number, partition=number % 4)
        producer.poll(0)
    assert producer.flush(30) == 0
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, consumer_timeout_ms=30_000)
    consumer.assign([TopicPartition(name, partition) for partition in range(4)])
    consumer.seek_to_beginning()
    seen: dict[int, list[int]] = {partition: [] for partition in range(4)}
    for count, record in enumerate(consumer, 1):
        seen[record.partition].append(int(record.value))
        if count == 10_000:
            break
    consumer.close()
    assert seen == {partition: list(range(partition, 10_000, 4)) for partition in range(4)}
