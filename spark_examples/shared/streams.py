"""Topics in Spark: as a table, as a stream, and as the sink of a stream, with any broker."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

# Of the driver's and the executors' clients. When the leader that the driver's AdminClient is about to ask has died, it waits for
# that node until default.api.timeout.ms, a minute otherwise, before Spark asks again.
TIMEOUTS = {"kafka.request.timeout.ms": "10000", "kafka.default.api.timeout.ms": "20000"}

Progress = Callable[[int, int], None]  # number of the batch, its rows


def read_topic(spark: SparkSession, bootstrap: str, topic: str, **options: str) -> DataFrame:
    """What the topic holds, as a table of the connector's columns; Spark's default is all of it."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    return reader.option("subscribe", topic).options(**TIMEOUTS, **options).load()


def stream_topic(spark: SparkSession, bootstrap: str, topic: str, **options: str) -> DataFrame:
    """The topic as a stream from its beginning."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    return (
        reader.option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .options(**TIMEOUTS, **options)
        .load()
    )


def into_topic(records: DataFrame, bootstrap: str, topic: str, checkpoint: str) -> DataStreamWriter:
    """A stream of `key` and `value` into a topic, at least once.

    `checkpoint` is a folder: a job started again with the same one continues where the last one stopped.
    """
    writer = records.writeStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    return writer.option("topic", topic).option("checkpointLocation", checkpoint)


def run_to_end(query: StreamingQuery, progress: Progress = lambda _batch, _rows: None) -> int:
    """Wait until a query with `availableNow` has ended; the number of rows that it read.

    `progress` is called for each batch with rows. Raises StreamingQueryException if the query failed.
    """
    rows_by_batch: dict[int, int] = {}
    try:
        ended = False
        while not ended:
            ended = bool(query.awaitTermination(1))
            for batch in query.recentProgress:
                if batch.batchId not in rows_by_batch and batch.numInputRows:
                    rows_by_batch[batch.batchId] = batch.numInputRows
                    progress(batch.batchId, batch.numInputRows)
    finally:
        query.stop()
    return sum(rows_by_batch.values())
