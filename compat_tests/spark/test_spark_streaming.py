"""Spark's structured streaming from and to topics: checkpoints, restarts, limits, new topics, headers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name that every PySpark page uses)

from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.spark.streams import Job, JobFactory, numbered, once
from compat_tests.spark.topics import Record, Topics

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]


def test_available_now_takes_what_is_there(topics: Topics, job: JobFactory) -> None:
    topic = topics.create_unique("now", partitions=3)
    values = numbered("v", 300)
    topics.produce_values(topic, values, partitions=3)
    stream = job(subscribe=topic)
    assert sum(stream.run()) == 300
    assert stream.values() == once(*values)
    assert stream.run() == []
    assert stream.values() == once(*values)


def test_a_restart_within_a_batch_neither_loses_nor_repeats_records(topics: Topics, job: JobFactory) -> None:
    topic = topics.create_unique("restart", partitions=2)
    first, between, during = numbered("first", 400), numbered("between", 300), numbered("during", 300)
    topics.produce_values(topic, first, partitions=2)
    stream = job(subscribe=topic, maxOffsetsPerTrigger="50")

    query = stream.writer().start()
    eventually(lambda: sum(stream.values().values()) >= 100, timeout=60)
    query.stop()  # at any point: a batch may be planned, partly written or not yet committed
    stopped_at = sum(stream.values().values())
    assert stopped_at >= 100

    topics.produce_values(topic, between, partitions=2)
    query = stream.writer(maxOffsetsPerTrigger="200").start()
    try:
        topics.produce_values(topic, during, partitions=2)
        query.processAllAvailable()
    finally:
        query.stop()
    assert stream.values() == once(*first, *between, *during)


def test_the_broker_restarts_under_a_running_stream(
    spark: SparkSession, fresh_broker: BrokerFactory, tmp_path: Path
) -> None:
    broker = fresh_broker()
    topics = Topics(broker.bootstrap)
    topic = topics.create_unique("bounce", partitions=2)
    before, after = numbered("before", 100), numbered("after", 100)
    topics.produce_values(topic, before, partitions=2)
    stream = Job(spark, topics, tmp_path / "job", {"subscribe": topic})
    query = stream.writer().start()
    try:
        query.processAllAvailable()
        broker.restart(kill=True)
        topics.produce_values(topic, after, partitions=2)
        query.processAllAvailable()
    finally:
        query.stop()
    assert stream.values() == once(*before, *after)


def test_max_offsets_per_trigger(topics: Topics, job: JobFactory) -> None:
    topic = topics.create_unique("limited", partitions=3)
    values = numbered("v", 250)
    topics.produce_values(topic, values, partitions=3)
    stream = job(subscribe=topic, maxOffsetsPerTrigger="60")
    batches = stream.run()
    assert max(batches) <= 60
    assert sum(batches) == 250
    assert stream.values() == once(*values)


def test_min_partitions_reads_each_record_once(topics: Topics, job: JobFactory) -> None:
    topic = topics.create_unique("split", partitions=2)
    values = numbered("v", 2000)
    topics.produce_values(topic, values, partitions=2)
    stream = job(subscribe=topic, minPartitions="5")
    stream.run()
    assert stream.values() == once(*values)


def test_starting_at_a_timestamp(topics: Topics, job: JobFactory) -> None:
    topic = topics.create_unique("since", config={"retention.ms": "-1"})
    start = 1_700_000_000_000
    topics.produce(topic, [Record(f"v-{i}".encode(), timestamp=start + 1000 * i) for i in range(10)])
    stream = job(subscribe=topic, startingTimestamp=str(start + 6500))
    stream.run()
    assert stream.values() == once(*numbered("v", 3, start=7))


def test_starting_at_the_latest_sees_only_what_comes(topics: Topics, job: JobFactory) -> None:
    topic = topics.create_unique("latest", partitions=2)
    topics.produce_values(topic, numbered("old", 20), partitions=2)
    stream = job(subscribe=topic)
    assert stream.run(startingOffsets="latest") == []
    topics.produce_values(topic, numbered("new", 20), partitions=2)
    stream.run(startingOffsets="latest")
    assert stream.values() == once(*numbered("new", 20))


def test_pattern_takes_in_a_topic_that_is_added_later(topics: Topics, job: JobFactory) -> None:
    prefix = topics.name("pattern")
    first = topics.create(f"{prefix}-first")
    topics.produce_values(first, numbered("first", 10))
    stream = job(subscribePattern=f"{prefix}-.*")
    query = stream.writer().start()
    try:
        query.processAllAvailable()
        assert stream.values() == once(*numbered("first", 10))
        late = topics.create(f"{prefix}-late", partitions=2)
        topics.produce_values(late, numbered("late", 10), partitions=2)
        topics.produce_values(first, numbered("more", 5))
        expected = once(*numbered("first", 10), *numbered("late", 10), *numbered("more", 5))
        eventually(lambda: sum(stream.values().values()) >= 25, timeout=60)
        query.processAllAvailable()
        assert stream.values() == expected
    finally:
        query.stop()


def test_partitions_added_later_are_read_from_their_beginning(topics: Topics, job: JobFactory) -> None:
    topic = topics.create_unique("growing")
    topics.produce_values(topic, numbered("before", 10))
    stream = job(subscribe=topic)
    stream.run()
    topics.add_partitions(topic, 3)
    topics.produce_values(topic, numbered("after", 30), partitions=3)
    stream.run()
    assert stream.values() == once(*numbered("before", 10), *numbered("after", 30))


def test_topic_to_topic_with_headers(
    spark: SparkSession, topics: Topics, job: JobFactory, checkpoint: str
) -> None:
    source, target = topics.create_unique("from"), topics.create_unique("to", partitions=2)
    headers: list[tuple[str, bytes | None]] = [("trace", b"7"), ("trace", b"8"), ("none", None)]
    topics.produce(source, [Record(f"v{i}".encode(), b"k", headers=headers) for i in range(50)])
    topics.produce(source, [Record(b"bare")])
    rows = job(subscribe=source, includeHeaders="true").stream().select("key", "value", "headers")
    for expected in (51, 51):  # the second run finds nothing new and writes nothing
        writer = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", topics.bootstrap)
        writer = writer.option("topic", target).option("includeHeaders", "true")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        assert query.awaitTermination(60)
        records = topics.read(target)
        assert len(records) == expected
    assert {(r.key, r.value, tuple(r.headers)) for r in records} == {
        *((b"k", f"v{i}".encode(), tuple(headers)) for i in range(50)),
        (None, b"bare", ()),
    }


def test_running_counts_into_a_topic(
    spark: SparkSession, topics: Topics, job: JobFactory, checkpoint: str
) -> None:
    source, target = topics.create_unique("words"), topics.create_unique("counts")
    counts = job(subscribe=source).stream().groupBy(F.col("value").cast("string").alias("key")).count()
    rows = counts.select("key", F.col("count").cast("string").alias("value"))
    for words in ("a b a", "b c"):
        topics.produce_values(source, words.split())
        writer = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", topics.bootstrap)
        writer = writer.option("topic", target).option("checkpointLocation", checkpoint).outputMode("update")
        assert writer.trigger(availableNow=True).start().awaitTermination(60)
    last = {record.key: record.value for record in topics.read(target)}
    assert last == {b"a": b"2", b"b": b"2", b"c": b"1"}


def test_offsets_in_the_progress_are_those_of_the_topic(topics: Topics, job: JobFactory) -> None:
    topic = topics.create_unique("progress", partitions=2)
    topics.produce_values(topic, numbered("v", 10), partitions=2)
    query = job(subscribe=topic).writer().trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    (source,) = next(batch for batch in query.recentProgress if batch.numInputRows).sources
    assert json.loads(source.endOffset) == {topic: {"0": 5, "1": 5}}
    assert json.loads(source.latestOffset) == {topic: {"0": 5, "1": 5}}
