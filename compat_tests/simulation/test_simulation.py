"""The short form of the simulator: a handful of seeds, and the proof that a seed replays exactly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from compat_tests.simulation.__main__ import run_seed

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.barnabas_only


@pytest.mark.parametrize("seed", range(4))
def test_a_single_node(seed: int) -> None:
    outcome = run_seed(seed, nodes=1)
    assert not outcome.failure, "\n".join([*outcome.log, outcome.details])
    assert outcome.faults >= 3
    assert outcome.simulated_s >= 30
    assert outcome.counts["batches acked"] > 50


def test_a_seed_replays_exactly_whatever_the_hashes_of_strings() -> None:
    def told(hash_seed: str) -> str:
        command = [sys.executable, "-m", "compat_tests.simulation", "--seed", "3", "--nodes", "1"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout.partition(" s of CPU")[0].rpartition(",")[0]

    first = told("1")
    assert "trace" in first
    assert first == told("2")
