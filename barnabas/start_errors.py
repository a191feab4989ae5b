"""Why a node cannot start, and what to change, in one line. Probes addresses for it."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

from barnabas.broker.config.listeners import format_address

if TYPE_CHECKING:
    from barnabas.broker.config.broker_config import BrokerConfig


class CannotStart(Exception):
    """The reason why the broker cannot start, and what to do about it, in one line."""


def explain(error: OSError, config: BrokerConfig) -> str:
    opened = config.listeners + config.controller_listeners
    if isinstance(error, socket.gaierror):
        hosts = ", ".join(each.host for each in opened if each.host)
        return f"cannot resolve a host of `listeners` ({hosts}): {error.strerror}"
    if error.filename is None and error.errno == errno.EADDRINUSE:
        taken = [each for each in opened if each.port and not can_bind(each.host, each.port)]
        addresses = ", ".join(format_address(each.host, each.port) for each in taken or opened)
        return f"cannot listen on {addresses}: a port is in use; stop what uses it or choose another in `listeners`"
    if error.filename is None and error.errno == errno.EADDRNOTAVAIL:
        given = [each.host for each in opened if each.host]
        foreign = [host for host in given if not can_bind(host, 0)]
        return f"{', '.join(foreign or given)} is no address of this machine (listeners)"
    if error.filename is None and error.errno == errno.EACCES:
        addresses = ", ".join(format_address(each.host, each.port) for each in opened)
        return f"cannot listen on {addresses}: {error.strerror}; correct `listeners`"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return (
            f"no permission for {error.filename}: {error.strerror}; give it to this user or change `log.dirs`"
        )
    return f"{error}; see `log.dirs` and `listeners`"


def can_bind(host: str, port: int) -> bool:
    """Whether the address can be bound (port 0: some port of it); after a failure, to name the listener that caused it."""
    try:
        bind(host, port)
    except OSError:
        return False
    return True


def bind(host: str, port: int) -> None:
    """OSError when the address cannot be bound. So a broker that waits for a quorum fails now, and not when it has formed."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)  # the one that is served
    with socket.socket(found[0][0], socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the listeners themselves
        probe.bind(found[0][4])
