"""Broker 1 of a cluster whose others are scripted: it leads, and the test fetches as its followers do.

Everything runs through the real handlers, the real controller and the real logs, on a virtual clock.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.node import Node
from barnabas.broker.partitions.partition import Partition
from barnabas.broker.tests.reply import Reply, send
from barnabas.controller.metadata.decision import Decision
from barnabas.controller.metadata.image import PartitionState, partition_record
from barnabas.storage.disk.disk import Disk
from barnabas.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from barnabas.wire.messages.metadata_records import (
    BrokerEndpoint,
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from barnabas.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from barnabas.wire.records import Record, build_batch
from compat_tests.virtual.runtime import VirtualRuntime

TOPIC_ID = b"topic".ljust(16)
DIRECTORY = b"directory".ljust(16)
TIME = 1_700_000_000_000
FENCE, UNFENCE = 1, -1


def batch(*values: str) -> bytes:
    return build_batch([Record(at, TIME, None, value.encode()) for at, value in enumerate(values)])


class Leader:
    """See the module. The topic "t" has one partition unless `partitions` says more, led by broker 1."""

    def __init__(self, directory: Path | str, disk: Disk | None = None, **properties: str) -> None:
        self.runtime = VirtualRuntime()
        settings = [
            f"log.dirs={directory}",
            "listeners=PLAINTEXT://127.0.0.1:0",
            "offsets.topic.num.partitions=1",
            *(f"{name.replace('_', '.')}={value}" for name, value in properties.items()),
        ]
        self.node = Node(BrokerConfig.load(None, {}, settings), self.runtime, disk)
        self.node.start()
        self.fetcher_calls: list[tuple[str, str, int]] = []  # what the fetchers would get
        partitions = self.node.services.partitions
        partitions.on_following = lambda many: self._note("following", many)
        partitions.on_not_following = lambda many: self._note("not following", many)

    def _note(self, what: str, many: list[Partition]) -> None:
        self.fetcher_calls += [(what, each.topic, each.partition) for each in many]

    # -- the metadata

    def commit(self, *records: msgspec.Struct) -> None:
        self.node.services.controller.run(lambda _: Decision(list(records), None), lambda _: None)
        self.run()

    def register(self, *broker_ids: int, epoch: int = 100, **fields: Any) -> None:
        self.commit(
            *(
                RegisterBrokerRecord(
                    broker_id=broker_id,
                    broker_epoch=epoch + broker_id,
                    end_points=[
                        BrokerEndpoint(name="PLAINTEXT", host=f"h{broker_id}", port=9000 + broker_id)
                    ],
                    fenced=fields.get("fenced", False),
                    rack=fields.get("rack"),
                    log_dirs=[DIRECTORY],
                )
                for broker_id in broker_ids
            )
        )

    def fence(self, broker_id: int, fenced: bool = True) -> None:
        epoch = self.node.services.controller.image.brokers[broker_id].broker_epoch
        self.commit(
            BrokerRegistrationChangeRecord(
                broker_id=broker_id, broker_epoch=epoch, fenced=FENCE if fenced else UNFENCE
            )
        )

    def create(
        self,
        *,
        replicas: list[int] | None = None,
        isr: list[int] | None = None,
        leader: int = 1,
        partitions: int = 1,
        epoch: int = 0,
        name: str = "t",
        topic_id: bytes = TOPIC_ID,
    ) -> None:
        replicas = [1, 2, 3] if replicas is None else replicas
        own = self.node.services.log_manager.directories.online_ids()[0]
        state = PartitionState(
            replicas=replicas,
            isr=replicas if isr is None else isr,
            leader=leader,
            leader_epoch=epoch,
            partition_epoch=0,
            directories=[own if broker_id == 1 else DIRECTORY for broker_id in replicas],
        )
        self.commit(
            TopicRecord(name=name, topic_id=topic_id),
            *(partition_record(topic_id, index, state) for index in range(partitions)),
        )

    def change(self, index: int = 0, topic_id: bytes = TOPIC_ID, **fields: Any) -> None:
        self.commit(PartitionChangeRecord(topic_id=topic_id, partition_id=index, **fields))

    @property
    def state(self) -> PartitionState:
        """As the metadata has partition 0."""
        return self.node.services.controller.image.topics["t"].partitions[0]

    def partition(self, index: int = 0, name: str = "t") -> Partition:
        found = self.node.services.partitions.get(name, index)
        assert found is not None
        return found

    # -- requests

    def run(self) -> None:
        """Everything that is due."""
        self.runtime.advance(0)

    def ask(self, key: int, version: int, request: msgspec.Struct, peer_broker_id: int = -1) -> Reply:
        return send(self.node.services, key, version, request, Reply(peer_broker_id))

    def produce(
        self, *values: str, acks: int = -1, index: int = 0, timeout_ms: int = 30_000, version: int = 12
    ) -> Reply:
        data = PartitionProduceData(index, memoryview(bytearray(batch(*values))))
        topic = TopicProduceData("t", TOPIC_ID, [data])
        return self.ask(0, version, ProduceRequest(None, acks, timeout_ms, [topic]))

    def produced(self, call: Reply) -> PartitionProduceResponse:
        """What a produce to one partition was answered."""
        assert call.answer is not None, "it has not been answered"
        answer: PartitionProduceResponse = call.answer.responses[0].partition_responses[0]
        return answer

    def fetch(
        self,
        offset: int,
        *,
        index: int = 0,
        max_wait_ms: int = 0,
        epoch: int = -1,
        version: int = 17,
        **fields: Any,
    ) -> Reply:
        """As a consumer."""
        wanted = FetchPartition(
            index, epoch, offset, partition_max_bytes=1 << 20, last_fetched_epoch=fields.get("last_epoch", -1)
        )
        topic = FetchTopic("t", TOPIC_ID, [wanted])
        rack = fields.get("rack", "")
        request = FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, topics=[topic], rack_id=rack)
        return self.ask(1, version, request)

    def follower(self, broker_id: int, **fields: Any) -> Follower:
        return Follower(self, broker_id, **fields)

    def fetched(self, call: Reply) -> PartitionData:
        """What a fetch of one partition was answered."""
        assert call.answer is not None, "it has not been answered"
        answer: PartitionData = call.answer.responses[0].partitions[0]
        return answer

    def restart(self, directory: Path | str, **properties: str) -> Leader:
        self.node.stop()
        return Leader(directory, None, **properties)


class Follower:
    """Broker `broker_id`, which fetches as the test says. Without a session, unless `session` has been called."""

    def __init__(self, leader: Leader, broker_id: int, *, epoch: int | None = None) -> None:
        self._leader = leader
        self.broker_id = broker_id
        self.broker_epoch = 100 + broker_id if epoch is None else epoch
        self.session_id = 0
        self.session_epoch = -1
        self.max_wait_ms = 500

    def fetch(
        self,
        offset: int,
        *,
        index: int = 0,
        start: int = 0,
        last_epoch: int = -1,
        leader_epoch: int | None = None,
        wait: bool = False,
        version: int = 18,
    ) -> Reply:
        if leader_epoch is None:
            leader_epoch = self._leader.partition(index).leader_epoch
        wanted = FetchPartition(index, leader_epoch, offset, last_epoch, start, 1 << 20)
        return self._send([wanted], wait=wait, version=version)

    def begin_session(self, offset: int, index: int = 0) -> Reply:
        self.session_epoch = 0
        call = self.fetch(offset, index=index)
        assert isinstance(call.answer, FetchResponse)
        self.session_id, self.session_epoch = call.answer.session_id, 1
        return call

    def go_on(self, offset: int | None = None, *, wait: bool = True, **fields: Any) -> Reply:
        """The session's next request, which names the partition only when its offset has moved."""
        if offset is not None:
            call = self.fetch(offset, wait=wait, **fields)
        else:
            call = self._send([], wait=wait, version=18)
        self.session_epoch += 1
        return call

    def _send(self, wanted: list[FetchPartition], *, wait: bool, version: int) -> Reply:
        is_new = version >= 15
        request = FetchRequest(
            replica_id=-1 if is_new else self.broker_id,
            max_wait_ms=self.max_wait_ms if wait else 0,
            min_bytes=1,
            session_id=self.session_id,
            session_epoch=self.session_epoch,
            topics=[FetchTopic("t", TOPIC_ID, wanted)] if wanted else [],
            forgotten_topics_data=list[ForgottenTopic](),
        )
        if is_new:
            request.replica_state = ReplicaState(self.broker_id, self.broker_epoch)
        return self._leader.ask(1, version, request, self.broker_id)
