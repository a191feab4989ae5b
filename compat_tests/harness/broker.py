"""Brokers under test as subprocesses: one interface over this broker, Apache Kafka and one started elsewhere.

A `Broker` owns a directory (settings, logs, output) and, from its first start on, fixed ports, so that a client
sees the same broker after a restart. Subclasses define the command line and the check for readiness; see
barnabas_broker.py and apache_broker.py.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final
from weakref import WeakSet

from compat_tests.harness import process_usage
from compat_tests.harness.eventually import eventually

made: Final[WeakSet[Broker]] = WeakSet()
"""The brokers of this process, whose logs tell why a test has failed."""


class BrokerFailed(AssertionError):
    """The broker did not start, or died; the message contains its output."""


class Broker:
    """A broker that tests talk to.

    `settings` are Kafka's property names; a test's own settings win over the harness's defaults.
    """

    kind = "external"
    can_restart = False

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.settings = dict(settings or {})
        self.listeners: dict[str, str] = {}  # listener name -> host:port
        self.process: subprocess.Popen[bytes] | None = None
        self._stopping_pid = -1  # the process that has got SIGTERM
        self.start_seconds = 0.0
        made.add(self)

    @property
    def bootstrap(self) -> str:
        """host:port of the first listener."""
        return next(iter(self.listeners.values()))

    @property
    def host(self) -> str:
        """Host of the first listener."""
        return self.bootstrap.rsplit(":", 1)[0]

    @property
    def port(self) -> int:
        """Port of the first listener."""
        return int(self.bootstrap.rsplit(":", 1)[1])

    @property
    def log_dir(self) -> Path:
        """Where the partitions' folders lie."""
        return Path(self.settings.get("log.dirs", str(self.directory / "data")))

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Start and wait until it serves."""
        raise NotImplementedError

    def stop(self, timeout: float = 60) -> int:
        """Stop cleanly (SIGTERM); the exit code."""
        return self._end(signal.SIGTERM, timeout)

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL, 10)

    def restart(self, settings: Mapping[str, str] | None = None, *, kill: bool = False) -> None:
        """Stop (or kill -9) and start again on the same directory and ports; `settings` are merged in."""
        if kill:
            self.kill()
        else:
            self.stop()
        self.settings.update(settings or {})
        self.start()

    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.poll() is None

    def log_text(self) -> str:
        """Everything the broker wrote to standard error, over all its starts."""
        path = self.directory / "stderr"
        return path.read_text(errors="replace") if path.exists() else ""

    def stdout_text(self) -> str:
        """Everything the broker wrote to standard output since its last start."""
        path = self.directory / "stdout"
        return path.read_text(errors="replace") if path.exists() else ""

    def resident_bytes(self) -> int:
        """Resident memory of the process."""
        return process_usage.resident_bytes(self.pid)

    def begin_stop(self) -> None:
        """Send SIGTERM; `stop` waits for the end and sends no second one, which would kill a process that is stopping."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self._stopping_pid = self.process.pid

    def _end(self, number: signal.Signals, timeout: float) -> int:
        process = self.process
        if process is None:
            return 0
        if process.poll() is None and not (number == signal.SIGTERM and self._stopping_pid == process.pid):
            process.send_signal(number)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise BrokerFailed(f"did not end within {timeout} s of {number.name}\n{self._tail()}") from None
        self.process = None
        return code

    def _spawn(self, command: list[str], environment: Mapping[str, str], preexec: object = None) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        out: IO[bytes]
        with (self.directory / "stdout").open("wb") as out, (self.directory / "stderr").open("ab") as err:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=self.directory,
                env={**os.environ, **environment},
                preexec_fn=preexec if callable(preexec) else None,
            )

    def _tail(self) -> str:
        return (
            f"stdout: {self.stdout_text()[-2000:]}\nstderr: ...{self.log_text()[-6000:]}"
            if self.directory.exists()
            else ""
        )

    def wait_until_accepting(self, timeout: float = 60) -> None:
        """Wait until every listener answers an ApiVersions request, but those with TLS, which Kafka opens with the others."""
        protocols = self.settings.get("listener.security.protocol.map", "")
        names_of_tls = {each.split(":")[0] for each in protocols.split(",") if each.endswith("SSL")}
        asked = [address for name, address in self.listeners.items() if name not in names_of_tls]

        def all_answer() -> bool:
            if all(map(_answers, asked)):
                return True
            if self.process is not None and self.process.poll() is not None:
                raise BrokerFailed(f"ended with {self.process.returncode} while starting\n{self._tail()}")
            return False

        eventually(all_answer, timeout, message=self._tail)


class ExternalBroker(Broker):
    """A running broker at an address, which tests use but do not start or stop."""

    def __init__(self, address: str) -> None:
        super().__init__(Path("/nonexistent"))
        self.listeners = {"PLAINTEXT": address}

    def start(self) -> None:
        """Only check that it answers."""
        self.wait_until_accepting(60)

    def stop(self, timeout: float = 60) -> int:
        """Leave it running."""
        return 0


def _answers(address: str) -> bool:
    """Whether a broker answers ApiVersions v0 there."""
    host, _, port = address.rpartition(":")
    request = b"\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff"
    try:
        with socket.create_connection((host, int(port)), timeout=5) as probe:
            probe.sendall(len(request).to_bytes(4, "big") + request)
            return len(probe.recv(10)) == 10
    except OSError:
        return False
