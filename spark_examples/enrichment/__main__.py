"""A stream joined with a compacted topic: `make spark EXAMPLE=enrichment`, or `python -m spark_examples.enrichment`.

1. airlines go into a compacted topic, keyed by their code: the last record of a key is its value,
2. a Spark stream of flights is joined with that topic, read as a table anew in each batch, and written to a third,
3. while it runs an airline gets another name and one is deleted: flights that come from then on see that,
4. what was written is compared with the same join in pandas.

Ends with status 1 when they differ.
"""

from __future__ import annotations

import json
import sys
from collections import Counter

import pandas
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name that every PySpark page uses)

from spark_examples.shared.flights import airline_names, flight_records, load_flights
from spark_examples.shared.measures import parsed
from spark_examples.shared.program import Run, program, say
from spark_examples.shared.streams import into_topic, read_topic, stream_topic
from spark_examples.shared.topics import FOREVER, Record, create_topics, produce, read_all

FLIGHTS_TOPIC, AIRLINES_TOPIC, NAMED_TOPIC = "enrichment-flights", "enrichment-airlines", "enrichment-named"
FLIGHTS = 20_000

MERGED = ("US", "American Airlines Inc.")  # US Airways and American agreed to merge in 2013
DELETED = "OO"
UNKNOWN = "unknown"


def newest_airlines(spark: SparkSession, bootstrap: str) -> DataFrame:
    """The compacted topic as a table of `code` and `name`.

    Compaction runs now and then, so a key may have several records still: the one with the highest offset counts (all
    records of a key are in one partition). One without a value is a deletion.
    """
    newest = (
        read_topic(spark, bootstrap, AIRLINES_TOPIC)
        .groupBy(F.col("key").cast("string").alias("code"))
        .agg(F.max_by("value", "offset").cast("string").alias("value"))
    )
    name = F.get_json_object("value", "$.name").alias("name")
    return newest.where("value is not null").select("code", name)


def named_flights(spark: SparkSession, bootstrap: str) -> DataFrame:
    """Flights with their airline's name, as records, and the place that each has in the source.

    The table is no stream, so Spark keeps no state for it: it reads the topic again in every batch, which is right for
    a topic that is small.
    """
    flights = parsed(stream_topic(spark, bootstrap, FLIGHTS_TOPIC), "timestamp", "partition", "offset")
    airlines = newest_airlines(spark, bootstrap)
    joined = flights.join(airlines, flights["carrier"] == airlines["code"], "left_outer")
    place = F.concat_ws("-", "partition", "offset").alias("place")
    name = F.coalesce("name", F.lit(UNKNOWN)).alias("name")
    named = joined.select("carrier", name, "origin", "timestamp", place)
    return named.select(F.col("carrier").alias("key"), F.to_json(F.struct("*")).alias("value"))


def run(at: Run) -> None:
    """The whole example."""
    names = airline_names()
    flights = load_flights(at.flights or FLIGHTS)
    first, second = flights.iloc[: len(flights) // 2], flights.iloc[len(flights) // 2 :]
    create_topics(
        at.bootstrap,
        {FLIGHTS_TOPIC: FOREVER, AIRLINES_TOPIC: {"cleanup.policy": "compact"}, NAMED_TOPIC: {}},
    )
    old = [Record(code, json.dumps({"name": f"formerly {name}"})) for code, name in names.items()]
    new = [Record(code, json.dumps({"name": name})) for code, name in names.items()]
    produce(at.bootstrap, AIRLINES_TOPIC, [*old, *new])
    say(f"{AIRLINES_TOPIC} holds {len(old) + len(new)} records of {len(names)} airlines")

    writer = into_topic(
        named_flights(at.spark(), at.bootstrap), at.bootstrap, NAMED_TOPIC, str(at.folder / "checkpoint")
    )
    query = writer.start()
    try:
        produce(at.bootstrap, FLIGHTS_TOPIC, flight_records(first))
        query.processAllAvailable()
        say(f"{len(first):,} flights are named")
        produce(
            at.bootstrap,
            AIRLINES_TOPIC,
            [Record(MERGED[0], json.dumps({"name": MERGED[1]})), Record(DELETED, None)],
        )
        say(f"{MERGED[0]} is {MERGED[1]} from now on, and {DELETED} is deleted")
        produce(at.bootstrap, FLIGHTS_TOPIC, flight_records(second))
        query.processAllAvailable()
        say(f"{len(second):,} more flights are named")
    finally:
        query.stop()

    records = [json.loads(str(record.value)) for record in read_all(at.bootstrap, NAMED_TOPIC)]
    # The sink is at-least-once: a task that is run again writes its records again.
    rows = {row["place"]: row for row in records}
    say(f"{NAMED_TOPIC} holds {len(records) - len(rows):,} records twice")
    found = Counter((row["carrier"], row["name"]) for row in rows.values())
    later = {code: name for code, name in (names | dict([MERGED])).items() if code != DELETED}
    expected = _named(first, names) + _named(second, later)
    for (code, name), count in sorted(found.items()):
        say(f"{count:6,} flights of {code}, {name}")
    at.checks.that(f"all {len(flights):,} flights came out", len(rows) == len(flights), len(rows))
    at.checks.same("each flight has the name of its time, as pandas joins them", found, expected)


def _named(flights: pandas.DataFrame, names: dict[str, str]) -> Counter[tuple[str, str]]:
    """The same join: how many flights of each carrier under each name."""
    carriers = flights["carrier"].astype(str)
    return Counter(zip(carriers, carriers.map(names).fillna(UNKNOWN), strict=True))


if __name__ == "__main__":
    sys.exit(program("A stream of flights, joined with a compacted topic of airlines.", run))
