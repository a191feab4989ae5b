"""This broker as a subprocess: `python -m barnabas.cli start`, ready when it prints its ready line."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from barnabas.testing.ports import free_port
from compat_tests.harness.broker import Broker, BrokerFailed
from compat_tests.harness.eventually import eventually

READY_LINE = re.compile(
    r"^ready (?P<listeners>\S+) nodes?=(?P<node>[\d,]+) cluster=(?P<cluster>\S+) logs=(?P<logs>.+)$"
)


class BarnabasBroker(Broker):
    """This broker as a process; `loop` is "uvloop", "asyncio" or "" for the broker's own choice."""

    kind = "barnabas"
    can_restart = True

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None, loop: str = "") -> None:
        super().__init__(directory, settings)
        self.loop = loop
        self.cluster_id = ""
        self._first_port = free_port()  # not 0: later starts use the same port
        self.preexec: Callable[[], None] | None = None
        self.command_prefix: list[str] = []
        self.python = sys.executable  # a benchmark sets that of another checkout

    def effective_settings(self) -> dict[str, str]:
        """The settings that go onto the command line."""
        return {
            "listeners": f"PLAINTEXT://127.0.0.1:{self._first_port}",
            "log.dirs": str(self.directory / "data"),
            **self.settings,
        }

    def command(self) -> list[str]:
        """The command line."""
        command = [*self.command_prefix, self.python, "-m", "barnabas.cli", "start"]
        for name, value in self.effective_settings().items():
            command += ["--set", f"{name}={value}"]
        return command

    def start(self, timeout: float = 60) -> None:
        """Start and wait for the ready line; from then on the ports are fixed."""
        environment = {"BARNABAS_LOOP": self.loop} if self.loop else {}
        started = time.monotonic()
        self._spawn(self.command(), environment, self.preexec)
        ready = self._await_ready_line(timeout)
        self.start_seconds = time.monotonic() - started
        self.listeners = {}
        for listener in ready["listeners"].split(","):
            name, address = listener.split("://", 1)
            self.listeners.setdefault(name, address)  # with barnabas.cores several nodes have the name
        self.cluster_id = ready["cluster"]
        if "listeners" not in self.settings:
            self.settings["listeners"] = ready["listeners"]

    def _await_ready_line(self, timeout: float) -> dict[str, str]:
        process = self.process
        assert process is not None

        def first_line() -> str:
            line, end, _ = self.stdout_text().partition("\n")
            if not end and process.poll() is not None:
                raise BrokerFailed(f"ended with {process.returncode} before it was ready\n{self._tail()}")
            return line if end else ""

        match = READY_LINE.match(eventually(first_line, timeout, message=self._tail))
        if match is None:
            raise BrokerFailed(f"first line on standard output is not the ready line\n{self._tail()}")
        return match.groupdict()
