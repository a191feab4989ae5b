"""A stopping active controller: another one is, before it goes."""

from __future__ import annotations

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.node import Node
from barnabas.testing.memory_disk import MemoryDisk
from compat_tests.virtual.network import VirtualNetwork
from compat_tests.virtual.runtime import VirtualRuntime
from compat_tests.virtual.world import VirtualWorld

VOTERS = ",".join(f"{node_id}@n{node_id}:9093" for node_id in (1, 2, 3))


class Quorum:
    """Three controllers, on hosts n1 to n3."""

    def __init__(self) -> None:
        self.network = VirtualNetwork(VirtualWorld(7))
        self.runtimes = {at: VirtualRuntime(at, network=self.network, host=f"n{at}") for at in (1, 2, 3)}
        self.nodes = {}
        for node_id, runtime in self.runtimes.items():
            settings = [
                "log.dirs=/d",
                f"node.id={node_id}",
                "process.roles=controller",
                f"controller.quorum.voters={VOTERS}",
                f"listeners=CONTROLLER://n{node_id}:9093",
                "controller.listener.names=CONTROLLER",
                "listener.security.protocol.map=CONTROLLER:PLAINTEXT",
            ]
            runtime.thread_delay_s = lambda: 0.001
            self.nodes[node_id] = Node(
                BrokerConfig.load(None, {}, settings),
                runtime,
                MemoryDisk(),
                secret=b"a secret that all of them have",
            )
            self.nodes[node_id].start()
        self.advance(3)
        (self.active,) = self.actives()

    def advance(self, seconds: float) -> None:
        self.network.world.run_until(self.network.world.now + seconds)

    def actives(self) -> list[int]:
        return [node_id for node_id, node in self.nodes.items() if node.services.controller.is_active]

    def stop(self) -> tuple[float, list[int]]:
        """Stop the active one: seconds until it may end, and who is active then."""
        started, ended = self.network.world.now, list[tuple[float, list[int]]]()
        self.nodes[self.active].begin_stop(
            lambda: ended.append((self.network.world.now - started, self.actives()))
        )
        self.advance(2)
        (found,) = ended
        return found


def test_another_controller_is_active_before_the_active_one_stops() -> None:
    quorum = Quorum()
    seconds, actives = quorum.stop()
    assert len(actives) == 1
    assert actives != [quorum.active]
    assert seconds < 0.05


def test_a_controller_that_is_not_active_stops_at_once() -> None:
    quorum = Quorum()
    before = quorum.active
    quorum.active = next(node_id for node_id in quorum.nodes if node_id != before)
    assert quorum.stop() == (0, [before])


def test_a_stop_waits_briefly_for_silent_nodes_and_not_for_stopped_ones() -> None:
    quorum = Quorum()
    own = f"n{quorum.active}"
    for node_id in quorum.nodes:
        if node_id != quorum.active:
            quorum.network.block(own, f"n{node_id}")
            quorum.network.block(f"n{node_id}", own)
    seconds, _ = quorum.stop()
    assert 0.4 < seconds < 0.55
    quorum = Quorum()
    for node_id, runtime in quorum.runtimes.items():
        if node_id != quorum.active:
            runtime.end()
    quorum.advance(0.01)
    seconds, _ = quorum.stop()
    assert seconds < 0.02
