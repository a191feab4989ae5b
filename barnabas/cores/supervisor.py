"""The process that runs several nodes (barnabas.cores): starts, restarts and stops them as `supervision` decides.

It prints one line when all serve, and ends with 0 after a clean stop, with 1 when a node could not start or ended with an error. It serves no
clients: those connect to the nodes.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.listeners import format_address
from barnabas.controller.config.validators import ConfigError
from barnabas.cores.child import Child, NodeLog, command_of
from barnabas.cores.layout import CoreNode, PrivatePorts, check_folders, nodes_of
from barnabas.cores.listener import CoresListener
from barnabas.cores.supervision import Action, Announce, Finish, Start, StartLater, Stop, Supervision
from barnabas.extensions import EXTENSIONS
from barnabas.runtime.asyncio_runtime import AsyncioRuntime
from barnabas.start_errors import CannotStart, bind
from barnabas.systemd import Notifier

log = logging.getLogger("barnabas.cores")

SECRET_FILE: Final = "cores.secret"  # in the first log directory
SECRET_BYTES: Final = 32
_READY: Final = re.compile(r"ready (?P<listeners>\S+) node=\d+ cluster=(?P<cluster>\S+) logs=(?P<logs>.+)")


def supervise(config: BrokerConfig, count: int, file: str | None, settings: Sequence[str]) -> int:
    """Run `count` nodes until a signal stops them; the process's exit code. CannotStart."""
    reserved = Reserved()
    try:
        ports = PrivatePorts(
            reserved.port(), [reserved.port() for _ in range(count if config.metrics_address else 0)]
        )
        check_folders(config, count)
        secret_file = os.path.join(config.log_dirs[0], SECRET_FILE)
        nodes = nodes_of(config, count, ports, socket.gethostname(), os.path.abspath(secret_file))
        needs_secret = any(each.overrides.get("barnabas.controller.secret.file") for each in nodes)
        for node in nodes:
            check_properties(file, settings, node)
            check_addresses(node)
        if needs_secret:
            make_secret(Path(secret_file))
        reserved.release_unless_shared()
    except ConfigError as error:
        raise CannotStart(str(error)) from error
    except OSError as error:
        raise CannotStart(f"{error.filename}: {error.strerror}; see `log.dirs`") from error
    runtime = AsyncioRuntime()
    try:
        return Supervisor(runtime, config, nodes, file, settings).run()
    finally:
        runtime.close()


class Reserved:
    """Free ports of the loopback address, which no other process is given as long as this one lives: each is bound and does not
    listen, and a node can bind it as well (SO_REUSEADDR). On other systems another process may take one before the node does."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def port(self) -> int:
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        self._sockets.append(held)
        return port

    def release_unless_shared(self) -> None:
        """Close them where a bound port cannot be bound by another socket."""
        if sys.platform != "linux":
            for held in self._sockets:
                held.close()


def check_properties(file: str | None, settings: Sequence[str], node: CoreNode) -> None:
    """ConfigError where a node would refuse its properties: said here once, and not by each node."""
    every = [*settings, *(f"{name}={value}" for name, value in node.overrides.items())]
    BrokerConfig.load(None if file is None else Path(file), os.environ, every, EXTENSIONS)


def check_addresses(node: CoreNode) -> None:
    """CannotStart where a node cannot listen."""
    for name, host, port in node.addresses:
        try:
            bind(host, port)
        except OSError as error:
            raise CannotStart(
                f"node {node.node_id} cannot listen on {format_address(host, port)} ({name}): {error.strerror}; the nodes of "
                f"barnabas.cores take consecutive ports: stop what uses this one, or choose another port in the configuration"
            ) from error


def make_secret(path: Path) -> None:
    """Make the file by which the nodes authenticate each other, unless it is there. OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        return
    made = path.with_suffix(".new")
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(os.urandom(SECRET_BYTES).hex() + "\n")
    made.rename(path)


