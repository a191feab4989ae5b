"""What Raft needs from the network, and what it offers to it. Both sides live on the loop's thread.

A connection to a peer has a number, which grows with every new one: what arrives by an older connection is
dropped, so nothing that was sent before a break is taken for something new. Messages of one connection arrive in
the order in which they were sent, or not at all. Frames of up to MESSAGE_BYTES_MAX must pass.
"""

from __future__ import annotations

from typing import Final, Protocol

MESSAGE_BYTES_MAX: Final = 16 << 20


class RaftPeers(Protocol):
    """The connections to the other voters; who is at the other end has been verified."""

    def send(self, node_id: int, message: bytes) -> bool:
        """Hand a message to the connection with this voter; False when there is none or it takes no more now, and
        the message is lost."""
        ...


class RaftReceiver(Protocol):
    """Raft's own side of the connections."""

    def peer_connected(self, node_id: int, connection_number: int) -> None: ...

    def peer_disconnected(self, node_id: int) -> None:
        """The connection has closed; the voter may be down."""
        ...

    def received(self, node_id: int, connection_number: int, message: bytes) -> None:
        """One message, from a peer that has been authenticated. Bytes that make no sense are dropped."""
        ...
