"""The nodes of a simulated cluster: one disk each, and one process after the other on it.

The real node runs (broker/node.py), from its configuration on; its clock, network, threads and files are virtual. A
process may end in the middle of a write. The model of the disk (barnabas/testing/memory_disk.py) decides what of it
survives a power failure.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.node import Node
from barnabas.broker.services import Services
from barnabas.controller.metadata.errors import MetadataError
from barnabas.extensions import EXTENSIONS
from barnabas.storage.errors import LogDirectoryError
from barnabas.testing.memory_disk import MemoryDisk, ProcessKilled
from compat_tests.simulation import consumer_groups, streams_groups
from compat_tests.virtual.network import VirtualNetwork
from compat_tests.virtual.runtime import VirtualRuntime

BROKER_PORT, CONTROLLER_PORT = 9092, 9093
DATA = "/var/data"
METADATA = "/var/metadata"
START_S = 0.15  # from the start of a process until its node runs


class NodeProcess(VirtualRuntime):
    """Runtime of one process of a node; it ends with the process."""

    node: Node | None = None
    dying = False
    is_ready = False  # the node serves requests


class SimulatedNode:
    """See the module. `process` is None while nothing runs."""

    def __init__(
        self,
        node_id: int,
        roles: str,
        network: VirtualNetwork,
        chance: random.Random,
        properties: Mapping[str, str],
    ) -> None:
        self.node_id = node_id
        self.roles = roles
        self.host = f"node{node_id}"
        self.random = chance
        self.network = network
        self.properties = dict(properties)
        self.disk = self._new_disk(MemoryDisk())
        self.process: NodeProcess | None = None
        self.wall_offset_ms = chance.choice((0, 0, -3000, 40, 3_600_000))
        self.disk_delay_s = 0.001  # about how long a thread takes for its work
        self.starts = 0
        self.ended_cleanly = True
        self.on_started: Callable[[SimulatedNode], object] = lambda _: None
        self.on_down: Callable[[SimulatedNode, str], object] = lambda _node, _why: None

    @property
    def is_broker(self) -> bool:
        return "broker" in self.roles

    @property
    def is_voter(self) -> bool:
        return "controller" in self.roles

    @property
    def is_up(self) -> bool:
        return self.process is not None

    @property
    def node(self) -> Node | None:
        return self.process.node if self.process is not None else None

    @property
    def is_ready(self) -> bool:
        """Whether it serves requests, by its own knowledge."""
        return self.process is not None and self.process.is_ready

    @property
    def is_active(self) -> bool:
        """Whether it is the active controller, by its own knowledge."""
        return self.is_ready and self.is_voter and self.services.controller.is_active

    @property
    def services(self) -> Services:
        """Services of a node that is ready."""
        assert self.process is not None
        assert self.process.node is not None
        return self.process.node.services

    def _new_disk(self, disk: MemoryDisk) -> MemoryDisk:
        disk.write_descriptor = self.network.send
        disk.ordered_names = self.random.random() < 0.5
        disk.sector = self.random.choice((512, 4096))
        return disk

    # -- processes

    def start(self) -> None:
        """Starts a process; its node runs a moment later."""
        assert self.process is None
        self.starts += 1
        process = NodeProcess(self.random.randrange(1 << 60), network=self.network, host=self.host)
        process.wall_offset_ms = self.wall_offset_ms
        process.thread_delay_s = lambda: self.disk_delay_s * (0.1 + self.random.expovariate(1.0))
        self.process = process
        process.call_later(START_S * self.random.uniform(0.5, 2), lambda: self._run(process))

    def start_again(self) -> None:
        """Starts a process, unless one runs."""
        if self.process is None:
            self.start()

    def _run(self, process: NodeProcess) -> None:
        config = BrokerConfig.from_properties(self.properties, EXTENSIONS)
        node = Node(
            config,
            process,
            self.disk,
            EXTENSIONS,
            on_ready=lambda: self._ready(process),
            on_fatal=lambda why: self._fatal(process, why),
        )
        process.node = node
        try:
            node.start()
        except (OSError, MetadataError, LogDirectoryError) as error:  # the disk is full, or fails
            self._fatal(process, f"cannot start: {error}")
            return
        self.ended_cleanly = False

    def _ready(self, process: NodeProcess) -> None:
        process.is_ready = True
        self.on_started(self)

    def _fatal(self, process: NodeProcess, why: str) -> None:
        """The node reports that it cannot continue: as the server does then, the process stops."""
        if not process.dying:
            process.dying = True
            process.call_soon(lambda: self._down(process, why))

    def _down(self, process: NodeProcess, why: str) -> None:
        if self.process is process:
            self.kill()
            self.on_down(self, why)

    def killed_by_disk(self, process: object) -> None:
        """Called when the world has caught ProcessKilled."""
        if self.process is process:
            self.process = None
            self.disk.revive()
            self.on_down(self, "killed in a write")

    def kill(self, *, power_fails: bool = False) -> None:
        """kill -9, or a power failure, which loses what was not synced."""
        process, self.process = self.process, None
        self.ended_cleanly = False
        if process is not None:
            process.end(power_fails=power_fails)
        elif power_fails:
            self.network.without_power.add(self.host)
        self.disk.revive()
        if power_fails:
            luck = self.random.choice((0.0, 1.0, 0.5, 0.5, 0.9))
            self.disk = self._new_disk(
                self.disk.crash(
                    lambda count: (
                        self.random.randint(0, count)
                        if 0 < luck < 1 and self.random.random() < 0.8
                        else round(luck * count)
                    )
                )
            )

    def kill_in_write(self) -> None:
        """Kills the process in one of its next changes of the disk."""
        self.disk.kill_after = self.random.randrange(6)
        self.disk.torn_bytes = self.random.choice((0, 0, 1, 30, 61, 100))

    def wipe(self) -> None:
        """Ends the process and empties the disk."""
        self.kill(power_fails=True)
        self.disk = self._new_disk(MemoryDisk())

    def stop(self) -> None:
        """Stops cleanly, as SIGTERM does."""
        process = self.process
        if process is None or process.node is None or not hasattr(process.node, "services"):
            self.kill()
            return
        process.dying = True
        # As the server does: the event loop finishes its turn first.
        stop_cleanly(process.node, lambda: process.call_soon(lambda: self._stopped(process)))

    def _stopped(self, process: NodeProcess) -> None:
        if self.process is process and not process.ended:
            assert process.node is not None
            try:
                process.node.stop()
                self.ended_cleanly = True
            except (OSError, ProcessKilled):
                pass
            self.process = None
            process.end()
            self.disk.revive()
            self.on_down(self, "stopped")

    def jump(self, milliseconds: int) -> None:
        """Sets the wall clock."""
        self.wall_offset_ms += milliseconds
        if self.process is not None:
            self.process.wall_offset_ms = self.wall_offset_ms


def stop_cleanly(node: Node, done: Callable[[], object]) -> None:
    """The steps that precede `Node.stop`."""
    leave = getattr(node, "begin_stop", None)
    if leave is None:
        done()
    else:
        leave(done)


def properties_of(
    node_id: int, roles: str, voters: list[int], brokers: int, extra: Mapping[str, str]
) -> dict[str, str]:
    """server.properties of a node; `brokers` is their number."""
    host = f"node{node_id}"
    listeners = []
    if "broker" in roles:
        listeners.append(f"PLAINTEXT://{host}:{BROKER_PORT}")
    if "controller" in roles and len(voters) > 1:
        listeners.append(f"CONTROLLER://{host}:{CONTROLLER_PORT}")
    replicas = min(3, brokers)
    properties = {
        "process.roles": roles,
        "node.id": str(node_id),
        "listeners": ",".join(listeners),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": DATA,
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(max(1, replicas - 1)),
        "offsets.topic.replication.factor": str(replicas),
        "offsets.topic.num.partitions": "2",
        "share.coordinator.state.topic.replication.factor": str(replicas),
        "share.coordinator.state.topic.min.isr": str(max(1, replicas - 1)),
        "transaction.state.log.replication.factor": str(replicas),
        "num.partitions": "2",
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        **consumer_groups.SETTINGS,
        **streams_groups.SETTINGS,
        "log.cleaner.backoff.ms": "700",
        "log.initial.task.delay.ms": "500",
        "log.retention.check.interval.ms": "1000",
        "log.segment.delete.delay.ms": "2000",
        "producer.id.expiration.check.interval.ms": "1000",
        "offsets.retention.check.interval.ms": "1000",
        # Clocks here may be wrong by hours.
        "log.message.timestamp.after.max.ms": str((1 << 63) - 1),
        **extra,
    }
    if len(voters) > 1:
        properties["controller.quorum.voters"] = ",".join(
            f"{voter}@node{voter}:{CONTROLLER_PORT}" for voter in voters
        )
    return properties
