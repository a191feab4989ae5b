"""The header Barnabas-Hops names the topics that a message has passed through, so that none takes it twice.

A topic is named <cluster>/<topic>; names are separated by commas, the latest is the last. egress/message.py adds them.
"""

from __future__ import annotations

from typing import Final

from barnabas.nats.client.headers import find_header

HOPS_HEADER: Final = b"Barnabas-Hops"


def hop_of(cluster_id: str, topic: str) -> bytes:
    """A topic's name in the header."""
    return f"{cluster_id}/{topic}".encode()


def has_come_through(header_block: bytes, hop: bytes) -> bool:
    """Whether a message has passed through this topic."""
    hops = find_header(header_block, HOPS_HEADER) if HOPS_HEADER in header_block else None
    return hops is not None and hop in hops.replace(b" ", b"").split(b",")
