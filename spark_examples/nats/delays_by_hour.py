"""The Spark job: flights from one topic in, delays by carrier and hour to another topic out.

    flights topic -> JSON -> group by (carrier, hour) -> running totals -> delays topic

With `availableNow` the job works through what the topic holds, in batches of bounded size, and ends. In
`update` mode each batch writes the totals that it changed, keyed by carrier and hour: the last record of a
key is its result, as in any topic that is used as a table. That the sink delivers at least once does no harm
here: a total that arrives twice is the same total.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name that every PySpark page uses)

from spark_examples.shared.measures import measures, parsed
from spark_examples.shared.streams import Progress, into_topic, run_to_end, stream_topic


def run_delays_job(
    spark: SparkSession,
    bootstrap: str,
    flights_topic: str,
    delays_topic: str,
    checkpoint: str,
    progress: Progress,
) -> int:
    """Run the job to the end of the topic and return the number of flights that it read."""
    flights = parsed(stream_topic(spark, bootstrap, flights_topic, maxOffsetsPerTrigger="60000"))
    totals = flights.groupBy("carrier", "hour").agg(*measures())
    records = totals.select(
        F.concat_ws("-", "carrier", "hour").alias("key"), F.to_json(F.struct("*")).alias("value")
    )
    writer = into_topic(records, bootstrap, delays_topic, checkpoint).outputMode("update")
    return run_to_end(writer.trigger(availableNow=True).start(), progress)
