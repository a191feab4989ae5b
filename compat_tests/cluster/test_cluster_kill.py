"""kill -9 under load: of a leader, a follower, the active controller, two of three, all three.

The short form is one round of three of the five; BARNABAS_CHAOS_ROUNDS sets a number of rounds, in random order, with a line each
(`make chaos`).
"""

from __future__ import annotations

import os
import random
import time

import pytest

from compat_tests.harness.cluster import Cluster
from compat_tests.harness.cluster_work import Work
from compat_tests.harness.fixture_types import ClusterFactory

ROUNDS = int(os.environ.get("BARNABAS_CHAOS_ROUNDS", "0"))
VICTIMS = ("leader", "follower", "active controller", "two of three", "all three")
SHORT = ("leader", "active controller", "all three")


def victims(cluster: Cluster, which: str, topic: str) -> list[int]:
    """The nodes to kill."""
    if which == "all three":
        return list(cluster.nodes)
    if which == "active controller":
        return [cluster.active_controller()]
    leader = cluster.leader(topic)
    others = [node for node in cluster.nodes if node != leader]
    if which == "leader":
        return [leader]
    if which == "follower":
        return [random.choice(others)]
    return [leader, random.choice(others)]


@pytest.mark.timeout(300 + 150 * ROUNDS)
def test_kill_under_load_loses_no_acknowledged_record(
    fresh_cluster: ClusterFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = fresh_cluster()
    work = Work(cluster)
    topic = next(iter(work.loads))
    for number in range(max(1, ROUNDS)):
        order = random.sample(VICTIMS, len(VICTIMS)) if ROUNDS else SHORT
        for which in order:
            work.await_progress()
            time.sleep(random.random() / 2)  # the node dies at a random point of the clients' work
            dead = victims(cluster, which, topic)
            started = time.monotonic()
            cluster.kill(*dead)
            if len(dead) == 1:
                work.await_progress(100)
            outage = time.monotonic() - started
            cluster.start(*dead)
            cluster.wait_until_whole()
            if ROUNDS:
                with capsys.disabled():
                    print(
                        f"\nround {number + 1} of {ROUNDS}: {which} (node {dead}): all clients continue after "
                        f"{outage:.1f} s, all in sync after {time.monotonic() - started:.1f} s",
                        end="",
                        flush=True,
                    )
    work.await_progress()
    assert work.verify() > 100
