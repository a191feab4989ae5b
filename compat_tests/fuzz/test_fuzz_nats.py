"""A broker whose topics are bound to a hostile nats-server: it serves its other clients, and acknowledges only stored
messages.

A seed takes two seconds, mostly the backoff of the broker's connections: `make fuzz` runs one seed for twenty of
BARNABAS_FUZZ_SEEDS, the default suite a few, always the same. barnabas/nats/client/tests/test_protocol.py tests the
parser alone, compared with a slow and obvious one.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from compat_tests.fuzz.judge import Verdict
from compat_tests.fuzz.nats_engine import run_seeds

pytestmark = pytest.mark.barnabas_only

SEEDS = int(os.environ.get("BARNABAS_FUZZ_SEEDS", "0"))
SEEDS_PER_CASE = 20
BROKERS = 4  # of the short form, each with its share of the seeds: they mostly wait
# one seed for each kind of damage, and two with all kinds
SHORT = (42, 18, 137, 121, 39, 66, 8, 21, 54, 178, 107, 102, 139, 89, 154, 111, 5, 17)


@pytest.mark.timeout(0 if SEEDS else 300)
def test_a_nats_server(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    seeds = range(1, 1 + max(1, SEEDS // SEEDS_PER_CASE)) if SEEDS else SHORT
    brokers = 1 if SEEDS else BROKERS
    loop = request.config.getoption("--loop")

    def run(number: int) -> tuple[list[Verdict], list[str]]:
        folder = tmp_path / str(number)
        folder.mkdir()
        return run_seeds(folder, seeds[number::brokers], loop=loop)

    with ThreadPoolExecutor(brokers) as pool:
        results = list(pool.map(run, range(brokers)))
    failures = [failure for _, failures in results for failure in failures]
    assert not failures, "\n\n".join(failures)
    assert sum(len(verdicts) for verdicts, _ in results) == len(seeds)
