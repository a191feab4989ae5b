"""Reading while a cluster fails over: `make spark EXAMPLE=failover`, or `python -m spark_examples.failover`.

1. three nodes run, and a topic has three replicas,
2. a client produces flights all the time, and a Spark stream copies them into files,
3. the leader that both talk to is killed with kill -9, is started again, and another is restarted in good order,
4. what the files hold is compared with pandas: every flight once, none missing.

Ends with status 1 when they differ. With `--bootstrap-servers` it uses your cluster, which it leaves alone: kill a node
of it yourself while the flights run.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pandas
from pyspark.sql.streaming.query import StreamingQuery

from barnabas.testing import BrokerProcesses
from spark_examples.shared.flights import flight_records, load_flights, totals_by
from spark_examples.shared.measures import collected, parsed
from spark_examples.shared.program import Run, arguments, say, started, verdict
from spark_examples.shared.streams import read_topic, stream_topic
from spark_examples.shared.topics import FOREVER, Record, create_topics, produce

FLIGHTS_TOPIC = "failover-flights"
FLIGHTS = 40_000
PER_SECOND = 2000
_TIMEOUT_S = 120


class Source(threading.Thread):
    """Produces flights at a fixed rate during all faults of the cluster; the last ones when the faults are over."""

    def __init__(self, bootstrap: str, flights: pandas.DataFrame, per_second: int) -> None:
        super().__init__(name="source", daemon=True)
        self.is_over = threading.Event()
        self.acknowledged = 0
        self.failure = ""
        self._servers = bootstrap
        self._flights = flights
        self._per_second = per_second

    def run(self) -> None:
        """Until all are acknowledged."""
        try:
            self.acknowledged = produce(self._servers, FLIGHTS_TOPIC, self._paced())
        except Exception as error:  # noqa: BLE001 (the example reports it, in the main thread)
            self.failure = str(error)

    def _paced(self) -> Iterator[Record]:
        for number, record in enumerate(flight_records(self._flights)):
            if number == len(self._flights) * 9 // 10:
                self.is_over.wait()
            if number % 100 == 0:
                time.sleep(100 / self._per_second)
            yield record


class Followed:
    """A running stream and its progress."""

    def __init__(self, query: StreamingQuery) -> None:
        self.stop = query.stop
        self.read_all = query.processAllAvailable
        self._query = query
        self._rows_by_batch: dict[int, int] = {}

    def rows(self) -> int:
        """How many rows its batches have had; Spark itself remembers the last hundred batches only."""
        self._rows_by_batch |= {batch.batchId: batch.numInputRows for batch in self._query.recentProgress}
        return sum(self._rows_by_batch.values())

    def await_rows(self, rows: int) -> None:
        """Until it has read so many; RuntimeError when it does not."""
        deadline = time.monotonic() + _TIMEOUT_S
        while self.rows() < rows:
            failure = self._query.exception()
            if failure is not None:
                raise RuntimeError(str(failure))
            if time.monotonic() > deadline:
                raise RuntimeError(f"Spark has read {self.rows():,} of {rows:,} flights in {_TIMEOUT_S} s")
            time.sleep(0.1)


def run(at: Run, cluster: BrokerProcesses | None) -> None:
    """The whole example; the nodes of `cluster` are ours to kill."""
    flights = load_flights(at.flights or FLIGHTS)
    create_topics(at.bootstrap, {FLIGHTS_TOPIC: FOREVER}, partitions=2)
    spark, files = at.spark(), at.folder / "files"
    stream = parsed(stream_topic(spark, at.bootstrap, FLIGHTS_TOPIC), "partition", "offset")
    query = Followed(
        stream.writeStream.format("parquet")
        .option("path", str(files))
        .option("checkpointLocation", str(at.folder / "checkpoint"))
        .start()
    )
    source = Source(at.bootstrap, flights, PER_SECOND)
    source.start()
    try:
        query.await_rows(1)
        if cluster is None:
            seconds = len(flights) // PER_SECOND
            say(f"flights run for {seconds} s: now is the time to kill a node of your cluster")
        else:
            fail_over(cluster, query)
        source.is_over.set()
        source.join(_TIMEOUT_S)
        if source.failure:
            raise RuntimeError(f"not all flights could be sent: {source.failure}")
        say(f"{source.acknowledged:,} flights are acknowledged")
        query.read_all()
    finally:
        query.stop()

    at.checks.that("every flight was acknowledged", source.acknowledged == len(flights), source.acknowledged)
    expected = totals_by(flights, "carrier")
    found = spark.read.parquet(str(files))
    at.checks.same("the files have every flight once", collected(found, "carrier"), expected)
    records = found.select("partition", "offset").distinct().count()
    at.checks.that("each from a record of its own", records == len(flights), records)
    whole = parsed(read_topic(spark, at.bootstrap, FLIGHTS_TOPIC))
    at.checks.same("a batch over the topic finds the same", collected(whole, "carrier"), expected)


def fail_over(cluster: BrokerProcesses, stream: Followed) -> None:
    """Kill and restart nodes of the cluster while the stream runs."""
    leader = cluster.partition(FLIGHTS_TOPIC).leader
    cluster.kill_node(leader)
    say(f"kill -9 of node {leader}, which led {FLIGHTS_TOPIC}-0, after {stream.rows():,} flights")
    killed = time.monotonic()
    new = new_leader(cluster, leader)
    say(f"node {new} leads, {time.monotonic() - killed:.1f} s later")
    stream.await_rows(stream.rows() + 2 * PER_SECOND)  # more than an unfinished batch can bring
    say(f"Spark goes on, after {stream.rows():,} flights")
    cluster.start_node(leader)
    cluster.wait_until_in_sync(FLIGHTS_TOPIC)
    say(f"node {leader} is back, and its replicas are in sync")
    other = cluster.partition(FLIGHTS_TOPIC).leader
    cluster.restart_node(other)
    cluster.wait_until_in_sync(FLIGHTS_TOPIC)
    say(f"node {other} was restarted in good order, after {stream.rows():,} flights")


def new_leader(cluster: BrokerProcesses, dead: int) -> int:
    """Wait for the new leader of partition 0 after a node has died."""
    deadline = time.monotonic() + _TIMEOUT_S
    while (leader := cluster.partition(FLIGHTS_TOPIC).leader) in (dead, -1):
        if time.monotonic() > deadline:
            raise RuntimeError(f"no new leader of {FLIGHTS_TOPIC} after {_TIMEOUT_S} s")
        time.sleep(0.05)
    return leader


def main() -> int:
    """Parse the command line, run the example, clean up; the exit status."""
    options = arguments("A Spark stream, while a cluster fails over.").parse_args()
    clusters: list[BrokerProcesses] = []

    def find_broker(running: ExitStack, _folder: Path) -> str:
        if options.bootstrap_servers:
            return str(options.bootstrap_servers)
        clusters.append(running.enter_context(BrokerProcesses(nodes=3)))
        say(f"three nodes are at {clusters[0].bootstrap_servers}")
        return clusters[0].bootstrap_servers

    with started(options, find_broker) as at:
        run(at, clusters[0] if clusters else None)
    return verdict(at.checks)


if __name__ == "__main__":
    sys.exit(main())
