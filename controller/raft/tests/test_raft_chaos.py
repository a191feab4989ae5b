"""Random faults of networks, disks and processes. BARNABAS_RAFT_SEEDS=2000 runs more of them (`make test-durability`: 1000),
=n:n+1 replays seed n."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from barnabas.controller.raft.tests.chaos_world import run_seed

DEFAULT_SEEDS = "0:4"
MUST_HAPPEN = (
    "committed",
    "failed",
    "elections",
    "power failures",
    "kills",
    "killed in the start",
    "disk refuses",
    "stopped",
    "hand-overs",
    "snapshots from the leader",
    "shortened journals",
    "voter changes",
    "failed voter changes",
    "leaders that removed themselves",
    "wiped",
    "emptied",
)


def seeds() -> range:
    first, _, last = os.environ.get("BARNABAS_RAFT_SEEDS", DEFAULT_SEEDS).rpartition(":")
    return range(int(first or 0), int(last))


@pytest.mark.slow
@pytest.mark.timeout(0 if "BARNABAS_RAFT_SEEDS" in os.environ else 300)
def test_no_committed_change_is_lost() -> None:
    counters: Counter[str] = Counter()
    for seed in seeds():
        try:
            counters += run_seed(seed)
        except Exception as error:
            raise AssertionError(f"BARNABAS_RAFT_SEEDS={seed}:{seed + 1} shows it") from error
    print(dict(counters))
    if len(seeds()) >= 10:
        assert not [what for what in MUST_HAPPEN if not counters[what]]


@pytest.mark.slow
def test_a_seed_replays_exactly() -> None:
    assert run_seed(5, 3.0) == run_seed(5, 3.0)
