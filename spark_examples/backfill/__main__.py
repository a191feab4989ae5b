"""A year of data, month by month: `make spark EXAMPLE=backfill`, or `python -m spark_examples.backfill`.

1. a year of flights goes into a topic, each with its own time as the record's timestamp,
2. a Spark batch reads one month after the other by time (`startingTimestamp`, `endingTimestamp`), each split into more
   tasks than the topic has partitions (`minPartitions`), and writes it into a folder of its own,
3. one month is done again, as one does after a mistake: its folder is replaced, the others stay,
4. all folders together are compared with one read of the whole topic, and with pandas.

Ends with status 1 when they differ.
"""

from __future__ import annotations

import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (the name that every PySpark page uses)

from spark_examples.shared.flights import flight_records, load_flights, totals_by
from spark_examples.shared.measures import collected, parsed
from spark_examples.shared.program import Run, program, say
from spark_examples.shared.streams import read_topic
from spark_examples.shared.topics import FOREVER, PARTITIONS, create_topics, produce

FLIGHTS_TOPIC = "backfill-flights"
NEW_YORK = timezone(timedelta(hours=-5))  # winter time: nothing leaves in the hour that summer shifts
MONTHS = range(1, 13)
TASKS = 2 * PARTITIONS  # about so many: Spark rounds the share of each partition
AGAIN = 7


def begin_of(month: int) -> int:
    """Milliseconds since 1970 at which the month of 2013 begins; month 13 is the next January."""
    begin = datetime(2013 + month // 13, (month - 1) % 12 + 1, 1, tzinfo=NEW_YORK)
    return int(begin.timestamp() * 1000)


def read_month(at: Run, month: int) -> DataFrame:
    """The flights of a month, by the times of their records.

    For each partition the broker is asked for the first offset at or after a time, and Spark reads from offset to
    offset. Where records are not in the order of time a range holds some of its neighbours' records and misses some of
    its own, hence the filter on the time itself, and a wider range where times are mixed. Without `latest` as the
    strategy, a partition that has nothing at or after the begin is an error.
    """
    begin, end = begin_of(month), begin_of(month + 1)
    records = read_topic(
        at.spark(),
        at.bootstrap,
        FLIGHTS_TOPIC,
        startingTimestamp=str(begin),
        endingTimestamp=str(end),
        startingOffsetsByTimestampStrategy="latest",
        minPartitions=str(TASKS),
    )
    time = F.unix_millis("timestamp")
    return parsed(records.where((time >= begin) & (time < end)), "partition", "offset", "timestamp")


def backfill(at: Run, month: int, output: Path) -> int:
    """Write a month into its folder, in place of what is there; the number of its tasks."""
    flights = read_month(at, month)
    flights.write.mode("overwrite").parquet(str(output / f"month_of_year={month}"))
    return flights.rdd.getNumPartitions()


def run(at: Run) -> None:
    """The whole example."""
    flights = load_flights(at.flights)
    create_topics(at.bootstrap, {FLIGHTS_TOPIC: FOREVER})
    produce(
        at.bootstrap, FLIGHTS_TOPIC, flight_records(flights), lambda count: say(f"produced {count:,} records")
    )
    spark, output = at.spark(), at.folder / "flights"
    tasks: dict[int, int] = {}
    for month in MONTHS:
        tasks[month] = backfill(at, month, output)
        say(f"month {month} of {len(MONTHS)} is written, by {tasks[month]} tasks")
    at.checks.that(
        f"every month was read by more tasks than the topic's {PARTITIONS} partitions",
        min(tasks.values()) > PARTITIONS,
        tasks,
    )
    before = _parts(output)
    backfill(at, AGAIN, output)
    changed = {month for month, files in _parts(output).items() if before[month] != files}
    at.checks.that(f"month {AGAIN} was done again, and no other", changed == {AGAIN}, changed)

    filled = spark.read.parquet(str(output))
    whole = parsed(read_topic(spark, at.bootstrap, FLIGHTS_TOPIC), "partition", "offset")
    records = filled.select("partition", "offset").distinct().count()
    at.checks.that(
        f"{len(flights):,} flights are there, each record once",
        records == filled.count() == len(flights),
        records,
    )
    found = collected(filled, "month_of_year", "carrier")
    at.checks.same(
        "the months are those of one read of everything", found, collected(whole, "month", "carrier")
    )
    at.checks.same("and pandas' from the flights' own dates", found, totals_by(flights, "month", "carrier"))
    for month in MONTHS:
        rows = [row for (of_month, _), row in found.items() if of_month == month]
        say(f"month {month:2}: {sum(row['flights'] for row in rows):6,} flights")


def _parts(output: Path) -> dict[int, set[str]]:
    """The files of each month."""
    return {
        month: {path.name for path in (output / f"month_of_year={month}").glob("*.parquet")}
        for month in MONTHS
    }


if __name__ == "__main__":
    sys.exit(program("A year of flights, read month by month.", run))
