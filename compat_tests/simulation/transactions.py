"""The command line of the simulated transactions (transaction_simulation.py).

`python -m compat_tests.simulation.transactions --seed N` runs one seed and prints its log; `--seeds N` runs many, and `--bug NAME`
looks for a seed that finds a planted bug.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from functools import partial

from compat_tests.simulation.transaction_bugs import BUGS, FOUND_BY, is_found, planted
from compat_tests.simulation.transaction_simulation import TransactionSimulation

SEEDS_FOR_BUGS = 200  # a run of at least so many seeds also looks for every known bug,
BUGS_WITHIN = range(1000)  # in these seeds
COMMAND = "python -m compat_tests.simulation.transactions --seed"


def run_seed(seed: int, bug: str = "") -> tuple[str, str, Counter[str], list[str]]:
    """(failure or "", its traceback, counters, log) of one seed."""
    failure = details = ""
    with planted(bug):
        simulation = TransactionSimulation(seed)
        try:
            simulation.run()
        except Exception as error:  # noqa: BLE001 - whatever it is, the seed has failed
            failure, details = f"{type(error).__name__}: {error}", traceback.format_exc()
    simulation.history.log.append(
        f"trace {simulation.world.trace:08x}, {simulation.world.now:.3f} simulated seconds"
    )
    return failure, details, Counter(simulation.history.counts), simulation.history.log


def _work(seed: int, bug: str) -> tuple[int, str, Counter[str]]:
    failure, _, counts, _ = run_seed(seed, bug)
    return seed, failure, counts


@functools.cache
def _passes(seed: int) -> bool:
    """Whether a seed finds nothing without a bug."""
    return not run_seed(seed)[0]


def search(bug: str, seeds: range, processes: int) -> int:
    """Looks for a seed that fails with the bug and passes without it: first the known seed, then all of them; 1 without one."""
    started = time.monotonic()
    known = FOUND_BY.get(bug)
    if known is not None:
        failure = run_seed(known, bug)[0]
        if is_found(bug, failure) and _passes(known):
            print(f"{bug}: found by seed {known}, the known one: {failure[:300]}", flush=True)
            return 0
    with multiprocessing.get_context("fork").Pool(processes, maxtasksperchild=10) as pool:
        for seed, failure, _ in pool.imap(partial(_work, bug=bug), seeds):
            if is_found(bug, failure) and _passes(seed):
                took_s = time.monotonic() - started
                print(f"{bug}: found by seed {seed} in {took_s:.0f} s: {failure[:300]}", flush=True)
                return 0
    print(f"{bug}: not found in {len(seeds)} seeds", flush=True)
    return 1


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--bug", nargs="+", default=[], choices=["all", *BUGS])
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    if options.seed is not None:
        failure, details, counts, log = run_seed(options.seed, *options.bug)
        print("\n".join([*log, details, *(f"{count:>10}  {what}" for what, count in sorted(counts.items()))]))
        return 1 if failure else 0
    if options.bug:
        bugs = BUGS if options.bug == ["all"] else options.bug
        return max([search(bug, seeds, options.processes) for bug in bugs])
    started = time.monotonic()
    total: Counter[str] = Counter()
    failed = 0
    with multiprocessing.get_context("fork").Pool(options.processes, maxtasksperchild=10) as pool:
        for seed, failure, counts in pool.imap_unordered(partial(_work, bug=""), seeds):
            total += counts
            if failure:
                failed += 1
                print(f"{COMMAND} {seed}   # {failure[:600]}", flush=True)
    print("\n".join(f"{count:>10}  {what}" for what, count in sorted(total.items())))
    print(f"{options.seeds} seeds in {time.monotonic() - started:.0f} s, {failed} failed")
    if options.seeds >= SEEDS_FOR_BUGS:
        failed += sum(search(bug, BUGS_WITHIN, options.processes) for bug in BUGS)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
