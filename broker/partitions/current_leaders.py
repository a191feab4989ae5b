"""The current leader of a partition, for clients that have sent a request to another broker (KIP-951)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from barnabas.controller.metadata.image import NO_LEADER
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from barnabas.broker.cluster.metadata_view import BrokerAddress, MetadataView
    from barnabas.broker.partitions.partition_manager import PartitionManager
    from barnabas.broker.requests.context import RequestContext
    from barnabas.controller.metadata.controller import Controller
    from barnabas.controller.metadata.image import MetadataImage


class LeaderServices(Protocol):
    """The parts of Services (services.py) that answers about leaders need."""

    partitions: PartitionManager
    controller: Controller

    def metadata_view(self, listener: str) -> MetadataView: ...


def current_leader(
    context: RequestContext[LeaderServices], topic: str, topic_id: bytes, partition: int
) -> tuple[int, int]:
    """(broker id, leader epoch) of the partition's leader, -1 and -1 if there is none. The topic is `topic`, or where that is
    empty the one with `topic_id`."""
    services = context.services
    found = (
        services.partitions.get(topic, partition) if topic else services.partitions.by_id(topic_id, partition)
    )
    if found is not None:
        return found.leader_id, found.leader_epoch
    image = services.controller.image
    known = image.topics.get(topic) if topic else image.topic_by_id(topic_id)
    state = known.partitions.get(partition) if known is not None else None
    return (NO_LEADER, -1) if state is None else (state.leader, state.leader_epoch)


def leader_addresses(
    context: RequestContext[LeaderServices], broker_ids: Iterable[int]
) -> list[BrokerAddress]:
    """The addresses of the live brokers among these, on the listener of the client."""
    wanted = sorted(set(broker_ids))
    if not wanted:
        return []
    view = context.services.metadata_view(context.listener)
    return [address for broker_id in wanted if (address := view.alive(broker_id)) is not None]


def missing_error(
    image: MetadataImage, topic: str | bytes, partition: int, *, name: str | None = None
) -> ErrorCode:
    """The error for a partition that this broker does not host, of the topic with this name or id. `name`: what the client's fetch
    session calls the topic of an id, None if it has no name for it."""
    known = image.topic_by_id(topic) if isinstance(topic, bytes) else image.topics.get(topic)
    if known is not None and partition in known.partitions:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if known is not None or isinstance(topic, str):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    namesake = image.topics.get(name)
    if namesake is not None and partition in namesake.partitions:
        return ErrorCode.INCONSISTENT_TOPIC_ID  # deleted, and created again under the same name
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
