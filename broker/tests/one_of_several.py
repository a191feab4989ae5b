"""A real node that believes to be one of several: metadata of other brokers is put into its log as records.

Every request and response passes through its wire form.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.node import Node
from barnabas.broker.tests.reply import Reply, as_received, send
from barnabas.controller.metadata.decision import Decision
from barnabas.controller.metadata.image import PartitionState, partition_record
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.wire.messages.metadata_records import BrokerEndpoint, RegisterBrokerRecord, TopicRecord
from barnabas.wire.registry import request_type, response_type
from compat_tests.virtual.runtime import VirtualRuntime

TOPIC_ID = b"topic".ljust(16)
DIRECTORY = b"directory".ljust(16)


class View:
    """Node 1 among the brokers that the test registers."""

    def __init__(self, directory: Path, *more: str) -> None:
        self.runtime = VirtualRuntime()
        settings = [
            f"log.dirs={directory}",
            "listeners=PLAINTEXT://127.0.0.1:0",
            "broker.rack=r1",
            "offsets.topic.num.partitions=1",
            *more,
        ]
        self.node = Node(BrokerConfig.load(None, {}, settings), self.runtime)
        self.node.start()

    def commit(self, *records: msgspec.Struct) -> None:
        self.node.services.controller.run(lambda _: Decision(list(records), None), lambda _: None)
        self.runtime.advance(0)

    def register(
        self, broker_id: int, *, listener: str = "PLAINTEXT", fenced: bool = False, rack: str | None = None
    ) -> None:
        self.commit(
            RegisterBrokerRecord(
                broker_id=broker_id,
                broker_epoch=100 + broker_id,
                end_points=[BrokerEndpoint(name=listener, host=f"h{broker_id}", port=9000 + broker_id)],
                rack=rack,
                fenced=fenced,
                log_dirs=[DIRECTORY],
            )
        )

    def partitions(self, *states: PartitionState, name: str = "t", topic_id: bytes = TOPIC_ID) -> None:
        self.commit(
            TopicRecord(name=name, topic_id=topic_id),
            *(partition_record(topic_id, index, state) for index, state in enumerate(states)),
        )

    def ask(self, key: int, request: Any, version: int) -> Any:
        """The response in this version's wire form."""
        (outcome,) = self.ask_later(key, request, version).responses
        return as_received(response_type(key), version, outcome)

    def ask_later(self, key: int, request: Any, version: int) -> Reply:
        """Where the response comes, as a struct, now or later."""
        reply = send(self.node.services, key, version, as_received(request_type(key), version, request))
        self.runtime.advance(0)
        return reply

    def metadata(self, version: int = 13) -> Any:
        request = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=False)
        return self.ask(3, request, version)

    def partition(self, version: int = 13) -> Any:
        (topic,) = self.metadata(version).topics
        return topic.partitions[0]

    def find(self, key: str = "g") -> Any:
        (found,) = self.ask(10, FindCoordinatorRequest(coordinator_keys=[key]), 6).coordinators
        return found


def state(leader: int, replicas: Sequence[int], isr: Sequence[int] = (), **fields: Any) -> PartitionState:
    return PartitionState(
        replicas=list(replicas),
        isr=list(isr or replicas),
        leader=leader,
        leader_epoch=7,
        partition_epoch=3,
        directories=[bytes(16) if replica == 1 else DIRECTORY for replica in replicas],
        **fields,
    )
