"""Leaders are moved as an admin would: the replicas get another order, and their first one is elected."""

from __future__ import annotations

import struct

from compat_tests.harness import raw
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.raw import RawConnection

_ALTER_PARTITION_REASSIGNMENTS, _ELECT_LEADERS = 45, 43
_PREFERRED = 0
_TIMEOUT_MS = 10_000


def move_leader(cluster: Cluster, topic: str, partition: int, replicas: list[int]) -> None:
    """Have the first of these, which are the partition's replicas, lead it."""
    with RawConnection(cluster.addresses[cluster.active_controller()]) as controller:
        nodes = raw.varint(len(replicas) + 1) + b"".join(struct.pack(">i", node) for node in replicas)
        partitions = b"\x02" + struct.pack(">i", partition) + nodes + b"\0"
        topics = b"\x02" + raw.varint(len(topic) + 1) + topic.encode() + partitions + b"\0"
        body = struct.pack(">i", _TIMEOUT_MS) + topics + b"\0"
        controller.ask(raw.request(_ALTER_PARTITION_REASSIGNMENTS, 0, body, flexible=True))
        wanted = raw.array([raw.string(topic) + raw.array([struct.pack(">i", partition)])])
        body = struct.pack(">b", _PREFERRED) + wanted + struct.pack(">i", _TIMEOUT_MS)
        controller.ask(raw.request(_ELECT_LEADERS, 1, body))
