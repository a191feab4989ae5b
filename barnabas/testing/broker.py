"""A whole broker inside this process: real sockets and the real code, its files in memory unless told otherwise.

`with Broker() as broker:` gives it a thread and an event loop of its own, so that any client may be used beside it.
`async with Broker() as broker:` lets it live in the running loop, whatever loop that is; clients must be asynchronous then.
What takes time gives back something to await there: a cluster needs turns of that loop, a single node does not.
Either way `broker.bootstrap_servers` is where clients connect, and nothing is left of it at the end: no thread, no socket,
no file, no timer in the loop.

Defaults are those of one node that a test wants: internal topics with few partitions and as many replicas as there are
nodes (three at most), a group that forms at once. Everything else is Kafka's default.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - the loop is what this file is about
import logging
import threading  # noqa: TID251 - so is its thread
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from barnabas.broker.asyncio_runtime import new_event_loop
from barnabas.testing import contents, operations, seeding
from barnabas.testing import snapshot as snapshots
from barnabas.testing.broker_node import HOST, BrokerNode
from barnabas.testing.clock import BrokerClock, Clock
from barnabas.testing.faults.engine import Faults
from barnabas.testing.node_runtime import NodeRuntime
from barnabas.testing.steering.steering import Finished, Steering
from barnabas.testing.watchdog import Watchdog

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable, Mapping
    from types import TracebackType

    from barnabas.testing.contents import Group, StoredRecord
    from barnabas.testing.snapshot import Snapshot

T = TypeVar("T")

# A library is silent unless somebody asks: `logging.basicConfig` shows what the broker has to say.
logging.getLogger("barnabas").addHandler(logging.NullHandler())

START_SECONDS_MAX = 30.0  # for a cluster to form
OPERATION_SECONDS_MAX = 300.0  # for what was asked of it; then something is wrong
DRAIN_TURNS, DRAIN_TURNS_MAX = 4, 1000  # of the loop
REPLICAS_MAX = 3


class BrokerFailed(RuntimeError):
    """The broker did not start, or could not go on."""


class Broker(Steering):
    """See the module. `properties` are Kafka's, such as {"num.partitions": 3}; `nodes` makes a cluster of so many, each broker
    and controller; `directory` keeps the files there (node N's below node-N where there are several), to be found again by
    the next Broker on it; `snapshot` is what it begins with, and says how many nodes there are; `as_version` is a release of
    Kafka, such as "2.8", whose APIs it serves and no others."""

    def __init__(
        self,
        properties: Mapping[str, object] | None = None,
        *,
        nodes: int = 1,
        directory: str | os.PathLike[str] | None = None,
        port: int = 0,
        snapshot: Snapshot | None = None,
        as_version: str | None = None,
    ) -> None:
        nodes = snapshot.nodes if snapshot is not None else nodes
        if nodes < 1:
            raise ValueError(f"a broker has one node or more, not {nodes}")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None  # None: in the loop of whoever entered it
        self._runtimes: list[NodeRuntime] = []  # that something may be left of
        self._watchdog: Watchdog | None = None  # in the loop of whoever entered it
        self._changed: asyncio.Event
        self.faults = Faults()
        self.faults.run_on_loop = self.call
        self.on = (
            self.faults.on
        )  # broker.on("Produce", topic="orders", nth=2).error("NOT_LEADER_OR_FOLLOWER")
        self.requests = self.faults.requests  # that clients have sent
        self._clock = Clock()
        self.clock = BrokerClock(self, self._clock)
        self.as_version = as_version
        if as_version is not None:
            self.faults.pass_for(as_version)
        given = {name: _text(value) for name, value in (properties or {}).items()}
        self._prefer_uvloop = given.get("barnabas.event.loop") == "uvloop"
        self._directory = None if directory is None else Path(directory)
        self._properties = {**default_properties(nodes), **given}
        self._begins_alone = nodes == 1
        self.nodes: list[BrokerNode] = [self.make_node(node_id, {}) for node_id in range(1, nodes + 1)]
        self.nodes[0].port = port
        if snapshot is not None:
            snapshot.put(self.nodes)

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
        runtime = NodeRuntime(loop, has_threads=not node.is_in_memory, clock=self._clock)
        self._runtimes = [each for each in self._runtimes if each.tasks or not each.has_ended]
        self._runtimes.append(runtime)
        return runtime

    def make_node(self, node_id: int, properties: Mapping[str, str]) -> BrokerNode:
        """A node as the others are, with these properties besides."""
        directory = self._directory
        if directory is not None and not self._begins_alone:
            directory = directory / f"node-{node_id}"
        node = BrokerNode(node_id, directory, {**self._properties, **properties}, self.new_runtime)
        node.on_change = self._node_changed
        node.make_dispatcher = self.faults.dispatcher
        return node

    # -- on its loop

    @property
    def is_in_thread(self) -> bool:
        """Whether it has a loop of its own, that goes on while the caller waits."""
        return self._thread is not None

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

    # -- what it holds

    def topics(self) -> dict[str, int]:
        """Topics by name, with the number of their partitions; Kafka's own ones left out."""
        return self.call(lambda: contents.topics(self.nodes))

    def records(self, topic: str, partition: int | None = None) -> list[StoredRecord]:
        """What consumers may read of one partition or of all, partition by partition. UnknownTopic."""
        return self.call(lambda: contents.records(self.nodes, topic, partition))

    def group(self, name: str) -> Group | None:
        """A group's state, members and committed offsets; None where there is no such group."""
        return self.call(lambda: contents.group(self.nodes, name))

    def groups(self) -> list[str]:
        """Names of all groups."""
        return self.call(lambda: contents.groups(self.nodes))

    def effective_config(self, topic: str) -> dict[str, str]:
        """Every config of a topic with the value that counts. UnknownTopic."""
        return self.call(lambda: contents.effective_config(self.nodes, topic))

    # -- what is put into it

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        replication_factor: int | None = None,
        configs: Mapping[str, object] | None = None,
    ) -> Awaitable[None]:
        """Ready to be written to when it is done. Where nothing is said the broker's defaults count. RequestFailed."""
        texts = {key: _text(value) for key, value in (configs or {}).items()}
        return self.perform(
            lambda done: operations.create_topic(
                self.nodes, name, partitions, replication_factor, texts, done
            )
        )

    def delete_topics(self, *names: str) -> Awaitable[None]:
        """Those that exist; others are none the worse. RequestFailed."""
        return self.perform(lambda done: operations.delete_topics(self.nodes, names, done))

    def seed(self, topic: str, records: object) -> Awaitable[None]:
        """Append records, committed when it is done: an iterable of values, (key, value) pairs or mappings with `value`,
        `key`, `headers`, `timestamp`, `partition`; or the path of a file of JSON lines (seeding.py). A topic that does not
        exist is made. RequestFailed."""
        seeds = seeding.read_seeds(records)
        return self.perform(lambda done: operations.seed(self.nodes, topic, seeds, done))

    def produce(self, topic: str, value: object, key: object = None, **fields: object) -> StoredRecord:
        """Append one record and give it back as it is stored; `fields` are headers, timestamp, partition. RequestFailed.
        Not for a cluster in the running loop: see `seed`."""
        seed = seeding.seed_of({"value": value, "key": key, **fields})
        ends: operations.Ends = []
        self.wait(lambda done: operations.seed(self.nodes, topic, [seed], done, ends))
        [(partition, end)] = ends
        return self.call(lambda: contents.record_at(partition, end - 1))

    # -- waiting for it

    def perform(self, start: operations.Start) -> Awaitable[None]:
        """Begin something and be done with it, or give back what to await: where the loop runs now, and has to turn."""
        if self._is_elsewhere():
            self.wait(start)
            return Finished()
        told: list[Exception | None] = []
        hear: Callable[[Exception | None], object] = told.append
        start(lambda error: hear(error))
        while not told and self._run_soon():
            pass
        if told:
            if told[0] is not None:
                raise told[0]
            return Finished()
        future: asyncio.Future[None] = self.loop.create_future()
        hear = partial(_tell, future)
        return asyncio.ensure_future(asyncio.wait_for(future, OPERATION_SECONDS_MAX))

    def wait(self, start: operations.Start) -> None:
        """Begin something and be done with it. RuntimeError where the loop runs now, and has to turn."""
        if self._is_elsewhere():
            asyncio.run_coroutine_threadsafe(self.wait_async(start), self.loop).result()
        elif not isinstance(begun := self.perform(start), Finished):
            asyncio.ensure_future(begun).cancel()
            raise RuntimeError(
                "the nodes of a cluster need the loop that runs now: await the other form of it"
            )

    async def wait_async(self, start: operations.Start) -> None:
        """As `wait`, on the loop."""
        told: asyncio.Future[None] = self.loop.create_future()
        start(partial(_tell, told))
        await asyncio.wait_for(told, OPERATION_SECONDS_MAX)

    def _is_elsewhere(self) -> bool:
        """Whether the broker's loop turns while this thread waits."""
        return self._thread is not None and threading.current_thread() is not self._thread

    # -- its state as a whole

    def reset(self) -> Awaitable[None]:
        """As if it had just been started: no topics, groups, producer ids, configs, rules and recorded requests. Clients
        that are connected are disconnected; they find it at the same address."""
        self.faults.reset()
        self.call(self._reset_nodes)
        return self._ready_again()

    def snapshot(self) -> Snapshot:
        """All that it holds now."""
        return self.call(lambda: snapshots.take(self.nodes))

    def restore(self, snapshot: Snapshot) -> Awaitable[None]:
        """Hold what it held then. Clients are disconnected, as at a reset."""
        self.call(lambda: self._reset_nodes(snapshot))
        return self._ready_again(settles=len(self.nodes) > 1)

    def _reset_nodes(self, snapshot: Snapshot | None = None) -> None:
        for node in self.nodes:
            node.drop(keeps_listening=True)
        if snapshot is None:
            for node in self.nodes:
                node.wipe()
        else:
            snapshot.put(self.nodes)
        for node in self.nodes:
            node.start(self.loop)

    def _run_soon(self) -> bool:
        """Let go on what needs no other turn of the loop; whether there was anything."""
        went = [node.runtime.run_soon() for node in self.nodes]
        return any(went)

    def wait_until_ready(self) -> Awaitable[None]:
        """All nodes serve that run: for after a start of one of them. BrokerFailed after START_SECONDS_MAX."""
        return self._ready_again()

    def _ready_again(self, *, settles: bool = False) -> Awaitable[None]:
        async def ready() -> None:
            await self._await_ready()
            if settles:
                await self.wait_async(lambda done: operations.when_settled(self.nodes, done))

        if self._is_elsewhere():
            asyncio.run_coroutine_threadsafe(ready(), self.loop).result()
            return Finished()
        while not all(node.is_ready for node in self.nodes) and self._run_soon():
            pass
        if all(node.is_ready for node in self.nodes) and not settles:
            return Finished()
        return asyncio.ensure_future(ready())

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
            loop.run_until_complete(self._drain())
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

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_forever()
            loop.run_until_complete(self._drain())
        finally:
            loop.close()

    # -- in the running loop

    async def __aenter__(self) -> Broker:
        assert self._loop is None, "the broker runs already"
        self._loop = asyncio.get_running_loop()
        try:
            self._start_nodes(self._loop)
            await self._await_ready()
            self._watchdog = Watchdog(self._loop, self._waiting_descriptors)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            watchdog.stop()
        try:
            self._stop_nodes()
            await self._drain()
        finally:
            self._loop = None

    # -- both

    def _start_nodes(self, loop: asyncio.AbstractEventLoop) -> None:
        self._changed = asyncio.Event()
        if len(self.nodes) > 1:
            self._reserve_ports()
        for node in self.nodes:
            node.start(loop)

    def _waiting_descriptors(self) -> list[int]:
        return [each for node in self.nodes for each in node.runtime.waiting_descriptors()]

    def _reserve_ports(self) -> None:
        for node in self.nodes:
            if not node.controller_port:
                node.reserve_ports()
        voters = ",".join(f"{node.node_id}@{HOST}:{node.controller_port}" for node in self.nodes)
        for node in self.nodes:
            node.properties["controller.quorum.voters"] = voters

    def _stop_nodes(self) -> None:
        for node in self.nodes:
            node.end()
            node.release_ports()

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

    async def _drain(self) -> None:
        """Let connections that have been closed go: the loop tells them in the turns that follow."""
        turns = 0
        while turns < DRAIN_TURNS or (turns < DRAIN_TURNS_MAX and any(each.tasks for each in self._runtimes)):
            turns += 1
            await asyncio.sleep(0)
        self._runtimes.clear()

    def _node_changed(self) -> None:
        self._changed.set()


def _tell(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _text(value: object) -> str:
    """A property's value as server.properties has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def default_properties(nodes: int) -> dict[str, str]:
    """What a broker of tests has instead of Kafka's defaults."""
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
        "log.segment.delete.delay.ms": "0",  # memory is given back when a topic goes
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
