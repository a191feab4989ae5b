"""Load on a cluster of three: latency by acks, large batches, and the CPU of an idle cluster.

Topics have three replicas, and CPU is the sum of all three nodes. The driver talks to the leader only. The floor is a leader and two
followers without a broker around them (floor.py), new ones for each topic.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from confluent_kafka.admin import AdminClient

from compat_tests.bench import driver, latency, prepared
from compat_tests.bench.floor import ReplicatedFloor
from compat_tests.bench.workloads import Measures
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.cluster_work import create_topic
from compat_tests.harness.process_usage import cpu_seconds

_LARGE = prepared.batch(1000, 1000)  # 1 MB
_KILOBYTE = prepared.batch(1, 1000)
_numbers = itertools.count()
# acks and their names in the table
_PROMISES = ((0, "no ack"), (1, "leader"), (-1, "committed"))


@dataclass
class Target:
    """A topic of one partition with three replicas, its leader's address and the processes of the replicas."""

    topic: str
    address: str
    pids: list[int]

    def cpu(self) -> float:
        """Processor time of all of them, in seconds."""
        return sum(map(cpu_seconds, self.pids))


NewTarget = Callable[[], AbstractContextManager[Target]]


@contextmanager
def topic_of(cluster: Cluster, leader: int = 1) -> Iterator[Target]:
    """A new topic, led by the given node and replicated on all; deleted afterwards."""
    name = f"bench-{next(_numbers)}"
    others = [node for node in cluster.nodes if node != leader]
    configs = {"file.delete.delay.ms": "100", "retention.ms": "-1", "min.insync.replicas": "2"}
    create_topic(cluster, name, configs=configs, assignment=[[leader, *others]])
    driver.wait_until_served(cluster.addresses[leader], name)
    yield Target(name, cluster.addresses[leader], [node.pid for node in cluster.nodes.values()])
    admin = AdminClient({"bootstrap.servers": cluster.addresses[leader], "log_level": 0})
    admin.delete_topics([name])[name].result(30)


def cluster_cpu(cluster: Cluster) -> float:
    """Processor time of all nodes, in seconds."""
    return sum(cpu_seconds(node.pid) for node in cluster.nodes.values())


@contextmanager
def _floor() -> Iterator[Target]:
    floor = ReplicatedFloor()
    try:
        yield Target(floor.topic, floor.address, floor.pids)
    finally:
        floor.stop()


def idle(cluster: Cluster, seconds: float) -> Measures:
    """CPU of an idle cluster, in percent of one core, by node."""
    before = cluster_cpu(cluster)
    time.sleep(seconds)
    return {"idle, CPU % a node": (cluster_cpu(cluster) - before) / seconds / len(cluster.nodes) * 100}


def _latencies(new_target: NewTarget, scale: float) -> Measures:
    """One record of 1 KB at a time, with each setting of acks."""
    samples = max(200, int(3000 * scale))
    measures: Measures = {}
    for acks, promise in _PROMISES:
        with new_target() as target:
            before = target.cpu()
            found = latency.acknowledged(target.address, target.topic, _KILOBYTE, samples, acks)
            used = target.cpu() - before
        for label, fraction in (("p50", 0.5), ("p99", 0.99)):
            measures[f"1 KB, {promise}, {label} ms"] = latency.percentile(found, fraction) * 1e3
        measures[f"1 KB, {promise}, CPU us of all three"] = used / samples * 1e6
    return measures


def touch_memory(folder: Path, size: int) -> None:
    """Touch as many bytes of page cache as will be written. A virtual machine returns free memory to its host after a second
    or two, and the next write to each page costs 2 s of CPU a GB, more than the rest of either broker's work."""
    scratch = folder / "scratch"
    with scratch.open("wb") as file:
        for _ in range(size // len(_LARGE)):
            file.write(_LARGE)
    scratch.unlink()


def _large_batches(new_target: NewTarget, folder: Path, scale: float) -> Measures:
    """1 MB batches, acks=all, five in flight on one connection."""
    requests = max(50, int(300 * scale))
    volume = requests * len(_LARGE)
    with new_target() as target:
        touch_memory(folder, len(target.pids) * volume)
        before = target.cpu()
        seconds = driver.produce_many(target.address, target.topic, _LARGE, 1000, requests, acks=-1)
        used = target.cpu() - before
    return {
        "1 MB batches, acks=all, MB/s": volume / seconds / 1e6,
        "1 MB batches, acks=all, CPU-s/GB of all three": used / volume * 1e9,
    }


def loads(cluster: Cluster, scale: float) -> Measures:
    """Both workloads, and how often the controller's term changed meanwhile."""
    before = cluster.quorum()
    new_topic = partial(topic_of, cluster)
    measures = _latencies(new_topic, scale) | _large_batches(new_topic, cluster.directory, scale)
    after = cluster.quorum()
    assert before is not None
    assert after is not None
    return measures | {"controller elections under load": float(after.leader_epoch - before.leader_epoch)}


def floor_loads(folder: Path, scale: float) -> Measures:
    """Both workloads without brokers; `folder` is where the memory is touched."""
    return _latencies(_floor, scale) | _large_batches(_floor, folder, scale)
