"""Totals of committed data: `make spark EXAMPLE=transactions`, or `python -m spark_examples.transactions`.

1. flights are loaded in files, each in one transaction; every fifth is broken, is aborted half-way and loaded again,
2. a loader stops in the middle of a file, and another one with its transactional id takes over,
3. a streaming query with `isolation.level=read_committed` adds up the topic; so does a batch,
4. a batch without it counts the aborted flights as well,
5. a transaction stays open while another one commits: readers of what is committed wait for it.

The totals are compared with pandas. Ends with status 1 when any differs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise

from pyspark.sql import DataFrame

from spark_examples.shared.flights import Table, flight_records, load_flights, totals_by
from spark_examples.shared.measures import collected, measures, parsed
from spark_examples.shared.program import Run, program, say
from spark_examples.shared.streams import read_topic, run_to_end, stream_topic
from spark_examples.shared.topics import FOREVER, Record, create_topics
from spark_examples.transactions.loader import Broken, Loader

FLIGHTS_TOPIC = "transactions-flights"
FILES = 60
BROKEN_EVERY = 5
BATCHES = 8  # of the streaming query, about
COMMITTED = {"kafka.isolation.level": "read_committed"}
LOADER, OTHER_LOADER = "flights-loader", "late-flights-loader"  # transactional ids


def files_of(records: Sequence[Record]) -> list[Sequence[Record]]:
    """The flights in files, in the order of time."""
    ends = [number * len(records) // FILES for number in range(FILES + 1)]
    return [records[begin:end] for begin, end in pairwise(ends)]


def load_all(at: Run, files: Sequence[Sequence[Record]]) -> int:
    """Load every file, with accidents; how many records of the topic do not count."""
    loader = Loader(at.bootstrap, LOADER, FLIGHTS_TOPIC)
    middle = len(files) // 2
    lost = 0
    for number, file in enumerate(files):
        if number == middle:
            loader.begin(file)  # and never comes back
            lost += loader.aborted + len(file)
            stopped, loader = loader, Loader(at.bootstrap, LOADER, FLIGHTS_TOPIC)
            at.checks.that("the loader that had stopped cannot commit any more", stopped.is_fenced())
        if number % BROKEN_EVERY == BROKEN_EVERY - 1:
            try:
                loader.load(file, broken_at=len(file) // 2)
            except Broken as error:
                say(f"file {number + 1}: {error}; aborted, and once more")
        loader.load(file)
    return lost + loader.aborted


def streamed(at: Run, batch: int) -> Table:
    """The totals by carrier of a streaming query over what is committed, in batches of so many offsets."""
    records = stream_topic(
        at.spark(), at.bootstrap, FLIGHTS_TOPIC, maxOffsetsPerTrigger=str(batch), **COMMITTED
    )
    totals = parsed(records).groupBy("carrier").agg(*measures())
    query = (
        totals.writeStream.format("memory")
        .queryName("committed_totals")
        .outputMode("complete")
        .option("checkpointLocation", str(at.folder / "totals-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    run_to_end(query, lambda number, rows: say(f"batch {number}: {rows:,} flights"))
    rows = at.spark().table("committed_totals").collect()
    return {
        (row["carrier"],): {name: row[name] for name in row.asDict() if name != "carrier"} for row in rows
    }


def run(at: Run) -> None:
    """The whole example."""
    flights = load_flights(at.flights)
    expected = totals_by(flights, "carrier")
    records = list(flight_records(flights))
    create_topics(at.bootstrap, {FLIGHTS_TOPIC: FOREVER})
    lost = load_all(at, files_of(records))
    say(f"loaded {len(records):,} flights in {FILES} transactions; {lost:,} more were aborted")

    batch = max(1, (len(records) + lost) // BATCHES)
    at.checks.same("a stream of what is committed has pandas' totals", streamed(at, batch), expected)

    def everything(**options: str) -> DataFrame:
        return parsed(read_topic(at.spark(), at.bootstrap, FLIGHTS_TOPIC, **options))

    at.checks.same(
        "so has a batch over what is committed", collected(everything(**COMMITTED), "carrier"), expected
    )
    all_sent = everything().count()
    at.checks.that(
        "a batch without read_committed counts the aborted flights as well",
        all_sent == len(records) + lost,
        all_sent,
    )

    again = records[: max(1, len(records) // FILES)]
    first, second = (Loader(at.bootstrap, name, FLIGHTS_TOPIC) for name in (LOADER, OTHER_LOADER))
    first.begin(again)
    second.load(again)
    at.checks.that(
        "what is committed behind the begin of an open transaction is not read yet",
        everything(**COMMITTED).count() == len(records),
    )
    first.abort()
    now = everything(**COMMITTED).count()
    at.checks.that("when that has ended, it is", now == len(records) + len(again), now)


if __name__ == "__main__":
    sys.exit(program("Totals of what was committed.", run))
