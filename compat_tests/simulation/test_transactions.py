"""A few seeds of transactions, planted bugs that they must find, and an exact replay. `make simulate-transactions` runs many."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from compat_tests.simulation.transaction_bugs import FOUND_BY, is_found
from compat_tests.simulation.transactions import run_seed

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.barnabas_only
MET = (
    "aborted transactions",
    "committed transactions",
    "coordinator moves",
    "end PRODUCER_FENCED",
    "holders that give up",
    "late requests of API 0",
    "late requests of API 27",
    "offset fetch UNSTABLE_OFFSET_COMMIT",
    "producers that pause",
    "transactional offsets",
)
# Planted bugs of the default suite; `make test-simulation` looks for all that the first seeds find.
SOON_FOUND = (
    "aborted-transactions-are-not-named",
    "completion-is-written-twice",
    "empty-members-are-refused",
    "errors-among-brokers-are-passed-on",
    "errors-of-the-controller-are-passed-on",
    "no-epoch-is-checked",
)

outcome_of = functools.cache(run_seed)


def test_invariants_hold_while_faults_happen() -> None:
    counts: Counter[str] = Counter()
    for seed in range(2):
        failure, details, found, log = outcome_of(seed)
        assert not failure, "\n".join([*log, details])
        counts += found
    assert all(counts[each] for each in MET), counts


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(bug, marks=() if bug in SOON_FOUND else pytest.mark.long)
        for bug, seed in FOUND_BY.items()
        if seed < 2
    ],
)
def test_a_planted_bug_is_found(bug: str) -> None:
    """The seed in FOUND_BY finds it. Changes of the code move it: `python -m compat_tests.simulation.transactions --bug NAME` finds
    a new one; until then any of 20 others counts. `make simulate-transactions` also looks for those that are found less often."""
    seeds = (FOUND_BY[bug], *range(20))
    assert any(is_found(bug, run_seed(seed, bug)[0]) for seed in seeds)


def test_a_seed_replays_exactly_under_any_hash_seed() -> None:
    """In this process hashes are random, and another seed has run before."""
    command = [sys.executable, "-m", "compat_tests.simulation.transactions", "--seed", "1"]
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250, check=False
    )
    (found,) = [line for line in done.stdout.splitlines() if line.startswith("trace ")]
    outcome_of(0)
    assert found == outcome_of(1)[3][-1]
