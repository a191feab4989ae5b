"""`python -m compat_tests.bench.spark_sizing`: what partitions, `minPartitions` and `maxOffsetsPerTrigger` do to Spark's rate.

One Spark on two cores, with its full JIT, reads the same records from topics of one to 16 partitions, from a topic of one partition
in several tasks, and as a stream in batches of several sizes. Rounds run every variant once; the table has the records per second of
each as a ratio to its group's first. Quote the ratios: the rates are those of the machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name that every PySpark page uses)

from compat_tests.bench.__main__ import say
from spark_examples.shared.local_broker import local_broker
from spark_examples.shared.spark_session import local_spark
from spark_examples.shared.streams import read_topic, run_to_end, stream_topic
from spark_examples.shared.topics import create_topics

RECORDS = 500_000
RECORD_BYTES = 100
PARTITIONS = (1, 2, 4, 8, 16)
TASKS = (1, 2, 4, 8)  # minPartitions, of the topic with one partition
BATCHES = (12_500, 50_000, 200_000, 500_000)  # maxOffsetsPerTrigger, of the topic with four

Variant = tuple[str, str]  # group, name


def variants(
    spark: SparkSession, bootstrap: str, folder: Path, records: int
) -> dict[Variant, Callable[[], None]]:
    """Each reads all records, and checks that it did."""
    runs = iter(range(1_000_000))

    def batch(partitions: int, **options: str) -> None:
        rows = read_topic(spark, bootstrap, f"sizing-{partitions}", **options)
        found = rows.agg(F.count("value"), F.sum(F.length("value"))).first()
        assert found is not None
        assert tuple(found) == (records, records * RECORD_BYTES), found

    def stream(size: int) -> None:
        rows = stream_topic(spark, bootstrap, "sizing-4", maxOffsetsPerTrigger=str(size))
        writer = rows.writeStream.format("noop").option(
            "checkpointLocation", str(folder / f"run-{next(runs)}")
        )
        assert run_to_end(writer.trigger(availableNow=True).start()) == records

    found: dict[Variant, Callable[[], None]] = {}
    for count in PARTITIONS:
        found["partitions of the topic", str(count)] = partial(batch, count)
    for count in TASKS:
        found["minPartitions, a topic of one partition", str(count)] = partial(
            batch, 1, minPartitions=str(count)
        )
    for size in BATCHES:
        found["maxOffsetsPerTrigger, a topic of four", f"{size:,}"] = partial(stream, size)
    return found


def fill(spark: SparkSession, bootstrap: str, records: int) -> None:
    """The topics, with the same records spread over their partitions."""
    for partitions in PARTITIONS:
        create_topics(bootstrap, {f"sizing-{partitions}": {}}, partitions)
        digits = F.lpad(F.col("id").cast("string"), 16, "0")
        value = F.concat(digits, F.lit("x" * (RECORD_BYTES - 16))).alias("value")
        partition = (F.col("id") % partitions).cast("int").alias("partition")
        writer = spark.range(0, records, 1, 2).select(value, partition).write.format("kafka")
        writer.option("kafka.bootstrap.servers", bootstrap).option("topic", f"sizing-{partitions}").save()
        say(f"{records:,} records are in {partitions} partitions")


def main() -> int:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description="Spark's rate by partitions, tasks and batch sizes.")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count (default 5)")
    parser.add_argument("--records", type=int, default=RECORDS, help=f"default {RECORDS:,}")
    options = parser.parse_args()
    seconds: dict[Variant, list[float]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="bench-spark-") as name,
        local_broker(Path(name)) as bootstrap,
        local_spark("sizing", Path(name), java_options="") as spark,
    ):
        fill(spark, bootstrap, options.records)
        works = variants(spark, bootstrap, Path(name), options.records)
        for number in range(-1, options.rounds):  # the first one warms the JIT up
            for variant, work in works.items():
                started = time.perf_counter()
                work()
                if number >= 0:
                    seconds.setdefault(variant, []).append(time.perf_counter() - started)
            say(f"round {number + 1} of {options.rounds}")
    print(table(seconds, options.records))
    print(
        f"\n{options.records:,} records of {RECORD_BYTES} B, local[2], medians of {options.rounds} rounds; {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    return 0


def table(seconds: dict[Variant, list[float]], records: int) -> str:
    """Markdown: the ratio of each rate to the first of its group, and the spread of the rounds."""
    lines = ["| | | records/s, ratio | rounds (lowest - highest) | records/s |", "|---|---|---|---|---|"]
    first: dict[str, float] = {}
    for (group, name), taken in seconds.items():
        rate = records / statistics.median(taken)
        base = first.setdefault(group, rate)
        low, high = records / max(taken) / base, records / min(taken) / base
        lines.append(f"| {group} | {name} | {rate / base:.2f} | {low:.2f} - {high:.2f} | {rate:,.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
