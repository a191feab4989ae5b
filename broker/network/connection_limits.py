"""Limits the number of connections: max.connections, max.connections.per.ip and its overrides, and
max.connection.creation.rate.

As in Kafka, a connection above the limit of its address is closed, and connections above the broker's limits wait, in
order, until they may be served. Kafka leaves them in the system's queue. Here they have been accepted already, so at most
WAITING_MAX wait and all others are closed.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.runtime.interface import Runtime, Timer

log = logging.getLogger("barnabas.connection")

WAITING_MAX: Final = 1024


class Arrival(Protocol):
    """A connection."""

    client_host: str

    def admitted(self) -> None:
        """It may be served now."""
        ...

    def close(self, reason: str = "") -> None: ...


class ConnectionLimits:
    """Counts the connections of one broker. All calls on the loop's thread. The limits are read from the config each time, as
    they are dynamic configs."""

    def __init__(self, config: BrokerConfig, runtime: Runtime) -> None:
        self._config = config
        self._runtime = runtime
        self.count = 0
        self._by_host: dict[str, int] = {}
        self._waiting: deque[Arrival] = deque()
        self._created = (
            0.0  # a leaky bucket of new connections, which loses max.connection.creation.rate a second
        )
        self._leaked_at = runtime.monotonic()
        self._timer: Timer | None = None
        self._overrides_text = ""
        self._overrides: dict[str, int] = {}

    def arrive(self, arrival: Arrival) -> bool:
        """Whether a new connection may be served at once. Otherwise it is `admitted` later, or closed now."""
        if not self._waiting and self._has_room():
            return self._enter(arrival)
        if len(self._waiting) >= WAITING_MAX:
            arrival.close("too many connections wait already (max.connections)")
            return False
        self._waiting.append(arrival)
        self._wait_for_rate()
        return False

    def leave(self, arrival: Arrival, *, was_admitted: bool) -> None:
        """A connection has ended."""
        if not was_admitted:
            if arrival in self._waiting:
                self._waiting.remove(arrival)
            return
        self.count -= 1
        left = self._by_host[arrival.client_host] - 1
        if left:
            self._by_host[arrival.client_host] = left
        else:
            del self._by_host[arrival.client_host]
        self._admit_waiting()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _admit_waiting(self) -> None:
        while self._waiting and self._has_room():
            arrival = self._waiting.popleft()
            if self._enter(arrival):
                arrival.admitted()
        self._wait_for_rate()

    def _enter(self, arrival: Arrival) -> bool:
        host = arrival.client_host
        present = self._by_host.get(host, 0)
        allowed = self._allowed(host)
        if present >= allowed:
            arrival.close(f"the address already has the configured maximum of {allowed} connections")
            return False
        self._by_host[host] = present + 1
        self.count += 1
        self._created += 1
        return True

    def _allowed(self, host: str) -> int:
        """The limit of an address."""
        text = self._config.max_connections_per_ip_overrides
        if text != self._overrides_text:
            self._overrides_text = text
            self._overrides = parse_overrides(text)
        return self._overrides.get(host, self._config.max_connections_per_ip)

    def _has_room(self) -> bool:
        return self.count < self._config.max_connections and self._excess() <= 0

    def _excess(self) -> float:
        """By how many the new connections exceed one second of the configured rate."""
        now = self._runtime.monotonic()
        rate = self._config.max_connection_creation_rate
        self._created = max(0.0, self._created - (now - self._leaked_at) * rate)
        self._leaked_at = now
        return self._created + 1 - max(rate, 1)

    def _wait_for_rate(self) -> None:
        """Set a timer for connections that wait for the rate, and not for the end of another connection."""
        if self._timer is not None or not self._waiting or self.count >= self._config.max_connections:
            return
        rate = self._config.max_connection_creation_rate
        delay = max(self._excess() / rate, 0.001) if rate else 1.0

        def due() -> None:
            self._timer = None
            self._admit_waiting()

        self._timer = self._runtime.call_later(delay, due)


def parse_overrides(text: str) -> dict[str, int]:
    """`127.0.0.1:200,localhost:10` as limits by address. Entries without an address or a number are left out."""
    found: dict[str, int] = {}
    for entry in filter(None, map(str.strip, text.split(","))):
        host, _, limit = entry.rpartition(":")
        try:
            addresses = {str(each[4][0]) for each in socket.getaddrinfo(host.strip(), None)}
            found.update(dict.fromkeys(addresses, int(limit)))
        except (OSError, ValueError) as error:
            log.warning("max.connections.per.ip.overrides: %r is ignored: %s", entry, error)
    return found
