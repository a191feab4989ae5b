"""Callers of a listener for clients that speak something else, and try again and again: named once a minute.

A node that takes it for a controller's, as somebody has named its port in controller.quorum.voters, is told so in the
nodes' own protocol, so that its operator reads it too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.controller.link.framing import PREFACE, encode_frame
from barnabas.controller.link.messages import REFUSED, Refused, encode
from barnabas.controller.link.refusals import VOTERS

if TYPE_CHECKING:
    from barnabas.runtime.repeated_warnings import RepeatedWarnings

_CORRECTION: Final = "controller.quorum.voters (or controller.quorum.bootstrap.servers) must name the port of the controller listener"


class ForeignCallers:
    """Of one broker."""

    def __init__(self, warnings: RepeatedWarnings) -> None:
        self._warnings = warnings

    def _warn(self, host: str, text: str) -> None:
        self._warnings.warn(host, text, f"{host}: {text}")

    def refuse_node(self, host: str, listener: str) -> bytes:
        """What to answer a node at `host` before its connection is closed."""
        self._warn(
            host,
            f"a node of a cluster calls the listener {listener}, which is for clients: its properties are wrong, "
            f"{_CORRECTION}",
        )
        reason = f"{listener} is a listener for clients, and {_CORRECTION}"
        return PREFACE + encode_frame(REFUSED, encode(Refused(VOTERS, reason)), None)

    def note_tls(self, host: str, listener: str) -> None:
        """Somebody begins with TLS."""
        self._warn(
            host,
            f"a TLS handshake on the listener {listener}, which speaks plain text: a client with security.protocol=SSL, or a "
            f"node whose properties are wrong, {_CORRECTION}",
        )
