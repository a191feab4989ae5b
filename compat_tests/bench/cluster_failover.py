"""Unavailability of a partition: from the death of its leader to the next acknowledged record, acks=all.

The client asks the surviving nodes for the new leader almost without a pause and sends there at once. The back-off of
real clients adds to the measured time.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from contextlib import suppress

from compat_tests.bench.workloads import Measures
from compat_tests.harness import cluster_view, raw
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.cluster_work import create_topic
from compat_tests.harness.raw import RawConnection

_TIMEOUT_S = 90
_PAUSE_S = 0.002
_ATTEMPTS = 3
_numbers = itertools.count()
_BATCH = raw.good_batch(bytes(100))


def kill(cluster: Cluster, *, controller: bool, name: str) -> Measures:
    """kill -9 of a leader that is (or is not) the active controller as well."""
    return _lose(cluster, signal.SIGKILL, controller=controller, partitions=1, name=name)


def silence(cluster: Cluster, name: str) -> Measures:
    """SIGSTOP of a leader: no connection closes."""
    return _lose(cluster, signal.SIGSTOP, controller=False, partitions=1, name=name)


def many(cluster: Cluster, partitions: int) -> Measures:
    """kill -9 of the leader of many partitions, until each of them has acknowledged a record."""
    name = f"{partitions:,} partitions led by the killed node, s"
    return _lose(cluster, signal.SIGKILL, controller=False, partitions=partitions, name=name)


def _lose(cluster: Cluster, how: signal.Signals, *, controller: bool, partitions: int, name: str) -> Measures:
    active = cluster.active_controller()
    leader = active if controller else next(node for node in cluster.nodes if node != active)
    others = [node for node in cluster.nodes if node != leader]
    topic = _topic_of(cluster, leader, others, partitions)
    left = set(range(partitions))
    started = time.perf_counter()
    os.kill(cluster.nodes[leader].pid, how)
    _produce_anywhere([cluster.addresses[node] for node in others], topic, left, leader)
    seconds = time.perf_counter() - started
    _bring_back(cluster, leader, how)
    return {name: seconds}


def _topic_of(cluster: Cluster, leader: int, others: list[int], partitions: int) -> str:
    """A topic with records whose partitions the node leads all; the other nodes are the next leaders in equal parts."""
    half = partitions // 2
    assignment = [[leader, *others]] * (partitions - half) + [[leader, *reversed(others)]] * half
    for _ in range(_ATTEMPTS):
        topic = f"away-{next(_numbers)}"
        create_topic(cluster, topic, configs={"min.insync.replicas": "2"}, assignment=assignment)
        _produce_anywhere(list(cluster.addresses.values()), topic, set(range(partitions)), -1)
        time.sleep(1)
        states = cluster.metadata().partitions
        mine = [states[topic, number] for number in range(partitions)]
        if all(one.leader == leader and one.whole for one in mine):
            return topic
    raise AssertionError(f"node {leader} does not keep the lead and the followers of {partitions} partitions")


def _bring_back(cluster: Cluster, node: int, how: signal.Signals) -> None:
    if how is signal.SIGSTOP:
        os.kill(cluster.nodes[node].pid, signal.SIGCONT)
    else:
        cluster.nodes[node].kill()
        cluster.start(node)
    cluster.wait_until_known()
    cluster.wait_until_whole(120)


def _produce_anywhere(survivors: list[str], topic: str, left: set[int], dead: int) -> None:
    """Wait until another node than `dead` has acknowledged a record in every partition of `left`."""
    deadline = time.perf_counter() + _TIMEOUT_S
    for address in itertools.cycle(survivors):
        assert time.perf_counter() < deadline, f"{len(left)} partitions of {topic} are still unavailable"
        try:
            view = cluster_view.metadata(address, timeout=2)
        except (OSError, EOFError):
            continue
        for node, home in view.brokers.items():
            mine = {one for one in left if view.partitions[topic, one].leader == node}
            if node != dead and mine:
                left -= mine
                with suppress(OSError, EOFError):
                    _produce(home, topic, mine)
                left |= mine
        if not left:
            return
        time.sleep(_PAUSE_S)


def _produce(address: str, topic: str, left: set[int]) -> None:
    """One record to each partition; those that acknowledge it leave the set."""
    with RawConnection(address, timeout=15) as connection:
        answers = raw.produce_many(connection, topic, dict.fromkeys(sorted(left), _BATCH))
    for partition, (error, _) in answers.items():
        if error == 0:
            left.discard(partition)
