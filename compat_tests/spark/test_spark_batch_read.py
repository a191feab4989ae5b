"""Spark reads a topic as a table: start and end offsets, and the contents of each column."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from compat_tests.spark.topics import Record, Topics

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

START_MS = 1_700_000_000_000
CODECS = ("none", "zstd", *(pytest.param(name, marks=pytest.mark.long) for name in ("gzip", "snappy", "lz4")))


def read(spark: SparkSession, topics: Topics, topic: str, **options: str) -> DataFrame:
    """The topic as a DataFrame of the connector's columns."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", topics.bootstrap)
    return reader.option("subscribe", topic).options(**options).load()


def offsets_by_partition(frame: DataFrame) -> dict[int, list[int]]:
    """The offsets that were read from each partition, sorted."""
    read_offsets: dict[int, list[int]] = {}
    for row in frame.select("partition", "offset").collect():
        read_offsets.setdefault(row.partition, []).append(row.offset)
    return {partition: sorted(offsets) for partition, offsets in read_offsets.items()}


@pytest.fixture
def filled(topics: Topics) -> str:
    """A topic of 3 partitions, 10 records each, one second apart: record i of any partition at START_MS + 1000 i."""
    topic = topics.create_unique("batch", partitions=3, config={"retention.ms": "-1"})
    topics.produce(
        topic,
        [
            Record(f"{partition}/{i}".encode(), partition=partition, timestamp=START_MS + 1000 * i)
            for i in range(10)
            for partition in range(3)
        ],
    )
    return topic


def test_whole_topic_is_the_default(spark: SparkSession, topics: Topics, filled: str) -> None:
    frame = read(spark, topics, filled)
    assert offsets_by_partition(frame) == {p: list(range(10)) for p in range(3)}
    assert {bytes(row.value).decode() for row in frame.collect()} == {
        f"{p}/{i}" for p in range(3) for i in range(10)
    }


