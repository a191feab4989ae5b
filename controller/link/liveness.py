"""Liveness of links: pings where this node has sent nothing else, and the end of links whose other side is silent.

After a pause of this process's own loop every peer gets another interval, as its frames may wait unread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

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


class _Probe(NamedTuple):
    """A ping with a token, sent to the linked process of a node id because of another process with that id."""

    linked: Peer
    newcomer: Handshake
    token: bytes
    timer: Timer
    then: Callable[[LinkRefused | None], object]


class Probes:
    """Decides which process has a node id, when another process comes with the id of a linked node.

    The older process may have ended, as after a power failure, or be alive: then the newer one has the wrong id. One probe at a
    time for each node id.
    """

    def __init__(self, runtime: Runtime, probe_s: float) -> None:
        self._runtime = runtime
        self._probe_s = probe_s
        self._probes: dict[int, _Probe] = {}  # by node id

    def begin(self, linked: Peer, newcomer: Handshake, then: Callable[[LinkRefused | None], object]) -> None:
        """Ping the linked process. `then(None)` when it does not answer; its link is closed then, if the newcomer may replace
        it."""
        node_id = linked.node_id
        if node_id in self._probes:
            then(busy(f"node id {node_id} is being probed"))
            return
        token = self._runtime.random_bytes(_TOKEN_BYTES)
        timer = self._runtime.call_later(self._probe_s, lambda: self._unanswered(node_id))
        self._probes[node_id] = _Probe(linked, newcomer, token, timer, then)
        if not linked.send(messages.PING, token):
            self._unanswered(node_id)

    def take_pong(self, peer: Peer, payload: bytes) -> None:
        """The linked process is alive."""
        probe = self._probes.get(peer.node_id)
        if probe is not None and probe.linked is peer and probe.token == payload:
            self._end(peer.node_id)
            probe.then(_same_id(peer, probe.newcomer))

    def _unanswered(self, node_id: int) -> None:
        probe = self._end(node_id)
        if probe.newcomer.other_directory is None:
            probe.linked.connection.abort(
                TimeoutError("another process has its node id, and it does not answer")
            )
        probe.then(None)

    def forget(self, newcomer: Handshake) -> None:
        """The newcomer has closed its connection."""
        for node_id in [node_id for node_id, probe in self._probes.items() if probe.newcomer is newcomer]:
            self._end(node_id)

    def _end(self, node_id: int) -> _Probe:
        probe = self._probes.pop(node_id)
        probe.timer.cancel()
        return probe


def _same_id(linked: Peer, newcomer: Handshake) -> LinkRefused:
    return LinkRefused(
        RefusalCode.NODE_ID,
        f"two running nodes have node.id={linked.node_id}: the one at {linked.connection.peer_name} is linked, and another "
        f"has called from {newcomer.connection.peer_host}; give one of them another node.id",
    )
