"""Three nodes on this machine, each of which can be killed, stopped and started again on its own data."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient

from barnabas.testing.ports import free_port
from compat_tests.harness.cluster_local import LocalNode, properties, stop

_PATIENCE_S = 60
_NODES = (1, 2, 3)


class Nodes:
    """The nodes by their ids, 1 to 3."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = [free_port() for _ in _NODES]
        self._controller_ports = [free_port() for _ in _NODES]
        self.running: dict[int, LocalNode] = {}
        for node in _NODES:
            self.launch(node)
        self._await_ready()

    @property
    def bootstrap(self) -> str:
        """The addresses of all."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    def launch(self, node: int) -> None:
        """Start a node; it need not serve yet."""
        folder = self._folder / f"node-{node}"
        text = properties(node, self._ports, self._controller_ports, folder)
        self.running[node] = LocalNode(node, folder, text)

    def kill(self, node: int) -> None:
        """kill -9."""
        self.running[node].process.kill()
        self.running[node].process.wait()

    def restart(self, node: int) -> None:
        """A clean stop and a start, waited for until all replicas are in sync."""
        self.running[node].process.terminate()
        self.running[node].process.wait(30)
        self.start(node)

    def start(self, node: int) -> None:
        """Start a dead node and wait until its replicas have caught up."""
        self.launch(node)
        self._await_ready()

    def leader(self, topic: str, partition: int = 0) -> int:
        """The node that leads a partition."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 2})
        return admin.list_topics(topic, timeout=30).topics[topic].partitions[partition].leader

    def new_leader(self, topic: str, dead: int) -> int:
        """Who leads partition 0 after a node has died, awaited."""
        deadline = time.monotonic() + _PATIENCE_S
        while (leader := self.leader(topic)) in (dead, -1):
            if time.monotonic() > deadline:
                raise RuntimeError(f"no new leader of {topic} after {_PATIENCE_S} s")
            time.sleep(0.05)
        return leader

    def wait_until_in_sync(self, topic: str) -> None:
        """Until every replica of the topic is."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 2})
        deadline = time.monotonic() + _PATIENCE_S
        while any(
            len(one.isrs) < len(one.replicas)
            for one in admin.list_topics(topic, timeout=30).topics[topic].partitions.values()
        ):
            if time.monotonic() > deadline:
                raise RuntimeError(f"not all replicas of {topic} are in sync after {_PATIENCE_S} s")
            time.sleep(0.1)

    def close(self) -> None:
        """Stop all."""
        stop(list(self.running.values()))

    def _await_ready(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not all(one.is_ready() for one in self.running.values()):
            for one in self.running.values():
                if one.process.poll() is not None:
                    raise RuntimeError(one.last_words())
            if time.monotonic() > deadline:
                raise RuntimeError(f"the nodes do not serve after {_PATIENCE_S} s")
            time.sleep(0.05)


@contextmanager
def local_cluster(folder: Path) -> Iterator[Nodes]:
    """Three nodes for as long as a program runs; three replicas of everything, two of them needed."""
    nodes = Nodes(folder)
    try:
        yield nodes
    finally:
        nodes.close()
