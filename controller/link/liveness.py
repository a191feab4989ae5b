"""Liveness of links: pings where this node has sent nothing else, and an end for links on which the other side is silent.

After a pause of this process's own loop every peer gets another interval, as its frames may wait unread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from barnabas.controller.link import messages
from barnabas.controller.link.messages import LinkRefused, RefusalCode, busy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barnabas.controller.link.connection import LinkSettings
    from barnabas.controller.link.handshake import Handshake
    from barnabas.controller.link.peer import Peer
    from barnabas.runtime.interface import Runtime, Timer


class Liveness:
    """Of all open links; runs while there is one."""

    def __init__(self, runtime: Runtime, settings: LinkSettings, peers: Mapping[int, Peer]) -> None:
        self._runtime = runtime
        self._settings = settings
        self._peers = peers
        self._timer: Timer | None = None
        self._due_at = 0.0

    def start(self) -> None:
        if self._timer is None:
            self._later()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _later(self) -> None:
        self._due_at = self._runtime.monotonic() + self._settings.ping_s
        self._timer = self._runtime.call_later(self._settings.ping_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._runtime.monotonic()
        settings = self._settings
        has_paused = now - self._due_at > settings.ping_s
        for peer in list(self._peers.values()):
            connection = peer.connection
            if has_paused:
                connection.received_at = now
            elif now - connection.received_at >= settings.silence_s:
                connection.abort(TimeoutError(f"silent for {now - connection.received_at:.1f} s"))
                continue
            if now - connection.sent_at >= 0.9 * settings.ping_s:
                peer.send(messages.PING, b"")
        if self._peers:
            self._later()


_TOKEN_BYTES = 8


class Probes:
    """Settles which process has a node id, when another process comes with the id of a linked node.

    The older process may be gone, as after a power failure, or alive: then the newer one has the wrong id. One probe at a time
    for each node id.
    """

    def __init__(self, runtime: Runtime, probe_s: float) -> None:
        self._runtime = runtime
        self._probe_s = probe_s
        self._newcomers: dict[int, Handshake] = {}  # by node id

    def settle(self, linked: Peer, newcomer: Handshake, then: Callable[[LinkRefused | None], object]) -> None:
        """Ping the linked process. `then(None)` when it does not answer; its link is closed then, if the newcomer may replace
        it."""
        node_id = linked.node_id
        if node_id in self._newcomers:
            then(busy(f"node id {node_id} is being probed"))
            return
        token = self._runtime.random_bytes(_TOKEN_BYTES)
        self._newcomers[node_id] = newcomer

        def settled(*, is_alive: bool) -> None:
            if self._newcomers.get(node_id) is not newcomer:
                return
            del self._newcomers[node_id]
            timer.cancel()
            linked.on_pong = None
            if is_alive:
                then(_same_id(linked, newcomer))
            else:
                if newcomer.other_directory is None:
                    linked.connection.abort(
                        TimeoutError("another process has its node id, and it does not answer")
                    )
                then(None)

        def answered(answer: bytes) -> None:
            if answer == token:
                settled(is_alive=True)

        timer = self._runtime.call_later(self._probe_s, lambda: settled(is_alive=False))
        linked.on_pong = answered
        if not linked.send(messages.PING, token):
            settled(is_alive=False)

    def forget(self, newcomer: Handshake) -> None:
        """The newcomer has closed its connection."""
        for node_id in [node_id for node_id, waiting in self._newcomers.items() if waiting is newcomer]:
            del self._newcomers[node_id]


def _same_id(linked: Peer, newcomer: Handshake) -> LinkRefused:
    return LinkRefused(
        RefusalCode.NODE_ID,
        f"two running nodes have node.id={linked.node_id}: the one at {linked.connection.peer_name} is linked, and another "
        f"has called from {newcomer.connection.peer_host}; give one of them another node.id",
    )
