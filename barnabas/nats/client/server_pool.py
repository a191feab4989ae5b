"""Which server to try next, and when.

Configured servers and those that the servers tell of, in random order; after each has failed once a pause follows, which
grows with every round and is never the same for two clients, so that a server that comes back is not met by all at once.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.nats.client.connection_settings import ServerAddress, parse_server
from barnabas.nats.client.errors import NatsSettingsError

if TYPE_CHECKING:
    import random  # noqa: TID251 - the type only
    from collections.abc import Sequence

FIRST_BACKOFF_S: Final = 0.1
BACKOFF_MAX_S: Final = 2.0
DISCOVERED_MAX: Final = 256
URL_CHARACTERS_MAX: Final = 512  # a longer one is no server's: names have at most 253
WELL_AFTER_S: Final = 1.0  # a connection that lasted so long was a good one
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
        """All that are known, the next one to be tried first."""
        return tuple(self._order)

    def next(self) -> tuple[ServerAddress, float]:
        """The server to try, and how many seconds to wait before."""
        server = self._order.pop(0)
        self._order.append(server)
        rounds, place = divmod(self._failures, len(self._order))
        if rounds == 0 or place:
            return server, 0.0
        longest = min(BACKOFF_MAX_S, FIRST_BACKOFF_S * 2 ** min(rounds - 1, 10))
        return server, longest * self._random.uniform(0.5, 1)

    def failed(self) -> None:
        """It could not be reached, or turned us away."""
        self._failures += 1

    def ended(self, lasted_s: float) -> None:
        """A connection was made, and has ended."""
        self._failures = 0 if lasted_s >= WELL_AFTER_S else self._failures + 1

    def discovered(self, urls: Sequence[str], teller: ServerAddress) -> None:
        """What a server says of its cluster: these, and no others but the configured ones, exist."""
        known = {(server.host, server.port): server for server in self._order}
        told: dict[tuple[str, int], ServerAddress] = {}
        for url in urls[:DISCOVERED_MAX]:
            if len(url) > URL_CHARACTERS_MAX:
                continue
            try:
                found = parse_server(url)
            except NatsSettingsError:
                continue
            name = teller.tls_name or ("" if _IS_ADDRESS(teller.host) else teller.host)
            told[found.host, found.port] = msgspec.structs.replace(
                teller, host=found.host, port=found.port, tls_name=name if _IS_ADDRESS(found.host) else ""
            )
        kept = {(server.host, server.port) for server in self._configured}
        kept.add((teller.host, teller.port))
        self._order = [server for place, server in known.items() if place in kept or place in told]
        fresh = [server for place, server in told.items() if place not in known]
        self._random.shuffle(fresh)
        self._order[:0] = fresh
