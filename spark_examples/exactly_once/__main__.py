"""The same sums after kill -9: `make spark EXAMPLE=exactly_once`, or `python -m spark_examples.exactly_once`.

1. flights go into a topic,
2. a streaming job copies them into files, and into a second topic, in a process of its own,
3. kill -9 in the middle of a batch, and a start from the checkpoints,
4. sums over the files, over the second topic and over a batch read of the first are compared with pandas.

The files hold each flight once. The second topic holds some twice, since Spark's Kafka sink is at-least-once, until its
reader counts each id once. Ends with status 1 when anything else is found.
"""

from __future__ import annotations

import sys

from pyspark.sql import functions as F  # noqa: N812 (the name that every PySpark page uses)

from spark_examples.exactly_once.job import COPIES_TOPIC, FLIGHTS_TOPIC, files_of, run_job
from spark_examples.exactly_once.killed import kill_in_the_middle
from spark_examples.shared.flights import flight_records, load_flights, totals_by
from spark_examples.shared.measures import collected, parsed
from spark_examples.shared.program import Run, program, say
from spark_examples.shared.spark_session import is_submitted
from spark_examples.shared.streams import read_topic
from spark_examples.shared.topics import FOREVER, create_topics, produce

FLIGHTS = 120_000
BATCHES = 12  # into which the topic is cut, about


def run(at: Run) -> None:
    """The whole example."""
    if is_submitted():
        raise SystemExit(
            "this example starts its job itself, to kill it: give it --master in place of spark-submit"
        )
    flights = load_flights(at.flights or FLIGHTS)
    expected = totals_by(flights, "carrier")
    batch = max(1, len(flights) // BATCHES)
    create_topics(at.bootstrap, {FLIGHTS_TOPIC: FOREVER, COPIES_TOPIC: {}})
    produce(at.bootstrap, FLIGHTS_TOPIC, flight_records(flights))
    say(f"produced {len(flights):,} flights to {FLIGHTS_TOPIC}")

    folder = at.folder / "job"
    folder.mkdir()
    unknown = kill_in_the_middle(at.bootstrap, folder, batch, at.target)

    spark = at.spark()
    say("the same job again, from its checkpoints")
    run_job(spark, at.bootstrap, folder, batch)

    source = parsed(read_topic(spark, at.bootstrap, FLIGHTS_TOPIC))
    at.checks.same("a batch over the topic has pandas' sums", collected(source, "carrier"), expected)

    files = spark.read.parquet(str(files_of(folder)))
    left_behind = len(list(files_of(folder).glob("*.parquet"))) - len(files.inputFiles())
    say(f"{len(files.inputFiles())} files count, {left_behind} are a killed batch's and in no log")
    at.checks.same("the files have the same sums: each flight once", collected(files, "carrier"), expected)

    copies = read_topic(spark, at.bootstrap, COPIES_TOPIC).withColumn("id", F.col("key").cast("string"))
    twice = copies.count() - len(flights)
    say(f"{COPIES_TOPIC} holds {twice:,} records more than there are flights")
    at.checks.that(
        "the Kafka sink is at-least-once: what was written before the kill came again",
        twice >= unknown,
        twice,
    )
    at.checks.that("so its plain sums are wrong", collected(parsed(copies), "carrier") != expected)
    at.checks.same(
        "counting each id once, they are right",
        collected(parsed(copies.dropDuplicates(["id"])), "carrier"),
        expected,
    )


if __name__ == "__main__":
    sys.exit(program("Sums that survive kill -9.", run))
