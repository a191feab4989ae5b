"""Faults of a simulated cluster, one after another, chosen by the seed.

Invariant 1 in DESIGN.md bounds them: the power of one broker at a time fails, or its disk is lost, and until that
broker has all its data back no other node is killed, because a broker cannot tell a killed process from one that lost
data. With flush.messages=1 this bound does not apply. All processes may be killed at once, and the network may do
anything. Clocks may be wrong by an hour, and the clock of one node by more than a year.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

from compat_tests.simulation.history import History
from compat_tests.simulation.nodes import SimulatedNode
from compat_tests.virtual.network import VirtualNetwork

FAR_AHEAD_MS = 400 * 86_400_000


@dataclasses.dataclass
class Scene:
    """What faults act on."""

    network: VirtualNetwork
    nodes: list[SimulatedNode]
    hosts: list[str]  # of clients and nodes
    random: random.Random
    history: History
    later: Callable[[float, Callable[[], object]], object]
    is_synced: bool  # every acknowledged record is synced: power may fail on all nodes
    is_whole: Callable[[], bool]  # whether all lost data is back
    note: Callable[[str], object]


class Faults:
    """`next` injects one fault, half of the time the `frequent` one if it is given; `heal` ends all of them."""

    def __init__(self, scene: Scene, frequent: str = "") -> None:
        self._scene = scene
        self.slow: dict[tuple[str, str], float] = {}  # (from host, to host) -> added delay in seconds
        self.happened = 0
        self._loser: SimulatedNode | None = None  # lost data that it may not have back yet
        several = len(scene.nodes) > 1
        # The one host whose clock may be wrong by more than a retention time; the other hosts are a majority.
        self._untimely = scene.random.choice(scene.nodes)
        self.clock_was_far_ahead = False
        if several and scene.random.random() < 0.15:
            self._far_ahead()
        self._kinds: list[tuple[int, Callable[[], bool]]] = [
            (6, self._kill),
            (4, self._kill_in_write),
            (5, self._power_failure),
            (2, self._kill_all),
            (3, self._power_failure_everywhere),
            (4, self._stop_cleanly),
            (3, self._pause),
            (2, self._reset),
            (2, self._slow_disk),
            (2, self._full_disk),
            (2, self._jump),
            (3, self._slow_network),
        ]
        if several:
            self._kinds += [
                (5, self._isolate),
                (4, self._split),
                (4, self._one_way),
                (4, self._cut_pair),
                (3, self._wipe),
                (2, self._far_ahead),
            ]
        if frequent:
            total = sum(weight for weight, _ in self._kinds)
            self._kinds += [(total, kind) for _, kind in self._kinds if kind.__name__ == f"_{frequent}"]

    def next(self) -> None:
        """Injects one of the faults that are possible now."""
        weights = [weight for weight, _ in self._kinds]
        for _ in range(20):
            (kind,) = self._scene.random.choices([kind for _, kind in self._kinds], weights)
            if kind():
                self.happened += 1
                self._scene.history.count(f"fault: {kind.__name__[1:].replace('_', ' ')}")
                return

    def heal(self) -> None:
        """Ends all faults and starts the nodes that are down."""
        scene = self._scene
        scene.note("heal")
        scene.network.unblock_all()
        self.slow.clear()
        for node in scene.nodes:
            node.disk.fault = node.disk.capacity = node.disk.kill_after = None
            node.disk_delay_s = 0.001
            if not node.is_up:
                node.start()
            elif node.process is not None:
                node.process.held_until = 0.0
                self._restart_if_failed(node)

    def _restart_if_failed(self, node: SimulatedNode) -> None:
        """As an operator does who finds in the node's log that a full disk has ended the appends to a partition."""
        if (
            node.is_broker
            and node.is_ready
            and any(each.log.failure for each in node.services.partitions.all())
        ):
            self._scene.note(f"stop {node.host}, whose disk was full")
            node.stop()

    # -- bounds of the promise

    def _is_sound(self) -> bool:
        """Whether all nodes have everything, so that one of them may lose it."""
        scene = self._scene
        disks = [node.disk for node in scene.nodes]
        return (
            scene.is_whole()
            and all(node.is_up for node in scene.nodes)
            and all(disk.kill_after is None and disk.capacity is None for disk in disks)
        )

    def _may_lose_data(self, node: SimulatedNode) -> bool:
        """Whether this node may lose unsynced data, or its whole disk; if so, it is noted as the loser."""
        if self._scene.is_synced:
            return True
        if len(self._scene.nodes) == 1 or not self._survives_data_loss(node) or not self._is_sound():
            return False
        self._loser = node
        return True

    @staticmethod
    def _survives_data_loss(node: SimulatedNode) -> bool:
        """Whether acknowledged records survive when this node loses data, which takes min.insync.replicas > 1: with
        less, this broker alone may have acknowledged."""
        return not node.is_broker or int(node.properties["min.insync.replicas"]) > 1

    def _may_kill(self, *nodes: SimulatedNode) -> bool:
        if self._scene.is_synced or self._loser is None:
            return True
        if self._loser.is_up and self._is_sound():
            self._loser = None
            return True
        return all(node is self._loser for node in nodes)

    # -- choices

    def _up(self) -> list[SimulatedNode]:
        return [node for node in self._scene.nodes if node.is_up]

    def _one(self) -> SimulatedNode | None:
        up = self._up()
        return self._victim(up) if up else None

    def _victim(self, nodes: list[SimulatedNode]) -> SimulatedNode:
        """Often the active controller, whose end or return matters most."""
        active = [node for node in nodes if node.is_active]
        if active and self._scene.random.random() < 0.3:
            return self._scene.random.choice(active)
        return self._scene.random.choice(nodes)

    def _for_a_while(self) -> float:
        return self._scene.random.choice((0.3, 1.0, 2.0, 4.0, 9.0)) * self._scene.random.uniform(0.5, 1.5)

    def _restart_later(self, node: SimulatedNode) -> None:
        delay = self._scene.random.choice((0.05, 0.5, 2.0, 6.0)) * self._scene.random.uniform(0.5, 1.5)
        self._scene.later(delay, node.start_again)

    # -- processes

    def _kill(self) -> bool:
        node = self._one()
        if node is None or not self._may_kill(node):
            return False
        self._scene.note(f"kill -9 {node.host}")
        node.kill()
        self._restart_later(node)
        return True

    def _kill_in_write(self) -> bool:
        node = self._one()
        if node is None or not self._may_kill(node):
            return False
        self._scene.note(f"kill -9 {node.host} in a write")
        node.kill_in_write()
        self._restart_later(node)
        return True

    def _kill_all(self) -> bool:
        up = self._up()
        if len(up) != len(self._scene.nodes) or not self._may_kill(*up):
            return False
        self._scene.note("kill -9 everywhere")
        for node in up:
            node.kill()
            self._restart_later(node)
        return True

    def _power_failure(self) -> bool:
        node = self._one()
        if node is None or not self._may_lose_data(node):
            return False
        self._scene.note(f"power failure of {node.host}")
        node.kill(power_fails=True)
        self._restart_later(node)
        return True

    def _power_failure_everywhere(self) -> bool:
        if not self._scene.is_synced:
            return False
        self._scene.note("power failure everywhere")
        for node in self._scene.nodes:
            node.kill(power_fails=True)
            self._restart_later(node)
        return True

    def _wipe(self) -> bool:
        node = self._one()
        if node is None or node.is_voter or not self._survives_data_loss(node) or not self._is_sound():
            return False
        self._loser = node
        self._scene.note(f"new disk for {node.host}")
        node.wipe()
        self._restart_later(node)
        return True

    def _stop_cleanly(self) -> bool:
        node = self._one()
        if node is None or node.node is None:
            return False
        self._scene.note(f"stop {node.host}")
        node.stop()
        self._restart_later(node)
        return True

    def _pause(self) -> bool:
        node = self._one()
        if node is None or node.process is None:
            return False
        seconds = self._for_a_while()
        self._scene.note(f"{node.host} pauses for {seconds:.1f} s")
        node.process.hold_until(self._scene.network.world.now + seconds)
        return True

    # -- the network

    def _block(self, pairs: list[tuple[str, str]], what: str, seconds: float = 0.0) -> bool:
        network = self._scene.network
        seconds = seconds or self._for_a_while()
        self._scene.note(f"{what} for {seconds:.1f} s")
        for pair in pairs:
            network.block(*pair)

        def unblock() -> None:
            for pair in pairs:
                network.unblock(*pair)

        self._scene.later(seconds, unblock)
        return True

    def _isolate(self) -> bool:
        node = self._victim(self._scene.nodes)
        others = [host for host in self._scene.hosts if host != node.host]
        seconds = self._for_a_while()
        if (
            self._scene.random.random() < 0.5
        ):  # clients still reach it, and it is isolated long enough to be replaced
            others = [other.host for other in self._scene.nodes if other is not node]
            seconds = max(seconds, self._scene.random.uniform(2.0, 12.0))
        pairs = [pair for other in others for pair in ((node.host, other), (other, node.host))]
        return self._block(pairs, f"{node.host} isolated", seconds)

    def _split(self) -> bool:
        left = [host for host in self._scene.hosts if self._scene.random.random() < 0.5]
        right = [host for host in self._scene.hosts if host not in left]
        pairs = [pair for a in left for b in right for pair in ((a, b), (b, a))]
        return self._block(pairs, f"{left} without the others")

    def _one_way(self) -> bool:
        source = self._victim(self._scene.nodes)
        targets = [host for host in self._scene.hosts if host != source.host]
        targets = self._scene.random.sample(targets, self._scene.random.randint(1, len(targets)))
        pairs = [(source.host, target) for target in targets]
        if self._scene.random.random() < 0.5:
            pairs = [(target, source) for source, target in pairs]
        return self._block(pairs, f"one way {pairs}")

    def _cut_pair(self) -> bool:
        a, b = self._scene.random.sample(self._scene.nodes, 2)
        return self._block([(a.host, b.host), (b.host, a.host)], f"{a.host} without {b.host}")

    def _reset(self) -> bool:
        a, b = self._scene.random.sample(self._scene.hosts, 2)
        count = self._scene.network.reset(a, b) + self._scene.network.reset(b, a)
        self._scene.note(f"{count} connections of {a} and {b} are reset")
        return count > 0

    def _slow_network(self) -> bool:
        a, b = self._scene.random.sample(self._scene.hosts, 2)
        seconds = self._for_a_while()
        self.slow[a, b] = delay = self._scene.random.choice((0.02, 0.1, 0.4, 1.5))
        self._scene.note(f"{a} to {b} takes {delay} s longer for {seconds:.1f} s")
        self._scene.later(seconds, lambda: self.slow.pop((a, b), None))
        return True

    # -- disks and clocks

    def _slow_disk(self) -> bool:
        node = self._scene.random.choice(self._scene.nodes)
        node.disk_delay_s = self._scene.random.choice((0.01, 0.05, 0.3))
        self._scene.note(f"the disk of {node.host} takes {node.disk_delay_s} s")

        def recover() -> None:
            node.disk_delay_s = 0.001

        self._scene.later(self._for_a_while(), recover)
        return True

    def _full_disk(self) -> bool:
        node = self._one()
        if node is None or not self._may_kill(*self._scene.nodes):
            return False
        disk = node.disk
        used = sum(len(content.data) for content in disk.files.values())
        disk.capacity = used + self._scene.random.choice((0, 10, 300, 5000))
        self._scene.note(f"the disk of {node.host} is full")

        def recover() -> None:
            disk.capacity = None
            self._restart_if_failed(node)

        self._scene.later(self._for_a_while(), recover)
        return True

    def _jump(self) -> bool:
        node = self._scene.random.choice(self._scene.nodes)
        milliseconds = self._scene.random.choice((-3_600_000, -500, 500, 60_000, 3_600_000))
        self._scene.note(f"the clock of {node.host} jumps by {milliseconds} ms")
        node.jump(milliseconds)
        return True

    def _far_ahead(self) -> bool:
        """Moves the clock further ahead than any record may be old, or back again."""
        self.clock_was_far_ahead = True
        node = self._untimely
        milliseconds = -FAR_AHEAD_MS if node.wall_offset_ms >= FAR_AHEAD_MS // 2 else FAR_AHEAD_MS
        self._scene.note(f"the clock of {node.host} jumps by {milliseconds // 86_400_000} days")
        node.jump(milliseconds)
        return True
