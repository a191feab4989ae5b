"""Calls one address until there is a link to the node there.

After a failure it calls again: first after about 20 ms, later after up to half a second, with jitter so that nodes which start
together do not stay in step. While there is a link to the node, it does not call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from barnabas.controller.link.handshake import Handshake, Host
from barnabas.controller.link.messages import LinkRefused, RefusalCode

if TYPE_CHECKING:
    import ssl

    from barnabas.controller.link.sasl import NewLinkSasl
    from barnabas.runtime.interface import Connecting, Timer


class DialerHost(Host, Protocol):
    tls: ssl.SSLContext | None  # for calling
    login: NewLinkSasl | None  # likewise

    def is_linked(self, node_id: int) -> bool: ...

    def unreachable(self, dialer: Dialer, error: Exception) -> None:
        """A call has failed: the connection, or the handshake on it."""
        ...


class Dialer:
    """Calls one address. `node_id`: of the node that answers there, None until one has answered."""

    def __init__(self, host: DialerHost, address: tuple[str, int], node_id: int | None) -> None:
        self._host = host
        self.address = address
        self.node_id = node_id
        self.is_self = False  # the address is this node's own
        self.handshake: Handshake | None = None
        self.failures = 0  # calls in a row without a link
        self.error: Exception | None = None  # of the last such call, since there was a link
        self._expected_id = node_id
        self._connecting: Connecting | None = None
        self._timer: Timer | None = None
        self._stopped = False

    @property
    def name(self) -> str:
        host, port = self.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def start(self) -> None:
        """Call now, unless a call or its backoff is in progress."""
        if self._timer is None and self._connecting is None and self.handshake is None:
            self._call()

    def stop(self) -> None:
        self._stopped = True
        self.hang_up()

    def hang_up(self) -> None:
        """Cancel the current attempt."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if self.handshake is not None:
            handshake, self.handshake = self.handshake, None
            handshake.abandon()

    def link_lost(self) -> None:
        """The link to the node at this address has closed."""
        self.failures = 0
        self.error = None
        if self._timer is None and self._connecting is None and self.handshake is None:
            self._again(self._host.settings.backoff_first_s)

    def _call(self) -> None:
        self._timer = None
        if self._stopped or self.is_self:
            return
        if self.node_id is not None and self._host.is_linked(self.node_id):
            return
        self.handshake = Handshake(
            self._host,
            dialed=True,
            expected_id=self._expected_id,
            on_made=self._connected,
            sasl=self._host.login,
        )
        connection = self.handshake.connection
        runtime, timeout_s = self._host.runtime, self._host.settings.connect_timeout_s
        self._timer = runtime.call_later(
            timeout_s, lambda: self._not_connected(TimeoutError(f"no connection within {timeout_s:g} s"))
        )
        self._connecting = runtime.connect(
            *self.address, lambda: connection, self._not_connected, tls=self._host.tls
        )

    def _connected(self) -> None:
        self._connecting = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _not_connected(self, error: OSError) -> None:
        self.hang_up()
        self._failed(error)

    def handshake_ended(self, error: Exception) -> None:
        """The attempt has failed."""
        if self.handshake is not None and self.handshake.peer is not None:
            self.node_id = self.handshake.peer.node_id
        self.handshake = None
        self._failed(error)

    def handshake_opened(self, node_id: int) -> None:
        self.handshake = None
        self.node_id = node_id
        self.failures = 0

    def _failed(self, error: Exception) -> None:
        if self._stopped:
            return
        if isinstance(error, LinkRefused) and error.code == RefusalCode.SELF:
            self.is_self = True
            self._host.unreachable(self, error)
            return
        settings = self._host.settings
        self.failures += 1
        self.error = error
        self._host.unreachable(self, error)
        if isinstance(error, LinkRefused) and not error.passing:
            self._again(settings.refused_backoff_s)
        else:
            self._again(
                min(settings.backoff_max_s, settings.backoff_first_s * 2 ** min(self.failures - 1, 10))
            )

    def _again(self, delay_s: float) -> None:
        runtime = self._host.runtime
        if self._timer is None and not self._stopped:
            self._timer = runtime.call_later(delay_s * runtime.random.uniform(0.75, 1.25), self._call)
