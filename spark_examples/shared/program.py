"""Runs an example as a program: with a broker, lines of progress, checks and an exit status.

An example is a function `run(at: Run)`. `program` provides a broker (that of `--bootstrap-servers` or of the environment's
BOOTSTRAP_SERVERS, otherwise one that it starts), a folder for its files, and Spark on demand. The example passes its
claims to `at.checks`; the program ends with status 1 if a claim is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pyspark.sql import SparkSession

from spark_examples.shared.local_broker import local_broker
from spark_examples.shared.spark_session import Target, is_submitted, start_spark

_Found = TypeVar("_Found")
_Expected = TypeVar("_Expected")

_SHOWN = 10  # differences of one check

_started = time.monotonic()


def say(text: str) -> None:
    """One line of progress, with the seconds since the start."""
    print(f"{time.monotonic() - _started:6.1f} s  {text}", flush=True)


class Checks:
    """What an example claims about its own result."""

    def __init__(self) -> None:
        self.made = 0
        self.wrong: list[str] = []

    def that(self, claim: str, holds: bool, found: object = "") -> None:
        """One claim, and what was found where it does not hold."""
        self.made += 1
        if holds:
            say(f"ok: {claim}")
            return
        self.wrong.append(claim)
        say(f"WRONG: {claim}{f': {found}' if found != '' else ''}")

    def same(self, claim: str, found: Mapping[_Found, object], expected: Mapping[_Expected, object]) -> None:
        """Two tables, row by row: none may be missing, too many or different, and they may not be empty."""
        different = differences(found, expected)
        for line in different[:_SHOWN]:
            say(f"DIFFERENT: {line}")
        self.that(claim, bool(expected) and not different, f"{len(different)} of {len(expected)} rows differ")


def differences(found: Mapping[_Found, object], expected: Mapping[_Expected, object]) -> list[str]:
    """One line for each key whose rows are not the same."""
    left: dict[object, object] = dict(found.items())
    right: dict[object, object] = dict(expected.items())
    return [
        f"{key}: found {left.get(key)}, expected {right.get(key)}"
        for key in sorted(left.keys() | right.keys(), key=repr)
        if key not in left or key not in right or left[key] != right[key]
    ]


@dataclass
class Run:
    """One run of an example."""

    bootstrap: str
    folder: Path  # for checkpoints and output; all machines of a Spark cluster see it
    flights: int | None = None  # how many of the flights to take, all when None
    session: SparkSession | None = None  # a Spark that runs already
    checks: Checks = field(default_factory=Checks)
    running: ExitStack = field(default_factory=ExitStack)  # closed at the end of the example
    target: Target = field(default_factory=Target)

    def spark(self) -> SparkSession:
        """The example's Spark session, started by the first call."""
        if self.session is None:
            say("starting Spark (the first time, it fetches its Kafka connector)")
            self.session = self.running.enter_context(start_spark("spark-examples", self.folder, self.target))
        return self.session


def arguments(description: str) -> argparse.ArgumentParser:
    """The options that every example has."""
    name = Path(sys.argv[0]).parent.name
    parser = argparse.ArgumentParser(prog=f"python -m spark_examples.{name}", description=description)
    parser.add_argument(
        "--bootstrap-servers",
        "--bootstrap",
        metavar="HOST:PORT",
        default=os.environ.get("BOOTSTRAP_SERVERS"),
        help="use this broker, whichever it is, instead of starting one (environment: BOOTSTRAP_SERVERS)",
    )
    parser.add_argument(
        "--flights", type=int, metavar="N", help="N flights, spread over the year; default: all of them"
    )
    parser.add_argument(
        "--master",
        metavar="URL",
        default="",
        help="Spark's master, such as spark://HOST:7077; default: spark-submit's, otherwise local[2]",
    )
    parser.add_argument(
        "--conf", metavar="NAME=VALUE", action="append", default=[], help="a property of Spark; any number"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="PATH",
        help="checkpoints and results go into a folder of their own below it, and stay; all machines of a Spark cluster have to "
        "see it, so that it is needed with one; default: a temporary one",
    )
    return parser


@contextmanager
def started(options: argparse.Namespace, find_broker: Callable[[ExitStack, Path], str]) -> Iterator[Run]:
    """The run that these options ask for; `find_broker` gets what is closed at the end and the folder, and returns addresses."""
    target = _target(options)
    if options.folder is None and not target.is_local:
        raise SystemExit("a Spark cluster needs --folder PATH, which all of its machines see")
    if options.bootstrap_servers is None and not target.is_local:
        raise SystemExit("a Spark cluster needs --bootstrap-servers: a broker started here is on 127.0.0.1")
    with ExitStack() as running:
        if options.folder is None:
            folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="spark-example-")))
        else:
            options.folder.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix="spark-example-", dir=options.folder.absolute()))
            folder.chmod(0o777)  # executors may be another user's
            say(f"checkpoints and results go to {folder}")
        bootstrap = find_broker(running, folder)
        yield Run(bootstrap, folder, options.flights, running=running, target=target)


def _target(options: argparse.Namespace) -> Target:
    for pair in options.conf:
        if "=" not in pair:
            raise SystemExit(f"--conf takes NAME=VALUE, not {pair!r}")
    if options.master and is_submitted():
        raise SystemExit("under spark-submit --master is an option of spark-submit")
    return Target(options.master, dict(pair.split("=", 1) for pair in options.conf))


def program(description: str, run: Callable[[Run], None], settings: Mapping[str, str] | None = None) -> int:
    """Parse the command line, run the example against its broker, clean up; the exit status.

    `settings` are properties of the broker that is started.
    """
    options = arguments(description).parse_args()

    def find_broker(running: ExitStack, folder: Path) -> str:
        if options.bootstrap_servers:
            say(f"using the broker at {options.bootstrap_servers}")
            return str(options.bootstrap_servers)
        bootstrap = running.enter_context(local_broker(folder, settings))
        say(f"started a broker at {bootstrap}")
        return bootstrap

    with started(options, find_broker) as at:
        run(at)
    return verdict(at.checks)


def verdict(checks: Checks) -> int:
    """Print the result of the checks and return the exit status."""
    if checks.wrong or not checks.made:
        say(f"stopped; {len(checks.wrong)} of {checks.made} checks failed")
        return 1
    say(f"stopped; all {checks.made} checks hold")
    return 0
