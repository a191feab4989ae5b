"""A whole broker inside this process: real sockets and the real code, its files in memory unless told otherwise.

`with Broker() as broker:` gives it a thread and an event loop of its own, so that any client may be used beside it.
`async with Broker() as broker:` lets it live in the running loop, whatever loop that is; clients must be asynchronous then.
Either way `broker.bootstrap_servers` is where clients connect, and nothing is left of it at the end: no thread, no socket,
no file, no timer in the loop.

Defaults are those of one node that a test wants: internal topics with few partitions and as many replicas as there are
nodes (three at most), a group that forms at once. Everything else is Kafka's default.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - the loop is what this file is about
import threading  # noqa: TID251 - so is its thread
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from barnabas.broker.asyncio_runtime import new_event_loop
from barnabas.testing.broker_node import HOST, BrokerNode
from barnabas.testing.node_runtime import NodeRuntime

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from types import TracebackType

T = TypeVar("T")

START_SECONDS_MAX = 30.0  # for a cluster to form
REPLICAS_MAX = 3


class BrokerFailed(RuntimeError):
    """The broker did not start, or could not go on."""


class Broker:
    """See the module. `properties` are Kafka's, such as {"num.partitions": 3}; `nodes` makes a cluster of so many, each broker
    and controller; `directory` keeps the files there (node N's below node-N where there are several), to be found again by
    the next Broker on it."""

    def __init__(
        self,
        properties: Mapping[str, object] | None = None,
        *,
        nodes: int = 1,
        directory: str | os.PathLike[str] | None = None,
        port: int = 0,
    ) -> None:
        if nodes < 1:
            raise ValueError(f"a broker has one node or more, not {nodes}")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None  # None: in the loop of whoever entered it
        self._changed: asyncio.Event
        given = {name: _text(value) for name, value in (properties or {}).items()}
        self._prefer_uvloop = given.get("barnabas.event.loop") == "uvloop"
        self.nodes: list[BrokerNode] = [
            BrokerNode(
                node_id,
                None if directory is None else _node_directory(Path(directory), node_id, nodes),
                {**_defaults(nodes), **given},
                self.new_runtime,
            )
            for node_id in range(1, nodes + 1)
        ]
        for node in self.nodes:
            node.on_change = self._node_changed
        self.nodes[0].port = port

    # -- where it is

    @property
    def port(self) -> int:
        """Of the first node."""
        return self.nodes[0].port

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of every node, separated by commas."""
        return ",".join(f"{HOST}:{node.port}" for node in self.nodes)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The broker's loop, while it runs."""
        assert self._loop is not None, "the broker does not run"
        return self._loop

    def new_runtime(self, node: BrokerNode, loop: asyncio.AbstractEventLoop) -> NodeRuntime:
        """The runtime of a node that starts."""
        return NodeRuntime(loop, has_threads=not node.is_in_memory)

    # -- on its loop

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on the broker's loop and wait for what it returns or raises. Everything inside the broker may be
        touched there, and nowhere else."""
        loop = self.loop
        if self._thread is None or threading.current_thread() is self._thread:
            return function()
        done = threading.Event()
        results: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                results.append(function())
            except BaseException as error:  # noqa: BLE001 - the caller's
                errors.append(error)
            done.set()

        loop.call_soon_threadsafe(run)
        done.wait()
        if errors:
            raise errors[0]
        return results[0]

    # -- in a thread

    def start(self) -> Broker:
        """Serve from a thread of its own; `with` does this."""
        assert self._loop is None, "the broker runs already"
        loop = self._loop = new_event_loop(self._prefer_uvloop)
        self._thread = threading.Thread(target=self._run, args=(loop,), name="barnabas", daemon=True)
        try:
            self._start_nodes(loop)
        except BaseException:
            self._stop_nodes()
            self._loop = self._thread = None
            loop.run_until_complete(_drain())
            loop.close()
            raise
        self._thread.start()
        if len(self.nodes) > 1:
            try:
                asyncio.run_coroutine_threadsafe(self._await_ready(), loop).result()
            except BaseException:
                self.stop()
                raise
        return self

    def stop(self) -> None:
        """End a broker that was started with `start`."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        try:
            self.call(self._stop_nodes)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            self._loop = self._thread = None

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_forever()
            loop.run_until_complete(_drain())
        finally:
            loop.close()

    # -- in the running loop

    async def __aenter__(self) -> Broker:
        assert self._loop is None, "the broker runs already"
        self._loop = asyncio.get_running_loop()
        try:
            self._start_nodes(self._loop)
            await self._await_ready()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._stop_nodes()
            await _drain()
        finally:
            self._loop = None

    # -- both

    def _start_nodes(self, loop: asyncio.AbstractEventLoop) -> None:
        self._changed = asyncio.Event()
        if len(self.nodes) > 1:
            self._reserve_ports()
        for node in self.nodes:
            node.start(loop)

    def _reserve_ports(self) -> None:
        for node in self.nodes:
            if not node.controller_port:
                node.reserve_ports()
        voters = ",".join(f"{node.node_id}@{HOST}:{node.controller_port}" for node in self.nodes)
        for node in self.nodes:
            node.properties["controller.quorum.voters"] = voters

    def _stop_nodes(self) -> None:
        for node in self.nodes:
            node.stop()

    async def _await_ready(self) -> None:
        async def ready() -> None:
            while not all(node.is_ready for node in self.nodes):
                failures = [node.failure for node in self.nodes if node.failure is not None]
                if failures:
                    raise BrokerFailed(failures[0])
                self._changed.clear()
                await self._changed.wait()

        try:
            await asyncio.wait_for(ready(), START_SECONDS_MAX)
        except TimeoutError:
            waiting = [node.node_id for node in self.nodes if not node.is_ready]
            raise BrokerFailed(f"nodes {waiting} do not serve after {START_SECONDS_MAX:g} s") from None

    def _node_changed(self) -> None:
        self._changed.set()


async def _drain() -> None:
    """Let connections that have been closed go: their loops tell them in the turns that follow."""
    for _ in range(4):
        await asyncio.sleep(0)


def _node_directory(directory: Path, node_id: int, nodes: int) -> Path:
    return directory if nodes == 1 else directory / f"node-{node_id}"


def _text(value: object) -> str:
    """A property's value as server.properties has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _defaults(nodes: int) -> dict[str, str]:
    replicas = str(min(nodes, REPLICAS_MAX))
    in_sync = str(min(nodes, 2))
    properties = {
        "offsets.topic.num.partitions": "4",
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        "group.initial.rebalance.delay.ms": "0",
    }
    if nodes > 1:
        properties |= {
            "process.roles": "broker,controller",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "default.replication.factor": replicas,
            "min.insync.replicas": in_sync,
        }
    return properties
