"""Who the active controller is, as this node has heard.

Controllers tell all their links when they learn of a leader, and each new link at once. The newer term is right;
within one term there is one leader, so its name stands over "nobody", unless the leader itself says that it has
ceased.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from barnabas.controller.link import messages
from barnabas.controller.link.messages import Leader, decode, encode

if TYPE_CHECKING:
    from barnabas.controller.link.links import Links
    from barnabas.controller.link.peer import Peer

NOBODY = -1


class LeaderHints:
    """`leader_id` and `term`: the newest that was heard; `on_change(leader_id)` after each change."""

    def __init__(self, node_id: int, links: Links) -> None:
        self._node_id = node_id
        self._links = links
        self._callbacks: list[Callable[[int], object]] = []
        self.term = -1
        self.leader_id = NOBODY

    def on_change(self, callback: Callable[[int], object]) -> None:
        self._callbacks.append(callback)

    def announce(self, term: int, leader_id: int) -> None:
        """A controller knows it from Raft, or has become active itself, or has ceased to be (-1)."""
        if self._take(term, leader_id, self._node_id):
            for peer in self._links.peers():
                self.tell(peer)
            self._changed()

    def tell(self, peer: Peer) -> None:
        """What is known, if it is this node's to tell."""
        if self._links.identity.is_controller and self.term >= 0:
            peer.send(messages.LEADER, encode(Leader(self.term, self.leader_id)))

    def heard(self, peer: Peer, payload: bytes) -> None:
        leader = decode(payload, Leader)
        if peer.identity.is_controller and self._take(leader.term, leader.leader_id, peer.node_id):
            self._changed()

    def _take(self, term: int, leader_id: int, source: int) -> bool:
        """Whether anything has changed."""
        if term < self.term:
            return False
        if term == self.term and leader_id == self.leader_id:
            return False
        if term == self.term and leader_id == NOBODY and source != self.leader_id:
            return False
        self.term, self.leader_id = term, leader_id
        return True

    def _changed(self) -> None:
        for callback in self._callbacks:
            callback(self.leader_id)
