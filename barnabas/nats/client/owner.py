"""What a connection to a nats-server (client/connection.py) asks of whose it is, and tells him (client/client.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import ssl

    from barnabas.nats.client.connection import NatsConnection
    from barnabas.nats.client.errors import Cause
    from barnabas.nats.client.protocol import NatsParser
    from barnabas.nats.client.server_info import ServerInfo


class ConnectionOwner(Protocol):
    """Called on the loop's thread."""

    name: str
    parser: NatsParser

    def made(self, connection: NatsConnection) -> bool:
        """It is there; False when nobody wants it any more."""
        ...

    def tls_for(self, connection: NatsConnection, info: ServerInfo | None) -> ssl.SSLContext | None:
        """Whether to go on under TLS, having read INFO or (None) before. NatsSettingsError when that can't be."""
        ...

    def greeting(self, connection: NatsConnection, info: ServerInfo) -> bytes:
        """CONNECT and all SUBs. NatsSettingsError when there is nothing to show to the server."""
        ...

    def ready(self, connection: NatsConnection) -> None: ...

    def has_read(self, byte_count: int) -> None: ...

    def drained(self) -> None: ...

    def slow(self, paused_s: float) -> None: ...

    def ended(self, connection: NatsConnection, cause: Cause) -> None: ...
