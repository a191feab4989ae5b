"""A port that is taken between the check at the start and the moment when the cluster has taken the broker in."""

from __future__ import annotations

import pytest
from barnabas.broker.config import BrokerConfig
from barnabas.broker.node import Node
from barnabas.storage.memory_disk import MemoryDisk

from barnabas.testing.virtual_network import VirtualNetwork
from barnabas.testing.virtual_runtime import VirtualRuntime
from barnabas.testing.virtual_world import VirtualWorld


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_broker_that_cannot_listen_says_so_and_is_never_ready(is_taken: bool) -> None:
    network = VirtualNetwork(VirtualWorld(7))
    said: dict[int, list[str]] = {1: [], 2: [], 3: []}
    nodes: list[Node] = []  # kept alive
    for node_id in said:
        runtime = VirtualRuntime(node_id, network=network, host=f"n{node_id}")
        runtime.thread_delay_s = lambda: 0.001
        settings = [
            "log.dirs=/d",
            f"node.id={node_id}",
            "process.roles=broker,controller",
            "controller.quorum.voters=" + ",".join(f"{each}@n{each}:9093" for each in said),
            f"listeners=PLAINTEXT://n{node_id}:9092,CONTROLLER://n{node_id}:9093",
            "controller.listener.names=CONTROLLER",
        ]
        node = Node(BrokerConfig.load(None, {}, settings), runtime, MemoryDisk())
        node.controller_secret = b"a secret that all of them have"
        node.on_ready = lambda said=said[node_id]: said.append("ready")  # type: ignore[misc]  # a lambda's default
        node.on_fatal = said[node_id].append
        node.start()
        nodes.append(node)
        if is_taken and node_id == 2:
            runtime.listen("n2", 9092, object)
    network.world.run_until(network.world.now + 20)
    assert said[1] == said[3] == ["ready"]
    if not is_taken:
        assert said[2] == ["ready"]
    else:
        (why,) = said[2]
        assert why.startswith("cannot listen on n2:9092: ")
        assert "listeners" in why
