"""A whole broker inside this process: real sockets and the real code, its files in memory unless a directory is given.

`with Broker() as broker:` gives it a thread and an event loop of its own, so that any client may be used beside it.
`async with Broker() as broker:` lets it live in the running loop, whatever loop that is; clients must be asynchronous then.
What takes time gives back something to await there: a cluster needs turns of that loop, a single node does not.
Either way `broker.bootstrap_servers` is where clients connect, and nothing is left of it at the end: no thread, no socket,
no file, no timer in the loop.

Defaults are those of one node that a test wants: internal topics with few partitions and as many replicas as there are
nodes (three at most), a group that forms at once. Everything else is Kafka's default.
"""

from __future__ import annotations

import logging
import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from barnabas.broker.config.warnings import check_names
from barnabas.controller.extension import ConfigTables
from barnabas.extensions import EXTENSIONS
from barnabas.testing import contents, operations, seeding, steering
from barnabas.testing.broker_loop import NOT_STARTED, BrokerLoop
from barnabas.testing.broker_node import HOST, BrokerNode
from barnabas.testing.clock import Advances, BrokerClock
from barnabas.testing.faults.dispatcher import FaultingDispatcher
from barnabas.testing.faults.engine import Faults
from barnabas.testing.loop_calls import BrokerFailed
from barnabas.testing.node_runtime import Clock, NodeRuntime
from barnabas.testing.pending import Finished
from barnabas.testing.snapshot import Snapshot, take_snapshot

if TYPE_CHECKING:
    import asyncio  # noqa: TID251 - the type
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from barnabas.testing.broker_security import BrokerSecurity
    from barnabas.testing.contents import ClientMetric, Group, StoredRecord
    from barnabas.testing.operations import Done, Ends, Start
    from barnabas.testing.schema_registry.registry import SchemaRegistry
    from barnabas.testing.security import Security
    from barnabas.testing.steering.partitions import PartitionInfo
    from barnabas.testing.steering.transactions import Transactions

# A library logs nothing by itself: `logging.basicConfig` shows what the broker logs.
logging.getLogger("barnabas").addHandler(logging.NullHandler())

__all__ = ["Broker", "BrokerFailed", "default_properties"]

T = TypeVar("T")

REPLICAS_MAX = 3