class Supervisor:
    """The nodes' processes, and the actions of their Supervision."""

    def __init__(
        self,
        runtime: AsyncioRuntime,
        config: BrokerConfig,
        nodes: Sequence[CoreNode],
        file: str | None,
        settings: Sequence[str],
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._nodes = {each.node_id: each for each in nodes}
        self._file = file
        self._settings = settings
        self._supervision = Supervision(
            list(self._nodes), [each.node_id for each in nodes if each.is_controller]
        )
        self._notifier = Notifier(runtime)
        self._log = NodeLog(sys.stderr.buffer, is_json=config.barnabas_log_format == "json")
        # The nodes have one end, and stop when the other, which only this process has, is closed.
        self._nodes_end, self._own_end = os.pipe()
        self._children: dict[int, Child] = {}
        self._ready_lines: dict[int, str] = {}
        self._code = 0

    def run(self) -> int:
        """Until all have ended; the exit code. CannotStart."""
        listener = self._listen()
        # On the running loop: uvloop forgets a signal that comes between its handler and the loop.
        self._runtime.call_soon(self._begin)
        self._runtime.run()
        if listener is not None:
            listener.close()
        return self._code

    def _begin(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._runtime.on_signal(number, self._on_signal)
        log.info("starting nodes %s", ", ".join(map(str, self._nodes)))
        self._do(self._supervision.begin())

    def _listen(self) -> CoresListener | None:
        address = self._config.metrics_address
        if address is None:
            return None
        ports = {node_id: node.metrics_port for node_id, node in self._nodes.items()}
        try:
            return CoresListener(self._runtime, *address, self._supervision, ports)
        except OSError as error:
            raise CannotStart(
                f"cannot listen on {format_address(*address)}: {error.strerror}; free it or choose another in "
                f"barnabas.metrics.listener"
            ) from error

    def _on_signal(self) -> None:
        if not self._supervision.is_stopping:
            self._notifier.stopping()
            log.info("stopping")
        self._do(self._supervision.stop())

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Start):
                self._start(action.node_id)
            elif isinstance(action, StartLater):
                self._start_later(action)
            elif isinstance(action, Stop):
                if action.node_id in self._children:
                    self._children[action.node_id].stop(at_once=action.at_once)
            elif isinstance(action, Announce):
                self._announce()
            elif isinstance(action, Finish):
                self._code = action.code
                self._runtime.stop()

    def _start(self, node_id: int) -> None:
        command = command_of(self._file, self._settings, self._nodes[node_id].overrides)
        try:
            self._children[node_id] = Child(
                self._runtime,
                node_id,
                command,
                self._nodes_end,
                self._log,
                on_ready=lambda line: self._on_ready(node_id, line),
                on_end=lambda code: self._on_end(node_id, code),
            )
        except OSError as error:  # no memory, or too many processes
            log.error("node %d cannot be started: %s", node_id, error)
            self._runtime.call_soon(lambda: self._on_end(node_id, 1))

    def _start_later(self, action: StartLater) -> None:
        node_id, code = action.node_id, self._supervision.last_codes[action.node_id]
        log.warning("node %d %s; it is started again in %g s", node_id, _end_text(code), action.pause_s)
        self._runtime.call_later(action.pause_s, lambda: self._do(self._supervision.due(node_id)))

    def _on_ready(self, node_id: int, line: str) -> None:
        self._ready_lines[node_id] = line
        log.info("node %d serves", node_id)
        self._do(self._supervision.ready(node_id, self._runtime.monotonic()))

    def _on_end(self, node_id: int, code: int) -> None:
        self._children.pop(node_id, None)
        if not self._supervision.is_stopping and not self._supervision.was_ready:
            log.error("node %d %s before all nodes were ready", node_id, _end_text(code))
        elif self._supervision.is_stopping and self._supervision.is_failure(node_id, code):
            log.error("node %d %s", node_id, _end_text(code))
        self._do(self._supervision.ended(node_id, code, self._runtime.monotonic()))

    def _announce(self) -> None:
        print(ready_line([self._ready_lines[each] for each in self._nodes], list(self._nodes)), flush=True)  # noqa: T201 - the interface
        for line in self._config.barnabas_ready_lines:
            print(line, flush=True)  # noqa: T201 - the interface
        self._notifier.ready()


def ready_line(lines: Sequence[str], node_ids: Sequence[int]) -> str:
    """One line of those of the nodes."""
    found = [match for match in map(_READY.fullmatch, lines) if match is not None]
    listeners, logs = (",".join(each[name] for each in found) for name in ("listeners", "logs"))
    return f"ready {listeners} nodes={','.join(map(str, node_ids))} cluster={found[0]['cluster']} logs={logs}"


def _end_text(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"has ended with {code}"
