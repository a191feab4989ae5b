"""Brokers that answer what a test has them answer, and metadata with partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from barnabas.broker.cluster.peer_client import Answered
from barnabas.controller.metadata.image import BrokerRegistration, MetadataImage, PartitionState, TopicImage
from barnabas.wire.errors import ErrorCode
from barnabas.wire.message_type import MessageType
from barnabas.wire.registry import request_type, response_type


class Asked(msgspec.Struct):
    """A request without an answer so far."""

    node_id: int
    api_key: int
    version: int
    request: Any
    answered: Answered

    def answer(self, response: msgspec.Struct) -> None:
        """What arrives is what the wire leaves of it."""
        self.answered(_sent(response_type(self.api_key), self.version, response), ErrorCode.NONE)

    def fail(self, error: ErrorCode) -> None:
        self.answered(None, error)


class ScriptedBrokers:
    """`ask` as the senders get it. `script(asked)` is called with each request; without a script requests wait in `asked`."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.script: Callable[[Asked], object] = self.asked.append

    def ask(
        self, node_id: int, api_key: int, version: int, request: msgspec.Struct, answered: Answered
    ) -> None:
        received = _sent(request_type(api_key), version, request)
        self.script(Asked(node_id, api_key, version, received, answered))

    def take(self) -> list[Asked]:
        """The requests that wait."""
        taken = self.asked.copy()
        self.asked.clear()
        return taken


def _sent(kind: MessageType[Any], version: int, message: msgspec.Struct) -> Any:
    data = b"".join(bytes(part) for part in kind.encode(version, message))  # type: ignore[call-overload]
    return kind.decode(version, data)[0]


def image_of(leaders: dict[tuple[str, int], int], brokers: set[int]) -> MetadataImage:
    """Metadata with these leaders by partition, and these registered brokers."""
    image = MetadataImage()
    for broker_id in brokers:
        image.brokers[broker_id] = BrokerRegistration(broker_id, 0, b"", [], {}, None, False)
    for (name, index), leader in leaders.items():
        topic = image.topics.setdefault(name, TopicImage(name, name.encode().ljust(16)))
        topic.partitions[index] = PartitionState(
            replicas=[leader], isr=[leader], leader=leader, leader_epoch=0, partition_epoch=0
        )
    return image
