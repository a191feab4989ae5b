"""Making connections: one attempt at a time, to the server that the pool names, when it says so."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from barnabas.nats.client.errors import NOT_REACHED, SERVER_GONE, Cause
from barnabas.nats.client.server_pool import ServerPool

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.nats.client.connection_settings import ConnectionSettings, ServerAddress
    from barnabas.runtime.interface import Connecting, Runtime, Timer

log = logging.getLogger("barnabas.nats")

LOG_AGAIN_AFTER_S: Final = 60.0  # the same failure
LOGGED_MAX: Final = 32


class Reconnect:
    """`attempt` has a connection made; its protocol is `new_protocol(server)`, and calls `made`. `failed(cause)` when there
    is none; whoever wants another one calls `attempt` again, and the pool sees to the pauses."""

    def __init__(
        self,
        runtime: Runtime,
        settings: ConnectionSettings,
        new_protocol: Callable[[ServerAddress], Any],
        failed: Callable[[Cause], object],
    ) -> None:
        self.pool = ServerPool(settings.servers, runtime.random)
        self._runtime = runtime
        self._timeout_s = settings.connect_timeout_s
        self._new_protocol = new_protocol
        self._failed = failed
        self._connecting: Connecting | None = None
        self._timer: Timer | None = None  # until the attempt begins, or has taken too long
        self._has_reached_one = False

    def attempt(self) -> None:
        self.cancel()
        server, delay_s = self.pool.next()
        self._timer = self._runtime.call_later(delay_s, lambda: self._connect(server))

    def cancel(self) -> None:
        """No attempt any more."""
        for pending in (self._timer, self._connecting):
            if pending is not None:
                pending.cancel()
        self._timer = self._connecting = None

    def made(self) -> None:
        """Called when the attempt has led to a connection."""
        self._has_reached_one = True
        self._connecting = None
        self.cancel()

    def _connect(self, server: ServerAddress) -> None:
        def failed(error: OSError) -> None:
            self._connecting = None
            self.cancel()
            kind = SERVER_GONE if self._has_reached_one else NOT_REACHED
            self._failed(Cause(kind, f"no connection to {server}: {error}"))

        def too_late() -> None:
            self.cancel()
            failed(TimeoutError(f"nothing for {self._timeout_s:g} s"))

        self._timer = self._runtime.call_later(self._timeout_s, too_late)
        self._connecting = self._runtime.connect(
            server.host, server.port, lambda: self._new_protocol(server), failed
        )


class FailureLog:
    """Writes failures to the log, each one once in a while."""

    def __init__(self, name: str, runtime: Runtime) -> None:
        self._name = name
        self._runtime = runtime
        self._logged: dict[str, float] = {}

    def write(self, text: str, what: str = "") -> None:
        """`what` is the same for texts of which one will do; "" when that is the text itself."""
        now = self._runtime.monotonic()
        what = what or text
        if now - self._logged.get(what, -LOG_AGAIN_AFTER_S) >= LOG_AGAIN_AFTER_S:
            if len(self._logged) >= LOGGED_MAX:
                oldest = now - LOG_AGAIN_AFTER_S
                self._logged = {said: at for said, at in self._logged.items() if at > oldest}
                if len(self._logged) >= LOGGED_MAX:
                    return  # of texts that are never the same, so many a minute will do
            self._logged[what] = now
            log.warning("%s: %s", self._name, text)

    def clear(self) -> None:
        """Things are well again: the next failure is news."""
        self._logged.clear()
