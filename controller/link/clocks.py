"""Exchange of wall clocks with every linked node (storage/wall_clock.py): when a link opens, then every CLOCK_S seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.controller.link import messages
from barnabas.controller.link.messages import CLOCKS_SINCE, Clock, decode, encode

if TYPE_CHECKING:
    from barnabas.controller.link.links import Links
    from barnabas.controller.link.peer import Peer
    from barnabas.runtime.interface import Timer
    from barnabas.storage.wall_clock import WallClock

CLOCK_S: Final = 5.0


class Clocks:
    """See the module. Runs while there are links."""

    def __init__(self, links: Links, wall_clock: WallClock) -> None:
        self._links = links
        self._wall_clock = wall_clock
        self._timer: Timer | None = None
        links.handle(messages.CLOCK, self._received)
        links.add_listener(self._connected, lambda _: None)

    def _received(self, peer: Peer, payload: bytes) -> None:
        self._wall_clock.heard(peer.node_id, decode(payload, Clock).time_ms)

    def _connected(self, peer: Peer) -> None:
        self._send(peer)
        if self._timer is None:
            self._timer = self._links.runtime.call_later(CLOCK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        peers = self._links.peers()
        for peer in peers:
            self._send(peer)
        if peers:
            self._timer = self._links.runtime.call_later(CLOCK_S, self._tick)

    def _send(self, peer: Peer) -> None:
        if peer.version >= CLOCKS_SINCE:
            peer.send(messages.CLOCK, encode(Clock(self._links.runtime.time_ms())))
