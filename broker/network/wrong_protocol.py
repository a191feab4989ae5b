"""Connections to a client listener that speak another protocol, each logged once a minute.

A node whose controller.quorum.voters names the port of a client listener is refused in the nodes' own protocol, so that the
reason is in its log too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.controller.link.framing import PREFACE, encode_frame
from barnabas.controller.link.messages import REFUSED, RefusalCode, Refused, encode

if TYPE_CHECKING:
    from barnabas.runtime.repeated_warnings import RepeatedWarnings

_CORRECTION: Final = "controller.quorum.voters (or controller.quorum.bootstrap.servers) must name the port of the controller listener"


class WrongProtocol:
    """Refuses and logs such connections of one broker."""

    def __init__(self, warnings: RepeatedWarnings) -> None:
        self._warnings = warnings

    def _warn(self, host: str, text: str) -> None:
        self._warnings.warn(host, text, f"{host}: {text}")

    def refuse_node(self, host: str, listener: str) -> bytes:
        """The response to a node at `host`, after which its connection is closed."""
        self._warn(
            host,
            f"a node of a cluster calls the listener {listener}, which is for clients: its properties are wrong, "
            f"{_CORRECTION}",
        )
        reason = f"{listener} is a listener for clients, and {_CORRECTION}"
        return PREFACE + encode_frame(REFUSED, encode(Refused(RefusalCode.VOTERS, reason)), None)

    def note_tls(self, host: str, listener: str) -> None:
        """Log a connection that begins with a TLS handshake."""
        self._warn(
            host,
            f"a TLS handshake on the listener {listener}, which speaks plain text: a client with security.protocol=SSL, or a "
            f"node whose properties are wrong, {_CORRECTION}",
        )
