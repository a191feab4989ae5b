"""Groups and their coordinators. Functions run on the broker's loop."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from barnabas.broker.coordinator.topic import partition_for
from barnabas.controller.operations.internal_topics import GROUP_METADATA_TOPIC
from barnabas.testing.contents import image_of, services_of
from barnabas.testing.operations import when
from barnabas.testing.steering.partitions import move_leader
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barnabas.broker.groups.group import ClassicGroup
    from barnabas.broker.groups.shard import Shard
    from barnabas.broker.services import Services
    from barnabas.testing.broker_node import BrokerNode
    from barnabas.testing.operations import Done


class UnknownGroup(LookupError):
    """There is no such group, or no such member of it."""


def coordinator_of(nodes: Sequence[BrokerNode], group_id: str) -> int:
    """The node that coordinates a group, whether it exists or not. UnknownGroup while there are none at all."""
    topic = image_of(nodes).topics.get(GROUP_METADATA_TOPIC)
    if topic is None:
        raise UnknownGroup("there has been no group yet")
    return topic.partitions[_index(nodes, group_id)].leader


def move_coordinator(nodes: Sequence[BrokerNode], group_id: str, node_id: int | None, done: Done) -> None:
    """With all groups whose ids fall on the same partition of __consumer_offsets. `done` when it has loaded them."""
    coordinator_of(nodes, group_id)

    def moved(error: Exception | None) -> None:
        if error is not None:
            done(error)
        else:
            when(nodes, lambda: _find_shard(nodes, group_id) is not None, lambda: done(None), done)

    move_leader(nodes, GROUP_METADATA_TOPIC, _index(nodes, group_id), node_id, moved)


def load_coordinator(nodes: Sequence[BrokerNode], group_id: str, seconds: float | None) -> None:
    """Groups of its partition are answered COORDINATOR_LOAD_IN_PROGRESS for so long on the broker's clock, or until
    `coordinator_loaded`."""
    services = _services_of_coordinator(nodes, group_id)
    index = _index(nodes, group_id)
    _set_loading(services, index, is_loading=True)
    if seconds is not None:
        services.runtime.call_later(seconds, partial(_set_loading, services, index, is_loading=False))


def coordinator_loaded(nodes: Sequence[BrokerNode], group_id: str) -> None:
    """It serves its groups."""
    _set_loading(_services_of_coordinator(nodes, group_id), _index(nodes, group_id), is_loading=False)


def _set_loading(services: Services, index: int, *, is_loading: bool) -> None:
    led = services.groups.shards.led.get(index)
    if led is not None:
        led.is_loading = is_loading


def expire_member(nodes: Sequence[BrokerNode], group_id: str, member_id: str) -> None:
    """As when its session has timed out: it is out of the group, which rebalances. UnknownGroup."""
    shard, group = _find(nodes, group_id)
    if member_id not in group.members:
        raise UnknownGroup(f"group {group_id!r} has no member {member_id!r}; it has {sorted(group.members)}")
    identity = MemberIdentity(
        member_id=member_id, group_instance_id=group.members[member_id].group_instance_id
    )
    answer = shard.classic.leave(LeaveGroupRequest(group_id=group_id, members=[identity]))
    error = ErrorCode.of(answer.members[0].error_code)
    if error:
        raise UnknownGroup(f"member {member_id!r} of group {group_id!r}: {error.name}")


def force_rebalance(nodes: Sequence[BrokerNode], group_id: str) -> None:
    """Members have to join again. UnknownGroup where it has none."""
    shard, group = _find(nodes, group_id)
    if not group.members:
        raise UnknownGroup(f"group {group_id!r} has no members")
    shard.rebalancer.prepare_or_complete(group, "a rebalance was asked for")


def _index(nodes: Sequence[BrokerNode], group_id: str) -> int:
    return partition_for(group_id, len(image_of(nodes).topics[GROUP_METADATA_TOPIC].partitions))


def _find_shard(nodes: Sequence[BrokerNode], group_id: str) -> Shard | None:
    for services in services_of(nodes):
        shard = services.groups.shards.of(group_id)
        if not isinstance(shard, ErrorCode):
            return shard
    return None


def _find(nodes: Sequence[BrokerNode], group_id: str) -> tuple[Shard, ClassicGroup]:
    shard = _find_shard(nodes, group_id)
    group = None if shard is None else shard.groups.get(group_id)
    if shard is None or group is None:
        raise UnknownGroup(f"there is no group {group_id!r}")
    return shard, group


def _services_of_coordinator(nodes: Sequence[BrokerNode], group_id: str) -> Services:
    node_id = coordinator_of(nodes, group_id)
    for services in services_of(nodes):
        if services.node_id == node_id:
            return services
    raise UnknownGroup(f"node {node_id}, which coordinates {group_id!r}, does not run")
