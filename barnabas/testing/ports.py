"""Ports for the servers of tests, which must know theirs before they start.

A port that the system names is one of those that it gives to connections, too: between the moment in which it was free and
the start of the server another process may have got it. These lie below that range, and none is named twice: not by this
process, nor by another one of this user while this process lives, so that a server that was killed finds its port free
when it starts again.
"""

from __future__ import annotations

import fcntl
import functools
import os
import random  # noqa: TID251 - another port in each process, whatever the seeds of tests
import socket
import tempfile
from pathlib import Path
from typing import Final

_FIRST: Final = 15_000
_GIVEN_MAX: Final = 5_000
_given: set[int] = set()
_random: Final = random.SystemRandom()


def free_port() -> int:
    """A TCP port of 127.0.0.1 on which no process listens and which no living process was given.

    A process that asks for more than 5,000 may get its first ones again. OSError: no file can be made in the system's
    directory of temporary files.
    """
    end = _first_of_connections()
    if len(_given) >= _GIVEN_MAX:
        _given.clear()
    while True:
        port = _random.randrange(_FIRST, end)
        if port not in _given and _claim(port) and _is_free(port):
            _given.add(port)
            return port


def _first_of_connections() -> int:
    """The first port that the system gives to connections: Linux tells; elsewhere (IANA) 49,152."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        first = 49_152
    return first if first > _FIRST + 2 * _GIVEN_MAX else 32_768


def _claim(port: int) -> bool:
    """Lock the byte of this port in a file that all processes of the user share; the system unlocks it when they end."""
    try:
        fcntl.lockf(_claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except (BlockingIOError, PermissionError):  # EAGAIN and EACCES: another process has it (fcntl(2))
        return False
    return True


@functools.cache
def _claims() -> int:
    """The descriptor of the shared file, which stays open as long as the process: closing it would end the locks."""
    path = Path(tempfile.gettempdir()) / f"barnabas-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
