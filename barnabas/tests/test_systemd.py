"""What systemd gets to know of a node."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from barnabas.systemd import Notifier
from compat_tests.virtual.runtime import VirtualRuntime

pytestmark = pytest.mark.sockets


def test_states_and_the_watchdog(tmp_path: Path) -> None:
    runtime = VirtualRuntime()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)

        def received() -> list[bytes]:
            found = []
            try:
                while True:
                    found.append(manager.recv(100))
            except BlockingIOError:
                return found

        environment = {
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
            "WATCHDOG_USEC": "10000000",
            "WATCHDOG_PID": str(os.getpid()),
        }
        notifier = Notifier(runtime, environment)
        assert received() == []
        notifier.ready()
        assert received() == [b"READY=1"]
        runtime.advance(12)
        assert received() == [b"WATCHDOG=1", b"WATCHDOG=1"]
        notifier.stopping()
        assert received() == [b"STOPPING=1"]
        Notifier(runtime, {**environment, "WATCHDOG_PID": "1"}).ready()
        assert received() == [b"READY=1"]
        runtime.advance(4)
        assert received() == [b"WATCHDOG=1"], "of the first alone"


def test_without_systemd_nothing_is_sent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    runtime = VirtualRuntime()
    Notifier(runtime, {"WATCHDOG_USEC": "1000"}).ready()
    assert not caplog.records
    Notifier(runtime, {"NOTIFY_SOCKET": str(tmp_path / "none")}).ready()
    assert "systemd could not be notified of READY=1" in caplog.text
