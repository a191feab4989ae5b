"""`python -m compat_tests.bench.cluster`: compares clusters of three Barnabas and three Apache Kafka 4.3.1 nodes in a table.

Both clusters run at the same time and measurements alternate, so that the machine's fast and slow phases affect both; six
processes and the driver share its cores. Quote the ratios. Failovers are measured with the default timeouts of each, and
again with a session timeout of three seconds for both: with one second, busy JVMs lose their followers.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from compat_tests.bench import cluster_failover, cluster_load, cluster_moves
from compat_tests.bench.__main__ import FLOOR, say
from compat_tests.bench.report import Results
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.cluster_nodes import ApacheNode

TUNED = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "300"}
# the shortest timeouts that Kafka's quorum tolerates on a busy machine; ours needs no settings
_TUNED_QUORUM = {
    "controller.quorum.fetch.timeout.ms": "1000",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.election.backoff.max.ms": "300",
}
_MOVES = 50
_KINDS = {"Apache Kafka": "apache", "Barnabas": "barnabas"}
_BOTH = {"auto.leader.rebalance.enable": "false"}


class WarmApacheNode(ApacheNode):
    """Apache Kafka tuned for speed, with its default timeouts: G1, the full JIT, 1 GB of heap."""

    jvm_options = ("-Xmx1g", "-Xms1g", "-XX:+UseG1GC")
    times: Mapping[str, str] = {}


def cluster_of(name: str, folder: Path, settings: Mapping[str, str]) -> Cluster:
    """Three nodes of Apache Kafka or of Barnabas, not started."""
    kind = _KINDS[name]
    extra = _TUNED_QUORUM if kind == "apache" and settings else {}
    return Cluster(folder, kind, settings={**_BOTH, **settings, **extra}, apache_node=WarmApacheNode)


def make(folder: Path, settings: Mapping[str, str]) -> dict[str, Cluster]:
    """Both, started; the first is the one to compare with."""
    clusters = {name: cluster_of(name, folder / kind, settings) for name, kind in _KINDS.items()}
    try:
        for cluster in clusters.values():
            cluster.start()
            cluster.wait_until_whole()
    except BaseException:
        close(clusters)
        raise
    return clusters


def close(clusters: Mapping[str, Cluster]) -> None:
    """End them, as they are."""
    for cluster in clusters.values():
        cluster.close()


def measure_load(clusters: Mapping[str, Cluster], results: Results, rounds: int, scale: float) -> None:
    """At rest, then under load, in turns."""
    for name, cluster in clusters.items():
        cluster_load.loads(cluster, scale)
        cluster_load.loads(cluster, scale)
        say(f"{name} is warm")
    for number in range(rounds):
        turns = list(clusters.items())[:: 1 if number % 2 == 0 else -1]
        for name, cluster in turns:
            results.add(name, cluster_load.loads(cluster, scale))
        results.add(FLOOR, cluster_load.floor_loads(turns[0][1].directory, scale))
        for name, cluster in turns:
            results.add(name, cluster_load.idle(cluster, 5))
        say(f"round {number + 1} of {rounds}")


def measure_moves(clusters: Mapping[str, Cluster], results: Results, rounds: int) -> None:
    """Leaders that the controller moves."""
    for number in range(rounds):
        for name, cluster in list(clusters.items())[:: 1 if number % 2 == 0 else -1]:
            results.add(name, cluster_moves.moves(cluster, _MOVES))
        say(f"leader moves, round {number + 1} of {rounds}")


def measure_failover(clusters: Mapping[str, Cluster], results: Results, rounds: int, label: str) -> None:
    """Leaders that are killed, and one that is suspended."""
    for number in range(rounds):
        for name, cluster in clusters.items():
            for controller, who in (
                (False, "of a leader"),
                (True, "of a leader, also the active controller"),
            ):
                row = f"kill -9 {who}, {label}, s"
                results.add(name, cluster_failover.kill(cluster, controller=controller, name=row))
            results.add(name, cluster_failover.silence(cluster, f"SIGSTOP of a leader, {label}, s"))
        say(f"failovers, {label}, round {number + 1} of {rounds}")


def main() -> int:
    """Run everything and print the table to standard output."""
    parser = argparse.ArgumentParser(description="Three Barnabas and three Apache Kafka 4.3.1 side by side.")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count (default 5)")
    parser.add_argument("--failovers", type=int, default=3, help="times that each node is lost (default 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="size of each workload (default 1.0)")
    parser.add_argument("--partitions", type=int, default=1000, help="partitions of the large failover")
    options = parser.parse_args()
    results = Results(["Apache Kafka", "Barnabas"], FLOOR)
    try:
        _measure(results, options)
    finally:  # print the results so far, also after an interruption
        print(
            f"Medians of {options.rounds} rounds and {options.failovers} failovers (lowest - highest); "
            f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, "
            f"Python {platform.python_version()}\n\n{results.table()}"
        )
    return 0


def _measure(results: Results, options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-cluster-") as folder:
        clusters = make(Path(folder) / "defaults", {})
        try:
            measure_load(clusters, results, options.rounds, options.scale)
            measure_moves(clusters, results, options.failovers)
            measure_failover(clusters, results, options.failovers, "default times")
        finally:
            close(clusters)
        clusters = make(Path(folder) / "tuned", TUNED)
        try:
            measure_failover(clusters, results, options.failovers, "session of 3 s")
            for name, cluster in clusters.items():
                results.add(name, cluster_failover.many(cluster, options.partitions))
                say(f"{name}: {options.partitions} partitions failed over")
        finally:
            close(clusters)


if __name__ == "__main__":
    sys.exit(main())
