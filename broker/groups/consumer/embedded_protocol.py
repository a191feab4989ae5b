"""The consumer protocol inside of JoinGroup and SyncGroup: subscriptions and assignments of members of the classic protocol.

An int16 version is in front of each; a reader takes a newer one for the newest that it knows. Topics have names here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from barnabas.wire.message_type import MessageType
from barnabas.wire.messages import consumer_protocol as wire
from barnabas.wire.primitives import DecodeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barnabas.broker.groups.modern.values import Partitions
    from barnabas.controller.metadata.image import MetadataImage

VERSION_MAX: Final = 3
M = TypeVar("M", bound=msgspec.Struct)


class MalformedProtocol(ValueError):
    """The bytes are none of the consumer protocol."""


def version_of(data: bytes) -> int:
    version = int.from_bytes(data[:2], "big", signed=True)
    if len(data) < 2 or version < 0:
        raise MalformedProtocol(f"Unsupported subscription version: {version}")
    return min(version, VERSION_MAX)


def subscription(data: bytes) -> wire.ConsumerProtocolSubscription:
    return _decoded(wire.CONSUMER_PROTOCOL_SUBSCRIPTION, data)


def assignment(data: bytes) -> wire.ConsumerProtocolAssignment:
    return _decoded(wire.CONSUMER_PROTOCOL_ASSIGNMENT, data)


def _decoded(kind: MessageType[M], data: bytes) -> M:
    try:
        return kind.decode(version_of(data), data, 2)[0]
    except DecodeError as error:
        raise MalformedProtocol(str(error)) from None


def encoded_assignment(
    image: MetadataImage, partitions: Mapping[bytes, Iterable[int]], version: int
) -> bytes:
    """Of topics that exist."""
    topics = [
        wire.ConsumerProtocolAssignmentTopicPartition(topic.name, sorted(indexes))
        for topic_id, indexes in partitions.items()
        if (topic := image.topic_by_id(topic_id)) is not None
    ]
    parts = wire.CONSUMER_PROTOCOL_ASSIGNMENT.encode(version, wire.ConsumerProtocolAssignment(topics, None))
    return version.to_bytes(2, "big") + b"".join(parts)  # type: ignore[arg-type]  # all bytes


def partitions_by_id(
    image: MetadataImage,
    topics: Iterable[wire.TopicPartition | wire.ConsumerProtocolAssignmentTopicPartition],
) -> Partitions:
    """Of topics that exist."""
    return {
        found.topic_id: frozenset(each.partitions)
        for each in topics
        if (found := image.topics.get(each.topic)) is not None
    }
