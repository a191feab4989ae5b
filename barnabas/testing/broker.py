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

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from barnabas.broker.config.warnings import check_names
from barnabas.controller.extension import ConfigTables
from barnabas.extensions import EXTENSIONS
from barnabas.testing.broker_node import HOST, BrokerNode
from barnabas.testing.clock import BrokerClock, Clock
from barnabas.testing.faults.engine import Faults
from barnabas.testing.loop_calls import BrokerFailed
from barnabas.testing.node_runtime import NodeRuntime
from barnabas.testing.running import NOT_STARTED, RunningBroker
from barnabas.testing.steering.steering import Finished

if TYPE_CHECKING:
    import asyncio  # noqa: TID251 - the type
    from collections.abc import Awaitable, Mapping

    from barnabas.testing.contents import Group, StoredRecord
    from barnabas.testing.operations import Ends
    from barnabas.testing.snapshot import Snapshot

# A library is silent unless somebody asks: `logging.basicConfig` shows what the broker has to say.
logging.getLogger("barnabas").addHandler(logging.NullHandler())

__all__ = ["Broker", "BrokerFailed", "default_properties"]

REPLICAS_MAX = 3


class Broker(RunningBroker):
    """See the module; what its methods need is loaded with their first use. `properties` are Kafka's, such as {"num.partitions": 3}; `nodes` makes a cluster of so many, each broker
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
        if as_version is not None and not isinstance(as_version, str):
            raise TypeError(f'as_version is a string, such as "2.8", and not {as_version!r}')
        given = property_texts(properties or {})
        super().__init__(prefer_uvloop=given.get("barnabas.event.loop") == "uvloop")
        self.faults = Faults()
        self.faults.run_on_loop = self.call_if_running
        self.faults.node_ids = lambda: [node.node_id for node in self.nodes]
        # broker.on("Produce", topic="orders", nth=2).error("NOT_LEADER_OR_FOLLOWER")
        self.on = self.faults.on
        self.requests = self.faults.requests  # that clients have sent
        self._clock = Clock()
        self.clock = BrokerClock(self, self._clock)
        self.as_version = as_version
        if as_version is not None:
            self.faults.pass_for(as_version)
        self._directory = None if directory is None else Path(directory)
        self._properties = {**default_properties(nodes), **given}
        self._begins_alone = nodes == 1
        self._secret = os.urandom(32)  # nobody else on this machine calls himself a node
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
        """`host:port` of every node, separated by commas. BrokerFailed before the first start, where the ports are not chosen yet."""
        if not all(node.port for node in self.nodes):
            raise BrokerFailed(NOT_STARTED)
        return ",".join(f"{HOST}:{node.port}" for node in self.nodes)

    def new_runtime(self, node: BrokerNode, loop: asyncio.AbstractEventLoop) -> NodeRuntime:
        """The runtime of a node that starts."""
        runtime = NodeRuntime(loop, has_threads=not node.is_in_memory, clock=self._clock)
        self.runtimes = [each for each in self.runtimes if each.tasks or not each.has_ended]
        self.runtimes.append(runtime)
        return runtime

    def make_node(self, node_id: int, properties: Mapping[str, str]) -> BrokerNode:
        """A node as the others are, with these properties besides."""
        directory = self._directory
        if directory is not None and not self._begins_alone:
            directory = directory / f"node-{node_id}"
        own = property_texts(properties)
        node = BrokerNode(node_id, directory, {**self._properties, **own}, self.new_runtime)
        node.on_change = self.node_changed
        node.make_dispatcher = self.faults.dispatcher
        node.secret = self._secret
        return node

    # -- what it holds

    def topics(self) -> dict[str, int]:
        """Topics by name, with the number of their partitions; Kafka's own ones left out."""
        from barnabas.testing import contents

        return self.call(lambda: contents.topics(self.nodes))

    def records(self, topic: str, partition: int | None = None) -> list[StoredRecord]:
        """What consumers may read of one partition or of all, partition by partition. Where a leader is gone the next one is
        waited for, some seconds at most; not in the running loop, which cannot turn meanwhile. UnknownTopic, NoLeader."""
        from barnabas.testing import contents, operations

        def read() -> list[StoredRecord]:
            return contents.records(self.nodes, topic, partition)

        try:
            return self.call(read)
        except contents.NoLeader:
            if self.is_here:
                raise
        self.wait(lambda done: operations.when_led(self.nodes, topic, lambda: done(None), done))
        return self.call(read)

    def group(self, name: str) -> Group | None:
        """A group's state, members and committed offsets; None where there is no such group."""
        from barnabas.testing import contents

        return self.call(lambda: contents.group(self.nodes, name))

    def groups(self) -> list[str]:
        """Names of all groups."""
        from barnabas.testing import contents

        return self.call(lambda: contents.groups(self.nodes))

    def effective_config(self, topic: str) -> dict[str, str]:
        """Every config of a topic with the value that counts. UnknownTopic."""
        from barnabas.testing import contents

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
        from barnabas.testing import operations

        texts = {key: _text(value) for key, value in (configs or {}).items()}
        return self.perform(
            lambda done: operations.create_topic(
                self.nodes, name, partitions, replication_factor, texts, done
            )
        )

    def delete_topics(self, *names: str) -> Awaitable[None]:
        """Those that exist; others are none the worse. RequestFailed."""
        from barnabas.testing import operations

        return self.perform(lambda done: operations.delete_topics(self.nodes, names, done))

    def seed(self, topic: str, records: object) -> Awaitable[None]:
        """Append records, committed when it is done: an iterable of values, (key, value) pairs or mappings with `value`,
        `key`, `headers`, `timestamp`, `partition`; or the path of a file of JSON lines (seeding.py). A topic that does not
        exist is made. RequestFailed."""
        from barnabas.testing import operations, seeding

        seeds = seeding.read_seeds(records)
        return self.perform(lambda done: operations.seed(self.nodes, topic, seeds, done))

    def produce(self, topic: str, value: object, key: object = None, **fields: object) -> StoredRecord:
        """Append one record and give it back as it is stored; `fields` are headers, timestamp, partition. RequestFailed.
        Not for a cluster in the running loop: see `seed`."""
        from barnabas.testing import contents, operations, seeding

        seed = seeding.single(value, key, fields)
        ends: Ends = []
        self.wait(lambda done: operations.seed(self.nodes, topic, [seed], done, ends))
        [(partition, end)] = ends
        return self.call(lambda: contents.record_at(partition, end - 1))

    # -- its state as a whole

    def reset(self) -> Awaitable[None]:
        """As if it had just been started: no topics, groups, producer ids, configs, rules and recorded requests, and the
        machine's time. Clients that are connected are disconnected; they find it at the same address."""
        self.faults.reset()
        self.call(self._reset_nodes)
        return self.ready_again()

    def snapshot(self) -> Snapshot:
        """All that it holds now."""
        from barnabas.testing.snapshot import take

        return self.call(lambda: take(self.nodes))

    def restore(self, snapshot: Snapshot) -> Awaitable[None]:
        """Hold what it held then, at the machine's time. Clients are disconnected, as at a reset. ValueError where it had
        another number of nodes."""
        from barnabas.testing.snapshot import Snapshot as Taken

        if not isinstance(snapshot, Taken):
            raise TypeError(f"what `snapshot` has taken can be restored, and not {snapshot!r}")
        snapshot.check(self.nodes)
        self.call(lambda: self._reset_nodes(snapshot))
        return self.ready_again(settles=len(self.nodes) > 1)

    def recover(self) -> Awaitable[None]:
        """No faults any more: no rules, all nodes run, coordinators answer, at the machine's time. What it holds stays; clients
        are disconnected where that takes a new start."""
        self.faults.reset()
        if self.call(self._is_well):
            return Finished()
        return self.restore(self.snapshot())

    def _is_well(self) -> bool:
        return not self._clock.ahead_s and all(node.is_well for node in self.nodes)

    def _stop_nodes(self) -> None:
        super()._stop_nodes()
        self.clock.cut_off("the broker has been stopped")

    def _reset_nodes(self, snapshot: Snapshot | None = None) -> None:
        for node in self.nodes:
            node.drop(keeps_listening=True)
        self.requests.clear()
        self.clock.cut_off("its nodes have been set back before the clock was there")
        self._clock.reset()
        if snapshot is None:
            for node in self.nodes:
                node.wipe()
        else:
            snapshot.put(self.nodes)
        for node in self.nodes:
            node.start(self.loop)


def property_texts(properties: Mapping[str, object]) -> dict[str, str]:
    """As server.properties has them. ConfigError (a ValueError) for one that there is not: here it is a slip."""
    check_names(properties, ConfigTables(EXTENSIONS).broker)
    return {name: _text(value) for name, value in properties.items()}


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
