"""`python -m compat_tests.bench`: compares Barnabas and Apache Kafka 4.3.1 in one run and prints a table.

Both run at the same time on this machine. Workloads and rounds alternate between them, so that the machine's fast and
slow phases affect both. Rounds that do not count warm up Kafka's JIT. Absolute figures differ between machines and from
hour to hour: quote the ratios. The floor (floor.py) is what this machine's system calls take without a broker around them.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import KafkaException

from compat_tests.bench import hostile, kafka_tools, shapes, startup, workloads
from compat_tests.bench.floor import Floor
from compat_tests.bench.picture import draw
from compat_tests.bench.report import Results
from compat_tests.harness.broker import Broker
from compat_tests.harness.java_tools import JavaTools

FLOOR = "the floor"
_WARM_UP_ROUNDS = {"Apache Kafka": 3, "Other checkout": 1, "Barnabas": 1, FLOOR: 1}


def measure_starts(brokers: dict[str, Broker], results: Results, times: int) -> None:
    """Start each broker several times, taking turns; both run afterwards."""
    for broker in brokers.values():
        startup.first_start(broker)
    for turn in range(times):
        for name, broker in brokers.items():
            if broker.alive():
                broker.stop()
            results.add(name, startup.start_to_first_produce(broker, f"first-{turn}"))
            results.add(name, startup.idle_memory(broker))
    for name, broker in brokers.items():
        results.add(name, startup.connection_memory(broker))


def measure_tools(brokers: dict[str, Broker], results: Results, rounds: int, scale: float) -> None:
    """Kafka's own tools, after a round that warms them up."""
    tools = JavaTools()
    try:
        for number in range(rounds + 1):
            for name, broker in brokers.items():
                measures = kafka_tools.perf_tools(broker, tools, scale)
                if number:
                    results.add(name, measures)
            say(f"Kafka's own tools, round {number} of {rounds}")
    finally:
        tools.close()


def measure_rounds(
    systems: Mapping[str, workloads.System],
    results: Results,
    rounds: int,
    scale: float,
    works: Sequence[workloads.Workload] = workloads.ROUND,
) -> None:
    """Warm up, then let the systems take turns at each workload."""
    for name, system in systems.items():
        for _ in range(_WARM_UP_ROUNDS[name]):
            for workload in works:
                workload(system, scale)
        say(f"{name} is warm")
    for number in range(rounds):
        turns = list(systems.items())[:: 1 if number % 2 == 0 else -1]
        for workload in works:
            for name, system in turns:
                results.add(name, workload(system, scale))
        say(f"round {number + 1} of {rounds}")


def measure_hostile(brokers: dict[str, Broker], results: Results, rounds: int, scale: float) -> None:
    """Measured last, as it fills the JVM's heap. A broker that does not survive it has no figures."""
    for number in range(rounds):
        for name, broker in brokers.items():
            hostile.wait_for_rest(brokers.values())
            try:
                results.add(name, hostile.beside(broker, max(2.0, 20 * scale)))
            except (OSError, AssertionError, KafkaException) as error:
                say(f"{name} beside hostile requests: {error!r}")
        say(f"hostile requests, round {number + 1} of {rounds}")


def measure_all(
    brokers: dict[str, Broker], floor: Floor, results: Results, options: argparse.Namespace
) -> None:
    """Starts, rounds, Kafka's tools, and hostile requests at the end."""
    measure_starts(brokers, results, options.starts)
    say("starts are measured")
    measure_rounds({**brokers, FLOOR: floor}, results, options.rounds, options.scale)
    measure_tools(brokers, results, min(options.rounds, 3), options.scale)
    measure_hostile(brokers, results, min(options.rounds, 3), options.scale)


def measure_shapes(
    brokers: dict[str, Broker], floor: Floor, results: Results, options: argparse.Namespace
) -> None:
    """Rounds of the shapes alone."""
    for broker in brokers.values():
        broker.start()
    measure_rounds({**brokers, FLOOR: floor}, results, options.rounds, options.scale, shapes.ROUND)


def say(text: str) -> None:
    """Progress, apart from the table."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Run everything and print the table to standard output."""
    parser = argparse.ArgumentParser(description="Barnabas and Apache Kafka 4.3.1 side by side.")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count (default 5)")
    parser.add_argument("--starts", type=int, default=3, help="times that each broker is started (default 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="size of each workload (default 1.0)")
    parser.add_argument("--picture", help="also draw the ratios into this SVG file")
    parser.add_argument(
        "--against", type=Path, help="compare with the Barnabas of this checkout, not with Apache Kafka"
    )
    parser.add_argument(
        "--shapes", action="store_true", help="only numbers of producers, records a send and fetch sizes"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        brokers = startup.make_brokers(Path(folder), options.against)
        results = Results(list(brokers), FLOOR)
        floor = Floor()
        try:
            (measure_shapes if options.shapes else measure_all)(brokers, floor, results, options)
        finally:
            floor.stop()
            for broker in brokers.values():
                if broker.alive():
                    broker.stop()
    circumstances = (
        f"Medians of {options.rounds} rounds (lowest - highest); {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f}, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    )
    print(f"{circumstances}\n\n{results.table()}")
    if options.picture:
        Path(options.picture).write_text(draw(results.ratios(), circumstances))
    return 0


if __name__ == "__main__":
    sys.exit(main())
