"""Nodes with links and nothing else, in one virtual world, for the tests of this folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from barnabas.controller.link.connection import LinkSettings
from barnabas.controller.link.dialer import Dialer
from barnabas.controller.link.links import Links
from barnabas.controller.link.messages import (
    BROKER,
    CONTROLLER,
    Identity,
    LinkRefused,
)
from barnabas.controller.link.peer import Peer
from barnabas.controller.raft.voters import Voter
from compat_tests.virtual.network import VirtualNetwork
from compat_tests.virtual.runtime import VirtualRuntime
from compat_tests.virtual.world import VirtualWorld

PORT = 9093
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"


def directory_of(node_id: int) -> bytes:
    return hashlib.sha256(b"directory %d" % node_id).digest()[:16]


class ObservedLinks(Links):
    """Links that keep the refusals that they report."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.refusals: list[LinkRefused] = []
        super().__init__(*args, **options)

    def report_refusal(self, where: str, node: str, refused: LinkRefused) -> None:
        self.refusals.append(refused)
        super().report_refusal(where, node, refused)


class LinkedNode:
    """A node and the events of its links."""

    def __init__(
        self,
        network: VirtualNetwork,
        identity: Identity,
        host: str,
        secret: bytes | None,
        settings: LinkSettings,
    ) -> None:
        self.node_id = identity.node_id
        self.runtime = VirtualRuntime(identity.node_id * 7 + len(network.hosts), network=network, host=host)
        incarnation = self.runtime.random_bytes(16)
        self.identity = Identity(
            identity.cluster_id,
            identity.node_id,
            identity.roles,
            identity.directory_id,
            incarnation,
            identity.voter_ids,
            identity.journalled,
            identity.bootstrap,
            configured=identity.configured,
        )
        self.links = ObservedLinks(self.runtime, self.identity, secret=secret, settings=settings)
        self.events: list[str] = []
        self.refusals = self.links.refusals
        self.links.add_listener(self._up, self._down)

    def _up(self, peer: Peer) -> None:
        self.events.append(f"+{peer.node_id}")

    def _down(self, peer: Peer) -> None:
        self.events.append(f"-{peer.node_id}")

    def dialer(self, node_id: int) -> Dialer:
        """The one that calls this node."""
        return next(dialer for dialer in self.links.dialers() if dialer.node_id == node_id)

    @property
    def linked(self) -> list[int]:
        return [peer.node_id for peer in self.links.peers()]


class LinkWorld:
    """Voters 1 to `voters` on hosts n1, n2, ..., and whatever else a test adds."""

    def __init__(
        self,
        voters: int = 3,
        *,
        secret: bytes | None = b"a secret of thirty-two bytes....",
        settings: LinkSettings | None = None,
        seed: int = 0,
        shuffles: bool = False,
    ) -> None:
        self.world = VirtualWorld(seed, shuffles=shuffles)
        self.network = VirtualNetwork(self.world)
        self.secret = secret
        self.settings = settings or LinkSettings()
        self.voter_ids = list(range(1, voters + 1))

    def identity(self, node_id: int, **changes: object) -> Identity:
        fields: dict[str, object] = {
            "cluster_id": CLUSTER,
            "node_id": node_id,
            "roles": [BROKER, CONTROLLER] if node_id in self.voter_ids else [BROKER],
            "directory_id": directory_of(node_id),
            "incarnation_id": bytes(16),
            "voter_ids": self.voter_ids,
            "journalled": [],
        }
        return Identity(**(fields | changes))  # type: ignore[arg-type]

    def node(
        self,
        node_id: int,
        *,
        host: str | None = None,
        secret: bytes | str | None = "",
        settings: LinkSettings | None = None,
        **changes: object,
    ) -> LinkedNode:
        """Not started yet. `changes` are of its identity."""
        chosen = self.secret if isinstance(secret, str) else secret
        return LinkedNode(
            self.network,
            self.identity(node_id, **changes),
            host or f"n{node_id}",
            chosen,
            settings or self.settings,
        )

    def start(
        self, node: LinkedNode, *, targets: list[tuple[str, int, int | None]] | None = None
    ) -> LinkedNode:
        if node.identity.is_controller:
            node.links.listen("", PORT)
        node.links.call(
            targets if targets is not None else [(f"n{voter}", PORT, voter) for voter in self.voter_ids]
        )
        return node

    def started(self, node_id: int, **changes: object) -> LinkedNode:
        return self.start(self.node(node_id, **changes))  # type: ignore[arg-type]

    def run(self, seconds: float) -> None:
        self.world.run_until(self.world.now + seconds)

    def run_until(self, reached: Callable[[], bool], seconds: float = 20.0) -> float:
        """Run until the condition holds; returns the seconds that this took."""
        begun = self.world.now
        while not reached():
            assert self.world.now - begun < seconds, "it did not come to be"
            self.run(0.001)
        return self.world.now - begun


def journalled(*node_ids: int) -> list[Voter]:
    return [Voter(node_id, f"n{node_id}", PORT, directory_of(node_id)) for node_id in node_ids]
