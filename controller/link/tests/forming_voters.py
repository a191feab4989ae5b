"""Voters with disks in memory that form a quorum, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable

from barnabas.controller.link.links import Links
from barnabas.controller.link.messages import BROKER, CONTROLLER, Identity
from barnabas.controller.link.quorum_bootstrap import QuorumBootstrap
from barnabas.controller.link.quorum_state import QuorumState
from barnabas.controller.link.tests.link_nodes import PORT, directory_of
from barnabas.controller.metadata.local_journal import (
    JOURNAL,
    JOURNAL_FORMAT,
    encode_journal_header,
    encode_records,
)
from barnabas.controller.raft.files import RaftFiles
from barnabas.storage.frame_log import encode_frame
from barnabas.testing.memory_disk import MemoryDisk
from compat_tests.virtual.network import VirtualNetwork
from compat_tests.virtual.runtime import VirtualRuntime
from compat_tests.virtual.world import VirtualWorld

DIRECTORY = "/data/metadata"
TARGETS: list[tuple[str, int, int | None]] = [(f"n{n}", PORT, n) for n in (1, 2, 3)]
ADDRESSES: list[tuple[str, int, int | None]] = [(f"n{n}", PORT, None) for n in (1, 2, 3)]


def give_metadata(disk: MemoryDisk, groups: list[list[bytes]]) -> None:
    """What a single node leaves behind."""
    disk.make_directory(DIRECTORY, parents=True)
    frames = b"".join(
        encode_frame(index, encode_records(group), JOURNAL_FORMAT) for index, group in enumerate(groups)
    )
    disk.write_file(f"{DIRECTORY}/{JOURNAL}", encode_journal_header(0, 0) + frames)


class Voter:
    """One process of a voter; the disk outlives it."""

    def __init__(
        self,
        network: VirtualNetwork,
        node_id: int,
        disk: MemoryDisk,
        *,
        cluster_id: str = "",
        bootstrap: bool = False,
        directory_id: bytes | None = None,
        targets: list[tuple[str, int, int | None]] | None = None,
    ) -> None:
        self.node_id = node_id
        self.disk = disk
        self.formed: QuorumState | None = None
        self.failures: list[str] = []
        self.runtime = VirtualRuntime(
            network.world.random.getrandbits(32), network=network, host=f"n{node_id}"
        )
        targets = targets if targets is not None else ADDRESSES if bootstrap else TARGETS
        identity = Identity(
            cluster_id,
            node_id,
            [BROKER, CONTROLLER],
            directory_of(node_id) if directory_id is None else directory_id,
            network.world.random.randbytes(16),
            [] if bootstrap else [target[2] for target in targets if target[2] is not None],
            [],
            bootstrap,
        )
        self.links = Links(self.runtime, identity, secret=b"sixteen bytes and more")
        self.formation = QuorumBootstrap(
            self.runtime, disk, DIRECTORY, self.links, self._done, self.failures.append
        )
        self.formation.start()
        self.links.listen("", PORT)
        self.links.call(targets)

    def _done(self, state: QuorumState) -> None:
        assert self.formed is None
        self.formed = state

    @property
    def genesis(self) -> tuple[list[bytes], int]:
        """What Raft begins with here."""
        snapshot = RaftFiles(self.disk, DIRECTORY).load(None).snapshot
        return list(snapshot.records), snapshot.offset


class Voters:
    """Three of them, on hosts n1 to n3."""

    def __init__(self, seed: int = 0, *, shuffles: bool = False) -> None:
        self.world = VirtualWorld(seed, shuffles=shuffles)
        self.network = VirtualNetwork(self.world)
        self.disks = {node_id: MemoryDisk() for node_id in (1, 2, 3)}
        self.running: dict[int, Voter] = {}
        self.directory_ids = {node_id: directory_of(node_id) for node_id in (1, 2, 3)}
        self.thread_delay_s: Callable[[], float] | None = None

    def start(self, *node_ids: int, **options: object) -> None:
        for node_id in node_ids:
            self.running[node_id] = Voter(
                self.network,
                node_id,
                self.disks[node_id],
                **({"directory_id": self.directory_ids[node_id]} | options),  # type: ignore[arg-type]
            )
            self.running[node_id].runtime.thread_delay_s = self.thread_delay_s

    def wipe(self, node_id: int) -> None:
        """Everything on its disk goes; call when it does not run."""
        self.disks[node_id] = MemoryDisk()
        self.directory_ids[node_id] = self.world.random.randbytes(16)

    def end(self, node_id: int) -> None:
        self.running.pop(node_id).runtime.end()
        self.disks[node_id].revive()

    def run(self, seconds: float) -> None:
        self.world.run_until(self.world.now + seconds)

    @property
    def formed(self) -> list[int]:
        return [node_id for node_id, voter in sorted(self.running.items()) if voter.formed is not None]

    def check_formed(self) -> QuorumState:
        """All have, alike."""
        assert self.formed == [1, 2, 3], {n: voter.failures for n, voter in self.running.items()}
        states = [voter.formed for voter in self.running.values()]
        assert states[0] is not None
        assert all(state == states[0] for state in states)
        begun = [voter.genesis for voter in self.running.values()]
        assert all(one == begun[0] for one in begun)
        return states[0]
