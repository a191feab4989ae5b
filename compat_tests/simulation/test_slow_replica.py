"""What the hedge saves where one of three replicas stands still, in virtual time."""

from __future__ import annotations

import pytest

from compat_tests.bench.latency import percentile
from compat_tests.simulation.slow_replica import SlowReplica

pytestmark = pytest.mark.barnabas_only

PAUSE_S = 1.0
HEDGE_MS = 10


@pytest.mark.parametrize("hedge_ms", [-1, HEDGE_MS])
def test_a_follower_that_pauses(hedge_ms: int) -> None:
    """Of the records that are due while it stands still, all wait for it without a hedge; with one, those of its first moments."""
    simulation = SlowReplica(hedge_ms, rate=200)
    found = simulation.measure(lambda run: run.pause("follower", PAUSE_S, 10.0), 5)
    delayed = sum(latency > 2 * HEDGE_MS / 1000 for latency in found)
    if hedge_ms < 0:
        assert delayed > 0.9 * PAUSE_S * simulation.rate
        assert percentile(found, 0.99) > 0.9 * PAUSE_S
    else:
        assert delayed == 0
    assert simulation.is_whole(), "it is in sync again"
