"""The interface between Raft and the network. Both sides run on the loop's thread.

A connection to a peer has a number, which grows with every new one. Raft drops messages of older connections. Messages of one
connection arrive in the order in which they were sent, or not at all. Messages of up to 16 MB must pass.
"""

from __future__ import annotations

from typing import Protocol

from barnabas.controller.raft.voters import UNKNOWN_DIRECTORY, Directory


class RaftPeers(Protocol):
    """The connections to the other controllers, which are authenticated."""

    def send(self, node_id: int, message: bytes) -> bool:
        """Send a message to this node; False when it is lost because there is no connection, or its queue is full."""
        ...


class RaftReceiver(Protocol):
    """Raft's own side of the connections."""

    def peer_connected(
        self, node_id: int, connection_number: int, directory: Directory = UNKNOWN_DIRECTORY
    ) -> None:
        """A controller is connected, a voter or not. `directory`: its metadata directory."""
        ...

    def peer_disconnected(self, node_id: int) -> None:
        """The connection has closed; the voter may be down."""
        ...

    def received(self, node_id: int, connection_number: int, message: bytes) -> None:
        """One message from an authenticated peer. Unreadable bytes are dropped."""
        ...
