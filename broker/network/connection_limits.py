"""Limits the number of connections: max.connections, max.connections.per.ip and its overrides, max.connection.creation.rate,
and the quotas of addresses.

As in Kafka, a connection above the limit of its address is closed, one above the quota of its address a little later, and
connections above the limits of the broker or of their listener wait, in order, until they may be served. Kafka leaves them in
the system's queue. Here they have been accepted already, so at most WAITING_MAX wait and all others are closed.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from barnabas.broker.quotas.rate import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Iterator

    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.quotas.connection_rates import ConnectionRates
    from barnabas.runtime.interface import Runtime, Timer

log = logging.getLogger("barnabas.connection")

WAITING_MAX: Final = 1024
INT_MAX: Final = 2**31 - 1  # no limit
_ROUNDING: Final = 1e-9


class Arrival(Protocol):
    """A connection."""

    client_host: str
    listener: str

    def admitted(self) -> None:
        """It may be served now."""
        ...

    def close(self, reason: str = "") -> None: ...


class _Listener:
    """The connections of one listener: how many are served, and those that wait."""

    __slots__ = ("count", "created", "is_exempt", "limit", "served", "waiting")

    def __init__(self, limit: int, created: TokenBucket | None, *, is_exempt: bool) -> None:
        self.limit = limit  # listener.name.<name>.max.connections
        self.created = created  # its max.connection.creation.rate; None: any
        self.is_exempt = is_exempt  # from the broker's limits: other brokers connect there
        self.count = 0
        self.served = 0  # since the start
        self.waiting: deque[Arrival] = deque()


class ConnectionLimits:
    """Counts the connections of one broker. All calls on the loop's thread. The broker's limits are read from the config each
    time, as they are dynamic configs."""

    def __init__(self, config: BrokerConfig, runtime: Runtime) -> None:
        self._config = config
        self._runtime = runtime
        self.rates: ConnectionRates | None = None  # of addresses, where any has a quota
        self.count = 0
        self._by_host: dict[str, int] = {}
        self._listeners: dict[str, _Listener] = {}
        self._waiting_count = 0
        self._held_count = 0
        self._created = TokenBucket(0.0, runtime.monotonic(), 1, 1.0)
        self._created.rate = float(config.max_connection_creation_rate)
        self._timer: Timer | None = None
        self._overrides_text = ""
        self._overrides: dict[str, int] = {}

    def counts(self) -> dict[str, int]:
        """The connections of each listener that are served."""
        return {name: listener.count for name, listener in self._listeners.items()}

    def served(self) -> dict[str, int]:
        """How many connections of each listener have been served since the start, the open ones among them."""
        return {name: listener.served for name, listener in self._listeners.items()}

    def arrive(self, arrival: Arrival) -> bool:
        """Whether a new connection may be served at once. Otherwise it is `admitted` later, or closed, now or after a second at
        most."""
        throttle_ms = 0 if self.rates is None else self.rates.throttle_ms(arrival.client_host)
        if throttle_ms:
            self._hold(arrival, throttle_ms / 1000)
            return False
        listener = self._listener(arrival.listener)
        if not listener.waiting and self._has_room(listener):
            return self._enter(arrival, listener)
        if self._waiting_count >= WAITING_MAX:
            arrival.close("too many connections wait already (max.connections)")
            return False
        listener.waiting.append(arrival)
        self._waiting_count += 1
        self._wait_for_rate()
        return False

    def leave(self, arrival: Arrival, *, was_admitted: bool) -> None:
        """A connection has ended."""
        listener = self._listener(arrival.listener)
        if not was_admitted:
            if arrival in listener.waiting:
                listener.waiting.remove(arrival)
                self._waiting_count -= 1
            return
        self.count -= 1
        listener.count -= 1
        left = self._by_host[arrival.client_host] - 1
        if left:
            self._by_host[arrival.client_host] = left
        else:
            del self._by_host[arrival.client_host]
        self._admit_waiting()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _listener(self, name: str) -> _Listener:
        found = self._listeners.get(name)
        if found is None:
            config = self._config
            rate = config.listener_limit(name, "max.connection.creation.rate")
            found = self._listeners[name] = _Listener(
                config.listener_limit(name, "max.connections"),
                TokenBucket(float(rate), self._runtime.monotonic(), 1, 1.0) if rate < INT_MAX else None,
                is_exempt=name == config.inter_broker_listener and len(config.listeners) > 1,
            )
        return found

    def _hold(self, arrival: Arrival, delay_s: float) -> None:
        """Close a connection that its address may not open yet, after a while, so that a client does not try at once again."""
        reason = "the address opens more connections than its connection_creation_rate"
        if self._held_count >= WAITING_MAX:
            arrival.close(reason)
            return
        self._held_count += 1

        def release() -> None:
            self._held_count -= 1
            arrival.close(reason)

        self._runtime.call_later(delay_s, release)

    def _admit_waiting(self) -> None:
        if self._waiting_count:
            for listener in self._listeners.values():
                while listener.waiting and self._has_room(listener):
                    arrival = listener.waiting.popleft()
                    self._waiting_count -= 1
                    if self._enter(arrival, listener):
                        arrival.admitted()
            self._wait_for_rate()

    def _enter(self, arrival: Arrival, listener: _Listener) -> bool:
        host = arrival.client_host
        present = self._by_host.get(host, 0)
        allowed = self._allowed(host)
        if present >= allowed:
            arrival.close(f"the address already has the configured maximum of {allowed} connections")
            return False
        self._by_host[host] = present + 1
        self.count += 1
        listener.count += 1
        listener.served += 1
        now = self._runtime.monotonic()
        for bucket in self._buckets(listener):
            bucket.take(1, now)
        return True

    def _allowed(self, host: str) -> int:
        """The limit of an address."""
        text = self._config.max_connections_per_ip_overrides
        if text != self._overrides_text:
            self._overrides_text = text
            self._overrides = parse_overrides(text)
        return self._overrides.get(host, self._config.max_connections_per_ip)

    def _has_room(self, listener: _Listener) -> bool:
        if self._is_full(listener):
            return False
        now = self._runtime.monotonic()
        return all(bucket.tokens(now) >= 1 - _ROUNDING for bucket in self._buckets(listener))

    def _is_full(self, listener: _Listener) -> bool:
        return listener.count >= listener.limit or (
            not listener.is_exempt and self.count >= self._config.max_connections
        )

    def _buckets(self, listener: _Listener) -> Iterator[TokenBucket]:
        """Of the rates of new connections: a second's worth may come at once."""
        if listener.created is not None:
            yield listener.created
        if not listener.is_exempt and self._config.max_connection_creation_rate < INT_MAX:
            self._created.rate = float(self._config.max_connection_creation_rate)
            yield self._created

    def _wait_for_rate(self) -> None:
        """Set a timer for connections that wait for a rate, and not for the end of another connection."""
        if self._timer is not None:
            return
        now = self._runtime.monotonic()
        delays = [
            max((_delay_s(bucket, now) for bucket in self._buckets(listener)), default=0.0)
            for listener in self._listeners.values()
            if listener.waiting and not self._is_full(listener)
        ]
        if not delays:
            return

        def due() -> None:
            self._timer = None
            self._admit_waiting()

        self._timer = self._runtime.call_later(max(min(delays), 0.001), due)


def _delay_s(bucket: TokenBucket, now: float) -> float:
    """Until a connection may be served; the rate may change meanwhile."""
    return min((1 - bucket.tokens(now)) / bucket.rate, 1.0) if bucket.rate else 1.0


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
