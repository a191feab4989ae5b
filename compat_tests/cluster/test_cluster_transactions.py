"""Transactions on real processes: kill -9 and standstill of coordinators and leaders, producers that pause beyond their timeout.

BARNABAS_CHAOS_ROUNDS sets the number of rounds, in random order, with a line each (`make chaos`). Not part of the default run: it
takes a minute.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

import pytest

from compat_tests.harness.cluster import Cluster
from compat_tests.harness.fixture_types import ClusterFactory
from compat_tests.harness.transactional_work import INPUT, PARTITIONS, TransactionalWork

ROUNDS = int(os.environ.get("BARNABAS_CHAOS_ROUNDS", "1"))
SETTINGS = {
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "offsets.topic.num.partitions": "2",
    "offsets.topic.replication.factor": "3",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}


def _leader_of(topic: str) -> Callable[[Cluster], list[int]]:
    return lambda cluster: [cluster.leader(topic, random.randrange(PARTITIONS))]


VICTIMS: dict[str, Callable[[Cluster], list[int]]] = {
    "coordinator of transactions": _leader_of("__transaction_state"),
    "coordinator of groups": _leader_of("__consumer_offsets"),
    "leader": _leader_of(INPUT),
    "all three": lambda cluster: list(cluster.nodes),
}


def _kill(cluster: Cluster, work: TransactionalWork, which: str) -> None:
    dead = VICTIMS[which](cluster)
    cluster.kill(*dead)
    if len(dead) == 1:
        work.await_progress(1)
    cluster.start(*dead)


def _suspend(cluster: Cluster, work: TransactionalWork) -> None:
    """The coordinator stands still, and resumes without knowing that another one has taken over."""
    asleep = cluster.leader("__transaction_state", random.randrange(PARTITIONS))
    cluster.suspend(asleep)
    try:
        work.await_progress(1)
    finally:
        cluster.resume(asleep)
    cluster.wait_until_known()


def _pause(_cluster: Cluster, work: TransactionalWork) -> None:
    for worker in random.sample(work.workers, 2):
        worker.pause()


@pytest.mark.skipif("BARNABAS_CHAOS_ROUNDS" not in os.environ, reason="it takes a minute: make chaos")
@pytest.mark.timeout(1000 + 1000 * ROUNDS)
def test_transactions_while_coordinators_and_leaders_die(
    fresh_cluster: ClusterFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = fresh_cluster(settings=SETTINGS)
    work = TransactionalWork(cluster)
    for number in range(ROUNDS):
        faults: list[str] = [*VICTIMS, "standstill", "pause"]
        for which in faults if ROUNDS == 1 else random.sample(faults, len(faults)):
            work.await_progress()
            started = time.monotonic()
            if which == "standstill":
                _suspend(cluster, work)
            elif which == "pause":
                _pause(cluster, work)
            else:
                _kill(cluster, work, which)
            cluster.wait_until_whole()
            took = time.monotonic() - started
            with capsys.disabled():
                print(f"\nround {number + 1} of {ROUNDS}: {which}: {took:.1f} s", end="", flush=True)
    work.await_progress()
    assert work.verify() > 30
