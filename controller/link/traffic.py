"""What has gone over the links of a node since its start, for metrics."""

from __future__ import annotations


class LinkTraffic:
    """Bytes in both directions, with what belongs to the protocol; requests sent, and answers received."""

    __slots__ = ("incoming_bytes", "outgoing_bytes", "requests", "responses")

    def __init__(self) -> None:
        self.incoming_bytes = 0
        self.outgoing_bytes = 0
        self.requests = 0
        self.responses = 0