class Broker:
    """See the module. Code that a method needs is loaded with its first use. `properties` are Kafka's, such as {"num.partitions": 3};
    `nodes` makes a cluster of so many, each broker and controller; `directory` keeps the files there (node N's below node-N where there
    are several), to be found again by the next Broker on it; `snapshot` is what it begins with, and says how many nodes there are;
    `as_version` is a release of Kafka, such as "2.8", whose APIs it serves and no others; `security` is TLS, users and ACLs."""

    def __init__(
        self,
        properties: Mapping[str, object] | None = None,
        *,
        nodes: int = 1,
        directory: str | os.PathLike[str] | None = None,
        port: int = 0,
        snapshot: Snapshot | None = None,
        as_version: str | None = None,
        security: Security | None = None,
    ) -> None:
        nodes = snapshot.nodes if snapshot is not None else nodes
        if nodes < 1:
            raise ValueError(f"a broker has one node or more, not {nodes}")
        if as_version is not None and not isinstance(as_version, str):
            raise TypeError(f'as_version is a string, such as "2.8", and not {as_version!r}')
        given = property_texts(properties or {})
        self.as_version = as_version
        self.nodes: list[BrokerNode] = []
        self._directory = None if directory is None else Path(directory)
        self._begins_alone = nodes == 1
        self._secret = os.urandom(32)  # no other program of this machine may pass for a node
        self._clock = Clock()
        self._advances = Advances(self._clock, self.nodes)
        self._loop = BrokerLoop(
            self.nodes,
            prefer_uvloop=given.get("barnabas.event.loop") == "uvloop",
            stopping=self._stopping,
        )
        self._security = None if security is None else self._secured(security)
        self._properties = {**default_properties(nodes), **self._security_properties(nodes), **given}
        self.clock = BrokerClock(self._clock, self._advances, self._loop)
        self.faults = Faults(
            run_on_loop=self._loop.call_if_running,
            node_ids=lambda: [node.node_id for node in self.nodes],
            version=as_version,
        )
        # broker.on("Produce", topic="orders", nth=2).error("NOT_LEADER_OR_FOLLOWER")
        self.on = self.faults.on
        self.requests = self.faults.requests  # that clients have sent
        self.nodes += [self._make_node(1, port, {})]
        self.nodes += [self._make_node(node_id, 0, {}) for node_id in range(2, nodes + 1)]
        if snapshot is not None:
            snapshot.put(self.nodes)
            self._restore_schemas(snapshot)

    def _secured(self, wanted: Security) -> BrokerSecurity:
        from barnabas.testing.broker_security import BrokerSecurity  # late: most tests have none

        return BrokerSecurity(wanted, self.nodes, self._loop)

    def _security_properties(self, nodes: int) -> dict[str, str]:
        return {} if self._security is None else self._security.properties(nodes)

    def _user_properties(self) -> dict[str, str]:
        return {} if self._security is None else self._security.user_properties()

    def _make_node(self, node_id: int, port: int, properties: Mapping[str, str]) -> BrokerNode:
        """A node as the others are, with these properties besides."""
        directory = self._directory
        if directory is not None and not self._begins_alone:
            directory = directory / f"node-{node_id}"
        return BrokerNode(
            node_id,
            directory,
            {**self._properties, **self._user_properties(), **property_texts(properties)},
            port=port,
            secret=self._secret,
            new_runtime=self._new_runtime,
            make_dispatcher=lambda services: FaultingDispatcher(services, self.faults),
            on_change=self._loop.node_changed,
            security_protocol=self.security_protocol,
        )

    def _new_runtime(self, node: BrokerNode, loop: asyncio.AbstractEventLoop) -> NodeRuntime:
        """The runtime of a node that starts."""
        runtime = NodeRuntime(loop, has_threads=not node.is_in_memory, clock=self._clock)
        self._loop.add_runtime(runtime)
        return runtime

    # -- where it is

    @property
    def port(self) -> int:
        """The port of the first node."""
        return self.nodes[0].port

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of every node, separated by commas. BrokerFailed before the first start, where the ports are not chosen yet."""
        if not all(node.port for node in self.nodes):
            raise BrokerFailed(NOT_STARTED)
        return ",".join(f"{HOST}:{node.port}" for node in self.nodes)

    @property
    def security(self) -> BrokerSecurity:
        """What clients need, and its users, ACLs and certificates. ValueError for a broker that was made without `security`."""
        if self._security is None:
            raise ValueError(
                "this broker is open to everyone: Broker(security=Security(...)) makes one that is not"
            )
        return self._security

    @property
    def security_protocol(self) -> str:
        """How clients connect, such as SASL_SSL."""
        return "PLAINTEXT" if self._security is None else self._security.wanted.protocol

    @cached_property
    def schema_registry(self) -> SchemaRegistry:
        """The schema registry, made when it is first used. Its schemas are in memory, also where a directory is given."""
        from barnabas.testing.schema_registry.registry import SchemaRegistry  # late: most tests have none

        # Two threads may come here at once; there is one registry nevertheless.
        made: SchemaRegistry = self.__dict__.setdefault("schema_registry", SchemaRegistry(self._loop))
        return made

    @property
    def schema_registry_url(self) -> str:
        """What clients take as `schema.registry.url`; it listens from now on."""
        return self.schema_registry.url

    @property
    def has_schema_registry(self) -> bool:
        """Whether it has been used."""
        return "schema_registry" in self.__dict__

    # -- its life

    def start(self) -> Self:
        """Serve from a thread of its own; `with` does this."""
        self._loop.start()
        try:
            self._begin_registry()
        except BaseException:
            self.stop()
            raise
        if self._security is not None:
            self._begin_secured(self._security)
        return self

    def stop(self) -> None:
        """End a broker that was started with `start`. Callers that wait for it in other threads get BrokerFailed. RuntimeError on
        its own thread, as in a rule's function."""
        self._loop.stop()
        self._remove_files()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await self._loop.enter()
        try:
            self._begin_registry()
            if self._security is not None and self._security.is_new:
                await self._loop.perform(self._security.begin)
        except BaseException:
            await self._loop.leave()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._loop.leave()
        self._remove_files()

    def _begin_secured(self, security: BrokerSecurity) -> None:
        if security.is_new:
            try:
                self._loop.wait(security.begin)
            except BaseException:
                self.stop()
                raise

    def _begin_registry(self) -> None:
        if self.has_schema_registry:
            self.schema_registry.begin()

    def _stopping(self) -> None:
        self._advances.cut_off("the broker has been stopped")
        if self.has_schema_registry:
            self.schema_registry.end()

    def _remove_files(self) -> None:
        if self._security is not None:
            self._security.remove_files()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The broker's loop, while it runs."""
        return self._loop.loop

    @property
    def is_in_thread(self) -> bool:
        """Whether the loop has a thread of its own, and turns while the caller waits."""
        return self._loop.is_in_thread

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on the broker's loop and wait for what it returns or raises. Everything inside the broker may be
        touched there, and nowhere else. BrokerFailed where the broker does not run, or is stopped before."""
        return self._loop.call(function)

    def wait(self, start: Start) -> None:
        """Begin an operation on the broker's loop and wait until it is done. RuntimeError on the loop's own thread when it takes turns of
        the loop."""
        self._loop.wait(start)

    def wait_until_ready(self) -> Awaitable[None]:
        """Wait until all running nodes serve. BrokerFailed after START_SECONDS_MAX."""
        return self._loop.ready_again()

    def wait_until_in_sync(self) -> Awaitable[None]:
        """Wait until all replicas are in sync and consumers may read all that leaders have."""
        return self._loop.ready_again(self._settle)

    def _settle(self, done: Done) -> None:
        operations.when_settled(self.nodes, done)

    # -- what it holds

    def topics(self) -> dict[str, int]:
        """Topics by name, with the number of their partitions; Kafka's own ones left out."""
        return self._loop.call(lambda: contents.topics(self.nodes))

    def records(
        self, topic: str, partition: int | None = None, *, isolation_level: str = contents.READ_COMMITTED
    ) -> list[StoredRecord]:
        """What consumers of this isolation level may read of one partition or of all, partition by partition. Waits some seconds at
        most until each has a leader that knows what is committed, except in the running loop, which cannot turn meanwhile.
        UnknownTopic, NoLeader."""
        committed = contents.is_committed(isolation_level)
        if not self._loop.is_here:
            self._loop.wait(
                lambda done: operations.when_led(self.nodes, topic, partition, lambda: done(None), done)
            )
        return self._loop.call(lambda: contents.records(self.nodes, topic, partition, committed=committed))

    def group(self, name: str) -> Group | None:
        """A group's state, members and committed offsets, or share partitions; None where there is no such group."""
        return self._loop.call(lambda: contents.group(self.nodes, name))

    def groups(self) -> list[str]:
        """Names of all groups."""
        return self._loop.call(lambda: contents.groups(self.nodes))

    def effective_config(self, topic: str) -> dict[str, str]:
        """Every config of a topic with the value that counts. UnknownTopic."""
        return self._loop.call(lambda: contents.effective_config(self.nodes, topic))

    def client_metrics(self) -> list[ClientMetric]:
        """What clients have pushed of their own metrics (KIP-714); they push nothing unless barnabas.metrics.listener is set."""
        return self._loop.call(lambda: contents.client_metrics(self.nodes))

    # -- what is put into it

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        replication_factor: int | None = None,
        configs: Mapping[str, object] | None = None,
    ) -> Awaitable[None]:
        """Create a topic; producers can write to it when it is done. None takes the broker's default. RequestFailed."""
        texts = {key: _text(value) for key, value in (configs or {}).items()}
        return self._loop.perform(
            lambda done: operations.create_topic(
                self.nodes, name, partitions, replication_factor, texts, done
            )
        )

    def delete_topics(self, *names: str) -> Awaitable[None]:
        """Delete those that exist, and ignore the others. RequestFailed."""
        return self._loop.perform(lambda done: operations.delete_topics(self.nodes, names, done))

    def seed(self, topic: str, records: object) -> Awaitable[None]:
        """Append records, committed when it is done: an iterable of values, (key, value) pairs or mappings with `value`,
        `key`, `headers`, `timestamp`, `partition`; or the path of a file of JSON lines (seeding.py). A topic that does not
        exist is made. RequestFailed."""
        seeds = seeding.read_seeds(records)
        return self._loop.perform(lambda done: operations.seed(self.nodes, topic, seeds, done))

    def produce(self, topic: str, value: object, key: object = None, **fields: object) -> StoredRecord:
        """Append one record and give it back as it is stored; `fields` are headers, timestamp, partition. RequestFailed.
        Not for a cluster in the running loop: see `seed`."""
        seed = seeding.single(value, key, fields)
        ends: Ends = []
        self._loop.wait(lambda done: operations.seed(self.nodes, topic, [seed], done, ends))
        [(partition, end)] = ends
        return self._loop.call(lambda: contents.record_at(partition, end - 1))

    # -- partitions

    def partition(self, topic: str, partition: int = 0) -> PartitionInfo:
        """Leader, epoch, replicas and ISR, as the metadata has them. UnknownTopic."""
        return self._loop.call(lambda: steering.partitions.partition_info(self.nodes, topic, partition))

    def move_leader(self, topic: str, partition: int = 0, node: int | None = None) -> Awaitable[None]:
        """Move the leader to a node in the ISR; None: to another one than now. ValueError, UnknownTopic."""
        return self._loop.perform(
            lambda done: steering.partitions.move_leader(self.nodes, topic, partition, node, done)
        )

    def drop_leader(self, topic: str, partition: int = 0) -> Awaitable[None]:
        """Leave the partition without a leader until `move_leader`. UnknownTopic."""
        return self._loop.perform(
            lambda done: steering.partitions.drop_leader(self.nodes, topic, partition, done)
        )

    def bump_epoch(self, topic: str, partition: int = 0) -> Awaitable[None]:
        """Begin a new leader epoch with the same leader. UnknownTopic."""
        return self._loop.perform(
            lambda done: steering.partitions.bump_epoch(self.nodes, topic, partition, done)
        )

    def shrink_isr(self, topic: str, partition: int, isr: Sequence[int]) -> Awaitable[None]:
        """Shrink the ISR to these replicas until `restore_isr`. ValueError, UnknownTopic."""
        return self._loop.perform(
            lambda done: steering.partitions.shrink_isr(self.nodes, topic, partition, isr, done)
        )

    def restore_isr(self) -> None:
        """Let replicas that have caught up join the ISR again."""
        self._loop.call(lambda: steering.partitions.restore_isr(self.nodes))

    # -- groups

    def coordinator(self, group: str) -> int:
        """The node that coordinates a group. UnknownGroup while there has been none at all."""
        return self._loop.call(lambda: steering.groups.COORDINATORS.node_of(self.nodes, group))

    def move_coordinator(self, group: str, node: int | None = None) -> Awaitable[None]:
        """Move a group's coordinator to another node; the old one answers NOT_COORDINATOR. ValueError, UnknownGroup."""
        return self._loop.perform(
            lambda done: steering.groups.COORDINATORS.move(self.nodes, group, node, done)
        )

    def load_coordinator(self, group: str, seconds: float | None = None) -> None:
        """Have it answer COORDINATOR_LOAD_IN_PROGRESS for so long, until `coordinator_loaded`, or until it moves. UnknownGroup."""
        self._loop.call(lambda: steering.groups.COORDINATORS.load(self.nodes, group, seconds))

    def coordinator_loaded(self, group: str) -> None:
        """Have it serve its groups again."""
        self._loop.call(lambda: steering.groups.COORDINATORS.loaded(self.nodes, group))

    def expire_member(self, group: str, member_id: str) -> None:
        """Remove a member, as when its session times out. UnknownGroup."""
        self._loop.call(lambda: steering.groups.expire_member(self.nodes, group, member_id))

    def force_rebalance(self, group: str) -> None:
        """Make the members of a group join again. UnknownGroup."""
        self._loop.call(lambda: steering.groups.force_rebalance(self.nodes, group))

    def expire_locks(self, group: str, topic: str | None = None, partition: int | None = None) -> None:
        """Let the locks of a share group's members expire: all, or those of one topic or one of its partitions. UnknownGroup."""
        self._loop.call(lambda: steering.groups.expire_locks(self.nodes, group, topic, partition))

    # -- transactions

    @cached_property
    def transactions(self) -> Transactions:
        """The transactional ids: what is open, and what can be made to happen to it."""
        return steering.transactions.Transactions(self.nodes, self._loop, self.faults, self.clock)

    # -- nodes

    def kill_node(self, node: int) -> None:
        """End a node as kill -9 does. UnknownNode."""
        self._loop.call(lambda: steering.nodes.kill(self.nodes, node))

    def pause_node(self, node: int) -> None:
        """Suspend a node as SIGSTOP does. ValueError, UnknownNode."""
        self._loop.call(lambda: steering.nodes.pause(self.nodes, node))

    def resume_node(self, node: int) -> None:
        """Resume a node as SIGCONT does. UnknownNode."""
        self._loop.call(lambda: steering.nodes.resume(self.nodes, node))

    def stop_node(self, node: int) -> Awaitable[None]:
        """Stop a node after other nodes have taken over what it leads. UnknownNode."""
        return self._loop.perform(lambda done: steering.nodes.stop(self.nodes, node, done))

    def start_node(self, node: int) -> Awaitable[None]:
        """Start a node that was killed or stopped, with the same id, port and files. UnknownNode."""
        return self._loop.perform(lambda done: steering.nodes.start(self.nodes, node, done))

    def restart_node(self, node: int) -> Awaitable[None]:
        """Stop a node in order and start it again. UnknownNode."""
        return self._loop.perform(lambda done: steering.nodes.restart(self.nodes, node, done))

    def add_node(self, properties: Mapping[str, str] | None = None) -> Awaitable[None]:
        """Add a broker, which becomes the last of `nodes`. ValueError when there is one node only."""

        def make(node_id: int) -> BrokerNode:
            return self._make_node(node_id, 0, properties or {})

        def begin(done: Done) -> None:
            steering.nodes.add(self.nodes, make, done)

        return self._loop.perform(begin)

    def remove_node(self, node: int) -> Awaitable[None]:
        """Remove a node that was added. ValueError, UnknownNode."""
        return self._loop.perform(lambda done: steering.nodes.remove(self.nodes, node, done))

    # -- upkeep

    def run_retention(self, topic: str | None = None) -> Awaitable[None]:
        """Remove what is too old or too much, now, from leaders; followers do so after their next fetch. UnknownTopic."""
        return self._loop.perform(lambda done: steering.upkeep.run_retention(self.nodes, topic, done))

    def run_compaction(self, topic: str | None = None) -> Awaitable[None]:
        """Compact now, however little there is to gain. UnknownTopic."""
        return self._loop.perform(lambda done: steering.upkeep.run_compaction(self.nodes, topic, done))

    # -- its state as a whole

    def reset(self) -> Awaitable[None]:
        """As if it had just been started: no topics, groups, producer ids, configs, schemas, rules and recorded requests, and the
        machine's time. Clients that are connected are disconnected; they find it at the same address."""
        self.faults.reset()
        self._loop.call(self._reset_nodes)
        self._restore_schemas(None)
        return self._loop.ready_again(None if self._security is None else self._security.begin)

    def snapshot(self) -> Snapshot:
        """Topics, records, offsets, configs and schemas as they are now."""
        snapshot = self._loop.call(lambda: take_snapshot(self.nodes))
        if self.has_schema_registry:
            snapshot.schemas = self.schema_registry.state()
        return snapshot

    def restore(self, snapshot: Snapshot) -> Awaitable[None]:
        """Hold what it held then, at the machine's time. Clients are disconnected, as at a reset. ValueError where it had
        another number of nodes."""
        if not isinstance(snapshot, Snapshot):
            raise TypeError(f"what `snapshot` has taken can be restored, and not {snapshot!r}")
        snapshot.check(self.nodes)
        self._loop.call(lambda: self._reset_nodes(snapshot))
        self._restore_schemas(snapshot)
        return self._loop.ready_again(self._settle if len(self.nodes) > 1 else None)

    def recover(self) -> Awaitable[None]:
        """End all faults: no rules, all nodes run, coordinators answer, the clock is the machine's. Topics and records stay; clients are
        disconnected when nodes have to be started again."""
        self.faults.reset()
        if self._loop.call(self._is_well):
            return Finished()
        return self.restore(self.snapshot())

    def _restore_schemas(self, snapshot: Snapshot | None) -> None:
        """None: no schemas."""
        schemas = None if snapshot is None else snapshot.schemas
        if schemas is not None or self.has_schema_registry:
            self.schema_registry.restore(schemas)

    def _is_well(self) -> bool:
        return not self._clock.ahead_s and all(node.is_well for node in self.nodes)

    def _reset_nodes(self, snapshot: Snapshot | None = None) -> None:
        for node in self.nodes:
            node.drop(keeps_listening=True)
        self.requests.clear()
        self._advances.cut_off("its nodes have been set back before the clock was there")
        self._clock.reset()
        if snapshot is None:
            if self._security is not None:
                self._security.forget_changes()
            for node in self.nodes:
                node.wipe()
        else:
            snapshot.put(self.nodes)
        for node in self.nodes:
            node.start(self._loop.loop)


def property_texts(properties: Mapping[str, object]) -> dict[str, str]:
    """Texts as in server.properties. ConfigError (a ValueError) for an unknown name."""
    check_names(properties, ConfigTables(EXTENSIONS).broker)
    return {name: _text(value) for name, value in properties.items()}


def _text(value: object) -> str:
    """A property's value as server.properties has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def default_properties(nodes: int) -> dict[str, str]:
    """The defaults of a test broker that differ from Kafka's."""
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
