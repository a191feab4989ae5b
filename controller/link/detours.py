"""Links by way of a third node, where this node calls another and does not reach it.

Once there has been no link for a moment, the controllers that are linked directly are asked one after the other to carry
a tunnel to it (tunnels.py). Its own calls go on meanwhile, and a direct link takes the place of such a one. Of two nodes
that miss each other the one with the lower id goes first, so the two do not cross.

Nothing follows from a detour that does not come to be: neither that the node is gone, nor that it is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.controller.link import messages
from barnabas.controller.link.handshake import Handshake
from barnabas.controller.link.refusals import LinkRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barnabas.controller.link.dialer import Dialer
    from barnabas.controller.link.links import Links
    from barnabas.controller.link.peer import Peer
    from barnabas.controller.link.tunnels import Tunnels
    from barnabas.runtime.interface import Timer

LOOK_S: Final = 0.25


class _Missing:
    """A node that is called and not linked."""

    def __init__(self, since: float) -> None:
        self.next_at = since
        self.tried: list[int] = []  # node ids, in this round
        self.rounds = 0
        self.handshake: Handshake | None = None


class Detours:
    """Looks now and then while a node is missing. All calls on the loop's thread."""

    def __init__(self, links: Links, dialers: Mapping[tuple[str, int], Dialer], tunnels: Tunnels) -> None:
        self._links = links
        self._dialers = dialers
        self._tunnels = tunnels
        self._missing: dict[int, _Missing] = {}
        self._timer: Timer | None = None
        self._is_stopped = False

    def look(self) -> None:
        """A node may be missing now."""
        if self._timer is None and not self._is_stopped:
            self._look()

    def linked(self, handshake: Handshake, node_id: int) -> None:
        """It is there, by this one; and it may know who answers at the other addresses."""
        missing = self._missing.get(node_id)
        if missing is not None:
            if missing.handshake is handshake:
                missing.handshake = None
            # Where the other side decides it may still choose the call that is under way.
            if missing.handshake is None or handshake.relay_id is None or handshake.we_decide:
                del self._missing[node_id]
                _hang_up(missing)
        self.look()

    def ended(self, handshake: Handshake, error: Exception) -> None:
        """It came to no link."""
        for missing in self._missing.values():
            if missing.handshake is handshake:
                missing.handshake = None
                if isinstance(error, LinkRefused) and not error.passing:
                    missing.next_at = self._links.runtime.monotonic() + self._links.settings.refused_backoff_s

    def stop(self) -> None:
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for missing in self._missing.values():
            _hang_up(missing)
        self._missing.clear()

    # -- looking

    def _look(self) -> None:
        self._timer = None
        links, now = self._links, self._links.runtime.monotonic()
        wanted = self._wanted()
        for node_id in [node_id for node_id in self._missing if node_id not in wanted]:
            _hang_up(self._missing.pop(node_id))
        for node_id in wanted:
            missing = self._missing.get(node_id)
            if missing is None:
                after_s = links.settings.detour_after_s
                if node_id < links.identity.node_id:
                    after_s += LOOK_S
                self._missing[node_id] = _Missing(now + after_s)
            elif missing.handshake is None and now >= missing.next_at:
                self._try(node_id, missing, now)
        if self._missing:
            self._timer = links.runtime.call_later(LOOK_S, self._look)

    def _wanted(self) -> list[int]:
        """Ids of the nodes that are called and not linked, each once."""
        links = self._links
        found: dict[int, None] = {}
        for dialer in self._dialers.values():
            node_id = self._answers(dialer)
            if node_id is not None and not dialer.is_self and not links.is_linked(node_id):
                found[node_id] = None
        found.pop(links.identity.node_id, None)
        return list(found)

    def _answers(self, dialer: Dialer) -> int | None:
        """Who answers at an address, by itself or as the members of the quorum have written down."""
        if dialer.node_id is not None:
            return dialer.node_id
        identities = [self._links.identity, *(peer.identity for peer in self._links.peers())]
        for identity in identities:
            for voter in identity.journalled:
                if (voter.host, voter.port) == dialer.address:
                    return voter.node_id
        return None

    def _try(self, node_id: int, missing: _Missing, now: float) -> None:
        links = self._links
        relay = next(
            (peer for peer in links.peers() if _may_carry(peer) and peer.node_id not in missing.tried), None
        )
        if relay is None:
            settings = links.settings
            missing.tried.clear()
            missing.next_at = now + min(
                settings.detour_backoff_max_s, settings.detour_backoff_first_s * 2 ** min(missing.rounds, 10)
            )
            missing.rounds += 1
            return
        missing.tried.append(relay.node_id)
        missing.handshake = Handshake(links, dialed=True, expected_id=node_id, relay_id=relay.node_id)
        self._tunnels.open(relay, node_id, missing.handshake.connection)


def _may_carry(peer: Peer) -> bool:
    return peer.is_direct and peer.identity.is_controller and peer.version >= messages.TUNNELS_SINCE


def _hang_up(missing: _Missing) -> None:
    if missing.handshake is not None:
        handshake, missing.handshake = missing.handshake, None
        handshake.abandon()
