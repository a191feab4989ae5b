"""A broker or a cluster whose nodes are processes of their own: kill_node is kill -9, and loses what the process had in memory.

A test uses it over its ports, as any Kafka (remote_kafka.py). Signals stop, kill and suspend the nodes. The nodes end with this
process, however it ends, and their files are removed unless a directory was given (process_guard.py).
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - the loop is the test's
import os
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from barnabas.testing.broker import BrokerFailed, default_properties, property_texts
from barnabas.testing.external.node_process import (
    HOST,
    NodeProcess,
    ProcessNode,
    cluster_properties,
    kill_processes,
    properties_text,
    stop_processes,
)
from barnabas.testing.external.process_guard import ProcessGuard
from barnabas.testing.external.remote_kafka import RemoteKafka
from barnabas.testing.external.remote_partitions import RemotePartitions
from barnabas.testing.pending import Finished
from barnabas.testing.ports import free_port
from barnabas.testing.steering.nodes import node_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from barnabas.testing.steering.partitions import PartitionInfo

START_SECONDS_MAX: Final = 60.0
START_TRIES: Final = 3  # where another program has taken a port in the moment in which it was free
_PORT_IS_TAKEN: Final = "cannot listen on"

_IN_PROCESS: Final = "takes a broker in this process, which barnabas.testing.Broker is"
_INSTEAD: Final = {
    "snapshot": "stop it, and copy its directory",
    "restore": "begin with a copied directory=",
    "reset": "delete_topics, or another BrokerProcesses",
    "add_node": "begin with as many nodes as are needed",
    "remove_node": "stop_node",
    "port": "bootstrap_servers, or nodes[0].port",
}


class BrokerProcesses(RemoteKafka):
    """`with BrokerProcesses(nodes=3) as broker:`. `properties` are Kafka's, for all nodes, with the defaults that a `Broker` has;
    `directory` keeps the files there (node N's below node-N), to be found again; otherwise they are gone in the end.

    Methods block until what they do is done; in a coroutine, call those that take long with `asyncio.to_thread`."""

    def __init__(
        self,
        properties: Mapping[str, object] | None = None,
        *,
        nodes: int = 1,
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        if nodes < 1:
            raise ValueError(f"a broker has one node or more, not {nodes}")
        super().__init__("")
        self._properties = {**default_properties(nodes), **property_texts(properties or {})}
        self._folder: Path | None = None
        self._directory = None if directory is None else Path(directory).absolute()
        self._guard: ProcessGuard | None = None
        self._controller_ports: list[int] = []
        self.nodes = [ProcessNode(node_id) for node_id in range(1, nodes + 1)]
        self._partitions = RemotePartitions(self._ask, self._awake, self._wait)
        self._choose_ports()

    @property
    def folder(self) -> Path:
        """Of the nodes' files: node N's log, server.properties and data are in node-N. BrokerFailed where it never ran."""
        if self._folder is None:
            raise BrokerFailed("the broker does not run")
        return self._folder

    # -- start and end

    def start(self) -> Self:
        """Returns when all nodes serve. BrokerFailed, with the end of a log; nothing is left then."""
        assert self._guard is None, "the broker runs already"
        for tries_left in reversed(range(START_TRIES)):
            try:
                self._start()
            except BrokerFailed as error:
                self.stop()
                if not tries_left or _PORT_IS_TAKEN not in str(error):
                    raise
                self._choose_ports()
            except BaseException:
                self.stop()
                raise
            else:
                break
        return self

    def _start(self) -> None:
        if self._directory is None:
            self._folder = Path(tempfile.mkdtemp(prefix="barnabas-"))
        else:
            self._folder = self._directory
        self._guard = ProcessGuard(str(self._folder) if self._directory is None else "")
        for node in self.nodes:
            self._launch(node)
        self.wait_until_ready()

    def stop(self) -> None:
        """End all nodes: in order where their files are kept, at once where they are not."""
        super().stop()
        guard, self._guard = self._guard, None
        if guard is None:
            return
        processes = [node.latest.process for node in self.nodes if node.latest is not None]
        try:
            if self._directory is None:
                kill_processes(processes)
            else:
                stop_processes(processes)
        finally:
            guard.close()
            for node in self.nodes:
                node.latest, node.is_paused = None, False

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)

    def wait_until_ready(self) -> Awaitable[None]:
        """All nodes serve that run. BrokerFailed after START_SECONDS_MAX, or when one has ended meanwhile."""
        starting = [node for node in self.nodes if node.is_running]

        def are_ready() -> bool:
            for node in starting:
                if not node.is_running and node.latest is not None:
                    raise BrokerFailed(f"node {node.node_id} does not start: {node.latest.log_end()}")
            return all(node.latest is not None and node.latest.is_ready() for node in starting)

        try:
            self._wait(are_ready, "not all nodes serve", START_SECONDS_MAX)
        except TimeoutError as error:
            ends = [node.latest.log_end() for node in starting if node.latest and not node.latest.is_ready()]
            raise BrokerFailed("\n".join([f"{error}; the ends of their logs:", *ends])) from None
        return Finished()

    # -- nodes

    def kill_node(self, node: int) -> None:
        """kill -9: what it has not handed to the system is lost. UnknownNode."""
        found = node_of(self.nodes, node)
        if found.latest is not None:
            kill_processes([found.latest.process])
            self._ended(found)

    def pause_node(self, node: int) -> None:
        """SIGSTOP: connections stay, nothing is answered. ValueError where it does not run, UnknownNode."""
        found = node_of(self.nodes, node)
        pid = found.pid
        if pid is None:
            raise ValueError(f"node {node} does not run")
        self.disconnect()  # our own connection may be to it
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)  # it stands still by then
        found.is_paused = True

    def resume_node(self, node: int) -> None:
        """SIGCONT. UnknownNode."""
        found = node_of(self.nodes, node)
        pid = found.pid
        found.is_paused = False
        if pid is not None:
            os.kill(pid, signal.SIGCONT)

    def stop_node(self, node: int) -> Awaitable[None]:
        """SIGTERM, and wait: others take over what it leads. UnknownNode."""
        found = node_of(self.nodes, node)
        if found.latest is not None:
            stop_processes([found.latest.process])
            self._ended(found)
        return Finished()

    def start_node(self, node: int) -> Awaitable[None]:
        """One that was killed or stopped. Nothing happens where it runs. BrokerFailed, UnknownNode."""
        found = node_of(self.nodes, node)
        if not found.is_running:
            self._launch(found)
        return self.wait_until_ready() if not found.is_paused else Finished()

    def restart_node(self, node: int) -> Awaitable[None]:
        """Stopped in order and started again. BrokerFailed, UnknownNode."""
        self.stop_node(node)
        return self.start_node(node)

    def log_text(self) -> str:
        """What all nodes have logged."""
        return "".join(node.log_text() for node in self.nodes)

    # -- partitions

    def partition(self, topic: str, partition: int = 0) -> PartitionInfo:
        """Leader, epoch, replicas and ISR, as a node that runs knows them. UnknownTopic."""
        return self._partitions.info(topic, partition)

    def move_leader(self, topic: str, partition: int = 0, node: int | None = None) -> Awaitable[None]:
        """To a node that has a replica in sync; None: another one than now. As Kafka's tools do it: the node becomes the first,
        and preferred, of the replicas, and is elected. ValueError, UnknownTopic, RequestFailed."""
        self._partitions.move_leader(topic, partition, node)
        return Finished()

    def wait_until_in_sync(self, topic: str | None = None) -> None:
        """Until every replica is, of one topic or of all, and every leader runs. TimeoutError."""
        self._partitions.wait_until_in_sync(topic)

    # -- how it is reached

    def reachable_servers(self, topic: str | None = None) -> str:
        """Of the nodes that run and do not stand still; of a topic, when these lead all of it. BrokerFailed, TimeoutError."""
        if topic is not None:
            self._partitions.wait_until_led(topic)
        awake = self._awake()
        if not awake:
            raise BrokerFailed("no node of the broker runs")
        return ",".join(f"{HOST}:{node.port}" for node in awake)

    def _awake(self) -> list[ProcessNode]:
        """The nodes that run and do not stand still."""
        return [node for node in self.nodes if node.is_running and not node.is_paused]

    # -- inside

    def _choose_ports(self) -> None:
        for node in self.nodes:
            node.port = free_port()
        self._controller_ports = [free_port() for _ in self.nodes]
        self.bootstrap_servers = ",".join(f"{HOST}:{node.port}" for node in self.nodes)

    def _launch(self, node: ProcessNode) -> None:
        if self._guard is None:
            raise BrokerFailed("the broker does not run")
        folder = self.folder / f"node-{node.node_id}"
        ports = [each.port for each in self.nodes]
        fixed = cluster_properties(node.node_id, ports, self._controller_ports, folder)
        node.is_paused = False
        node.latest = NodeProcess(
            node.node_id, folder, properties_text({**fixed, **self._properties}), keeps_environment=False
        )
        self._guard.watch(node.latest.process.pid)

    def _ended(self, node: ProcessNode) -> None:
        self.disconnect()  # our connection may have been to it
        node.is_paused = False
        if self._guard is not None and node.latest is not None:
            self._guard.forget(node.latest.process.pid)

    if not TYPE_CHECKING:  # to mypy they are not there

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(_why_not(name), name=name, obj=self)


def _why_not(name: str) -> str:
    if name in _INSTEAD:
        return f"nodes that are processes of their own have no {name!r}: {_INSTEAD[name]}"
    from barnabas.testing.broker import Broker

    if name.startswith("_") or name not in dir(Broker()):
        return f"'BrokerProcesses' object has no attribute {name!r}"
    return f"{name!r} {_IN_PROCESS}; these nodes are processes of their own"
