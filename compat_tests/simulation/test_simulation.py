"""The short form of the simulator: a few seeds, exact replay of a seed, and planted bugs that it must find.

`make simulate` is the long form; `python -m compat_tests.simulation --bug all` looks for every known bug.
"""

from __future__ import annotations

import functools
import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from barnabas.broker.node import Node
from compat_tests.simulation.__main__ import Outcome, run_seed
from compat_tests.simulation.bugs import BUGS, FOUND_BY
from compat_tests.simulation.simulation import Simulation

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.barnabas_only


def details(outcome: Outcome) -> str:
    return "\n".join([*outcome.log, outcome.details])


@functools.cache
def outcome_of(seed: int) -> Outcome:
    """Outcome of a seed without a planted bug."""
    return run_seed(seed)


@pytest.mark.parametrize("seed", range(3))
def test_a_single_node(seed: int) -> None:
    outcome = run_seed(seed, nodes=1)
    assert not outcome.failure, details(outcome)
    assert outcome.faults >= 3
    assert outcome.simulated_s >= 30
    assert outcome.counts["batches acked"] > 50


@pytest.mark.parametrize("seed", range(10))
def test_a_cluster(seed: int) -> None:
    outcome = outcome_of(seed)
    assert not outcome.failure, details(outcome)
    assert outcome.faults >= 3
    assert outcome.simulated_s >= 30
    assert outcome.counts["controller elections"] > 0
    assert outcome.counts["leader changes"] > 0


def test_nodes_are_garbage_collected_despite_pending_requests() -> None:
    """The garbage collector must track every struct in a reference cycle; otherwise the cycle is never freed."""
    simulation = Simulation(0)
    simulation.run()
    nodes = [weakref.ref(each) for each in gc.get_objects() if isinstance(each, Node)]
    assert len(nodes) > 3, "some have been killed"
    del simulation
    gc.collect()
    assert not [each for each in nodes if each() is not None]


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    """The seed in FOUND_BY finds it. Changes of the code move it: `python -m compat_tests.simulation --bug NAME`
    finds a new one for FOUND_BY; until then any of 100 other seeds counts."""
    seeds = [FOUND_BY[bug], *range(100)]
    assert any(run_seed(seed, bug).failure and not outcome_of(seed).failure for seed in seeds)


def test_a_seed_replays_exactly_under_any_hash_seed() -> None:
    def line(hash_seed: str) -> str:
        command = [sys.executable, "-m", "compat_tests.simulation", "--seed", "5"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250, check=False
        )
        (found,) = [each for each in done.stdout.splitlines() if "trace" in each]
        return found.rpartition(",")[0]

    assert line("1") == line("2")
