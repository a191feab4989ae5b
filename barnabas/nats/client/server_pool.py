"""The servers of a client, and attempts to connect to them.

The pool holds configured and discovered servers, in random order. When each has failed once, a pause follows, which grows
with every round and is random, so that clients do not reconnect at the same moment. `Reconnect` makes one attempt at a time,
to the server and after the pause that the pool says.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from barnabas.nats.client.connection_settings import ServerAddress, parse_server
from barnabas.nats.client.errors import NOT_REACHED, SERVER_GONE, Cause, NatsSettingsError

if TYPE_CHECKING:
    import random  # noqa: TID251 - the type only
    from collections.abc import Callable, Sequence

    from barnabas.nats.client.connection_settings import ConnectionSettings
    from barnabas.runtime.interface import Connecting, Runtime, Timer

FIRST_BACKOFF_S: Final = 0.1
BACKOFF_MAX_S: Final = 2.0
DISCOVERED_MAX: Final = 256
URL_CHARACTERS_MAX: Final = 512  # longer ones are ignored: host names have at most 253
WELL_AFTER_S: Final = 1.0  # a connection that lasted so long ends a row of failures
_IS_ADDRESS = re.compile(r"[0-9.]+|.*:.*").fullmatch


class ServerPool:
    """The servers of one client."""

    def __init__(self, configured: Sequence[ServerAddress], randomness: random.Random) -> None:
        assert configured, "a client needs a server"
        self._random = randomness
        self._configured = tuple(configured)
        self._order = list(configured)  # the next one to be tried first
        self._random.shuffle(self._order)
        self._failures = 0  # in a row

    def __len__(self) -> int:
        return len(self._order)

    @property
    def servers(self) -> tuple[ServerAddress, ...]:
        """All servers, the next one to be tried first."""
        return tuple(self._order)

    def next(self) -> tuple[ServerAddress, float]:
        """The server to try next, and the pause before that, in seconds."""
        server = self._order.pop(0)
        self._order.append(server)
        rounds, place = divmod(self._failures, len(self._order))
        if rounds == 0 or place:
            return server, 0.0
        longest = min(BACKOFF_MAX_S, FIRST_BACKOFF_S * 2 ** min(rounds - 1, 10))
        return server, longest * self._random.uniform(0.5, 1)

    def failed(self) -> None:
        """An attempt has failed: the server could not be reached, or rejected the client."""
        self._failures += 1

    def ended(self, lasted_s: float) -> None:
        """A connection that was ready has ended."""
        self._failures = 0 if lasted_s >= WELL_AFTER_S else self._failures + 1

    def discovered(self, urls: Sequence[str], source: ServerAddress) -> None:
        """Takes the servers of a cluster from the INFO of one of them. Of the others only the configured ones stay."""
        known = {(server.host, server.port): server for server in self._order}
        announced: dict[tuple[str, int], ServerAddress] = {}
        for url in urls[:DISCOVERED_MAX]:
            if len(url) > URL_CHARACTERS_MAX:
                continue
            try:
                found = parse_server(url)
            except NatsSettingsError:
                continue
            name = source.tls_name or ("" if _IS_ADDRESS(source.host) else source.host)
            announced[found.host, found.port] = msgspec.structs.replace(
                source, host=found.host, port=found.port, tls_name=name if _IS_ADDRESS(found.host) else ""
            )
        kept = {(server.host, server.port) for server in self._configured}
        kept.add((source.host, source.port))
        self._order = [server for place, server in known.items() if place in kept or place in announced]
        fresh = [server for place, server in announced.items() if place not in known]
        self._random.shuffle(fresh)
        self._order[:0] = fresh


class Reconnect:
    """`attempt` makes one attempt to connect, after the pool's pause. Its protocol is `new_protocol(server)`; the protocol's
    owner calls `made`. Or `failed(cause)` is called; for another attempt call `attempt` again."""

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
        """Ends the attempt."""
        for pending in (self._timer, self._connecting):
            if pending is not None:
                pending.cancel()
        self._timer = self._connecting = None

    def made(self) -> None:
        """The attempt has succeeded."""
        self._has_reached_one = True
        self._connecting = None
        self.cancel()

    def _connect(self, server: ServerAddress) -> None:
        def failed(error: OSError) -> None:
            self._connecting = None
            self.cancel()
            kind = SERVER_GONE if self._has_reached_one else NOT_REACHED
            self._failed(Cause(kind, f"no connection to {server}: {error}"))

        def timed_out() -> None:
            self.cancel()
            failed(TimeoutError(f"no answer for {self._timeout_s:g} s"))

        self._timer = self._runtime.call_later(self._timeout_s, timed_out)
        self._connecting = self._runtime.connect(
            server.host, server.port, lambda: self._new_protocol(server), failed
        )
