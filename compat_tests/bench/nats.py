"""`python -m compat_tests.bench.nats`: compares NATS messages into topics with JetStream and with a script, in tables.

Publishers, nats-server and broker share this machine's cores: the rate is that of all together, the CPU time that of each
process. Loads and rounds alternate.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from compat_tests.bench import nats_loads, nats_replicated
from compat_tests.bench.__main__ import say
from compat_tests.bench.nats_system import System
from compat_tests.bench.report import cell, markdown
from compat_tests.bench.workloads import Measures
from compat_tests.harness.barnabas_broker import BarnabasBroker
from compat_tests.harness.nats_server import NatsServer
from compat_tests.nats.streams import Streams

S = TypeVar("S")

_RATE = "messages/s"
_PROCESSES = (nats_loads.BROKER, nats_loads.SERVER, nats_loads.SCRIPT, nats_loads.PUBLISHER)


class Rounds:
    """Samples by load and measure; a load that does not work is left out, with a note."""

    def __init__(self) -> None:
        self.samples: dict[str, dict[str, list[float]]] = {}
        self.notes: list[str] = []

    def run(self, loads: Mapping[str, Callable[[S, float], Measures]], system: S, scale: float) -> None:
        """One round."""
        for name, load in loads.items():
            if any(note.startswith(f"{name}: ") for note in self.notes):
                continue
            try:
                measures = load(system, scale)
            except (AssertionError, OSError) as error:
                self.notes.append(f"{name}: {error}")
                say(self.notes[-1])
                continue
            self._add(name, measures)
            say(f"{name}: " + ", ".join(f"{what} {value:,.2f}" for what, value in measures.items()))

    def _add(self, name: str, measures: Measures) -> None:
        for measure, value in measures.items():
            self.samples.setdefault(name, {}).setdefault(measure, []).append(value)

    def table(self, head: Mapping[str, str]) -> str:
        """The medians as a table; `head` maps each measure to its column title."""
        rows = [("", *head.values())]
        for name, found in self.samples.items():
            rows.append((name, *(cell(found.get(measure, [])) for measure in head)))
        return markdown(rows)

    def median(self, name: str, measure: str) -> float:
        return statistics.median(self.samples.get(name, {}).get(measure, [0.0]))


def compared(rounds: Rounds) -> str:
    """A core binding compared with the script: rate, and CPU of all processes between nats-server and the log."""
    ours, theirs = nats_loads.PLAIN_CORE, nats_loads.BY_HAND
    if ours not in rounds.samples or theirs not in rounds.samples:
        return ""
    rate = rounds.median(ours, _RATE) / rounds.median(theirs, _RATE)
    script = rounds.median(theirs, nats_loads.SCRIPT) + rounds.median(theirs, nats_loads.BROKER)
    cpu = script / rounds.median(ours, nats_loads.BROKER)
    return f"\n\n`{ours}` against `{theirs}`: {rate:.1f} times the rate, {cpu:.1f} times less CPU\n"


def main() -> int:
    """Run everything and print the tables to standard output."""
    parser = argparse.ArgumentParser(description="NATS messages into topics, and into JetStream.")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count (default 5)")
    parser.add_argument("--scale", type=float, default=1.0, help="messages of each load (default 1.0)")
    parser.add_argument("--only", default="", help="loads whose name contains this")
    parser.add_argument(
        "--replicated", action="store_true", help="only acknowledgements in a cluster, with three replicas"
    )
    options = parser.parse_args()
    if options.replicated:
        return _measure_replicated(options)
    rates = {name: load for name, load in nats_loads.rates().items() if options.only in name}
    latencies = {name: load for name, load in nats_loads.LATENCIES.items() if options.only in name}
    throughput, latency = Rounds(), Rounds()
    try:
        with tempfile.TemporaryDirectory(prefix="bench-nats-") as folder:
            _measure(Path(folder), options, ((throughput, rates), (latency, latencies)))
    finally:  # print the results so far, also after an interruption
        print(
            f"256 B, 1,000 subjects; medians of {options.rounds} rounds (lowest - highest); {os.cpu_count()} cores, "
            f"{platform.system()} {platform.release()}, Python {platform.python_version()}\n"
        )
        head = {_RATE: _RATE, **{process: f"CPU us each: {process}" for process in _PROCESSES}}
        print(throughput.table(head) + compared(throughput))
        print("\n" + latency.table({"p50 ms": "p50 ms", "p99 ms": "p99 ms"}))
        for note in throughput.notes + latency.notes:
            print(f"\nnot measured: {note}")
    return 0


def _measure_replicated(options: argparse.Namespace) -> int:
    rounds = Rounds()
    with (
        tempfile.TemporaryDirectory(prefix="bench-nats-") as folder,
        nats_replicated.started(Path(folder)) as system,
    ):
        for number in range(options.rounds):
            rounds.run(nats_replicated.LATENCIES, system, options.scale)
            say(f"round {number + 1} of {options.rounds}, load {os.getloadavg()[0]:.1f}")
    print(rounds.table({"p50 ms": "p50 ms", "p99 ms": "p99 ms"}))
    for note in rounds.notes:
        print(f"\nnot measured: {note}")
    return 0


def _measure(
    folder: Path,
    options: argparse.Namespace,
    parts: tuple[tuple[Rounds, Mapping[str, nats_loads.Load]], ...],
) -> None:
    with NatsServer(folder / "nats", jetstream=True) as server, Streams(server) as streams:
        settings = {"nats.servers": server.url, "offsets.topic.num.partitions": "1"}
        broker = BarnabasBroker(folder / "broker", settings)
        broker.start()
        try:
            system = System(broker, server, streams, folder)
            nats_loads.core(1, "subject", False, system, options.scale)
            say("warm")
            for number in range(options.rounds):
                for rounds, loads in parts:
                    rounds.run(loads, system, options.scale)
                say(f"round {number + 1} of {options.rounds}")
        finally:
            broker.stop()


if __name__ == "__main__":
    sys.exit(main())
