"""Moves leaders as an admin does: reassigns the replicas, or reorders them, and elects the preferred leader."""

from __future__ import annotations

import struct

from compat_tests.harness import raw
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.eventually import eventually
from compat_tests.harness.raw import RawConnection

_ALTER_PARTITION_REASSIGNMENTS, _ELECT_LEADERS = 45, 43
_PREFERRED = 0
_TIMEOUT_MS = 10_000


def move_leader(cluster: Cluster, topic: str, partition: int, replicas: list[int]) -> None:
    """Makes the first of these, which are the partition's replicas, its leader."""
    with RawConnection(cluster.addresses[cluster.active_controller()]) as controller:
        controller.ask(_reassignment(topic, partition, replicas))
        wanted = raw.array([raw.string(topic) + raw.array([struct.pack(">i", partition)])])
        body = struct.pack(">b", _PREFERRED) + wanted + struct.pack(">i", _TIMEOUT_MS)
        controller.ask(raw.request(_ELECT_LEADERS, 1, body))


def reassign(cluster: Cluster, topic: str, partition: int, replicas: list[int]) -> None:
    """Makes these the partition's replicas, and waits until all are in sync."""

    def is_done() -> bool:
        found = cluster.partition(topic, partition)
        return found.whole and found.replicas == tuple(replicas)

    with RawConnection(cluster.addresses[cluster.active_controller()]) as controller:
        controller.ask(_reassignment(topic, partition, replicas))
    eventually(is_done, 120)


def _reassignment(topic: str, partition: int, replicas: list[int]) -> bytes:
    nodes = raw.varint(len(replicas) + 1) + b"".join(struct.pack(">i", node) for node in replicas)
    partitions = b"\x02" + struct.pack(">i", partition) + nodes + b"\0"
    topics = b"\x02" + raw.varint(len(topic) + 1) + topic.encode() + partitions + b"\0"
    body = struct.pack(">i", _TIMEOUT_MS) + topics + b"\0"
    return raw.request(_ALTER_PARTITION_REASSIGNMENTS, 0, body, flexible=True)
