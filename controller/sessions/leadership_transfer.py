"""Transfer of the active controller's leadership to another voter before this node stops.

Without it the cluster has no active controller until the voters notice that this one has stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from barnabas.controller.link.links import Links
    from barnabas.controller.raft.raft_log import RaftMetadataLog
    from barnabas.runtime.interface import Runtime

TIMEOUT_S: Final = 0.5  # a stop is not delayed for longer
RETRY_S: Final = 0.01

log = logging.getLogger("barnabas.controller")


class LeadershipTransfer:
    """Calls `done()` once: when another node is the active controller, or after the timeout; at once when this node is not
    active."""

    def __init__(
        self, raft: RaftMetadataLog, links: Links, runtime: Runtime, done: Callable[[], object]
    ) -> None:
        self._raft = raft
        self._links = links
        self._runtime = runtime
        self._done = done
        self._deadline = runtime.monotonic() + TIMEOUT_S
        self._is_over = False

    def begin(self) -> None:
        if not self._raft.is_leader:
            self._end()
            return
        self._links.leader.on_change(self._leader_changed)
        self._runtime.call_soon(
            self._try
        )  # the call may come from within a step of Raft, and steps do not nest

    def _leader_changed(self, leader_id: int) -> None:
        if leader_id not in (-1, self._links.identity.node_id):
            log.info("node %d is the active controller now", leader_id)
            self._end()

    def _try(self) -> None:
        """Ask a voter that has all entries, and again: while the last changes are in flight, none may have them."""
        if self._is_over:
            return
        is_late = self._runtime.monotonic() >= self._deadline
        if is_late or not any(peer.identity.is_controller for peer in self._links.peers()):
            log.info("no other controller takes over")
            self._end()
            return
        self._raft.transfer_leadership()
        self._runtime.call_later(RETRY_S, self._try)

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._done()
