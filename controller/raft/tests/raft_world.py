"""Voters under one virtual clock, each with a memory disk, between them a network that a test may spoil.

`history` of each voter is what its state machine has been given: a list of groups, each a tuple of records.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

from barnabas.controller.raft import voters
from barnabas.controller.raft.messages import Message, decode_message
from barnabas.controller.raft.raft_log import RaftMetadataLog
from barnabas.testing.memory_disk import MemoryDisk
from compat_tests.virtual.network import VirtualNetwork
from compat_tests.virtual.runtime import VirtualRuntime
from compat_tests.virtual.world import VirtualWorld

DIRECTORY = "/meta"
DELAY_S = 0.0005


class Voter:
    """One process on one disk. `peers` of its log is the world."""

    make_log = RaftMetadataLog

    def __init__(self, world: RaftWorld, node_id: int) -> None:
        self.world = world
        self.node_id = node_id
        self.disk = MemoryDisk()
        self.directory = world.directory(node_id)
        self.joins = node_id not in world.configured_ids  # it was not there when the quorum was formed
        self.starts = 0
        self.is_serving = False
        self.log: RaftMetadataLog | None = None
        self.groups: list[tuple[bytes, ...]] = []
        self.offset = -1
        self.replaced = 0
        self.leaderships: list[tuple[bool, int]] = []
        self.errors: list[Exception] = []

    def send(self, node_id: int, message: bytes) -> bool:
        return self.world.carry(self.node_id, node_id, message)

    def start(self, *, election_delay_s: float | None = None) -> None:
        self.starts += 1
        self.is_serving = False
        self.runtime = VirtualRuntime(
            self.world.seed * 1000 + self.node_id * 100 + self.starts,
            network=self.world.network,
            host=f"node{self.node_id}.{self.starts}",
        )
        self.runtime.thread_delay_s = self.world.thread_delay_s
        self.log = self.make_log(
            self.disk,
            DIRECTORY,
            self.runtime,
            self.node_id,
            [] if self.joins else self.world.configured,
            self,
            None if self.joins else self.world.genesis,
            joins=self.joins,
            journal_bytes_min=self.world.journal_bytes_min,
            election_delay_s=election_delay_s,
            own_directory=self.directory,
            on_error=self.errors.append,
        )
        self.groups, self.offset = [], -1
        self.log.on_leadership(lambda leads, term: self.leaderships.append((leads, term)))
        assert self.log.open(self.apply, self.snapshot, self.replace) == self.offset
        self.log.serve()
        self.is_serving = True
        for other in self.world.node_ids:
            self.world.connect(self.node_id, other)

    @property
    def name(self) -> voters.Voter:
        """As the log names it."""
        return voters.Voter(self.node_id, f"node{self.node_id}", 9093, *self.directory)

    def wipe(self) -> None:
        """Of a stopped process: an empty disk in place of its own."""
        self.lose_files()
        self.directory = self.world.directory(self.node_id, self.world.wipes)

    def lose_files(self) -> None:
        """Of a stopped process: the directory keeps its id, and nothing is in it. The node will join again."""
        assert self.log is None
        self.disk = MemoryDisk()
        self.joins = True
        self.world.wipes += 1
        self.directory = self.directory._replace(join_id=self.world.wipes.to_bytes(16, "big"))

    def change_voters(self, chosen: Iterable[voters.Voter]) -> list[Exception | None]:
        """Where the outcome will be found."""
        assert self.log is not None
        outcomes: list[Exception | None] = []
        self.log.change_voters(list(chosen), outcomes.append)
        return outcomes

    @property
    def voter_ids(self) -> list[int]:
        """The voters in its log."""
        assert self.log is not None
        return voters.ids_of(self.log.voters)

    def stop(self, *, power_fails: bool = False, choose: Callable[[int], int] = lambda _: 0) -> None:
        """The process is gone; with `power_fails` unsynced bytes are too."""
        assert self.log is not None
        self.runtime.end()
        self.log = None
        self.disk.revive()
        if power_fails:
            self.disk = self.disk.crash(choose)
        for other in self.world.node_ids:
            self.world.disconnect(self.node_id, other)

    # The state machine: the records themselves.

    def apply(self, records: Sequence[bytes]) -> None:
        self.groups.append(tuple(records))
        self.offset += len(records)

    def snapshot(self) -> list[bytes]:
        return [b"\x00".join(group) for group in self.groups]

    def replace(self, records: Sequence[bytes], offset: int) -> None:
        self.replaced += 1
        self.groups = [tuple(record.split(b"\x00")) for record in records]
        self.offset = offset

    def propose(self, *records: bytes) -> list[Exception | None]:
        """Where the outcome will be found."""
        assert self.log is not None
        outcomes: list[Exception | None] = []
        self.log.propose(list(records), outcomes.append)
        return outcomes


class RaftWorld:
    """`node_ids` voters, and `spares`, nodes that join a quorum without a vote. `spoil(sender, receiver, bytes)` gives the delays of the copies that arrive."""

    def __init__(
        self,
        node_ids: Iterable[int] = (1, 2, 3),
        seed: int = 0,
        *,
        spares: Iterable[int] = (),
        start: bool = True,
    ) -> None:
        self.configured_ids = list(node_ids)
        self.node_ids = [*self.configured_ids, *spares]
        self.wipes = 0
        self.configured = [
            voters.Voter(node_id, f"node{node_id}", 9093, *self.directory(node_id))
            for node_id in self.configured_ids
        ]
        self.seed = seed
        self.random = random.Random(seed)
        self.network = VirtualNetwork(VirtualWorld(seed))
        self.world = self.network.world
        self.genesis: tuple[list[bytes], int] | None = ([], -1)
        self.journal_bytes_min = 1 << 20
        self.thread_delay_s: Callable[[], float] | None = None
        self.spoil: Callable[[int, int, bytes], Sequence[float]] = lambda *_: (DELAY_S,)
        self.cut: set[tuple[int, int]] = set()  # (sender, receiver) whose messages are lost
        self.connections: dict[tuple[int, int], int] = {}
        self.connection_number = 0
        self.carried = 0
        self.voters = {node_id: Voter(self, node_id) for node_id in self.node_ids}
        if start:
            for voter in self.voters.values():
                voter.start()

    @staticmethod
    def directory(node_id: int, number: int = 0) -> voters.Directory:
        return voters.Directory(node_id.to_bytes(8, "big") + number.to_bytes(8, "big"))

    def connect(self, one: int, other: int) -> None:
        first, second = self.voters[one].log, self.voters[other].log
        if one == other or first is None or second is None or self.key(one, other) in self.connections:
            return
        self.connection_number += 1
        self.connections[self.key(one, other)] = self.connection_number
        first.peer_connected(other, self.connection_number, self.voters[other].directory)
        second.peer_connected(one, self.connection_number, self.voters[one].directory)

    def disconnect(self, one: int, other: int) -> None:
        if self.connections.pop(self.key(one, other), None) is None:
            return
        for node_id, peer in ((one, other), (other, one)):
            log = self.voters[node_id].log
            if log is not None:
                log.peer_disconnected(peer)

    @staticmethod
    def key(one: int, other: int) -> tuple[int, int]:
        return min(one, other), max(one, other)

    def carry(self, sender: int, receiver: int, message: bytes) -> bool:
        number = self.connections.get(self.key(sender, receiver))
        if number is None:
            return False
        self.carried += 1
        if (sender, receiver) in self.cut:
            return True
        for delay in self.spoil(sender, receiver, message):
            target = self.voters[receiver]
            if target.log is not None:
                log = target.log
                target.runtime.call_later(
                    delay,
                    lambda log=log: log.received(sender, number, message),  # type: ignore[misc]
                )
        return True

    def run(self, seconds: float) -> None:
        self.world.run_until(self.world.now + seconds)

    def run_until(self, condition: Callable[[], object], seconds: float = 10.0) -> float:
        """Seconds that it took."""
        start = self.world.now
        while not condition():
            assert self.world.now - start < seconds, "it did not come to pass"
            self.run(0.002)
        return self.world.now - start

    @property
    def leaders(self) -> list[Voter]:
        return [voter for voter in self.voters.values() if voter.log is not None and voter.log.is_leader]

    def leader(self, seconds: float = 10.0) -> Voter:
        """The leader, once there is one."""
        self.run_until(lambda: self.leaders, seconds)
        return self.leaders[-1]

    def isolate(self, node_id: int) -> None:
        for other in self.node_ids:
            self.cut |= {(node_id, other), (other, node_id)}

    def heal(self) -> None:
        self.cut.clear()


def kind_of(message: bytes) -> type[Message]:
    return type(decode_message(message))
