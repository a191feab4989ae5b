"""The short form of the simulator: a handful of seeds, the proof that a seed replays exactly, and that what should be
found is found. `make simulate` is the long form; `python -m compat_tests.simulation --bug all` looks for every known bug.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from compat_tests.simulation.__main__ import Outcome, run_seed
from compat_tests.simulation.bugs import BUGS, FOUND_BY

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.barnabas_only


def told(outcome: Outcome) -> str:
    return "\n".join([*outcome.log, outcome.details])


@pytest.mark.parametrize("seed", range(3))
def test_a_single_node(seed: int) -> None:
    outcome = run_seed(seed, nodes=1)
    assert not outcome.failure, told(outcome)
    assert outcome.faults >= 3
    assert outcome.simulated_s >= 30
    assert outcome.counts["batches acked"] > 50


@pytest.mark.parametrize("seed", range(10))
def test_a_cluster(seed: int) -> None:
    outcome = run_seed(seed)
    assert not outcome.failure, told(outcome)
    assert outcome.faults >= 3
    assert outcome.simulated_s >= 30
    assert outcome.counts["controller elections"] > 0
    assert outcome.counts["leader changes"] > 0


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_that_is_put_back_in_is_found(bug: str) -> None:
    """By the seed that is known for it. Changes of the code move it: `python -m compat_tests.simulation --bug NAME`
    finds a new one, for FOUND_BY; meanwhile any of some others will do."""
    seeds = [FOUND_BY[bug], *range(30)]
    assert any(run_seed(seed, bug).failure and not run_seed(seed).failure for seed in seeds)


def test_a_seed_replays_exactly_whatever_the_hashes_of_strings() -> None:
    def line(hash_seed: str) -> str:
        command = [sys.executable, "-m", "compat_tests.simulation", "--seed", "5"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250, check=False
        )
        (found,) = [each for each in done.stdout.splitlines() if "trace" in each]
        return found.rpartition(",")[0]

    assert line("1") == line("2")
