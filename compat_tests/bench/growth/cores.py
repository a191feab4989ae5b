"""Nodes of one machine under barnabas.cores, however few cores it has: what a further node costs.

Started, memory, the processor time of nodes that rest, connections, the creation of a topic, the death of the only controller.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from compat_tests.bench.growth.curves import Figures
from compat_tests.bench.hostile import wait_until_idle
from compat_tests.bench.partitions import create_topic
from compat_tests.harness import cluster_view
from compat_tests.harness.barnabas_broker import BarnabasBroker
from compat_tests.harness.core_nodes import consecutive_ports, nodes_of
from compat_tests.harness.eventually import eventually
from compat_tests.harness.process_usage import cpu_seconds
from compat_tests.harness.raw import RawConnection

_PARTITIONS = 1000
_REST_S = 10
_TIMEOUT_S = 300


def measure(_broker: str, folder: Path, nodes: int) -> Figures:
    """Of a cluster of its own, whose first node is the controller."""
    port = consecutive_ports(nodes)
    settings = {"barnabas.cores": str(nodes), "listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    broker = BarnabasBroker(folder, settings)
    started = time.perf_counter()
    broker.start()
    try:
        ready = time.perf_counter() - started
        pids = nodes_of(broker.pid)
        wait_until_idle([*pids.values()])
        before = _cpu(pids)
        time.sleep(_REST_S)
        rest = (_cpu(pids) - before) / _REST_S / nodes
        figures = {
            "all nodes ready, s": ready,
            "memory of a node, MB": sum(map(_proportional_bytes, pids.values())) / nodes / 1e6,
            "CPU of a node at rest, % of a core": rest * 100,
            "sockets of the controller": _sockets(pids[1]),
            "sockets of another node": _sockets(pids[nodes]),
        }
        before = _cpu(pids)
        figures["topic of 1,000 partitions, led everywhere, s"] = _create(
            broker.bootstrap, "growth-0", port, nodes
        )
        figures["CPU of all for the topic, s"] = _cpu(pids) - before
        started = time.perf_counter()
        os.kill(pids[1], signal.SIGKILL)
        eventually(lambda: nodes_of(broker.pid).get(1, pids[1]) != pids[1], _TIMEOUT_S)
        eventually(lambda: _topic_is_made(broker.bootstrap), _TIMEOUT_S)
        figures["kill -9 of the controller to the next topic, s"] = time.perf_counter() - started
        return figures
    finally:
        broker.stop(timeout=_TIMEOUT_S)


def _create(address: str, topic: str, port: int, nodes: int) -> float:
    """Seconds until each node knows a leader of each partition."""
    started = time.perf_counter()
    with RawConnection(address, timeout=_TIMEOUT_S) as connection:
        create_topic(connection, topic, _PARTITIONS)
    for index in range(nodes):
        while not _is_led(f"127.0.0.1:{port + index}", topic):
            time.sleep(0.01)
    return time.perf_counter() - started


def _is_led(address: str, topic: str) -> bool:
    partitions = cluster_view.metadata(address).partitions
    mine = [one for (name, _), one in partitions.items() if name == topic]
    return len(mine) == _PARTITIONS and all(one.leader >= 0 for one in mine)


def _topic_is_made(address: str) -> bool:
    try:
        with RawConnection(address, timeout=10) as connection:
            create_topic(connection, f"again-{time.time_ns()}", 1)
    except (OSError, EOFError, AssertionError):
        return False
    return True


def _cpu(pids: dict[int, int]) -> float:
    return sum(map(cpu_seconds, pids.values()))


def _proportional_bytes(pid: int) -> int:
    """Memory in which what processes share counts for each of them in part (Pss)."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Pss")


def _sockets(pid: int) -> int:
    return sum(os.readlink(each).startswith("socket:") for each in Path(f"/proc/{pid}/fd").iterdir())
