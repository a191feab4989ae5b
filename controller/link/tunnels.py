"""The tunnels of a node: those that end here, and those that it carries for two others.

A tunnel lets two nodes have a link whose network is cut between them alone, while a third node reaches both. It is a
transport and nothing more: the two say hello over it as over any connection, prove the secret to each other, and look
whether the other lives.

A node carries tunnels if it is a controller, between nodes that it has direct links with, one of them a controller, too:
those who may have a link. So a tunnel never goes through a tunnel, and has no loops. It ends with either of the links.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.controller.link import messages
from barnabas.controller.link.messages import MalformedMessage, decode, encode
from barnabas.controller.link.tunnel import TunnelEnd
from barnabas.controller.link.tunnel_messages import (
    NUMBER_MAX,
    REASON_LENGTH_MAX,
    WINDOW_BYTES,
    TunnelClose,
    TunnelCredit,
    TunnelOpen,
    decode_data,
    encode_data,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.controller.link.connection import Connection
    from barnabas.controller.link.links import Links
    from barnabas.controller.link.peer import Peer

Key = tuple[int, int]  # number of the link, number of the tunnel on it

PAIR_MAX = 2  # tunnels from one node to another: a new one, while the old one is not known to be dead


class _Side:
    """A tunnel that is carried, as the link with one of the two sees it."""

    def __init__(self, peer: Peer, number: int, source_id: int, target_id: int) -> None:
        self.peer = peer
        self.number = number
        self.pair = source_id, target_id
        self.on_the_way = 0  # bytes sent there and not taken yet
        self.other: _Side

    @property
    def key(self) -> Key:
        return self.peer.number, self.number


class Tunnels:
    """`accept(relay id)` gives the protocol of a tunnel that somebody opens to this node."""

    def __init__(self, links: Links, accept: Callable[[int], Connection]) -> None:
        self._links = links
        self._accept = accept
        self._ends: dict[Key, TunnelEnd] = {}
        self._sides: dict[Key, _Side] = {}
        self._last_numbers: dict[int, int] = {}  # number of a link -> of the last tunnel that was opened here
        links.handle(messages.TUNNEL_OPEN, self._asked)
        links.handle(messages.TUNNEL_DATA, self._data)
        links.handle(messages.TUNNEL_CREDIT, self._credit)
        links.handle(messages.TUNNEL_CLOSE, self._close)
        links.add_listener(lambda _: None, self._disconnected)

    @property
    def carried(self) -> int:
        """How many go through this node."""
        return len(self._sides) // 2

    def open(self, relay: Peer, target_id: int, protocol: Connection) -> None:
        """A transport for `protocol`, as far as can be known here. It learns soon if there is no way."""
        number = self._number(relay)
        own_id = self._links.identity.node_id
        if relay.send(messages.TUNNEL_OPEN, encode(TunnelOpen(number, own_id, target_id))):
            self._end(relay, number, target_id, protocol)
        else:
            protocol.abort(ConnectionError(f"the link with node {relay.node_id} takes no more"))

    def _number(self, peer: Peer) -> int:
        number = self._last_numbers.get(peer.number, -1 if peer.dialed else 0) + 2
        self._last_numbers[peer.number] = number
        return number

    def _end(self, carrier: Peer, number: int, other_id: int, protocol: Connection) -> None:
        key = carrier.number, number
        end = TunnelEnd(
            self._links.runtime,
            carrier,
            number,
            f"node {other_id} by way of node {carrier.node_id}",
            protocol,
            lambda: self._ends.pop(key, None),
        )
        self._ends[key] = end
        protocol.connection_made(end)

    # -- from others

    def _asked(self, peer: Peer, payload: bytes) -> None:
        asked = decode(payload, TunnelOpen)
        key = peer.number, asked.number
        is_theirs = asked.number % 2 == (0 if peer.dialed else 1)
        if not (is_theirs and 0 < asked.number <= NUMBER_MAX) or key in self._ends or key in self._sides:
            raise MalformedMessage(f"a tunnel of number {asked.number}, which is not free")
        is_ours = asked.target_id == self._links.identity.node_id
        why_not = self._why_not_here(peer, asked) if is_ours else self._why_not_through(peer, asked)
        if why_not:
            peer.send(messages.TUNNEL_CLOSE, encode(TunnelClose(asked.number, why_not)))
        elif is_ours:
            self._end(peer, asked.number, asked.source_id, self._accept(peer.node_id))
        else:
            self._carry(peer, asked)

    def _why_not_here(self, peer: Peer, asked: TunnelOpen) -> str:
        if asked.source_id in (self._links.identity.node_id, peer.node_id) or not peer.is_direct:
            return "this is no way for a tunnel"
        if len(self._ends) >= self._links.settings.tunnels_max:
            return "too many tunnels end here"
        return ""

    def _why_not_through(self, peer: Peer, asked: TunnelOpen) -> str:
        links = self._links
        own = links.identity
        target = links.peer(asked.target_id)
        if asked.source_id != peer.node_id or not own.is_controller or not peer.is_direct:
            return "this is no way for a tunnel"
        if target is None or not target.is_direct or target is peer:
            return f"node {own.node_id} has no link with node {asked.target_id} itself"
        if target.version < messages.TUNNELS_SINCE:
            return f"the release of node {asked.target_id} knows no tunnels"
        if not (peer.identity.is_controller or target.identity.is_controller):
            return "two brokers have no link"
        pair = peer.node_id, target.node_id
        if (
            self.carried >= links.settings.tunnels_max
            or sum(side.pair == pair for side in self._sides.values()) >= 2 * PAIR_MAX
        ):
            return f"node {own.node_id} carries too many tunnels"
        return ""

    def _carry(self, peer: Peer, asked: TunnelOpen) -> None:
        target = self._links.peer(asked.target_id)
        assert target is not None
        number = self._number(target)
        near = _Side(peer, asked.number, asked.source_id, asked.target_id)
        far = _Side(target, number, asked.source_id, asked.target_id)
        near.other, far.other = far, near
        self._sides[near.key] = near
        self._sides[far.key] = far
        opened = TunnelOpen(number, asked.source_id, asked.target_id)
        if not target.send(messages.TUNNEL_OPEN, encode(opened)):
            self._drop(near, f"the link with node {target.node_id} takes no more")

    def _data(self, peer: Peer, payload: bytes) -> None:
        number, data = decode_data(payload)
        key = peer.number, number
        end = self._ends.get(key)
        if end is not None:
            end.received(data)
            return
        side = self._sides.get(key)
        if side is None:
            return  # it was closed here, which the other side does not know yet
        other = side.other
        other.on_the_way += len(data)
        if other.on_the_way > WINDOW_BYTES:
            self._drop(side, f"node {peer.node_id} sends more than it was told to")
        elif not other.peer.send(messages.TUNNEL_DATA, encode_data(other.number, data)):
            self._drop(side, f"the link with node {other.peer.node_id} takes no more")

    def _credit(self, peer: Peer, payload: bytes) -> None:
        credit = decode(payload, TunnelCredit)
        if not 0 < credit.count <= WINDOW_BYTES:
            raise MalformedMessage(f"a tunnel has taken {credit.count} bytes")
        key = peer.number, credit.number
        end, side = self._ends.get(key), self._sides.get(key)
        if end is not None:
            end.credited(credit.count)
        elif side is not None:
            side.on_the_way = max(0, side.on_the_way - credit.count)
            other = side.other
            told = TunnelCredit(other.number, credit.count)
            if not other.peer.send(messages.TUNNEL_CREDIT, encode(told)):
                self._drop(side, f"the link with node {other.peer.node_id} takes no more")

    def _close(self, peer: Peer, payload: bytes) -> None:
        closed = decode(payload, TunnelClose)
        key = peer.number, closed.number
        end, side = self._ends.get(key), self._sides.get(key)
        if end is not None:
            end.lost(_error(closed.reason))
        elif side is not None:
            self._forget(side)
            other = side.other
            other.peer.send(messages.TUNNEL_CLOSE, encode(TunnelClose(other.number, closed.reason)))

    def _disconnected(self, peer: Peer) -> None:
        self._last_numbers.pop(peer.number, None)
        for key in [key for key in self._ends if key[0] == peer.number]:
            self._ends[key].lost(ConnectionResetError(f"the link with node {peer.node_id} is closed"))
        for key in [key for key in self._sides if key[0] == peer.number]:
            side = self._sides.get(key)
            if side is not None:
                self._drop(
                    side,
                    f"the link of node {self._links.identity.node_id} with node {peer.node_id} is closed",
                )

    def _drop(self, side: _Side, reason: str) -> None:
        self._forget(side)
        for each in (side, side.other):
            each.peer.send(messages.TUNNEL_CLOSE, encode(TunnelClose(each.number, reason)))

    def _forget(self, side: _Side) -> None:
        self._sides.pop(side.key, None)
        self._sides.pop(side.other.key, None)


def _error(reason: str) -> Exception | None:
    if not reason:
        return None
    text = "".join(letter if letter.isprintable() else "?" for letter in reason[:REASON_LENGTH_MAX])
    return ConnectionResetError(text)