def test_every_column(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create_unique("columns", config={"retention.ms": "-1"})
    topics.produce(
        topic,
        [
            Record(
                b"v0",
                b"k0",
                headers=[("a", b"1"), ("a", b"2"), ("empty", b""), ("null", None)],
                timestamp=START_MS,
            ),
            Record(None, b"tombstone", timestamp=START_MS + 1),
            Record(b"", None, timestamp=START_MS + 2),
        ],
    )
    rows = read(spark, topics, topic, includeHeaders="true").orderBy("offset").collect()
    assert [(row.topic, row.partition, row.offset, row.timestampType) for row in rows] == [
        (topic, 0, offset, 0) for offset in range(3)
    ]
    assert [(row.key, row.value) for row in rows] == [(b"k0", b"v0"), (b"tombstone", None), (None, b"")]
    assert [row.timestamp.astimezone(UTC) for row in rows] == [
        datetime.fromtimestamp((START_MS + i) / 1000, UTC) for i in range(3)
    ]
    assert [(header.key, header.value) for header in rows[0].headers] == [
        ("a", b"1"),
        ("a", b"2"),
        ("empty", b""),
        ("null", None),
    ]
    assert not rows[1].headers


def test_log_append_time_is_reported_as_such(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create_unique("append-time", config={"message.timestamp.type": "LogAppendTime"})
    topics.produce(topic, [Record(b"x", timestamp=START_MS)])
    (row,) = read(spark, topics, topic).collect()
    assert row.timestampType == 1
    assert row.timestamp.timestamp() * 1000 > START_MS + 1


def test_offsets_of_each_partition(spark: SparkSession, topics: Topics, filled: str) -> None:
    starting = json.dumps({filled: {"0": 4, "1": -2, "2": 10}})  # -2 is the earliest, 10 the end
    ending = json.dumps({filled: {"0": 6, "1": 3, "2": -1}})  # -1 is the latest
    frame = read(spark, topics, filled, startingOffsets=starting, endingOffsets=ending)
    assert offsets_by_partition(frame) == {0: [4, 5], 1: [0, 1, 2]}


def test_one_timestamp_for_all_partitions(spark: SparkSession, topics: Topics, filled: str) -> None:
    starting, ending = str(START_MS + 2500), str(START_MS + 7000)  # between two records; exactly at one
    frame = read(spark, topics, filled, startingTimestamp=starting, endingTimestamp=ending)
    assert offsets_by_partition(frame) == {p: [3, 4, 5, 6] for p in range(3)}


def test_timestamps_of_each_partition(spark: SparkSession, topics: Topics, filled: str) -> None:
    starting = json.dumps({filled: {"0": START_MS, "1": START_MS + 9000, "2": START_MS + 5001}})
    ending = json.dumps({filled: {"0": START_MS + 1, "1": START_MS + 99_000, "2": START_MS + 8000}})
    frame = read(spark, topics, filled, startingOffsetsByTimestamp=starting, endingOffsetsByTimestamp=ending)
    assert offsets_by_partition(frame) == {0: [0], 1: [9], 2: [6, 7]}


def test_timestamp_after_the_last_record(spark: SparkSession, topics: Topics, filled: str) -> None:
    late = str(START_MS + 99_000)
    with pytest.raises(PySparkException):
        read(spark, topics, filled, startingTimestamp=late).collect()
    frame = read(spark, topics, filled, startingTimestamp=late, startingOffsetsByTimestampStrategy="latest")
    assert offsets_by_partition(frame) == {}


def test_records_that_were_deleted_are_not_read(spark: SparkSession, topics: Topics, filled: str) -> None:
    topics.delete_records(filled, {0: 7, 1: 10})
    frame = read(spark, topics, filled)
    assert offsets_by_partition(frame) == {0: [7, 8, 9], 2: list(range(10))}


def test_several_topics_and_a_pattern(spark: SparkSession, topics: Topics) -> None:
    prefix = topics.name("many")
    names = [topics.create(f"{prefix}-{letter}") for letter in "abc"]
    for name in names:
        topics.produce(name, [Record(name.encode())])
    some = read(spark, topics, f"{names[0]},{names[2]}").collect()
    assert sorted(row.topic for row in some) == [names[0], names[2]]
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", topics.bootstrap)
    matched = reader.option("subscribePattern", f"{prefix}-[bc]").load().collect()
    assert sorted((row.topic, bytes(row.value).decode()) for row in matched) == [(n, n) for n in names[1:]]


def test_chosen_partitions(spark: SparkSession, topics: Topics, filled: str) -> None:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", topics.bootstrap)
    frame = reader.option("assign", json.dumps({filled: [0, 2]})).load()
    assert sorted(offsets_by_partition(frame)) == [0, 2]


@pytest.mark.parametrize("codec", CODECS)
def test_compressed_records(spark: SparkSession, topics: Topics, codec: str) -> None:
    topic = topics.create_unique(f"from-{codec}")
    values = [f"{codec} value number {i}, alike enough to be worth it" for i in range(2000)]
    topics.produce(topic, [Record(value.encode()) for value in values], codec)
    rows = read(spark, topics, topic).orderBy("offset").collect()
    assert [bytes(row.value).decode() for row in rows] == values


def test_min_partitions_splits_a_topic(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create_unique("split", partitions=2)
    topics.produce_values(topic, [str(i) for i in range(3000)], partitions=2)
    frame = read(spark, topics, topic, minPartitions="7")
    assert frame.rdd.getNumPartitions() >= 7
    assert offsets_by_partition(frame) == {p: list(range(1500)) for p in range(2)}


def test_empty_topic(spark: SparkSession, topics: Topics) -> None:
    assert read(spark, topics, topics.create_unique("empty", partitions=2)).count() == 0


def test_missing_topic(spark: SparkSession, topics: Topics) -> None:
    with pytest.raises(Exception, match=r"UnknownTopicOrPartition|does not host this topic"):
        read(spark, topics, topics.name("missing")).collect()
