"""Three nodes, brokers and controllers both, on hosts n1 to n3 of a virtual network."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.node import Node
from barnabas.broker.requests.context import RawResponse
from barnabas.broker.tests.reply import Reply, as_received, send
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.registry import request_type, response_type
from compat_tests.virtual.network import VirtualNetwork
from compat_tests.virtual.runtime import VirtualRuntime
from compat_tests.virtual.world import VirtualWorld

NODE_IDS = (1, 2, 3)


class VirtualCluster:
    """`said`: what each node has said of itself, "ready" or why it ends."""

    def __init__(self, *settings: str) -> None:
        """`settings` as `--set` takes them, for all nodes."""
        self.network = VirtualNetwork(VirtualWorld(7))
        self.runtimes: dict[int, VirtualRuntime] = {}
        self.nodes: dict[int, Node] = {}
        self.said: dict[int, list[str]] = {}
        for node_id in NODE_IDS:
            runtime = VirtualRuntime(node_id, network=self.network, host=f"n{node_id}")
            runtime.thread_delay_s = lambda: 0.001
            disk = MemoryDisk()
            disk.write_descriptor = self.network.send
            own = [
                "log.dirs=/d",
                f"node.id={node_id}",
                "process.roles=broker,controller",
                "controller.quorum.voters=" + ",".join(f"{each}@n{each}:9093" for each in NODE_IDS),
                f"listeners=PLAINTEXT://n{node_id}:9092,CONTROLLER://n{node_id}:9093",
                "controller.listener.names=CONTROLLER",
            ]
            said: list[str] = []
            node = Node(
                BrokerConfig.load(None, {}, [*own, *settings]),
                runtime,
                disk,
                on_ready=partial(said.append, "ready"),
                on_fatal=said.append,
                secret=b"a secret that all of them have",
            )
            self.said[node_id] = said
            node.start()
            self.runtimes[node_id], self.nodes[node_id] = runtime, node

    @property
    def now(self) -> float:
        return self.network.world.now

    def advance(self, seconds: float) -> None:
        self.network.world.run_until(self.now + seconds)

    def run_until(self, reached: Callable[[], object], seconds: float = 60) -> None:
        """Event by event, so that nothing happens behind the one that has made it true."""
        until = self.now + seconds
        while not reached():
            assert self.network.world.step(until), "it did not come to be"

    def ask(self, node_id: int, key: int, version: int, request: Any) -> Any:
        """The response of a node."""
        reply = Reply()
        received = as_received(request_type(key), version, request)
        send(self.nodes[node_id].services, key, version, received, reply)
        self.run_until(lambda: reply.done)
        if isinstance(reply.answer, RawResponse):
            return response_type(key).decode(version, reply.answer.body)[0]
        return reply.answer

    def active(self) -> int:
        """The node whose controller is the active one."""
        active: list[int] = []

        def found() -> bool:
            active[:] = [each for each, node in self.nodes.items() if self.is_active(each, node)]
            return len(active) == 1

        self.run_until(found)
        return active[0]

    def is_active(self, node_id: int, node: Node) -> bool:
        is_running = self.runtimes[node_id].held_until <= self.now
        return is_running and hasattr(node, "services") and node.services.controller.is_active
