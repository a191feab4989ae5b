"""Who leads a partition, for clients that have asked the wrong broker (KIP-951)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from barnabas.broker.cluster.metadata_view import BrokerAddress, MetadataView
    from barnabas.broker.partitions.partition_manager import PartitionManager
    from barnabas.broker.requests.context import RequestContext
    from barnabas.controller.metadata.controller import Controller

NOBODY = (-1, -1)


class LeaderServices(Protocol):
    """What an answer about leaders is made from."""

    partitions: PartitionManager
    controller: Controller

    def metadata_view(self, listener: str) -> MetadataView: ...


def current_leader(
    context: RequestContext[LeaderServices], topic: str, topic_id: bytes, partition: int
) -> tuple[int, int]:
    """(broker id, leader epoch) of the partition's leader; (-1, -1) when nobody is known to lead it. The topic is
    known by `topic`, or by `topic_id` when that is empty."""
    services = context.services
    found = (
        services.partitions.get(topic, partition) if topic else services.partitions.by_id(topic_id, partition)
    )
    if found is not None:
        return found.leader_id, found.leader_epoch
    image = services.controller.image
    known = image.topics.get(topic) if topic else image.topic_by_id(topic_id)
    state = known.partitions.get(partition) if known is not None else None
    return NOBODY if state is None else (state.leader, state.leader_epoch)


def addresses(context: RequestContext[LeaderServices], broker_ids: Iterable[int]) -> list[BrokerAddress]:
    """Where these brokers are found on the listener that the client uses; those that are not there are left out."""
    wanted = sorted(set(broker_ids))
    if not wanted:
        return []
    view = context.services.metadata_view(context.listener)
    return [address for broker_id in wanted if (address := view.alive(broker_id)) is not None]


def absence(context: RequestContext[LeaderServices], topic: str, partition: int) -> ErrorCode:
    """Why the partition, known by its topic's name, is not here: others have it, or there is none."""
    known = context.services.controller.image.topics.get(topic)
    if known is not None and partition in known.partitions:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
