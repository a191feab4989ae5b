"""Streaming jobs of the tests: from a topic into files that contain each record once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name that every PySpark page uses)
from pyspark.sql.streaming.readwriter import DataStreamWriter

from compat_tests.spark.topics import Topics


@dataclass
class Job:
    """One job with its checkpoint and its output files, to be run again and again as after a restart.

    The file sink records the valid files in its own log, so a batch that runs twice is in the output once: the output
    is that of exactly-once delivery.
    """

    spark: SparkSession
    topics: Topics
    folder: Path
    options: dict[str, str] = field(default_factory=dict)

    def stream(self, **options: str) -> DataFrame:
        """The source: the job's options and those given here over `earliest`."""
        settings = {"startingOffsets": "earliest", **self.options, **options}
        reader = self.spark.readStream.format("kafka").options(**settings)
        return reader.option("kafka.bootstrap.servers", self.topics.bootstrap).load()

    def writer(self, **options: str) -> DataStreamWriter:
        """Values as text, with topic, partition and offset, into JSON files."""
        rows = self.stream(**options).select(F.col("value").cast("string"), "topic", "partition", "offset")
        writer = rows.writeStream.format("json").option("path", str(self.folder / "output"))
        return writer.option("checkpointLocation", str(self.folder / "checkpoint"))

    def run(self, **options: str) -> list[int]:
        """Process all that is there now and stop; the number of rows of each batch that had any."""
        query = self.writer(**options).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(60), "the job did not end within 60 s"
            return [batch.numInputRows for batch in query.recentProgress if batch.numInputRows]
        finally:
            query.stop()

    def values(self) -> Counter[str]:
        """How often each value is in the output; empty before the first run."""
        output = self.folder / "output"
        if not output.exists():
            return Counter()
        schema = "value string, topic string, partition int, offset long"
        return Counter(row.value for row in self.spark.read.schema(schema).json(str(output)).collect())


class JobFactory(Protocol):
    """`job(**options)` -> a job of the test's own."""

    def __call__(self, **options: str) -> Job: ...


def once(*names: str) -> Counter[str]:
    """Each of the names exactly once."""
    return Counter(names)


def numbered(prefix: str, count: int, start: int = 0) -> list[str]:
    """`prefix-start` and so on, `count` of them."""
    return [f"{prefix}-{i}" for i in range(start, start + count)]
