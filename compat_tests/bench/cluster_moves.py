"""Time of a leader move: from the request for an election to the first record that the new leader acknowledges, acks=1.

The time includes the request to the active controller's node, the commit of the election by a majority, and its way to
the new leader, which the driver polls. The old leader stays alive, so no failure has to be detected.
"""

from __future__ import annotations

import itertools
import struct
import time

from compat_tests.bench.latency import percentile
from compat_tests.bench.workloads import Measures
from compat_tests.harness import raw
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.cluster_work import create_topic
from compat_tests.harness.raw import RawConnection

_ALTER_PARTITION_REASSIGNMENTS, _ELECT_LEADERS = 45, 43
_PREFERRED = 0
_TIMEOUT_MS = 10_000
_TIMEOUT_S = 10
_PAUSE_S = 0.0002  # the driver and six nodes share the machine
_REST_S = 0.05  # between two moves, so that they do not overlap
_BATCH = raw.good_batch(bytes(100))
_numbers = itertools.count()


def moves(cluster: Cluster, count: int) -> Measures:
    """Move the leader of a partition with three replicas round the nodes, `count` times."""
    nodes = sorted(cluster.addresses)
    topic = f"moves-{next(_numbers)}"
    create_topic(cluster, topic, assignment=[nodes])
    found = []
    with RawConnection(cluster.addresses[cluster.active_controller()]) as controller:
        homes = {node: RawConnection(cluster.addresses[node]) for node in nodes}
        for number in range(count + len(nodes)):
            nodes = [*nodes[1:], nodes[0]]
            _prefer(controller, topic, nodes)
            time.sleep(_REST_S)
            seconds = _move(controller, homes[nodes[0]], topic)
            if number >= len(nodes):  # count only after each node has led once
                found.append(seconds)
        for home in homes.values():
            home.socket.close()
    return {
        f"leader moved: election asked for to first record, {label} ms": percentile(found, fraction) * 1e3
        for label, fraction in (("p50", 0.5), ("p99", 0.99))
    }


def _prefer(controller: RawConnection, topic: str, nodes: list[int]) -> None:
    """Reorder the replicas: none moves, and the first becomes leader with the next election."""
    replicas = raw.varint(len(nodes) + 1) + b"".join(struct.pack(">i", node) for node in nodes)
    partitions = b"\x02" + struct.pack(">i", 0) + replicas + b"\0"
    topics = b"\x02" + raw.varint(len(topic) + 1) + topic.encode() + partitions + b"\0"
    body = struct.pack(">i", _TIMEOUT_MS) + topics + b"\0"
    answer = controller.ask(raw.request(_ALTER_PARTITION_REASSIGNMENTS, 0, body, flexible=True))
    (error,) = struct.unpack_from(">h", answer, 5)
    assert error == 0, f"the order of replicas stays as it is: error {error}"


def _move(controller: RawConnection, home: RawConnection, topic: str) -> float:
    """Seconds from the request to the first record that the new leader acknowledges."""
    partitions = raw.array([raw.string(topic) + raw.array([struct.pack(">i", 0)])])
    body = struct.pack(">b", _PREFERRED) + partitions + struct.pack(">i", _TIMEOUT_MS)
    started = time.perf_counter()
    controller.send(raw.request(_ELECT_LEADERS, 1, body))
    while raw.produce(home, topic, _BATCH, acks=1)[0] != 0:
        assert time.perf_counter() < started + _TIMEOUT_S, f"no broker leads {topic}"
        time.sleep(_PAUSE_S)
    seconds = time.perf_counter() - started
    controller.receive()
    return seconds
