"""One node of an in-process broker: its configuration, its disk and, while it runs, its parts.

A node that is started again is the same to its clients: it has its id, its ports and its files.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.listeners import format_address
from barnabas.broker.node import Node
from barnabas.extensions import EXTENSIONS
from barnabas.runtime.asyncio_runtime import bind_socket
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.testing.steering.isr_hold import IsrHold

if TYPE_CHECKING:
    import asyncio  # noqa: TID251 - the type
    import socket
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from barnabas.broker.requests.dispatch import Dispatcher
    from barnabas.broker.services import Services
    from barnabas.testing.killable_disk import KillableDisk
    from barnabas.testing.node_runtime import NodeRuntime

log = logging.getLogger("barnabas.testing")

HOST = "127.0.0.1"
PORT_TRIES = 20
ELECTION_SPACING_S = 0.006  # a cluster's nodes start together, and ask for support one after the other
_OF_LISTENING = (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES)
_MEMORY_LOG_DIR = "/barnabas"


class BrokerNode:
    """All calls on the loop's thread. `node` and `runtime` are of the present run, or of the last one; `node` is the whole
    broker, whose `services` lead to everything. The nodes of a cluster share `secret`; `on_change` is called when the node has become
    ready, or has failed."""

    def __init__(
        self,
        node_id: int,
        directory: Path | None,
        properties: Mapping[str, str],
        *,
        port: int,
        secret: bytes,
        new_runtime: Callable[[BrokerNode, asyncio.AbstractEventLoop], NodeRuntime],
        make_dispatcher: Callable[[Services], Dispatcher],
        on_change: Callable[[], object],
        security_protocol: str = "PLAINTEXT",
    ) -> None:
        self.node_id = node_id
        self.properties = dict(properties)
        self.disk: MemoryDisk | KillableDisk = (
            MemoryDisk(power_failures=False) if directory is None else _new_disk()
        )
        self.log_dir = _MEMORY_LOG_DIR if directory is None else str(directory)
        self.is_in_memory = directory is None
        self.port = port  # clients connect here; 0 until it is chosen at the first start
        self.controller_port = 0  # of a cluster's nodes
        self.internal_port = 0  # of a secured cluster's nodes
        self.is_running = False
        self.is_ready = False  # it serves clients
        self.failure: str | None = None  # why it can't go on, if so
        self.node: Node
        self.isr_hold: IsrHold
        self.loop: asyncio.AbstractEventLoop
        self.runtime: NodeRuntime
        self._current: NodeRuntime | None = None  # of the run that is heard
        self._secret = secret
        self._new_runtime = new_runtime
        self._make_dispatcher = make_dispatcher
        self._on_change = on_change
        self._security_protocol = security_protocol
        self._has_left_all = False  # as it was, locks and open files
        self._reserved: list[socket.socket] = []

    @property
    def is_well(self) -> bool:
        """It runs, goes on, and as a coordinator has read what there was to read."""
        if not self.is_ready or self.runtime.is_paused:
            return False
        services = self.node.services
        return not services.groups.shards.is_loading and not services.transactions.shards.is_loading

    def reserve_ports(self) -> None:
        """Have the ports before the first start: such as no connection gets while the node is down."""
        self._reserved = [_bound(self.port), _bound(0), *([_bound(0)] if self._is_secured else [])]
        self.port, self.controller_port, *others = (sock.getsockname()[1] for sock in self._reserved)
        self.internal_port = others[0] if others else 0

    @property
    def _is_secured(self) -> bool:
        return self._security_protocol != "PLAINTEXT"

    def _listeners(self) -> str:
        """Nodes of a cluster use listeners of their own for each other, which the cluster's secret protects."""
        listeners = f"{self._security_protocol}://{HOST}:{self.port}"
        if self._is_secured and "controller.quorum.voters" in self.properties:
            listeners += f",INTERNAL://{HOST}:{self.internal_port}"
        if self.controller_port:
            listeners += f",CONTROLLER://{HOST}:{self.controller_port}"
        return listeners

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Blocking, for some milliseconds. OSError, ConfigError, MetadataError, LogDirectoryError."""
        assert not self.is_running, "it runs already"
        fixed = {"node.id": str(self.node_id), "listeners": self._listeners(), "log.dirs": self.log_dir}
        config = BrokerConfig.from_properties({**fixed, **self.properties}, EXTENSIONS)
        config.check_is_one_node("a broker for tests has several with nodes=2, or --nodes 2")
        self.is_ready = False
        self.failure = None
        if self._has_left_all and isinstance(self.disk, MemoryDisk):
            self.disk = self.disk.copy()  # without the locks of the one that has ended
        self._has_left_all = False
        self.loop = loop
        self.runtime = self._new_runtime(self, loop)
        for sock in self._reserved:
            self.runtime.reserve(sock)
        self._reserved.clear()
        runtime = self._current = self.runtime
        self.isr_hold = IsrHold()
        self.node = Node(
            config,
            runtime,
            self.disk,
            (*EXTENSIONS, self.isr_hold),
            on_ready=lambda: self._ready(runtime),
            on_fatal=lambda why: self._failed(runtime, why),
            make_dispatcher=self._make_dispatcher,
            secret=self._secret,
            election_delay_s=ELECTION_SPACING_S * self.node_id,
        )
        try:
            self.node.start()
        except BaseException as error:
            self.runtime.end()
            opened = config.listeners + config.controller_listeners
            _name_address(error, [(each.host, each.port) for each in opened if each.port])
            raise
        self.is_running = True
        if self.node.endpoints:
            self.port = self.node.endpoints[0].port

    def stop(self) -> None:
        """In order, with everything written; blocking. Nothing happens where it does not run."""
        if self.is_running:
            self.is_running = self.is_ready = False
            try:
                self.node.stop()
            finally:
                self.runtime.end()

    def end(self) -> None:
        """All at once: in memory nothing need be written. Otherwise as `stop`."""
        if not self.is_in_memory:
            self.stop()
        elif self.is_running:
            self.is_running = self.is_ready = False
            self._has_left_all = True
            self.runtime.end()

    def drop(self, *, keeps_listening: bool = False) -> None:
        """kill -9: its connections end, nothing more is written, its locks are free. What it had written is there; that it
        was synced does not matter, as the machine goes on. `keeps_listening`: its ports stay taken, and who connects
        meanwhile is served after the next start."""
        if keeps_listening and self.is_running:
            self._reserved += self.runtime.listening()
        if not self.is_running:
            return
        self.is_running = self.is_ready = False
        self._current = None  # what the dead node still does as its connections end has no effect
        dead = self.disk
        if isinstance(dead, MemoryDisk):
            self.disk = dead.copy()
            self.runtime.end()
        else:
            self.disk = _new_disk()
            dead.cut()
            self.runtime.end()
            dead.close()

    def wipe(self) -> None:
        """Its files are gone, while it does not run."""
        assert not self.is_running, "it runs"
        if isinstance(self.disk, MemoryDisk):
            self.disk = MemoryDisk(power_failures=False)
        elif self.disk.exists(self.log_dir):
            self.disk.remove_tree(self.log_dir)

    def release_ports(self) -> None:
        """Of a node that will not be started again."""
        for sock in self._reserved:
            sock.close()
        self._reserved.clear()

    def _ready(self, runtime: NodeRuntime) -> None:
        if runtime is not self._current:
            return
        self.is_ready = True
        self.port = self.node.endpoints[0].port if self.node.endpoints else self.port
        self._on_change()

    def _failed(self, runtime: NodeRuntime, why: str) -> None:
        if runtime is not self._current:
            return
        log.error("node %d can't go on: %s", self.node_id, why)
        self.failure = why
        self._on_change()


def _new_disk() -> KillableDisk:
    from barnabas.testing.killable_disk import KillableDisk  # late: most have their files in memory

    return KillableDisk()


def _bound(port: int) -> socket.socket:
    """A socket that listens on the port, or (0) on one that is free. OSError."""
    from barnabas.testing.ports import free_port  # late: a node that is alone takes what the system gives it

    for _ in range(PORT_TRIES):
        try:
            return bind_socket(HOST, port or free_port())
        except OSError as error:
            if port or error.errno != errno.EADDRINUSE:
                _name_address(error, [(HOST, port)])
                raise
    raise OSError(errno.EADDRINUSE, "no port is free")


def _name_address(error: BaseException, addresses: Iterable[tuple[str, int]]) -> None:
    """The system does not say which address it is that can't be listened on."""
    if isinstance(error, OSError) and error.filename is None and error.errno in _OF_LISTENING:
        named = ", ".join(format_address(host, port) for host, port in addresses)
        error.strerror = f"cannot listen on {named}: {error.strerror}"
