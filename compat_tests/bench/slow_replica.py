"""`python -m compat_tests.bench.slow_replica`: acks=all while one of three replicas is slow, in a table.

Open loop: a record is due every two milliseconds whatever the brokers do, and its latency counts from then, so that a stall
counts for every record that it delays (a loop that waits for each answer sees a stall once). Three clusters take turns: Apache
Kafka 4.3.1, this broker as Kafka (barnabas.isr.hedge.ms=-1), and with a hedge of 10 ms. Each record is counted once; the test
of a scenario fails when one is not acknowledged. `--partitions 1000` measures the controller instead: its CPU while a follower of so many
partitions leaves and joins their ISRs all the time.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from compat_tests.bench import cluster_load
from compat_tests.bench.__main__ import say
from compat_tests.bench.cluster import WarmApacheNode
from compat_tests.bench.latency import percentile
from compat_tests.bench.report import cell, markdown
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.cluster_work import create_topic
from compat_tests.harness.process_usage import cpu_seconds

_INTERVAL_S = 0.002
_PERIOD_S, _PAUSE_S = 10.0, 1.0
_PERCENTILES = (0.5, 0.99, 0.999)
_VALUE = bytes(100)
_KINDS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "Apache Kafka": ("apache", {}),
    "Barnabas, -1": ("barnabas", {"barnabas.isr.hedge.ms": "-1"}),
    "Barnabas, 10 ms": ("barnabas", {"barnabas.isr.hedge.ms": "10"}),
}
Disturb = Callable[[Cluster, int, float], None]  # (cluster, the node, seconds since the beginning)


def pauses(cluster: Cluster, node: int, elapsed: float) -> None:
    """The node stands still for one second in ten."""
    should = elapsed % _PERIOD_S >= _PERIOD_S - _PAUSE_S - 1 and elapsed % _PERIOD_S < _PERIOD_S - 1
    if should and node in cluster.live:
        cluster.suspend(node)
    elif not should and node not in cluster.live:
        cluster.resume(node)


def is_silent(cluster: Cluster, node: int, elapsed: float) -> None:
    """From the second second on the node stands still."""
    if elapsed >= 1 and node in cluster.live:
        cluster.suspend(node)


def dies(cluster: Cluster, node: int, elapsed: float) -> None:
    """In the second second the node is killed."""
    if elapsed >= 1 and node in cluster.live:
        cluster.kill(node)


def nothing(_cluster: Cluster, _node: int, _elapsed: float) -> None:
    """All goes well."""


SCENARIOS: Mapping[str, tuple[str, Disturb]] = {  # which node, and what happens to it
    "none": ("follower", nothing),
    "a follower pauses 1 s in 10": ("follower", pauses),
    "... that is the active controller": ("controller", pauses),
    "a follower is silent": ("follower", is_silent),
    "a follower is killed": ("follower", dies),
    "the leader pauses 1 s in 10": ("leader", pauses),
}


def measure(cluster: Cluster, which: str, disturb: Disturb, seconds: float) -> list[float]:
    """Latencies in seconds, of records that were due in this time."""
    active = cluster.active_controller()
    leader = next(node for node in cluster.nodes if node != active)
    follower = next(node for node in cluster.nodes if node not in (active, leader))
    node = {"controller": active, "leader": leader, "follower": follower}[which]
    with cluster_load.topic_of(cluster, leader) as target:
        found = _produce(cluster, target.topic, lambda elapsed: disturb(cluster, node, elapsed), seconds)
        if node not in cluster.live:
            if cluster.nodes[node].alive():
                cluster.resume(node)
            else:
                cluster.start(node)
        cluster.wait_until_known()
        cluster.wait_until_whole(120)
    return found


def _produce(cluster: Cluster, topic: str, disturb: Callable[[float], None], seconds: float) -> list[float]:
    settings: dict[str, Any] = {"bootstrap.servers": cluster.bootstrap, "linger.ms": 0, "acks": "all"}
    producer = Producer({**settings, "enable.idempotence": True, "log_level": 0})
    latencies: list[float] = []
    failures: list[str] = []
    clock = time.perf_counter

    def acknowledged(due: float) -> Callable[[Any, Any], None]:
        def call(error: Any, _message: Any) -> None:
            if error is None:
                latencies.append(clock() - due)
            else:
                failures.append(str(error))

        return call

    for _ in range(100):  # connections, the producer's id
        producer.produce(topic, _VALUE)
        producer.flush(30)
    started = clock()
    count = int(seconds / _INTERVAL_S)
    for number in range(count):
        due = started + number * _INTERVAL_S
        while (left := due - clock()) > 0:
            producer.poll(min(left, 0.001))
        producer.produce(topic, _VALUE, on_delivery=acknowledged(due))
        if not number % 10:
            disturb(clock() - started)
    producer.flush(60)
    assert not failures, failures[:3]
    assert len(latencies) == count
    return latencies


def controllers_share(folder: Path, name: str, partitions: int, seconds: float) -> dict[str, float]:
    """The CPU of a controller of its own while a follower of all partitions pauses for 0.1 s in each second, under a record to
    each partition in turn."""
    kind, settings = _KINDS[name]
    roles = {1: "broker", 2: "broker", 3: "broker", 9: "controller"}
    cluster = Cluster(
        folder / f"many-{kind}-{name[-2:].strip()}", kind, roles, settings, apache_node=WarmApacheNode
    )
    try:
        cluster.start()
        cluster.wait_until_whole()
        create_topic(cluster, "many", assignment=[[1, 2, 3]] * partitions)
        cluster.wait_until_whole(120)
        producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "linger.ms": 0, "acks": "all", "log_level": 0}
        )
        sent: list[None] = []
        idle = _controller_cpu(cluster, seconds / 2, lambda _: time.sleep(0.01))

        def step(elapsed: float) -> None:
            should = elapsed % 1 > 0.9
            if should != (3 not in cluster.live):
                (cluster.suspend if should else cluster.resume)(3)
            while len(sent) < elapsed / _INTERVAL_S:
                sent.append(None)
                producer.produce("many", _VALUE, partition=len(sent) % partitions)
            producer.poll(_INTERVAL_S)

        flapping = _controller_cpu(cluster, seconds, step)
        if 3 not in cluster.live:
            cluster.resume(3)
        left = producer.flush(60)
        assert left == 0, f"{left} of {len(sent)} records are not acknowledged"
        return {"controller when idle, % of a core": idle, "controller, % of a core": flapping}
    finally:
        cluster.close()


def _controller_cpu(cluster: Cluster, seconds: float, step: Callable[[float], object]) -> float:
    pid = cluster.nodes[9].pid
    before, started = cpu_seconds(pid), time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        step(elapsed)
    return (cpu_seconds(pid) - before) / seconds * 100


def main() -> int:
    """Run everything and print the table to standard output."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each scenario (default 3)")
    parser.add_argument("--seconds", type=float, default=20, help="length of one (default 20)")
    parser.add_argument("--only", default="", help="scenarios that contain this")
    parser.add_argument(
        "--partitions", type=int, help="measure a controller's CPU with so many, and nothing else"
    )
    options = parser.parse_args()
    if options.partitions:
        with tempfile.TemporaryDirectory(prefix="bench-slow-") as folder:
            for name in [each for each, (kind, _) in _KINDS.items() if kind == "barnabas"]:
                found = controllers_share(Path(folder), name, options.partitions, options.seconds)
                say(f"{name}: " + ", ".join(f"{label} {share:.1f}" for label, share in found.items()))
        return 0
    samples: dict[tuple[str, str], list[list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-slow-") as folder:
        clusters = {
            name: Cluster(Path(folder) / str(at), kind, settings=settings, apache_node=WarmApacheNode)
            for at, (name, (kind, settings)) in enumerate(_KINDS.items())
        }
        try:
            for cluster in clusters.values():
                cluster.start()
                cluster.wait_until_whole()
            for number in range(options.rounds):
                for scenario, (which, disturb) in SCENARIOS.items():
                    for name, cluster in clusters.items() if options.only in scenario else ():
                        taken = measure(cluster, which, disturb, options.seconds)
                        samples.setdefault((scenario, name), []).append(taken)
                        say(f"{scenario}, {name}, round {number + 1} of {options.rounds}")
        finally:
            for cluster in clusters.values():
                cluster.close()
            print(_table(samples, options))
    return 0


def _table(samples: Mapping[tuple[str, str], list[list[float]]], options: argparse.Namespace) -> str:
    rows = [("", *_KINDS)]
    for scenario in SCENARIOS:
        for fraction in _PERCENTILES:
            cells = [
                cell([percentile(found, fraction) * 1e3 for found in samples.get((scenario, name), [])])
                for name in _KINDS
            ]
            if any(each != "-" for each in cells):
                rows.append((f"{scenario}, p{fraction * 100:g} ms", *cells))
    return (
        f"Medians of {options.rounds} rounds of {options.seconds:g} s (lowest - highest), {1 / _INTERVAL_S:g} records/s, acks=all; "
        f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}\n\n{markdown(rows)}"
    )


if __name__ == "__main__":
    sys.exit(main())
