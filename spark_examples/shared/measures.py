"""What the examples add up in Spark, as columns: the same measures that flights.py adds up with pandas."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (the name that every PySpark page uses)

from spark_examples.shared.flights import MEASURES, Table

FLIGHT_FIELDS = "carrier STRING, month INT, day INT, hour INT, origin STRING, dep_time INT, dep_delay LONG, arr_delay LONG"


def parsed(records: DataFrame, *columns: str) -> DataFrame:
    """Records of a topic as typed flights; `columns` of the records are kept, as `timestamp` or `offset`."""
    flight = F.from_json(F.col("value").cast("string"), FLIGHT_FIELDS)
    return records.select(flight.alias("flight"), *columns).select("flight.*", *columns)


def measures() -> list[Column]:
    """Aggregates over flights, delays in minutes. What has no carrier is no flight."""
    return [
        F.count("carrier").alias("flights"),
        F.count_if(F.col("carrier").isNotNull() & F.col("dep_time").isNull()).alias("cancelled"),
        _total_of("dep_delay").alias("departure_delay_minutes"),
        _total_of("arr_delay").alias("arrival_delay_minutes"),
    ]


def _total_of(column: str) -> Column:
    """The sum of a column, zero where every value is missing."""
    return F.coalesce(F.sum(column), F.lit(0))


def collected(flights: DataFrame, *columns: str) -> Table:
    """The measures by one column or more, here."""
    totals = flights.groupBy(*columns).agg(*measures())
    return {
        tuple(row[column] for column in columns): {measure: row[measure] for measure in MEASURES}
        for row in totals.collect()
    }
