"""`python -m compat_tests.bench.growth`: figures as curves, on this broker and on Apache Kafka 4.3.1.

    partitions   over three nodes, with three replicas
    connections  to one node
    members      of one group
    groups       with offsets
    log          size of one partition, in GB
    topics       in one job of Spark
    nodes        of one machine under barnabas.cores, which Kafka does not have

For each size the brokers run one after the other, each with a new directory. What one of them can't do is missing in the table; the
reason is logged.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from compat_tests.bench.__main__ import say
from compat_tests.bench.groups import SETTINGS
from compat_tests.bench.growth import cluster_partitions, connections, cores, groups, log_size, spark_topics
from compat_tests.bench.growth.curves import Curves, Figures, in_words
from compat_tests.bench.startup import make_brokers
from compat_tests.harness.broker import Broker
from spark_examples.shared.spark_session import local_spark

Work: TypeAlias = Callable[[str, Path, Any], Figures]  # broker, folder, size

_BROKERS = ("Apache Kafka", "Barnabas")
_FILES = 20_000
# What grows: in words, and the sizes by default.
_KINDS: dict[str, tuple[str, Sequence[float]]] = {
    "partitions": ("partitions over three nodes, three replicas each", (100, 1000, 10_000)),
    "connections": ("connections to one node", (100, 1000, 5000, 19_000)),
    "members": ("members of one group", (10, 100, 1000, 2000)),
    "groups": ("groups with offsets", (100, 1000, 10_000)),
    "log": ("GB in one partition", (0.1, 1, 4, 12, 100)),
    "topics": ("topics in one job of Spark", (10, 100, 1000)),
    "nodes": ("nodes of one machine under barnabas.cores", (2, 4, 8, 16, 32, 64)),
}


def main() -> int:
    """Measure, print the tables to standard output, draw the pictures."""
    parser = argparse.ArgumentParser(description="How costs grow.")
    parser.add_argument(
        "kinds", nargs="*", metavar="kind", help=f"what grows: {', '.join(_KINDS)} (default: each of them)"
    )
    parser.add_argument("--sizes", type=float, nargs="+", help="sizes of it")
    parser.add_argument("--only", choices=_BROKERS, help="one of the brokers alone")
    parser.add_argument("--pictures", type=Path, help="also draw growth-<kind>.svg into this folder")
    options = parser.parse_args()
    _raise_file_limit()
    for kind in options.kinds or _KINDS:
        of, sizes = _KINDS[kind]
        curves = Curves(of, f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, one run")
        with ExitStack() as ends:
            work = _WORK[kind](ends)
            for size in options.sizes or sizes:
                for broker in _BROKERS:
                    if options.only in (None, broker) and (kind, broker) != ("nodes", "Apache Kafka"):
                        _measure(curves, work, broker, size)
        print(f"{of}, {curves.note}:\n\n{curves.table()}\n", flush=True)
        if options.pictures is not None:
            (options.pictures / f"growth-{kind}.svg").write_text(curves.picture())
    return 0


def _raise_file_limit() -> None:
    """To what the connections take, or as far as it may."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (max(most, _FILES), most):
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
            return


def _measure(curves: Curves, work: Work, broker: str, size: float) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-growth-") as folder:
        try:
            figures = work(broker, Path(folder), size if size % 1 else int(size))
        except Exception as error:  # noqa: BLE001 - the other sizes and brokers have figures
            say(f"{size:,g} {curves.of}: {broker}: {error!r}")
            return
    curves.add(broker, size, figures)
    say(f"{size:,g} {curves.of}: {broker}: {in_words(figures)}")


def _on_one(work: Callable[[Broker, Any], Figures], broker: str, folder: Path, size: float) -> Figures:
    """Of a broker of its own, started."""
    made = make_brokers(folder)[broker]
    made.settings.update(SETTINGS)
    made.start()
    try:
        return work(made, size)
    finally:
        if made.alive():
            made.kill()


def _of_spark(ends: ExitStack) -> Work:
    """With one Spark for all sizes, which has run the same before."""
    scratch = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="bench-growth-spark-")))
    spark = ends.enter_context(local_spark("growth", scratch, ""))
    say("Spark warms up")
    _on_one(partial(spark_topics.measure, spark, scratch), _BROKERS[0], scratch, 10)

    def work(broker: str, folder: Path, size: float) -> Figures:
        return _on_one(partial(spark_topics.measure, spark, folder), broker, folder, size)

    return work


_WORK: dict[str, Callable[[ExitStack], Work]] = {
    "partitions": lambda _: cluster_partitions.measure,
    "connections": lambda _: partial(_on_one, connections.measure),
    "members": lambda _: partial(_on_one, groups.members),
    "groups": lambda _: partial(_on_one, groups.offsets),
    "log": lambda _: partial(_on_one, log_size.measure),
    "topics": _of_spark,
    "nodes": lambda _: cores.measure,
}


if __name__ == "__main__":
    sys.exit(main())
