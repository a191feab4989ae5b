"""`python -m compat_tests.simulation --seeds 1000`: that many seeds in parallel processes, and what they met.

`--seed N` runs one and tells its story. `--bug NAME` puts a known bug back in (bugs.py) and looks for a seed that finds
it. Exit 1 when a seed fails, or when something that is meant to happen never did.
"""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from compat_tests.simulation.bugs import BUGS, FOUND_BY, put_in
from compat_tests.simulation.coverage import missing, table
from compat_tests.simulation.simulation import Simulation

SEED_CPU_S = 60  # a seed that takes more goes round in a circle
SEEDS_FOR_BUGS = 200  # a run of so many also looks for every known bug,
BUGS_WITHIN = range(1000)  # among these at most
COMMAND = "python -m compat_tests.simulation --seed"


class Outcome(NamedTuple):
    """Of one seed."""

    seed: int
    failure: str  # empty when everything held
    trace: int
    simulated_s: float
    cpu_s: float
    faults: int
    counts: dict[str, int]
    log: list[str]
    details: str


def run_seed(seed: int, bug: str = "", nodes: int = 0) -> Outcome:
    """One simulation from beginning to end."""
    logging.getLogger("barnabas").setLevel(logging.WARNING)
    signal.signal(signal.SIGVTALRM, _circles)
    started = time.process_time()
    shape = ("broker,controller",) * nodes if nodes else None
    failure = details = ""
    # A world is a large web of objects, nearly all of which stay until it ends.
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(100_000, 50, 1000)
    with put_in(bug):
        simulation = Simulation(seed, shape)
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, SEED_CPU_S, 1)
            simulation.run()
        except Exception as error:  # noqa: BLE001 - whatever it is, the seed has failed
            failure = f"{type(error).__name__}: {error}"
            details = traceback.format_exc()
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    outcome = Outcome(
        seed,
        failure,
        simulation.world.trace,
        simulation.world.now,
        time.process_time() - started,
        simulation.faults.happened,
        simulation.history.counts,
        simulation.history.log,
        details,
    )
    del simulation
    gc.set_threshold(*thresholds)
    gc.unfreeze()
    gc.collect()
    return outcome


def _circles(_number: int, _frame: object) -> None:
    raise TimeoutError(f"no end after {SEED_CPU_S} s of CPU")


def _work(job: tuple[int, str, int]) -> Outcome:
    outcome = run_seed(*job)
    return outcome._replace(log=[]) if not outcome.failure else outcome


def outcomes(seeds: range, bug: str, nodes: int, processes: int) -> Iterator[Outcome]:
    """As they come."""
    jobs = [(seed, bug, nodes) for seed in seeds]
    # A killed node's requests are never answered, and what is not tracked by the collector keeps them: processes are
    # given up after a while.
    with multiprocessing.get_context("fork").Pool(processes, maxtasksperchild=20) as pool:
        yield from pool.imap_unordered(_work, jobs)


def story(seed: int, bug: str, nodes: int) -> int:
    """One seed in full."""
    outcome = run_seed(seed, bug, nodes)
    print("\n".join(outcome.log))
    if outcome.failure:
        print(outcome.details)
        print(f"FAILED {outcome.failure}")
    print(
        f"seed {seed}: trace {outcome.trace:08x}, {outcome.simulated_s:.1f} simulated seconds, "
        f"{outcome.faults} faults, {outcome.cpu_s:.1f} s of CPU"
    )
    print(table(outcome.counts))
    return 1 if outcome.failure else 0


def search(bug: str, seeds: range, nodes: int, processes: int) -> int:
    """A seed that finds the bug, and nothing without it: the one that is known to, or the first of all."""
    known = FOUND_BY[bug]
    if not nodes and run_seed(known, bug).failure and not run_seed(known).failure:
        print(f"{bug}: found by seed {known}, as is known", flush=True)
        return 0
    for number, outcome in enumerate(outcomes(seeds, bug, nodes, processes), 1):
        if outcome.failure and not run_seed(outcome.seed, "", nodes).failure:
            print(f"{bug}: found by seed {outcome.seed}, after {number} seeds: {outcome.failure}", flush=True)
            return 0
    print(f"{bug}: not found in {len(seeds)} seeds")
    return 1


def all_of(seeds: range, nodes: int, processes: int) -> int:
    """Every seed; what failed, and what was met."""
    started = time.monotonic()
    counts: Counter[str] = Counter()
    failed: list[Outcome] = []
    failed_bugs: list[str] = []
    simulated = 0.0
    faults = 0
    for number, outcome in enumerate(outcomes(seeds, "", nodes, processes), 1):
        counts.update(outcome.counts)
        simulated += outcome.simulated_s
        faults += outcome.faults
        if outcome.failure:
            failed.append(outcome)
            print(f"seed {outcome.seed} FAILED: {outcome.failure}\n  {COMMAND} {outcome.seed}", flush=True)
        if number % 50 == 0:
            elapsed = time.monotonic() - started
            print(f"{number} of {len(seeds)} seeds, {len(failed)} failed, {elapsed:.0f} s", flush=True)
    print(table(counts))
    elapsed = time.monotonic() - started
    print(
        f"{len(seeds)} seeds in {elapsed:.0f} s: {simulated:.0f} simulated seconds, {faults} faults, {len(failed)} failed"
    )
    for outcome in failed:
        print(f"  {COMMAND} {outcome.seed}   # {outcome.failure[:150]}")
    for bug in BUGS if len(seeds) >= SEEDS_FOR_BUGS else ():
        if search(bug, BUGS_WITHIN, nodes, processes):
            failed_bugs.append(bug)
    never = missing(counts, len(seeds))
    for what in never:
        print(f"never happened: {what}")
    return 1 if failed or never or failed_bugs else 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--bug", default="", choices=["", "all", *BUGS])
    parser.add_argument(
        "--nodes", type=int, default=0, help="combined nodes, instead of what the seed chooses"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return story(arguments.seed, arguments.bug, arguments.nodes)
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    if arguments.bug:
        bugs = list(BUGS) if arguments.bug == "all" else [arguments.bug]
        return max(search(bug, seeds, arguments.nodes, arguments.processes) for bug in bugs)
    return all_of(seeds, arguments.nodes, arguments.processes)


if __name__ == "__main__":
    sys.exit(main())
