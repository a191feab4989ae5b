"""The voters of a quorum whose log names them, sent between nodes, so that each calls those that there are.

A controller takes them from its metadata log when they are committed, and sends them over all links and each new one. A broker, and a
controller whose log is behind, takes those of the highest entry. Only addresses follow from them: who votes is decided by the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from barnabas.controller.link import messages
from barnabas.controller.link.followed_log import Target, targets_with
from barnabas.controller.link.messages import VOTERS_SINCE, QuorumVoters, decode, encode

if TYPE_CHECKING:
    from barnabas.controller.link.links import Links
    from barnabas.controller.link.peer import Peer
    from barnabas.controller.raft.voters import Voter


class VoterUpdates:
    """`configured`: the targets of the links by configuration, which are called as well."""

    def __init__(self, links: Links, configured: Sequence[Target]) -> None:
        self._links = links
        self._configured = configured
        self._known: QuorumVoters | None = None
        self._own: QuorumVoters | None = None  # from this controller's log
        links.handle(messages.VOTERS, self._received)
        links.add_listener(self._send, lambda _: None)

    def announce(self, index: int, voters: Sequence[Voter]) -> None:
        """These are committed in this controller's log, up to entry `index`."""
        links = self._links
        self._own = QuorumVoters(index, list(voters))
        links.join_cluster(links.identity.cluster_id, voters, dynamic=True)
        for peer in links.peers():
            self._send(peer)
        self._take(self._own)

    def _send(self, peer: Peer) -> None:
        if self._own is not None and peer.version >= VOTERS_SINCE:
            peer.send(messages.VOTERS, encode(self._own))

    def _received(self, peer: Peer, payload: bytes) -> None:
        voters = decode(payload, QuorumVoters)
        if peer.identity.is_controller:
            self._take(voters)

    def _take(self, voters: QuorumVoters) -> None:
        if self._known is None or voters.index > self._known.index:
            self._known = voters
            self._links.call(targets_with(self._configured, voters.voters))
