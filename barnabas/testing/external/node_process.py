"""One node as a process: `barnabas start` with a server.properties.

Its files, its log and that server.properties lie in one folder. It has a session of its own: Ctrl-C reaches the process that
started it, and that one stops it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

HOST: Final = "127.0.0.1"
STOP_SECONDS_MAX: Final = 30.0
_LAST_WORDS: Final = 1500  # letters of its log


def cluster_properties(
    node_id: int, ports: Sequence[int], controller_ports: Sequence[int], folder: Path
) -> dict[str, str]:
    """The addresses and the log directory in server.properties of one node. Nodes are numbered from 1."""
    voters = ",".join(f"{number}@{HOST}:{port}" for number, port in enumerate(controller_ports, 1))
    clients = f"PLAINTEXT://{HOST}:{ports[node_id - 1]}"
    return {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": voters,
        "listeners": f"{clients},CONTROLLER://{HOST}:{controller_ports[node_id - 1]}",
        "advertised.listeners": clients,
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(folder / "data"),
    }


def properties_text(properties: Mapping[str, str]) -> str:
    """As a server.properties."""
    return "".join(f"{name}={value}\n" for name, value in properties.items())


class NodeProcess:
    """A process that is started at once, with this server.properties. OSError where it can't be.

    `keeps_environment`: variables KAFKA_* are properties to it, as to any `barnabas start`."""

    def __init__(self, node_id: int, folder: Path, text: str, *, keeps_environment: bool = True) -> None:
        self.node_id = node_id
        self.log = folder / "log"
        self.properties = folder / "server.properties"
        self._ready = folder / "ready"  # its standard output, one line
        folder.mkdir(parents=True, exist_ok=True)
        self.properties.write_text(text)
        self._log_begin = self.log.stat().st_size if self.log.exists() else 0  # of this run's part
        variables = {
            name: value
            for name, value in os.environ.items()
            if keeps_environment or not name.startswith("KAFKA_")
        }
        command = [sys.executable, "-m", "barnabas.cli", "start", str(self.properties)]
        with self._ready.open("wb") as ready, self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=ready,
                stderr=log,
                start_new_session=True,
            )

    def is_running(self) -> bool:
        return self.process.poll() is None

    def is_ready(self) -> bool:
        """Whether it serves."""
        return self._ready.read_bytes().startswith(b"ready ")

    def log_end(self) -> str:
        """Whole lines of this run."""
        end = self.log.read_bytes()[self._log_begin :].decode(errors="replace").rstrip()
        if len(end) <= _LAST_WORDS:
            return end
        end = end[-_LAST_WORDS:]
        return end.partition("\n")[2] or end


def stop_processes(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """SIGTERM to all, also to those that SIGSTOP holds, and SIGKILL to those that do not end."""
    for process in processes:
        process.terminate()
        process.send_signal(signal.SIGCONT)
    for process in processes:
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def kill_processes(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """SIGKILL to all."""
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()


class ProcessNode:
    """A node, running or not. It has the same id, port and files each time it starts."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.port = 0
        self.is_paused = False
        self.latest: NodeProcess | None = None  # the run of now, or the last one

    @property
    def is_running(self) -> bool:
        """Whether there is a process, suspended or not."""
        return self.latest is not None and self.latest.is_running()

    @property
    def pid(self) -> int | None:
        """None where it does not run."""
        return self.latest.process.pid if self.latest is not None and self.is_running else None

    def log_text(self) -> str:
        """All that it has logged, in all its runs."""
        return "" if self.latest is None else self.latest.log.read_text(errors="replace")
