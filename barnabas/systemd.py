"""systemd's view of the process: sd_notify(3)."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.runtime.interface import Runtime

log = logging.getLogger("barnabas.systemd")


class Notifier:
    """Tells systemd what the node does, where a unit with Type=notify has started it (sd_notify(3)): READY=1, STOPPING=1, and
    WATCHDOG=1 at half of the unit's WatchdogSec, as long as the event loop runs."""

    def __init__(self, runtime: Runtime, environment: Mapping[str, str] = os.environ) -> None:
        self._runtime = runtime
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path  # @: the abstract namespace
        is_watched = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        watchdog = environment.get("WATCHDOG_USEC", "") if is_watched else ""
        self._interval_s = int(watchdog) / 2e6 if watchdog.isdigit() else 0.0

    def ready(self) -> None:
        self._send("READY=1")
        if self._interval_s and self._address:
            self._runtime.call_later(self._interval_s, self._keep_alive)

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def _keep_alive(self) -> None:
        self._send("WATCHDOG=1")
        self._runtime.call_later(self._interval_s, self._keep_alive)

    def _send(self, state: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
                notified.sendto(state.encode(), self._address)
        except OSError as error:
            log.warning("systemd could not be notified of %s: %s", state, error)
