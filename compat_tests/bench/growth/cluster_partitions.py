"""Partitions over three nodes, three replicas each: creation, memory, the death of a node, a restart of all."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from compat_tests.bench.cluster import TUNED, cluster_of
from compat_tests.bench.cluster_load import cluster_cpu
from compat_tests.bench.growth.curves import Figures
from compat_tests.bench.partitions import create_topic
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.cluster_view import MetadataView, PartitionView
from compat_tests.harness.raw import RawConnection

_PER_TOPIC = 1000
_REPLICAS = 3
_TIMEOUT_S = 600


def measure(broker: str, folder: Path, partitions: int) -> Figures:
    """Of a cluster of its own. The time of the death counts from kill -9 to the last new leader; of it, brokers' sessions take 3 s
    in Kafka."""
    cluster = cluster_of(broker, folder, TUNED)
    try:
        cluster.start()
        cluster.wait_until_whole()
        idle = _memory(cluster)
        started = time.perf_counter()
        cpu = cluster_cpu(cluster)
        with RawConnection(cluster.addresses[cluster.active_controller()], timeout=_TIMEOUT_S) as connection:
            for number in range(-(-partitions // _PER_TOPIC)):
                size = min(_PER_TOPIC, partitions - number * _PER_TOPIC)
                create_topic(connection, f"growth-{number}", size, _REPLICAS)
        _await(cluster, lambda view: _are_whole(view, partitions))
        created, used = time.perf_counter() - started, cluster_cpu(cluster) - cpu
        memory = (_memory(cluster) - idle) / partitions / _REPLICAS
        died = _death(cluster, partitions)
        restarted = _restart(cluster, partitions)
        return {
            "created, led and in sync, s": created,
            "CPU of the creation, ms a partition": used / partitions * 1e3,
            "memory of a replica, KB": memory / 1e3,
            "kill -9 of a node to the last new leader, s": died,
            "clean restart of all three until in sync, s": restarted,
        }
    finally:
        cluster.close()


def _death(cluster: Cluster, partitions: int) -> float:
    """Seconds until another node leads each partition that the node led. It is back in all of them afterwards."""
    victim = next(node for node in cluster.nodes if node != cluster.active_controller())
    started = time.perf_counter()
    cluster.kill(victim)
    _await(
        cluster,
        lambda view: all(one.leader not in (victim, -1) for one in _of_growth(view)),
    )
    seconds = time.perf_counter() - started
    cluster.start(victim)
    _await(cluster, lambda view: _are_whole(view, partitions))
    return seconds


def _restart(cluster: Cluster, partitions: int) -> float:
    cluster.stop(timeout=_TIMEOUT_S)
    started = time.perf_counter()
    cluster.start()
    _await(cluster, lambda view: _are_whole(view, partitions))
    return time.perf_counter() - started


def _are_whole(view: MetadataView, partitions: int) -> bool:
    found = _of_growth(view)
    return len(found) == partitions and all(one.whole for one in found)


def _of_growth(view: MetadataView) -> list[PartitionView]:
    return [one for (topic, _), one in view.partitions.items() if topic.startswith("growth-")]


def _await(cluster: Cluster, reached: Callable[[MetadataView], bool]) -> None:
    """Asks a node for all of its metadata; at most a fifth of the time, as that takes the nodes' processors."""
    deadline = time.perf_counter() + _TIMEOUT_S
    while True:
        asked = time.perf_counter()
        assert asked < deadline, f"not reached within {_TIMEOUT_S} s"
        if reached(cluster.metadata()):
            return
        time.sleep(max(0.01, 4 * (time.perf_counter() - asked)))


def _memory(cluster: Cluster) -> int:
    return sum(node.resident_bytes() for node in cluster.nodes.values())
