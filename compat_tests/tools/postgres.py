"""A PostgreSQL server of our own, from Debian's package, for Debezium; as root it runs as an unprivileged user, since it refuses root."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

from barnabas.testing.ports import free_port
from compat_tests.harness.eventually import eventually
from compat_tests.tools.installed import DebianTool
from compat_tests.tools.tool import ToolFailed

_UNPRIVILEGED = 65534  # the user id that every Debian has for it
_VERSION = "15"  # Debian 12's
_POSTGRES = DebianTool(
    "postgres",
    (f"postgresql-{_VERSION}", f"postgresql-client-{_VERSION}", "libpq5"),
    folder=f"usr/lib/postgresql/{_VERSION}/bin",
)
missing = _POSTGRES.missing


class Postgres:
    """`with Postgres() as server:`; its folder is temporary."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="postgres-"))
        self._user = _UNPRIVILEGED if os.getuid() == 0 else None
        if self._user:
            shutil.chown(self._directory, self._user)
        self.port = free_port()
        self._run("initdb", "-D", f"{self._data}", "-U", "postgres", "-A", "trust", "--no-sync")
        settings = {
            "port": f"{self.port}",
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "wal_level": "logical",
            "fsync": "off",
            "jit": "off",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._log = (self._directory / "log").open("wb")
        self._process = subprocess.Popen(
            (self._program("postgres"), "-D", self._data, *options),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=self._environment,
            user=self._user,
            cwd=self._directory,
        )
        eventually(lambda: self.sql("SELECT 1"), retry_on=(ToolFailed,), message=self._text)

    def sql(self, statement: str) -> list[str]:
        """The lines of its result."""
        arguments = (
            "-h",
            "127.0.0.1",
            "-p",
            f"{self.port}",
            "-U",
            "postgres",
            "-qAt",
            "-v",
            "ON_ERROR_STOP=1",
            "-c",
            statement,
        )
        return self._run("psql", *arguments).splitlines()

    def version(self) -> str:
        """As "15.18"."""
        (line,) = self.sql("SHOW server_version")
        return line.partition(" ")[0]

    def __enter__(self) -> Postgres:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGINT)  # "fast": it ends the sessions that are open
        self._process.wait(60)
        self._log.close()
        shutil.rmtree(self._directory)

    @property
    def _data(self) -> Path:
        return self._directory / "data"

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, **_POSTGRES.environment(), "LC_ALL": "C"}

    def _program(self, name: str) -> str:
        return _POSTGRES.command()[0].removesuffix("postgres") + name

    def _run(self, name: str, *arguments: str) -> str:
        result = subprocess.run(
            (self._program(name), *arguments),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env=self._environment,
            user=self._user,
            cwd=self._directory,
        )
        if result.returncode:
            raise ToolFailed(f"{name}: {result.stdout}\n{result.stderr}")
        return result.stdout

    def _text(self) -> str:
        return (self._directory / "log").read_text(errors="replace")
