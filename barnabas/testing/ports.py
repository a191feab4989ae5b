"""Ports for the servers of tests, which must know theirs before they start.

A port that the system names is one of those that it gives to connections, too: between the moment in which it was free and
the start of the server another process may have got it. These lie below that range, and none is named twice.
"""

from __future__ import annotations

import random  # noqa: TID251 - another port in each process, whatever the seeds of tests
import socket
from pathlib import Path
from typing import Final

_FIRST: Final = 15_000
_GIVEN_MAX: Final = 5_000
_given: set[int] = set()
_random: Final = random.SystemRandom()


def free_port() -> int:
    """A TCP port of 127.0.0.1 on which no process listens and that this process has not been given lately."""
    end = _first_of_connections()
    if len(_given) >= _GIVEN_MAX:
        _given.clear()
    while True:
        port = _random.randrange(_FIRST, end)
        if port not in _given and _is_free(port):
            _given.add(port)
            return port


def _first_of_connections() -> int:
    """The first port that the system gives to connections: Linux tells; elsewhere (IANA) 49,152."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        first = 49_152
    return first if first > _FIRST + 2 * _GIVEN_MAX else 32_768


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
