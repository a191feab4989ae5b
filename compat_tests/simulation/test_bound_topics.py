"""A few seeds of a bound topic, and that the loss of messages in silence is found; BARNABAS_CHAOS_ROUNDS asks for more
(`make chaos-nats`)."""

from __future__ import annotations

import gc
import logging
import os
from collections import Counter
from collections.abc import Iterator
from unittest import mock

import pytest

from barnabas.nats.ingress.ingest import Ingest
from barnabas.nats.ingress.standby import StandbyReports
from compat_tests.simulation.bound_topics import BoundTopicSimulation
from compat_tests.simulation.history import Violation

pytestmark = pytest.mark.barnabas_only
ROUNDS = int(os.environ.get("BARNABAS_CHAOS_ROUNDS", "0"))
MET = (
    "messages published",
    "moves of bound partitions",
    "leaders that go when all are in sync",
    "connections to NATS that break",
)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("barnabas")
    before = logger.level
    logger.setLevel(logging.WARNING)
    yield
    logger.setLevel(before)


def run(seed: int) -> Counter[str]:
    simulation = BoundTopicSimulation(seed)
    try:
        simulation.run()
    except Exception as error:
        error.add_note("\n".join([*simulation.history.log, f"seed {seed}"]))
        raise
    finally:
        # Killed nodes leave requests that the collector does not track, with all that these hold (14 MB a seed). Out of its
        # sight they cost memory alone: after 150 seeds a full collection would take longer than any turn may.
        gc.collect()
        gc.freeze()
    return Counter(simulation.history.counts)


@pytest.mark.timeout(300 + 300 * ROUNDS)
def test_nothing_is_missing_outside_of_gaps_and_nothing_is_there_twice() -> None:
    counts: Counter[str] = Counter()
    for seed in range(4 + 100 * ROUNDS):
        counts += run(seed)
    assert all(counts[each] for each in MET), counts
    assert counts["messages missing in gaps"] < counts["messages published"] / 6


def test_followers_that_join_too_early_and_say_nothing_of_it_are_found() -> None:
    with (
        mock.patch.object(StandbyReports, "may_take_over", return_value=True),
        mock.patch.object(Ingest, "_note_lapses"),
    ):
        assert any(fails(seed) for seed in (8, 9, 11, *range(20)))


def fails(seed: int) -> bool:
    try:
        run(seed)
    except Violation:
        return True
    return False


def test_a_seed_replays_exactly() -> None:
    traces = []
    for _ in range(2):
        simulation = BoundTopicSimulation(3)
        simulation.run()
        traces.append(simulation.world.trace)
    assert traces[0] == traces[1]
