"""Three brokers that hold one partition, on one virtual network; what the metadata says is scripted.

Logs, partitions, requests and fetchers are the real ones. Each broker's controller is its own, and gets the same
records as the others', so the test chooses the leader, as it is in the examples of the KIPs.
"""

from __future__ import annotations

from typing import Any

from barnabas.broker.cluster.inter_broker_authentication import InterBrokerAuthentication
from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.node import Node
from barnabas.broker.partitions.partition import Partition
from barnabas.broker.replica_fetcher.fetcher import FetcherSettings
from barnabas.broker.replica_fetcher.manager import ReplicaFetcherManager
from barnabas.controller.metadata.decision import Decision
from barnabas.controller.metadata.image import NO_LEADER, PartitionState, partition_record
from barnabas.storage.log.log import Log
from barnabas.storage.tests.crash_model import read_all
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.metadata_records import (
    BrokerEndpoint,
    PartitionChangeRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from barnabas.wire.records import Record, build_batch, iterate_records
from compat_tests.virtual.network import VirtualNetwork
from compat_tests.virtual.runtime import VirtualRuntime
from compat_tests.virtual.world import VirtualWorld

TOPIC_ID = b"topic".ljust(16)
DIRECTORY = b"directory".ljust(16)
PORT = 9092
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"


class Replica:
    """Broker `broker_id`, from a start to an end. Its disk lives on."""

    def __init__(self, replicas: Replicas, broker_id: int, disk: MemoryDisk) -> None:
        self.broker_id = broker_id
        self.disk = disk
        self.runtime = VirtualRuntime(broker_id, network=replicas.network, host=f"h{broker_id}")
        disk.write_descriptor = replicas.network.send
        settings = [
            f"node.id={broker_id}",
            "log.dirs=/data",
            f"listeners=PLAINTEXT://:{PORT}",
            f"advertised.listeners=PLAINTEXT://h{broker_id}:{PORT}",
            *(f"{name.replace('_', '.')}={value}" for name, value in replicas.properties.items()),
        ]
        config = BrokerConfig.load(None, {"CLUSTER_ID": CLUSTER_ID}, settings)
        self.node = Node(config, self.runtime, disk)
        self.node.start()
        services = self.node.services
        services.inter_broker_authentication = InterBrokerAuthentication(
            self.runtime,
            replicas.secrets.get(broker_id, b"a secret that all of them have"),
            cluster_id="c",
            broker_id=broker_id,
            broker_epoch=lambda: 100 + broker_id,
            listener="PLAINTEXT",
            image=lambda: services.controller.image,
        )
        self.fetchers = ReplicaFetcherManager(
            self.runtime,
            FetcherSettings(
                broker_id,
                lambda: 100 + broker_id,
                services.inter_broker_authentication,
                **replicas.fetching,
            ),
            self.node.services.log_manager,
            lambda node_id: (f"h{node_id}", PORT),
        )
        partitions = self.node.services.partitions
        partitions.on_following = self.fetchers.on_following
        partitions.on_not_following = self.fetchers.on_not_following
        for partition in partitions.all():
            if partition.leader_id not in (NO_LEADER, broker_id):
                self.fetchers.on_following([partition])

    @property
    def partition(self) -> Partition:
        found = self.node.services.partitions.get("t", 0)
        assert found is not None
        return found

    @property
    def log(self) -> Log:
        return self.partition.log

    @property
    def messages(self) -> list[str]:
        """The values of all records."""
        return [
            (record.value or b"").decode()
            for batch in read_all(self.log, 1 << 20)
            for record in iterate_records(batch, 1 << 20)
        ]

    def commit(self, records: list[Any]) -> None:
        self.node.services.controller.run(lambda _: Decision(records, None), lambda _: None)

    def end(self, *, power_fails: bool = False) -> None:
        """As kill -9, or a power failure that takes everything unsynced."""
        self.runtime.end(power_fails=power_fails)
        self.disk.revive()
        if power_fails:
            self.disk = self.disk.crash(lambda _: 0)


class Replicas:
    """See the module. `fetching`: fields of FetcherSettings."""

    def __init__(
        self, leader: int = 1, ids: tuple[int, ...] = (1, 2, 3), fetching: Any = None, **properties: str
    ) -> None:
        self.world = VirtualWorld(1)
        self.network = VirtualNetwork(self.world)
        self.network.delay_s = lambda _source, _target: 0.0001
        self.properties = properties
        self.secrets: dict[int, bytes] = {}  # where it is not the same on all
        self.fetching: dict[str, Any] = fetching or {}
        self.records: list[Any] = []  # the metadata, so far
        self.ids = ids
        self.alive: dict[int, Replica] = {}
        self.disks = {broker_id: MemoryDisk() for broker_id in ids}
        for broker_id in ids:
            self.start(broker_id)
        managers = [replica.node.services.log_manager for replica in self.alive.values()]
        state = PartitionState(
            replicas=list(ids),
            isr=list(ids),
            leader=leader,
            leader_epoch=0,
            partition_epoch=0,
            directories=[manager.directories.online_ids()[0] for manager in managers],
        )
        self.commit(TopicRecord(name="t", topic_id=TOPIC_ID), partition_record(TOPIC_ID, 0, state))

    def start(self, broker_id: int) -> Replica:
        replica = self.alive[broker_id] = Replica(self, broker_id, self.disks[broker_id])
        known = replica.node.services.controller.image.brokers
        others = [
            RegisterBrokerRecord(
                broker_id=other,
                broker_epoch=100 + other,
                end_points=[BrokerEndpoint(name="PLAINTEXT", host=f"h{other}", port=PORT)],
                fenced=False,
                log_dirs=[DIRECTORY],
            )
            for other in self.ids
            if other != broker_id and other not in known
        ]
        replica.commit(others)
        self.run(0)
        return replica

    def kill(self, *ids: int, power_fails: bool = False) -> None:
        for broker_id in ids:
            replica = self.alive.pop(broker_id)
            replica.end(power_fails=power_fails)
            self.disks[broker_id] = replica.disk

    def wipe(self, broker_id: int) -> None:
        """The disk of a dead broker is replaced by an empty one."""
        self.disks[broker_id] = MemoryDisk()

    # -- the metadata

    def commit(self, *records: Any) -> None:
        """To all that are alive."""
        self.records += records
        for replica in self.alive.values():
            replica.commit(list(records))
        self.run(0)

    def elect(self, leader: int, isr: list[int] | None = None) -> None:
        """In the next leader epoch; -1 for none. Those that start later get it by `tell`."""
        self.commit(
            PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, leader=leader, isr=isr or [leader])
        )

    def tell(self, broker_id: int) -> None:
        """Give a restarted broker the records that the others have."""
        replica = self.alive[broker_id]
        known = replica.node.services.controller.image.topics.get("t")
        if known is None:
            replica.commit(self.records)
        else:
            epoch = known.partitions[0].leader_epoch
            leaders = [record for record in self.records if isinstance(record, PartitionChangeRecord)]
            replica.commit(leaders[epoch:])
        self.run(0)

    # -- what happens

    def run(self, seconds: float = 0.2) -> None:
        self.world.run_until(self.world.now + seconds)

    def __getitem__(self, broker_id: int) -> Replica:
        return self.alive[broker_id]

    def produce(self, leader: int, *values: str, acks: int = 1) -> list[ErrorCode]:
        """One batch for each value. Returns the result of each, once it is known: NONE when it is committed."""
        results: list[ErrorCode] = []
        partition = self.alive[leader].partition
        for value in values:
            batch = build_batch([Record(0, self.alive[leader].runtime.time_ms(), None, value.encode())])
            result = partition.append(memoryview(bytearray(batch)), required_acks=acks)
            partition.when_committed(result.last_offset + 1, results.append)
        return results

    def check_identical(self) -> None:
        """Every replica has the same bytes."""
        logs = [read_all(replica.log, 1 << 20) for replica in self.alive.values()]
        assert all(log == logs[0] for log in logs)
