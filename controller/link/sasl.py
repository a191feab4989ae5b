"""What a link needs of SASL, where the controller listener asks for a login. broker/cluster/link_sasl.py has it.

The login is the first thing on a connection, before the hellos, so nothing else is served to a caller without one. Its frames
carry Kafka's requests and responses (SaslHandshake, SaslAuthenticate). Where the session has a lifetime the caller logs in again
on the open link, as Kafka's clients do (KIP-368).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from barnabas.controller.link.messages import LinkRefused, RefusalCode


class SaslUser(Protocol):
    """The connection that SASL is used on."""

    @property
    def peer_host(self) -> str: ...

    def send_sasl(self, payload: bytes) -> None: ...

    def logged_in(self) -> None:
        """The login has succeeded, the first one or a later one."""
        ...

    def login_failed(self, refused: LinkRefused) -> None:
        """Close the connection, behind what was sent."""
        ...


class LinkSasl(Protocol):
    """One side of a connection's logins."""

    def begin(self) -> None:
        """The connection is made."""
        ...

    def received(self, payload: bytes) -> None:
        """A frame of the other side. MalformedMessage."""
        ...

    def close(self) -> None:
        """The connection is closed."""
        ...


NewLinkSasl: TypeAlias = Callable[[SaslUser], LinkSasl]


def login_refused(why: str, *, by_peer: bool = False) -> LinkRefused:
    return LinkRefused(
        RefusalCode.AUTHENTICATION, f"the login by SASL has failed: {why[:500]}", by_peer=by_peer
    )


def login_missing() -> LinkRefused:
    return LinkRefused(
        RefusalCode.AUTHENTICATION,
        "the controller listener asks for a login by SASL, and the caller begins without: "
        "listener.security.protocol.map and the sasl.* properties must name the same on all nodes",
    )


def login_unexpected() -> LinkRefused:
    return LinkRefused(
        RefusalCode.AUTHENTICATION,
        "the caller logs in by SASL, and the controller listener does not use it: listener.security.protocol.map must "
        "name the same protocol on all nodes",
    )
