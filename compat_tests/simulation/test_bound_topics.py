"""A few seeds of a bound topic, a planted bug that loses messages silently, and one that miscounts identical messages;
BARNABAS_CHAOS_ROUNDS sets the number of seeds (`make chaos-nats`)."""

from __future__ import annotations

import functools
import os
from collections import Counter
from unittest import mock

import pytest

from barnabas.nats.ingress.standby import Standby
from barnabas.nats.ingress.standbys import StandbyReports, Standbys
from compat_tests.simulation.bound_topics import BoundTopicSimulation
from compat_tests.simulation.history import Violation

pytestmark = pytest.mark.barnabas_only
ROUNDS = int(os.environ.get("BARNABAS_CHAOS_ROUNDS", "0"))
MISCOUNTED = (13, 20)  # where each mark's number of identical messages was believed
TURNS = "turns of more than"  # counted by the machine's time, which is another one in each run
MET = (
    "messages published",
    "identical messages published",
    "moves of bound partitions",
    "leaders that end when all are in sync",
    "connections to NATS that break",
)


@functools.cache
def run(seed: int) -> tuple[Counter[str], int]:
    """Counters and the trace of a seed."""
    return run_again(seed)


def run_again(seed: int) -> tuple[Counter[str], int]:
    simulation = BoundTopicSimulation(seed)
    try:
        simulation.run()
    except Exception as error:
        error.add_note("\n".join([*simulation.history.log, f"seed {seed}"]))
        raise
    counts = simulation.history.counts.items()
    return Counter(
        {what: count for what, count in counts if not what.startswith(TURNS)}
    ), simulation.world.trace


@pytest.mark.timeout(300 + 300 * ROUNDS)
def test_messages_are_missing_only_in_gaps_and_none_is_duplicated() -> None:
    counts: Counter[str] = Counter()
    for seed in (*MISCOUNTED, *range(1 + 100 * ROUNDS)):
        counts += run(seed)[0]
    assert all(counts[each] for each in MET), counts
    assert counts["messages missing in gaps"] < counts["messages published"] / 6


@pytest.mark.long
def test_followers_that_join_too_early_and_log_no_gap_are_found() -> None:
    with (
        mock.patch.object(StandbyReports, "may_take_over", return_value=True),
        mock.patch.object(Standbys, "note_lapses"),
    ):
        assert any(fails(seed) for seed in (10, *range(30)))


def test_identical_messages_that_one_mark_counts_are_found() -> None:
    with mock.patch.object(Standby, "_correct", return_value={}):
        assert any(fails(seed) for seed in (13, *range(30)))


def fails(seed: int) -> bool:
    try:
        run_again(seed)
    except Violation:
        return True
    return False


def test_a_seed_replays_exactly() -> None:
    assert run_again(0) == run(0)
