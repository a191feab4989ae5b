"""The streaming job: flights in, days out, each of them once and for good.

    flights topic -> JSON -> watermark on the record's timestamp -> window of a day -> totals -> days topic

In `append` mode a day is written when the watermark has passed its end: the greatest event time that any batch
has seen, less LATE_AFTER. A flight that comes later than that is dropped. The watermark has to allow for more than late
flights: partitions are read side by side, and one may be some days ahead of another.
"""

from __future__ import annotations

import json

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name that every PySpark page uses)

from spark_examples.shared.measures import measures, parsed
from spark_examples.shared.streams import Progress, into_topic, run_to_end, stream_topic
from spark_examples.shared.topics import read_all

LATE_AFTER = "7 days"
MIDNIGHT = "5 hours"  # in New York, winter time: windows count from midnight UTC otherwise


def add_up_days(
    spark: SparkSession,
    bootstrap: str,
    flights_topic: str,
    days_topic: str,
    checkpoint: str,
    progress: Progress,
) -> int:
    """Work through what the topic holds now; the number of records that it read.

    Called again with the same checkpoint, it goes on with its open days, its watermark and its offsets.
    """
    records = stream_topic(spark, bootstrap, flights_topic, maxOffsetsPerTrigger="60000")
    flights = parsed(records, "timestamp").withWatermark("timestamp", LATE_AFTER)
    day = F.window("timestamp", "1 day", startTime=MIDNIGHT)
    days = flights.groupBy(day.alias("day")).agg(*measures())
    begin = F.date_format(F.col("day.start") - F.expr(f"interval {MIDNIGHT}"), "yyyy-MM-dd")
    rows = days.select(begin.alias("key"), F.to_json(F.struct("*")).alias("value"))
    writer = into_topic(rows, bootstrap, days_topic, checkpoint).outputMode("append")
    return run_to_end(writer.trigger(availableNow=True).start(), progress)


def read_days(bootstrap: str, topic: str) -> dict[tuple[int, int], dict[str, int]]:
    """Totals by (month, day); ValueError for a day that has two totals. One that a failed task has written is there again."""
    days: dict[tuple[int, int], dict[str, int]] = {}
    for record in read_all(bootstrap, topic):
        _, month, day_of_month = str(record.key).split("-")
        day = int(month), int(day_of_month)
        row = json.loads(str(record.value))
        row.pop("day")
        if days.setdefault(day, row) != row:
            raise ValueError(f"{record.key} is in {topic} with two totals")
    return days
