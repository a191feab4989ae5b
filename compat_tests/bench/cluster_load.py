"""Load on a cluster of three: latency by acks, large batches, and the CPU of an idle cluster.

Topics have three replicas, and CPU is the sum of all three nodes. The driver talks to the leader only.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient

from compat_tests.bench import driver, latency, prepared
from compat_tests.bench.workloads import Measures, cpu_seconds
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.cluster_work import create_topic

_LARGE = prepared.batch(1000, 1000)  # 1 MB
_KILOBYTE = prepared.batch(1, 1000)
_numbers = itertools.count()
# acks and their names in the table
_PROMISES = ((0, "no ack"), (1, "leader"), (-1, "committed"))


@contextmanager
def topic_of(cluster: Cluster, leader: int) -> Iterator[str]:
    """A new topic of one partition, led by the given node and replicated on all; deleted afterwards."""
    name = f"bench-{next(_numbers)}"
    others = [node for node in cluster.nodes if node != leader]
    configs = {"file.delete.delay.ms": "100", "retention.ms": "-1", "min.insync.replicas": "2"}
    create_topic(cluster, name, configs=configs, assignment=[[leader, *others]])
    driver.wait_until_served(cluster.addresses[leader], name)
    yield name
    admin = AdminClient({"bootstrap.servers": cluster.addresses[leader], "log_level": 0})
    admin.delete_topics([name])[name].result(30)


def cluster_cpu(cluster: Cluster) -> float:
    """Processor time of all nodes, in seconds."""
    return sum(cpu_seconds(node.pid) for node in cluster.nodes.values())


def idle(cluster: Cluster, seconds: float) -> Measures:
    """CPU of an idle cluster, in percent of one core, by node."""
    before = cluster_cpu(cluster)
    time.sleep(seconds)
    return {"idle, CPU % a node": (cluster_cpu(cluster) - before) / seconds / len(cluster.nodes) * 100}


def latencies(cluster: Cluster, scale: float) -> Measures:
    """One record of 1 KB at a time, with each setting of acks."""
    samples = max(200, int(3000 * scale))
    measures: Measures = {}
    for acks, promise in _PROMISES:
        with topic_of(cluster, 1) as topic:
            found = latency.acknowledged(cluster.addresses[1], topic, _KILOBYTE, samples, acks)
        for label, fraction in (("p50", 0.5), ("p99", 0.99)):
            measures[f"1 KB, {promise}, {label} ms"] = latency.percentile(found, fraction) * 1e3
    return measures


def touch_memory(folder: Path, size: int) -> None:
    """Touch as many bytes of page cache as will be written. A virtual machine returns free memory to its host after a second
    or two, and the next write to each page costs 2 s of CPU a GB, more than the rest of either broker's work."""
    scratch = folder / "scratch"
    with scratch.open("wb") as file:
        for _ in range(size // len(_LARGE)):
            file.write(_LARGE)
    scratch.unlink()


def large_batches(cluster: Cluster, scale: float) -> Measures:
    """1 MB batches, acks=all, five in flight on one connection."""
    requests = max(50, int(300 * scale))
    volume = requests * len(_LARGE)
    with topic_of(cluster, 1) as topic:
        touch_memory(cluster.directory, len(cluster.nodes) * volume)
        before = cluster_cpu(cluster)
        seconds = driver.produce_many(cluster.addresses[1], topic, _LARGE, 1000, requests, acks=-1)
        used = cluster_cpu(cluster) - before
    return {
        "1 MB batches, acks=all, MB/s": volume / seconds / 1e6,
        "1 MB batches, acks=all, CPU-s/GB of all three": used / volume * 1e9,
    }


def loads(cluster: Cluster, scale: float) -> Measures:
    """Both workloads, and how often the controller's term changed meanwhile."""
    before = cluster.quorum()
    measures = latencies(cluster, scale) | large_batches(cluster, scale)
    after = cluster.quorum()
    assert before is not None
    assert after is not None
    return measures | {"controller elections under load": float(after.leader_epoch - before.leader_epoch)}
