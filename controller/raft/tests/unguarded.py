"""pysyncobj without the guards, with a clock and a network that the test controls."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pysyncobj import syncobj as module
from pysyncobj.config import SyncObjConf
from pysyncobj.node import Node
from pysyncobj.syncobj import SyncObj, replicated
from pysyncobj.transport import Transport

FOLLOWER, CANDIDATE, LEADER = range(3)


class Wire(Transport):
    """Messages stay in `sent` of the net until the test delivers them."""

    def __init__(self, net: Net, node_id: str) -> None:
        Transport.__init__(self, None, None, [])
        self.net = net
        self.node_id = node_id

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        if (self.node_id, node.id) in self.net.cut:
            return False
        self.net.sent.append((self.node_id, node.id, message))
        return True

    def deliver(self, sender: str, message: dict[str, Any]) -> None:
        Transport._onMessageReceived(self, Node(sender), message)


class Stock(SyncObj):
    """A list that all nodes append to."""

    def __init__(self, node_id: str, others: list[str], wire: Wire, **conf: Any) -> None:
        settings: dict[str, Any] = {
            "autoTick": False,
            "raftMinTimeout": 0.4,
            "raftMaxTimeout": 1.4,
            "appendEntriesPeriod": 0.1,
            "appendEntriesUseBatch": True,
        }
        settings.update(conf)
        SyncObj.__init__(
            self,
            Node(node_id),
            [Node(other) for other in others],
            conf=SyncObjConf(**settings),
            transport=wire,
        )
        self.values: list[Any] = []

    @replicated  # type: ignore[untyped-decorator]
    def put(self, value: Any) -> int:
        if value == "poison":
            raise ValueError(value)
        self.values.append(value)
        return len(self.values)

    def inside(self, name: str) -> Any:
        return getattr(self, f"_SyncObj__{name}")


class Net:
    """Some nodes of the stock library. `run` moves the clock and delivers; `deliver` a message of one's own."""

    def __init__(self, count: int, **conf: Any) -> None:
        self.now = 1000.0
        self.ticks = False
        self.random = random.Random(1)
        self.conf = conf
        self.sent: deque[tuple[str, str, dict[str, Any]]] = deque()
        self.cut: set[tuple[str, str]] = set()
        self.ids = [str(number) for number in range(1, count + 1)]
        self.nodes: dict[str, Any] = {}  # Stock, which has no types
        self.wires: dict[str, Wire] = {}
        for node_id in self.ids:
            self.start(node_id)

    def clock(self) -> float:
        self.now += 1e-6
        return self.now

    @contextmanager
    def time(self) -> Iterator[None]:
        saved = {name: getattr(module, name) for name in ("monotonicTime", "random")}
        vars(module).update(monotonicTime=self.clock, random=self.random)
        try:
            yield
        finally:
            vars(module).update(saved)

    def start(self, node_id: str, **conf: Any) -> None:
        others = [other for other in self.ids if other != node_id]
        wire = self.wires[node_id] = Wire(self, node_id)
        with self.time():
            self.nodes[node_id] = Stock(node_id, others, wire, **{**self.conf, **conf})
            for other in others:
                Transport._onNodeConnected(wire, Node(other))

    def stop(self, node_id: str) -> None:
        del self.nodes[node_id]

    def deliver(self, sender: str, receiver: str, message: dict[str, Any]) -> None:
        with self.time():
            self.wires[receiver].deliver(sender, message)

    def tick(self, *node_ids: str) -> None:
        with self.time():
            for node_id in node_ids or sorted(self.nodes):
                self.nodes[node_id].doTick(0)

    def flush(self) -> None:
        """Deliver all that was sent, in order; with `ticks` a node looks up after each message."""
        while self.sent:
            sender, receiver, message = self.sent.popleft()
            if receiver in self.nodes and (sender, receiver) not in self.cut:
                self.deliver(sender, receiver, message)
                if self.ticks:
                    self.tick(receiver)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.tick()
            self.flush()
            self.now += 0.02

    def isolate(self, node_id: str) -> None:
        for other in self.ids:
            self.cut |= {(node_id, other), (other, node_id)}

    def leader(self) -> str:
        for _ in range(500):
            self.run(0.02)
            leaders = [
                node_id
                for node_id, node in self.nodes.items()
                if node._isLeader() and (node_id, node_id) not in self.cut
            ]
            if leaders:
                self.run(0.3)
                return leaders[0]
        raise AssertionError("no leader")

    def elect(self, node_id: str) -> None:
        """Let this node win the next election."""
        for node in self.nodes.values():
            node._SyncObj__raftElectionDeadline = self.now + 100
        self.nodes[node_id]._SyncObj__raftElectionDeadline = 0
        self.tick(node_id)
        self.flush()
        self.tick(node_id)
        self.flush()
        assert self.nodes[node_id]._isLeader()
