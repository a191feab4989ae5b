"""Command line of the simulator: `python -m compat_tests.simulation --seeds 1000` runs seeds in parallel processes.

`--seed N` runs one seed and prints its log. `--bug NAME` plants a known bug (bugs.py) and looks for a seed that finds
it. Exits with 1 when a seed fails, or when an event that coverage.py requires never happens.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from compat_tests.simulation.bugs import ANY, BUGS, CIRCUMSTANCES, FOUND_BY, Circumstances, planted
from compat_tests.simulation.coverage import missing, table
from compat_tests.simulation.share_simulation import ShareSimulation
from compat_tests.simulation.simulation import Simulation

SEED_CPU_S = 60  # a seed that takes more is in an endless loop
SEEDS_FOR_BUGS = 200  # a run of at least so many seeds also looks for every known bug,
BUGS_WITHIN = range(1000)  # in these seeds
WITH_SHARE_GROUP = 3  # of each five seeds
COMMAND = "python -m compat_tests.simulation --seed"


class Outcome(NamedTuple):
    """Result of one seed."""

    seed: int
    failure: str  # empty when the seed passed
    trace: int
    simulated_s: float
    cpu_s: float
    faults: int
    counts: dict[str, int]
    log: list[str]
    details: str


def circumstances_of(bug: str, nodes: int = 0) -> Circumstances:
    """Those in which a bug is looked for; `nodes`: combined nodes instead."""
    return Circumstances(("broker,controller",) * nodes) if nodes else CIRCUMSTANCES.get(bug, ANY)


def run_seed(seed: int, bug: str = "", circumstances: Circumstances = ANY) -> Outcome:
    """Runs one simulation from beginning to end."""
    signal.signal(signal.SIGVTALRM, _stop_endless_seed)
    started = time.process_time()
    failure = details = ""
    # A world is a large graph of objects, nearly all of which stay until it ends.
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(100_000, 50, 1000)
    with planted(bug):
        has_share_group = circumstances.has_share_group or seed % 5 == WITH_SHARE_GROUP
        simulation = (ShareSimulation if has_share_group else Simulation)(
            seed, circumstances.shape or None, circumstances.frequent_fault
        )
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


def _stop_endless_seed(_number: int, _frame: object) -> None:
    raise TimeoutError(f"no end after {SEED_CPU_S} s of CPU")


def _work(job: tuple[int, str, Circumstances]) -> Outcome:
    outcome = run_seed(*job)
    return outcome._replace(log=[]) if not outcome.failure else outcome


def outcomes(seeds: range, bug: str, nodes: int, processes: int) -> Iterator[Outcome]:
    """Results in the order in which the processes finish."""
    jobs = [(seed, bug, circumstances_of(bug, nodes)) for seed in seeds]
    # Pending requests of killed nodes stay in objects that the garbage collector does not track, so each process is
    # replaced after 20 seeds.
    with multiprocessing.get_context("fork").Pool(processes, maxtasksperchild=20) as pool:
        yield from pool.imap_unordered(_work, jobs)


def story(seed: int, bug: str, nodes: int) -> int:
    """Runs one seed and prints its whole log."""
    outcome = run_seed(seed, bug, circumstances_of(bug, nodes))
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
    """Looks for a seed that fails with the bug and passes without it: first the known seed, then all of them."""
    known, circumstances = FOUND_BY[bug], circumstances_of(bug, nodes)
    if (
        not nodes
        and run_seed(known, bug, circumstances).failure
        and not run_seed(known, "", circumstances).failure
    ):
        print(f"{bug}: found by seed {known}, the known one", flush=True)
        return 0
    for number, outcome in enumerate(outcomes(seeds, bug, nodes, processes), 1):
        if outcome.failure and not run_seed(outcome.seed, "", circumstances).failure:
            print(f"{bug}: found by seed {outcome.seed}, after {number} seeds: {outcome.failure}", flush=True)
            return 0
    print(f"{bug}: not found in {len(seeds)} seeds")
    return 1


def run_all_seeds(seeds: range, nodes: int, processes: int) -> int:
    """Runs every seed; prints the failures and the counters."""
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
    return run_all_seeds(seeds, arguments.nodes, arguments.processes)


if __name__ == "__main__":
    sys.exit(main())
