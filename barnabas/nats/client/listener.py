"""Whom a client tells of its connection, and what it counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from barnabas.nats.client.errors import Cause
    from barnabas.nats.client.server_info import ServerInfo


class ClientListener:
    """Who is told what becomes of the connection. All calls on the loop's thread."""

    def connected(self, info: ServerInfo) -> None:
        """The subscriptions are in force."""

    def disconnected(self, cause: Cause) -> None:
        """A connection that was there has ended."""

    def unreachable(self, cause: Cause) -> None:
        """An attempt has failed; the next one follows."""

    def slow(self, paused_s: float) -> None:
        """Nothing has been read for so long, because of `pause`; the server cuts the connection after ten seconds, or
        when 64 MiB wait."""

    def refused(self, text: str) -> None:
        """The server has refused a subscription or a message, and goes on."""

    def drained(self) -> None:
        """Much waited to be written, and has been."""


class ClientStats(msgspec.Struct):
    """Counters since the start."""

    messages_in: int = 0
    bytes_in: int = 0  # of the protocol
    messages_out: int = 0
    bytes_out: int = 0
    connects: int = 0
    reconnects: int = 0
    sink_errors: int = 0
