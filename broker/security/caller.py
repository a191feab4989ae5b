"""Who sends a request: the principal and where it comes from (Kafka's KafkaPrincipal and RequestContext)."""

from __future__ import annotations

from typing import Final

import msgspec

USER: Final = "User"


class Principal(msgspec.Struct, frozen=True, cache_hash=True):
    """An authenticated identity; its text is TYPE:NAME."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")  # of a connection without authentication


def parse_principal(text: str) -> Principal | None:
    """The principal TYPE:NAME; None where the text is none. The name may hold further colons, the type may not."""
    kind, colon, name = text.partition(":")
    return Principal(kind, name) if colon else None


class Caller(msgspec.Struct, frozen=True, cache_hash=True):
    """The sender of requests. One object per authentication of a connection, shared by its requests."""

    principal: Principal
    listener: str  # the name of the listener that the connection came in on; "" for a broker's own requests
    client_host: str  # the peer's address, such as "127.0.0.1"; the node's id for a broker's own requests
    is_token_authenticated: bool = False  # by a delegation token, with which no other token can be asked for
    # A broker of this cluster, proven by its secret, or this node itself: it needs no grant.
    is_node: bool = False


def own_caller(node_id: int) -> Caller:
    """The caller of requests that the node sends in its own name."""
    return Caller(ANONYMOUS, "", str(node_id), is_node=True)


def own_client_id(node_id: int, purpose: str) -> str:
    """The client id of a broker's requests to brokers."""
    return f"broker-{node_id}-{purpose}"
