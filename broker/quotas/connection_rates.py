"""Quotas of addresses (KIP-612): how many connections a second an address may open (connection_creation_rate).

Quotas may name hosts: a thread looks up their addresses when the quotas change.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from barnabas.broker.quotas.client_quotas import Quota, make_room
from barnabas.controller.metadata.quota_names import CONNECTION_CREATION_RATE, IP

if TYPE_CHECKING:
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.controller.metadata.image import MetadataImage
    from barnabas.runtime.interface import Runtime

_V4_IN_V6: Final = bytes(10) + b"\xff\xff"


class ConnectionRates:
    """See the module. All calls on the loop's thread."""

    def __init__(self, runtime: Runtime, config: BrokerConfig) -> None:
        self._runtime = runtime
        self._window = config.quota_window_num, float(config.quota_window_size_seconds)
        self._default: float | None = None
        self._limits: dict[bytes, float] = {}  # by address
        self._quotas: dict[bytes, Quota] = {}  # by address
        self._generation = 0
        self.throttled_connections = 0

    def load(self, image: MetadataImage) -> bool:
        """Follow the metadata. Returns whether there is any such quota."""
        by_name: dict[str | None, float] = {}
        for entity, quotas in image.client_quotas.items():
            if entity[0][0] == IP and CONNECTION_CREATION_RATE in quotas:
                by_name[entity[0][1]] = quotas[CONNECTION_CREATION_RATE]
        self._default = by_name.pop(None, None)
        addresses = {name: packed(name) for name in by_name if name is not None}
        self._limits = {address: by_name[name] for name, address in addresses.items() if address is not None}
        hosts = {name: by_name[name] for name, address in addresses.items() if address is None}
        self._generation += 1
        if hosts:
            self._look_up(hosts, self._generation)
        return bool(by_name) or self._default is not None

    def _look_up(self, hosts: Mapping[str, float], generation: int) -> None:
        def done(found: dict[bytes, float] | None, _error: BaseException | None) -> None:
            if found and generation == self._generation:
                self._limits.update(found)

        self._runtime.run_in_thread(lambda: _addresses_of(hosts), done)

    def throttle_ms(self, host: str) -> int:
        """Count a new connection of an address. Returns for how many ms to hold it before it is closed, and then it does not
        count; 0: serve it."""
        address = packed(host) or b""
        limit = self._limits.get(address, self._default)
        if limit is None:
            return 0
        now = self._runtime.monotonic()
        quota = self._quotas.get(address)
        if quota is None:
            make_room(self._quotas, now)
            quota = self._quotas[address] = Quota(*self._window, throttle_s_max=self._window[1])
        quota.limit = limit
        throttle_ms = quota.record(1, now)
        if throttle_ms:
            quota.record(-1, now)
            self.throttled_connections += 1
        return throttle_ms


def packed(host: str) -> bytes | None:
    """The bytes of an address; None for a name. IPv4 in IPv6 is IPv4."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            found = socket.inet_pton(family, host)
        except (OSError, ValueError):
            continue
        return found.removeprefix(_V4_IN_V6)
    return None


def _addresses_of(hosts: Mapping[str, float]) -> dict[bytes, float]:
    """In a thread."""
    found: dict[bytes, float] = {}
    for name, limit in hosts.items():
        try:
            texts = {str(each[4][0]) for each in socket.getaddrinfo(name, None)}
        except (OSError, ValueError):
            continue
        found.update({address: limit for address in map(packed, texts) if address is not None})
    return found
