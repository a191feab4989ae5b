"""A full disk on one node of three: the others continue, no acknowledged record is lost, and the node recovers when
it has space."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests.harness import raw
from compat_tests.harness.barnabas_broker import BarnabasBroker
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.cluster_files import compare_replicas
from compat_tests.harness.cluster_work import create_topic
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import ClusterFactory
from compat_tests.harness.raw import RawConnection

SMALL = {
    "log.index.size.max.bytes": "4096",
    "replica.lag.time.max.ms": "2000",
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "300",
    "offsets.topic.num.partitions": "1",
}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 48 MB."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting is not permitted; the test with a file size limit covers unprivileged runs")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=False)


def _produce(cluster: Cluster, value: bytes) -> bool:
    """Whether the current leader has acknowledged the record."""
    try:
        with RawConnection(cluster.addresses[cluster.partition("topic", 0).leader]) as connection:
            return raw.produce(connection, "topic", raw.good_batch(value))[0] == 0
    except (OSError, EOFError, KeyError):
        return False


def _fill(cluster: Cluster, count: int, size: int) -> list[bytes]:
    """Values that were acknowledged one after the other; a failed attempt may be in the log as well."""
    acknowledged = []
    for number in range(count):
        value = b"%06d" % number + os.urandom(size)
        if eventually(lambda value=value: _produce(cluster, value)):
            acknowledged.append(value)
    return acknowledged


def _check(cluster: Cluster, acknowledged: list[bytes]) -> None:
    found: list[bytes] = []
    with RawConnection(cluster.addresses[cluster.leader("topic")]) as connection:
        offset, end = 0, 1
        while offset < end:
            error, end, records = raw.fetch(connection, "topic", offset, max_bytes=1)
            assert error == 0
            found.append(records)
            offset += 1
    positions = [next(i for i, one in enumerate(found) if value in one) for value in acknowledged]
    assert positions == sorted(positions)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_full_disk_on_one_node(fresh_cluster: ClusterFactory, small_disk: Path, role: str) -> None:
    full = 1 if role == "leader" else 2
    cluster = fresh_cluster(settings=SMALL, node_settings={full: {"log.dirs": str(small_disk / "data")}})
    create_topic(cluster, "topic", assignment=[[1, 2, 3]], configs={"min.insync.replicas": "2"})
    (small_disk / "filler").write_bytes(bytes(32 << 20))
    acknowledged = _fill(cluster, 120, 200_000)
    _check(cluster, acknowledged)
    (small_disk / "filler").unlink()
    if cluster.kind == "apache":  # Kafka halts when its only log directory fails
        assert not cluster.nodes[full].alive()
        cluster.start(full)
    cluster.wait_until_whole()
    acknowledged += _fill(cluster, 5, 1000)
    _check(cluster, acknowledged)
    assert compare_replicas(cluster, "topic") >= len(acknowledged)


@pytest.mark.barnabas_only
@pytest.mark.timeout(300)
def test_a_file_size_limit_on_one_node(fresh_cluster: ClusterFactory) -> None:
    """The unprivileged full disk: on the leader, writes beyond 4 MB fail with EFBIG."""
    cluster = fresh_cluster(settings=SMALL, start=False)
    leader = cluster.nodes[1]
    assert isinstance(leader, BarnabasBroker)
    leader.preexec = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, 4 << 20))
    cluster.start()
    create_topic(cluster, "topic", assignment=[[1, 2, 3]], configs={"min.insync.replicas": "2"})
    acknowledged = _fill(cluster, 30, 200_000)
    _check(cluster, acknowledged)
    leader.preexec = None
    cluster.stop(1)
    cluster.start(1)
    cluster.wait_until_whole()
    _check(cluster, acknowledged)
    assert compare_replicas(cluster, "topic") >= len(acknowledged)
