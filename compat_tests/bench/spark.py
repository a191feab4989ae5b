"""`python -m compat_tests.bench.spark`: compares Spark on this broker and on Apache Kafka 4.3.1 in a table of times.

One Spark on two cores, with its full JIT, writes a topic as a batch, reads it as a batch and as a stream with
`availableNow`: 100-byte records in four partitions. Both brokers run all the time and share the machine with Spark. Each
workload runs on both, and rounds alternate which of them goes first. Every run counts the records that it wrote and read.
Quote the ratios: most of the time is Spark's own. It takes about seven minutes on two idle cores, most of it in the
seven rounds; each workload of each round is logged to standard error.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name that every PySpark page uses)

from compat_tests.bench.__main__ import say
from compat_tests.bench.report import Results
from compat_tests.bench.startup import make_brokers
from compat_tests.bench.workloads import Measures
from compat_tests.harness.broker import Broker
from compat_tests.harness.process_usage import cpu_seconds
from spark_examples.shared.spark_session import local_spark
from spark_examples.shared.streams import into_topic, read_topic, run_to_end, stream_topic
from spark_examples.shared.topics import create_topics

PARTITIONS = 4
RECORD_BYTES = 100
RECORDS = 2_000_000
BATCH = 250_000  # records of one batch of a stream


class Bench:
    """The workloads, each against one broker; later ones read the records of the first."""

    def __init__(self, spark: SparkSession, folder: Path, records: int) -> None:
        self._spark = spark
        self._folder = folder
        self._records = records
        self._runs = 0

    def write(self, broker: Broker) -> Measures:
        """A batch of records into an empty topic."""
        create_topics(broker.bootstrap, {"bench-batch": {"file.delete.delay.ms": "100"}}, PARTITIONS)
        # 16 digits, and what fills them up to the length
        digits = F.lpad(F.col("id").cast("string"), 16, "0")
        value = F.concat(digits, F.lit("x" * (RECORD_BYTES - 16))).alias("value")
        rows = self._spark.range(0, self._records, 1, PARTITIONS).select(value)
        writer = rows.write.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
        return self._timed("batch write", broker, writer.option("topic", "bench-batch").save)

    def read(self, broker: Broker) -> Measures:
        """All of it, as a batch."""

        def work() -> None:
            rows = read_topic(self._spark, broker.bootstrap, "bench-batch")
            found = rows.agg(F.count("value"), F.sum(F.length("value"))).first()
            assert found is not None
            assert tuple(found) == (self._records, self._records * RECORD_BYTES), found

        return self._timed("batch read", broker, work)

    def stream(self, broker: Broker) -> Measures:
        """All of it, as a stream whose rows go nowhere."""

        def work() -> None:
            rows = stream_topic(self._spark, broker.bootstrap, "bench-batch", maxOffsetsPerTrigger=str(BATCH))
            writer = rows.writeStream.format("noop").option("checkpointLocation", self._checkpoint())
            read = run_to_end(writer.trigger(availableNow=True).start())
            assert read == self._records, read

        return self._timed("streaming read", broker, work)

    def stream_through(self, broker: Broker) -> Measures:
        """From topic to topic, as a stream."""
        create_topics(broker.bootstrap, {"bench-copy": {"file.delete.delay.ms": "100"}}, PARTITIONS)

        def work() -> None:
            rows = stream_topic(self._spark, broker.bootstrap, "bench-batch", maxOffsetsPerTrigger=str(BATCH))
            writer = into_topic(
                rows.select("value", "partition"), broker.bootstrap, "bench-copy", self._checkpoint()
            )
            read = run_to_end(writer.trigger(availableNow=True).start())
            assert read == self._records, read

        return self._timed("stream from topic to topic", broker, work)

    def _checkpoint(self) -> str:
        self._runs += 1
        return str(self._folder / f"checkpoint-{self._runs}")

    def _timed(self, name: str, broker: Broker, work: Callable[[], object]) -> Measures:
        """Seconds, and what the broker's process used for it."""
        cpu = cpu_seconds(broker.pid)
        started = time.perf_counter()
        work()
        seconds = time.perf_counter() - started
        used = cpu_seconds(broker.pid) - cpu
        return {f"{name}, s": seconds, f"{name}, CPU-s of the broker": used}


def measure(bench: Bench, brokers: dict[str, Broker], results: Results, rounds: int, warm_up: int) -> None:
    """Warm-up rounds for the JITs of Spark and Kafka, then rounds that count."""
    workloads = (bench.write, bench.read, bench.stream, bench.stream_through)
    for number in range(-warm_up, rounds):
        turns = list(brokers.items())[:: 1 if number % 2 == 0 else -1]
        counted = f"round {number + 1} of {rounds}" if number >= 0 else f"warming up, {-number} to go"
        for workload in workloads:
            times = []
            for name, broker in turns:
                measures = workload(broker)
                timed = next(iter(measures))  # "batch read, s"
                times.append(f"{name} {measures[timed]:.2f}")
                if number >= 0:
                    results.add(name, measures)
            say(f"{counted}: {timed}: {', '.join(times)}")


def main() -> int:
    """Run everything and print the table to standard output."""
    parser = argparse.ArgumentParser(description="Spark on Barnabas and on Apache Kafka 4.3.1, in turns.")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count (default 5)")
    parser.add_argument("--warm-up", type=int, default=2, help="rounds before them (default 2)")
    parser.add_argument(
        "--records", type=int, default=RECORDS, help=f"of each workload (default {RECORDS:,})"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as name:
        folder = Path(name)
        brokers = make_brokers(folder)
        results = Results(list(brokers))
        try:
            say("starting both brokers, and Spark")
            for broker in brokers.values():
                broker.start()
            with local_spark("bench", folder, java_options="") as spark:
                measure(
                    Bench(spark, folder, options.records), brokers, results, options.rounds, options.warm_up
                )
        finally:
            for broker in brokers.values():
                if broker.alive():
                    broker.stop()
            print(
                f"{options.records:,} records of {RECORD_BYTES} B, {PARTITIONS} partitions, Spark "
                f"{pyspark.__version__} on two cores; medians of {options.rounds} rounds (lowest - highest); "
                f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python "
                f"{platform.python_version()}, load {os.getloadavg()[0]:.1f}\n\n{results.table()}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
