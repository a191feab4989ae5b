"""SIGSTOP: a node is paused with its connections open, and resumes without knowing.

It may believe that it still leads. The pause is four seconds in the short form, ten with BARNABAS_CHAOS_ROUNDS set.
"""

from __future__ import annotations

import os
import time

import pytest

from compat_tests.harness.cluster_work import Work
from compat_tests.harness.fixture_types import ClusterFactory

LONG = "BARNABAS_CHAOS_ROUNDS" in os.environ
SETTINGS = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "300"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("which", ["leader", "active controller"] if LONG else ["leader"])
def test_a_paused_node_resumes(fresh_cluster: ClusterFactory, which: str) -> None:
    cluster = fresh_cluster(settings=SETTINGS)
    work = Work(cluster)
    work.await_progress()
    topic = next(iter(work.loads))
    asleep = cluster.leader(topic) if which == "leader" else cluster.active_controller()
    cluster.suspend(asleep)
    until = time.monotonic() + (10 if LONG else 4)
    work.await_progress()  # the others have taken over
    assert cluster.leader(topic) != asleep
    time.sleep(max(0.0, until - time.monotonic()))  # the standstill's length
    cluster.resume(asleep)
    work.await_progress()
    cluster.wait_until_known()
    assert work.verify() > 50
