"""Spark's structured streaming while the leader that it reads from is killed: its sums are right."""

from __future__ import annotations

from pathlib import Path

import confluent_kafka
import pytest
from pyspark.sql import SparkSession

from compat_tests.harness.cluster_work import QUIET, create_topic
from compat_tests.harness.fixture_types import ClusterFactory
from compat_tests.spark.streams import Job, numbered, once
from compat_tests.spark.topics import Topics

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]


def _produce(bootstrap: str, topic: str, values: list[str]) -> None:
    """Once each, whatever happens on the way."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **QUIET})
    failures: list[str] = []
    for number, value in enumerate(values):
        producer.produce(
            topic,
            value.encode(),
            partition=number % 2,
            on_delivery=lambda error, _: failures.append(str(error)) if error else None,
        )
    assert producer.flush(60) == 0
    assert not failures, failures[0]


def test_a_stream_reads_through_a_failover(
    spark: SparkSession, fresh_cluster: ClusterFactory, tmp_path: Path
) -> None:
    cluster = fresh_cluster()
    create_topic(cluster, "numbers", 2)
    before, during, after = numbered("before", 500), numbered("during", 500), numbered("after", 500)
    job = Job(spark, Topics(cluster.bootstrap), tmp_path / "job", {"subscribe": "numbers"})
    _produce(cluster.bootstrap, "numbers", before)
    query = job.writer().start()
    try:
        query.processAllAvailable()
        dead = cluster.leader("numbers")
        cluster.kill(dead)
        _produce(cluster.bootstrap, "numbers", during)
        query.processAllAvailable()
        cluster.start(dead)
        cluster.wait_until_whole()
        cluster.restart(cluster.leader("numbers"))
        _produce(cluster.bootstrap, "numbers", after)
        query.processAllAvailable()
    finally:
        query.stop()
    assert job.values() == once(*before, *during, *after)
    assert _sums(spark, cluster.bootstrap) == {"before": 500, "during": 500, "after": 500}


def _sums(spark: SparkSession, bootstrap: str) -> dict[str, int]:
    """The same as a batch: how many of each."""
    read = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    rows = read.option("subscribe", "numbers").option("startingOffsets", "earliest").load()
    counted = rows.selectExpr("split(cast(value as string), '-')[0] as name").groupBy("name").count()
    return {row["name"]: row["count"] for row in counted.collect()}
