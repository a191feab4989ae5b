"""Where a message has been: the header Barnabas-Hops names the topics that it has come through, and none takes it twice.

A topic is named <cluster>/<topic>, several are separated by commas, the latest is the last. The name is added where records
are published (reverse/message.py).
"""

from __future__ import annotations

from typing import Final

from barnabas.nats.client.headers import find_header

HOPS_HEADER: Final = b"Barnabas-Hops"


def hop_of(cluster_id: str, topic: str) -> bytes:
    """What a topic is called in that header."""
    return f"{cluster_id}/{topic}".encode()


def has_come_through(header_block: bytes, hop: bytes) -> bool:
    """Whether a message was a record of this topic."""
    hops = find_header(header_block, HOPS_HEADER) if HOPS_HEADER in header_block else None
    return hops is not None and hop in hops.replace(b" ", b"").split(b",")
