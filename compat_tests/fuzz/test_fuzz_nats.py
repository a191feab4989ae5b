"""A broker whose topics are bound to a nats-server that lies: it serves its other clients, and acknowledges only what it has.

A seed takes two seconds, mostly until the broker tries to connect again: `make fuzz` runs one for twenty of
BARNABAS_FUZZ_SEEDS, the default suite a few, always the same. The parser alone is tried in
barnabas/nats/client/tests/test_protocol.py, against a slow and obvious one.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compat_tests.fuzz.nats_engine import run_seeds

pytestmark = pytest.mark.barnabas_only

SEEDS = int(os.environ.get("BARNABAS_FUZZ_SEEDS", "0"))
SEEDS_PER_CASE = 20
# one of each kind of damage, and two of all at once
SHORT = (42, 18, 137, 121, 39, 66, 8, 21, 54, 178, 107, 102, 139, 89, 154, 111, 5, 17)


@pytest.mark.timeout(0 if SEEDS else 300)
def test_a_nats_server(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    seeds = range(1, 1 + max(1, SEEDS // SEEDS_PER_CASE)) if SEEDS else SHORT
    verdicts, failures = run_seeds(tmp_path, seeds, loop=request.config.getoption("--loop"))
    assert not failures, "\n\n".join(failures)
    assert len(verdicts) == len(seeds)
