"""Textbook examples: Rao's recovery, a follower that restarts, an ISR that shrinks and grows, min.insync.replicas=2
of 3."""

from __future__ import annotations

import time

from compat_tests.harness import raw
from compat_tests.harness.clients import CLIENTS
from compat_tests.harness.cluster import COMBINED, Cluster
from compat_tests.harness.cluster_files import compare_replicas
from compat_tests.harness.cluster_work import create_topic
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import ClusterFactory
from compat_tests.harness.raw import RawConnection

NOT_ENOUGH_REPLICAS = 19
NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
QUICK = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
ONE_CONTROLLER = {1: COMBINED, 2: "broker", 3: "broker"}


def _produce(cluster: Cluster, node: int, value: bytes, acks: int = -1) -> tuple[int, int]:
    with RawConnection(cluster.addresses[node]) as connection:
        return raw.produce(connection, "topic", raw.good_batch(value), acks=acks)


def _values(cluster: Cluster, count: int) -> list[bytes | None]:
    return [one.sample.value for one in CLIENTS[2].consume(cluster.bootstrap, "topic", count)]


def _end(cluster: Cluster, node: int) -> int:
    """Bytes of the partition on a node's disk."""
    folder = cluster.nodes[node].log_dir / "topic-0"
    return sum(log.stat().st_size for log in folder.glob("*.log"))


def test_raos_recovery_example(fresh_cluster: ClusterFactory) -> None:
    """A leads and has m1 m2 m3, B has m1 m2, C has m1, and m1 is committed. A dies; B leads and appends m4 m5. A
    returns, truncates m3, and all replicas have m1 m2 m4 m5."""
    cluster = fresh_cluster(settings={**QUICK, "replica.fetch.wait.max.ms": "100"})
    create_topic(cluster, "topic", assignment=[[1, 2, 3]], configs={"min.insync.replicas": "1"})
    a, b, c = 1, 2, 3
    assert _produce(cluster, a, b"m1") == (0, 0)
    eventually(lambda: _end(cluster, b) == _end(cluster, c) == _end(cluster, a))
    time.sleep(1)  # followers get the high watermark after m1 with their next fetch only
    cluster.suspend(c)
    time.sleep(1)  # a fetch of C that waits at A has ended
    assert _produce(cluster, a, b"m2", acks=1) == (0, 1)
    eventually(lambda: _end(cluster, b) == _end(cluster, a))
    cluster.suspend(b)
    time.sleep(1)  # a fetch of B that waits at A has ended
    assert _produce(cluster, a, b"m3", acks=1) == (0, 2)
    assert _end(cluster, a) > _end(cluster, b) > _end(cluster, c)
    cluster.kill(a)
    cluster.resume(b)
    cluster.resume(c)
    assert cluster.leader("topic") == b
    for number, value in ((2, b"m4"), (3, b"m5")):
        assert eventually(lambda value=value: _accepted(cluster, b, value)) == number
    cluster.start(a)
    cluster.wait_until_whole()
    assert compare_replicas(cluster, "topic") == 4
    assert _values(cluster, 4) == [b"m1", b"m2", b"m4", b"m5"]


def _accepted(cluster: Cluster, node: int, value: bytes) -> int:
    error, offset = _produce(cluster, node, value)
    return offset if error == 0 else 0


def test_a_follower_restarts_and_catches_up(fresh_cluster: ClusterFactory) -> None:
    """Then the ISR shrinks while a follower is paused, and grows again when it resumes."""
    cluster = fresh_cluster(settings={"replica.lag.time.max.ms": "4000"})
    create_topic(cluster, "topic", assignment=[[1, 2, 3]])
    leader = cluster.leader("topic")
    follower = 3
    assert _produce(cluster, leader, b"before") == (0, 0)
    cluster.stop(follower)
    assert _produce(cluster, leader, b"without it") == (0, 1)
    assert sorted(cluster.partition("topic", 0).isr) == [1, 2]
    cluster.start(follower)
    cluster.wait_until_whole()
    assert compare_replicas(cluster, "topic") == 2

    cluster.suspend(follower)
    assert _produce(cluster, leader, b"while it is paused") == (0, 2)
    eventually(lambda: sorted(cluster.metadata(leader).partitions["topic", 0].isr) == [1, 2])
    cluster.resume(follower)
    cluster.wait_until_whole()
    assert compare_replicas(cluster, "topic") == 3


def test_two_of_three_must_be_in_sync(fresh_cluster: ClusterFactory) -> None:
    """With one replica left acks=all fails and acks=1 succeeds; consumers read that record when a second replica is
    back."""
    cluster = fresh_cluster(ONE_CONTROLLER, settings=QUICK)
    create_topic(cluster, "topic", assignment=[[1, 2, 3]], configs={"min.insync.replicas": "2"})
    assert _produce(cluster, 1, b"three") == (0, 0)
    cluster.kill(3)
    assert eventually(lambda: _accepted(cluster, 1, b"two")) == 1
    cluster.kill(2)
    eventually(lambda: cluster.metadata(1).partitions["topic", 0].isr == (1,))
    assert _produce(cluster, 1, b"refused")[0] == NOT_ENOUGH_REPLICAS
    assert _produce(cluster, 1, b"one", acks=1) == (0, 2)
    with RawConnection(cluster.addresses[1]) as connection:
        error, high_watermark, _ = raw.fetch(connection, "topic", 0)
    assert (error, high_watermark) == (0, 2), "a record on one replica only is not committed"
    cluster.start(2)
    eventually(lambda: _accepted(cluster, 1, b"again two"))
    assert _values(cluster, 4) == [b"three", b"two", b"one", b"again two"]
    cluster.start(3)
    cluster.wait_until_whole()
    assert compare_replicas(cluster, "topic") == 4
