"""Tiered topics in a cluster: a partition moves with what is not tiered, and a replica that comes back begins there."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat_tests.harness.clients import PLAIN, Read, Sample
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.cluster_work import create_topic
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import ClusterFactory
from compat_tests.harness.leader_moves import reassign

pytestmark = pytest.mark.barnabas_only

SETTINGS = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "200",
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "200",
    "min.insync.replicas": "1",
}
CONFIGS = {
    "remote.storage.enable": "true",
    "segment.ms": "1000",  # of the records' timestamps
    "local.retention.bytes": "1",
    "file.delete.delay.ms": "0",
}
SEGMENTS, RECORDS, SIZE = 8, 50, 2000
ACTIVE, END = (SEGMENTS - 1) * RECORDS, SEGMENTS * RECORDS
SAMPLES = [
    Sample(None, b"%d " % number * (SIZE // 8), timestamp=1_700_000_000_000 + number // RECORDS * 2000)
    for number in range(END)
]
WANTED = [Read(offset, sample) for offset, sample in enumerate(SAMPLES)]


def _local(cluster: Cluster, node: int, topic: str) -> list[int]:
    return sorted(int(path.stem) for path in (cluster.nodes[node].log_dir / f"{topic}-0").glob("*.log"))


def _produce(cluster: Cluster, topic: str) -> None:
    for number in range(SEGMENTS):  # one produce each: a batch never spans two segments
        PLAIN.produce(cluster.bootstrap, topic, SAMPLES[number * RECORDS : (number + 1) * RECORDS])


def _wait_until_local(cluster: Cluster, topic: str, nodes: tuple[int, ...]) -> None:
    """These have the active segment alone."""
    eventually(
        lambda: all(_local(cluster, node, topic) == [ACTIVE] for node in nodes),
        message=lambda: [_local(cluster, node, topic) for node in nodes],
    )


def test_tiered_partitions_in_a_cluster(fresh_cluster: ClusterFactory, tmp_path: Path) -> None:
    cluster = fresh_cluster(settings={**SETTINGS, "rsm.config.url": f"file://{tmp_path / 'store'}"})

    # Every replica keeps only what is not tiered.
    create_topic(cluster, "replicated", assignment=[[1, 2, 3]], configs=CONFIGS)
    _produce(cluster, "replicated")
    _wait_until_local(cluster, "replicated", (1, 2, 3))

    # A replica that was away begins where its leader has more than the store.
    create_topic(cluster, "missed", assignment=[[1, 2, 3]], configs=CONFIGS)
    cluster.kill(3)
    _produce(cluster, "missed")
    _wait_until_local(cluster, "missed", (1, 2))
    cluster.start(3)
    cluster.wait_until_whole()
    assert _local(cluster, 3, "missed") == [ACTIVE]

    # It can lead then, although it has never had the rest.
    cluster.kill(1)
    cluster.kill(2)
    cluster.start(1)
    cluster.wait_until_known()
    for topic in ("replicated", "missed"):
        assert PLAIN.consume(cluster.bootstrap, topic, END) == WANTED
    cluster.start(2)
    cluster.wait_until_whole()

    # A partition moves to another broker with its last segment alone.
    create_topic(cluster, "moved", assignment=[[1]], configs=CONFIGS)
    _produce(cluster, "moved")
    _wait_until_local(cluster, "moved", (1,))
    reassign(cluster, "moved", 0, [2])
    assert _local(cluster, 2, "moved") == [ACTIVE]
    assert PLAIN.consume(cluster.bootstrap, "moved", END) == WANTED
