"""The short form of the simulator: a few seeds, exact replay of a seed, and planted bugs that it must find.

`make simulate` is the long form; `python -m compat_tests.simulation --bug all` looks for every known bug.
"""

from __future__ import annotations

import functools
import gc
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from barnabas.broker.node import Node
from compat_tests.simulation.__main__ import Outcome, circumstances_of, run_seed
from compat_tests.simulation.bugs import ANY, BUGS, CIRCUMSTANCES, FOUND_BY, Circumstances
from compat_tests.simulation.coverage import SEEDS_FOR_COMMON, missing

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.barnabas_only


def details(outcome: Outcome) -> str:
    return "\n".join([*outcome.log, outcome.details])


# Planted bugs of the default suite; `make test-simulation` and `make simulate` look for all of them.
SOON_FOUND = (
    "hedged-replicas-stay-electable",
    "nothing-is-owned-any-more",
)
# With these no other run is needed to see that a failure is that of a planted bug. 0, 4 and 102 cover all that is common, and 3 what a
# share group does.
SEEDS = sorted({FOUND_BY[bug] for bug in SOON_FOUND if bug not in CIRCUMSTANCES} | {0, 3, 4, 102})


def nodes() -> set[int]:
    """Nodes in memory, also those that were killed."""
    return {id(each) for each in gc.get_objects() if isinstance(each, Node)}


@functools.cache
def outcome_of(seed: int, circumstances: Circumstances = ANY) -> Outcome:
    """Outcome of a seed without a planted bug. Its nodes are garbage-collected despite pending requests: the garbage collector
    must track every struct in a reference cycle, or the cycle is never freed."""
    gc.collect()
    before = nodes()
    outcome = run_seed(seed, "", circumstances)
    gc.collect()  # what a coroutine's `finally` held in the collection before is freed now
    assert nodes() <= before
    return outcome


@pytest.mark.parametrize("seed", range(3))
def test_a_single_node(seed: int) -> None:
    outcome = run_seed(seed, "", circumstances_of("", nodes=1))
    assert not outcome.failure, details(outcome)
    assert outcome.faults >= 3
    assert outcome.simulated_s >= 30
    assert outcome.counts["batches acked"] > 50


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cluster(seed: int) -> None:
    outcome = outcome_of(seed)
    assert not outcome.failure, details(outcome)
    assert outcome.faults >= 3
    assert outcome.simulated_s >= 30
    assert outcome.counts["controller elections"] > 0
    assert outcome.counts["leader changes"] > 0


def test_what_is_common_happens() -> None:
    """Nodes are killed, among others, and then garbage-collected: see outcome_of."""
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        counts.update(outcome_of(seed).counts)
    assert not missing(counts, SEEDS_FOR_COMMON)


@pytest.mark.parametrize(
    "bug", [pytest.param(bug, marks=() if bug in SOON_FOUND else pytest.mark.long) for bug in BUGS]
)
def test_a_planted_bug_is_found(bug: str) -> None:
    """The seed in FOUND_BY finds it. Changes of the code move it: `python -m compat_tests.simulation --bug NAME`
    finds a new one for FOUND_BY; until then any of 100 other seeds counts."""
    seeds, circumstances = [FOUND_BY[bug], *range(100)], circumstances_of(bug)
    assert any(
        run_seed(seed, bug, circumstances).failure and not outcome_of(seed, circumstances).failure
        for seed in seeds
    )


def test_a_seed_replays_exactly_under_any_hash_seed() -> None:
    """In this process hashes are random."""
    command = [sys.executable, "-m", "compat_tests.simulation", "--seed", str(SEEDS[-1])]
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250, check=False
    )
    assert f"trace {outcome_of(SEEDS[-1]).trace:08x}," in done.stdout
