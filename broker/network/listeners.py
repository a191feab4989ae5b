"""The client listeners of a broker: the sockets that accept connections, and the addresses that clients are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.config.listeners import Endpoint
from barnabas.broker.network.connection import Connection

if TYPE_CHECKING:
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.config.listeners import ListenerConfig
    from barnabas.broker.network.connection import Connections, NewAuthenticator
    from barnabas.broker.network.tls_transport import TlsConnections
    from barnabas.broker.security.listener_tls import TlsListeners
    from barnabas.runtime.interface import Runtime, Server

# A large fetch goes out in pieces of about twice this size (Linux doubles it), which stay in the processors' caches: with the system's
# buffer, which grows to megabytes, it takes up to three quarters more CPU. Kafka's 102400 makes smaller pieces, and so more turns of
# the loop.
SEND_BUFFER_BYTES: Final = 200_000
# For what is received: with Kafka's 102400 a produce takes up to half as much CPU again.
SYSTEM_BUFFER: Final = -1


class Listeners:
    """Those of `listeners` in the config. They are advertised before they listen, or at the latest then."""

    def __init__(
        self,
        runtime: Runtime,
        config: BrokerConfig,
        connections: Connections,
        advertised: dict[str, Endpoint],
        tls: TlsListeners | None,
        authenticators: Mapping[str, NewAuthenticator],
    ) -> None:
        """`advertised`, by listener name, is filled here. `tls`: of those listeners that use it. `authenticators`: of
        those whose clients authenticate themselves by SASL."""
        self._runtime = runtime
        self._config = config
        self._connections = connections
        self._advertised = advertised
        self._tls = tls
        self._tls_connections: TlsConnections | None = None  # once one listens
        self._authenticators = authenticators
        self._servers: list[Server] = []
        self.endpoints: list[Endpoint] = []  # where each listens, which may not be what it advertises

    @property
    def are_open(self) -> bool:
        return bool(self._servers)

    @property
    def have_ports(self) -> bool:
        """Whether the config names the ports, so that they are known before the listeners are open."""
        return all(listener.port for listener in self._config.listeners)

    def advertise(self) -> None:
        """Make the addresses of listeners that are not open yet known. Their ports must be."""
        for listener in self._config.listeners:
            self._advertise(listener, listener.port)

    def open(self) -> None:
        """Listen on all of them. OSError when one cannot be listened on; then none is open."""
        for listener in self._config.listeners:
            try:
                server = self._runtime.listen(
                    listener.host,
                    listener.port,
                    self._protocol_factory(listener),
                    send_buffer_bytes=self._if_given(
                        "socket.send.buffer.bytes", self._config.socket_send_buffer_bytes, SEND_BUFFER_BYTES
                    ),
                    receive_buffer_bytes=self._if_given(
                        "socket.receive.buffer.bytes",
                        self._config.socket_receive_buffer_bytes,
                        SYSTEM_BUFFER,
                    ),
                )
            except OSError:
                self.close()
                raise
            self._servers.append(server)
            self.endpoints.append(
                Endpoint(listener.name, listener.security_protocol, listener.host, server.port)
            )
            self._advertise(listener, server.port)

    def close(self) -> None:
        """Accept no more connections; those that are open stay."""
        while self._servers:
            self._servers.pop().close()

    def _protocol_factory(self, listener: ListenerConfig) -> Callable[[], Any]:
        tls = None if self._tls is None else self._tls.get(listener.name)
        authenticate = self._authenticators.get(listener.name)
        if tls is None:
            return partial(Connection, self._connections, listener.name, authenticate)
        if self._tls_connections is None:
            from barnabas.broker.network.tls_transport import TlsConnections  # late: loads ssl

            self._tls_connections = TlsConnections(
                self._connections, self._config.connection_failed_authentication_delay_ms / 1000
            )
        return partial(self._tls_connections.protocol, tls, authenticate)

    def _advertise(self, listener: ListenerConfig, port: int) -> None:
        self._advertised[listener.name] = Endpoint(
            listener.name,
            listener.security_protocol,
            listener.advertised_host,
            listener.advertised_port or port,
        )

    def _if_given(self, name: str, size: int, default: int) -> int:
        """The size of a socket's buffer, -1 for the system's; Kafka's defaults count where they are set."""
        return size if name in self._config.given else default
