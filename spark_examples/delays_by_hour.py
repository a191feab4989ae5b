"""The Spark job: flights from one topic in, delays by carrier and hour to another topic out.

It is plain structured streaming over Spark's own Kafka connector, nothing in it knows which broker answers:

    flights topic -> JSON -> group by (carrier, hour) -> running totals -> delays topic

With `availableNow` the job works through what the topic holds, in batches of bounded size, and ends. In
`update` mode each batch writes the totals that it changed, keyed by carrier and hour: the last record of a
key is its result, as in any topic that is used as a table.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name that every PySpark page uses)

FLIGHT_FIELDS = "carrier STRING, hour INT, dep_time INT, dep_delay LONG, arr_delay LONG"


def read_flights(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """The topic's records as a stream of typed flights."""
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 60_000)
        .load()
    )
    flight = F.from_json(F.col("value").cast("string"), FLIGHT_FIELDS)
    return records.select(flight.alias("flight")).select("flight.*")


def total_of(column: str) -> Column:
    """The sum of a column, zero where every value is missing."""
    return F.coalesce(F.sum(column), F.lit(0))


def delays(flights: DataFrame) -> DataFrame:
    """Running totals by carrier and scheduled hour of departure; delays in minutes."""
    return flights.groupBy("carrier", "hour").agg(
        F.count("*").alias("flights"),
        F.count_if(F.col("dep_time").isNull()).alias("cancelled"),
        total_of("dep_delay").alias("departure_delay_minutes"),
        total_of("arr_delay").alias("arrival_delay_minutes"),
    )


def run_delays_job(
    spark: SparkSession,
    bootstrap: str,
    flights_topic: str,
    delays_topic: str,
    checkpoint: str,
    progress: Callable[[int, int], None],
) -> int:
    """Run the job to the end of the topic and return the number of flights that it read.

    `progress` gets (number of the batch, its rows) as each batch ends. `checkpoint` is a folder: a job
    started again with the same one goes on where the last one stopped.
    """
    totals = delays(read_flights(spark, bootstrap, flights_topic))
    records = totals.select(
        F.concat_ws("-", "carrier", "hour").alias("key"),
        F.to_json(F.struct("*")).alias("value"),
    )
    query = (
        records.writeStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", delays_topic)
        .option("checkpointLocation", checkpoint)
        .outputMode("update")
        .trigger(availableNow=True)
        .start()
    )
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
