"""Spark writes a table to a topic: every record arrives with its key, headers and partition."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name that every PySpark page uses)

from compat_tests.spark.topics import Topics

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

CODECS = ("none", "zstd", *(pytest.param(name, marks=pytest.mark.long) for name in ("gzip", "snappy", "lz4")))
HEADERS = "array<struct<key: string, value: binary>>"


def write(frame: DataFrame, topics: Topics, topic: str | None, **options: str) -> None:
    """Write the frame to one topic, or where its own column `topic` says."""
    writer = frame.write.format("kafka").option("kafka.bootstrap.servers", topics.bootstrap)
    if topic is not None:
        writer = writer.option("topic", topic)
    writer.options(**options).save()


def test_keys_values_and_null_keys(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create_unique("written")
    frame = spark.createDataFrame(
        [("k", "v"), (None, "no key"), ("no value", None), ("", "")], "key string, value string"
    )
    write(frame.coalesce(1), topics, topic)
    found = {(record.key, record.value) for record in topics.read(topic)}
    assert found == {(b"k", b"v"), (None, b"no key"), (b"no value", None), (b"", b"")}


def test_headers(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create_unique("headers")
    rows = [("with", [("a", b"1"), ("a", b"2"), ("empty", b"")]), ("without", None)]
    frame = spark.createDataFrame(rows, f"value string, headers {HEADERS}")
    write(frame, topics, topic, includeHeaders="true")
    found = {record.value: record.headers for record in topics.read(topic)}
    assert found == {b"with": [("a", b"1"), ("a", b"2"), ("empty", b"")], b"without": []}


def test_partition_column(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create_unique("placed", partitions=4)
    write(
        spark.range(40).select(
            F.col("id").cast("string").alias("value"), (F.col("id") % 4).cast("int").alias("partition")
        ),
        topics,
        topic,
    )
    assert {(int(record.value or b""), record.partition) for record in topics.read(topic)} == {
        (i, i % 4) for i in range(40)
    }


def test_topic_column(spark: SparkSession, topics: Topics) -> None:
    first, second = topics.create_unique("first"), topics.create_unique("second")
    rows = [(first, "a"), (second, "b"), (first, "c")]
    write(spark.createDataFrame(rows, "topic string, value string"), topics, None)
    assert sorted(record.value or b"" for record in topics.read(first)) == [b"a", b"c"]
    assert [record.value for record in topics.read(second)] == [b"b"]


@pytest.mark.parametrize("codec", CODECS)
def test_compressed_records_there_and_back(spark: SparkSession, topics: Topics, codec: str) -> None:
    topic = topics.create_unique(f"to-{codec}", partitions=2)
    frame = spark.range(20_000).select(F.format_string("value number %d", "id").alias("value"))
    write(frame, topics, topic, **{"kafka.compression.type": codec})
    back = spark.read.format("kafka").option("kafka.bootstrap.servers", topics.bootstrap)
    values = back.option("subscribe", topic).load().select(F.col("value").cast("string").alias("value"))
    assert values.count() == 20_000
    assert values.exceptAll(frame).count() == 0


def test_a_record_too_large_for_the_topic_fails_the_job(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create_unique("small", config={"max.message.bytes": "2000"})
    frame = spark.range(1).select(F.repeat(F.lit("x"), 10_000).alias("value"))
    with pytest.raises(Exception, match="RecordTooLargeException"):
        write(frame, topics, topic)
    assert topics.read(topic) == []
