"""Groups, and the coordinators of groups and of transactional ids. Functions run on the broker's loop."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from barnabas.broker.coordinator.topic import partition_for
from barnabas.broker.groups.consumer.group import ConsumerGroup
from barnabas.broker.groups.group import ClassicGroup
from barnabas.broker.groups.share.group import ShareGroup
from barnabas.broker.groups.streams.group import StreamsGroup
from barnabas.controller.operations.internal_topics import GROUP_METADATA_TOPIC
from barnabas.testing.contents import image_of, services_of
from barnabas.testing.operations import when
from barnabas.testing.steering.partitions import move_leader
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from barnabas.broker.coordinator.shards import LedPartition, Shards
    from barnabas.broker.groups.group_store import Group
    from barnabas.broker.groups.shard import Shard
    from barnabas.broker.services import Services
    from barnabas.testing.broker_node import BrokerNode
    from barnabas.testing.operations import Done

S = TypeVar("S")


class UnknownGroup(LookupError):
    """There is no such group, or no such member of it."""


class _HeldPartition:
    """In place of a LedPartition, whose keys are answered as during a load."""

    is_loading = True

    def __init__(self, original: LedPartition[Any]) -> None:
        self.original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)

    @property
    def leader_epoch(self) -> int:
        return self.original.leader_epoch

    @leader_epoch.setter
    def leader_epoch(self, leader_epoch: int) -> None:
        self.original.leader_epoch = leader_epoch


def _original(found: LedPartition[Any] | _HeldPartition) -> LedPartition[Any]:
    return found.original if isinstance(found, _HeldPartition) else found


class Coordinators(Generic[S]):
    """Of one kind. A key is the id of a group or a transactional id; `unknown` is raised while there has been no key at all."""

    def __init__(
        self, topic: str, shards: Callable[[Services], Shards[Any]], unknown: type[LookupError], kind: str
    ) -> None:
        self._topic = topic
        self._shards = shards
        self._unknown = unknown
        self._kind = kind

    def node_of(self, nodes: Sequence[BrokerNode], key: str) -> int:
        """The node that coordinates a key, whether it is in use or not."""
        topic = image_of(nodes).topics.get(self._topic)
        if topic is None:
            raise self._unknown(f"there has been no {self._kind} yet")
        return topic.partitions[self._index(nodes, key)].leader

    def move(self, nodes: Sequence[BrokerNode], key: str, node_id: int | None, done: Done) -> None:
        """With all keys of the same partition. `done` when the other node has loaded them."""
        self.node_of(nodes, key)

        def moved(error: Exception | None) -> None:
            if error is not None:
                done(error)
            else:
                when(nodes, lambda: self.shard_of(nodes, key) is not None, lambda: done(None), done)

        move_leader(nodes, self._topic, self._index(nodes, key), node_id, moved)

    def load(self, nodes: Sequence[BrokerNode], key: str, seconds: float | None) -> None:
        """Keys of its partition are answered COORDINATOR_LOAD_IN_PROGRESS for so long on the broker's clock, or until `loaded`,
        or until another node coordinates them. A load that is going on is not ended by any of this."""
        services = self.services_of(nodes, key)
        index = self._index(nodes, key)
        led: dict[int, Any] = self._shards(services).led
        found = led.get(index)
        if found is None:
            return
        held = led[index] = _HeldPartition(_original(found))

        def end() -> None:
            if led.get(index) is held:
                led[index] = held.original

        if seconds is not None:
            services.runtime.call_later(seconds, end)

    def loaded(self, nodes: Sequence[BrokerNode], key: str) -> None:
        """End what `load` began: it serves its keys, unless it really loads them."""
        led, index = self._shards(self.services_of(nodes, key)).led, self._index(nodes, key)
        found = led.get(index)
        if found is not None:
            led[index] = _original(found)

    def shard_of(self, nodes: Sequence[BrokerNode], key: str) -> S | None:
        """The loaded shard that holds the key."""
        for services in services_of(nodes):
            shard: S | ErrorCode = self._shards(services).of(key)
            if not isinstance(shard, ErrorCode):
                return shard
        return None

    def services_of(self, nodes: Sequence[BrokerNode], key: str) -> Services:
        """Those of the node that coordinates the key."""
        node_id = self.node_of(nodes, key)
        for services in services_of(nodes):
            if services.node_id == node_id:
                return services
        raise self._unknown(f"node {node_id}, which coordinates {key!r}, does not run")

    def _index(self, nodes: Sequence[BrokerNode], key: str) -> int:
        return partition_for(key, len(image_of(nodes).topics[self._topic].partitions))


COORDINATORS: Final[Coordinators[Shard]] = Coordinators(
    GROUP_METADATA_TOPIC, lambda services: services.groups.shards, UnknownGroup, "group"
)


def expire_member(nodes: Sequence[BrokerNode], group_id: str, member_id: str) -> None:
    """As when its session has timed out: it is out of the group, which rebalances. UnknownGroup."""
    shard, group = _find(nodes, group_id)
    if member_id not in group.members:
        raise UnknownGroup(f"group {group_id!r} has no member {member_id!r}; it has {sorted(group.members)}")
    if isinstance(group, ConsumerGroup):
        shard.consumer_groups.expire(group, member_id)
        return
    if isinstance(group, StreamsGroup):
        shard.streams_groups.expire(group, member_id)
        return
    if isinstance(group, ShareGroup):
        shard.share_groups.expire(group, member_id)
        return
    assert isinstance(group, ClassicGroup)
    identity = MemberIdentity(
        member_id=member_id, group_instance_id=group.members[member_id].group_instance_id
    )
    answer = shard.classic.leave(LeaveGroupRequest(group_id=group_id, members=[identity]))
    error = ErrorCode.of(answer.members[0].error_code)
    if error:
        raise UnknownGroup(f"member {member_id!r} of group {group_id!r}: {error.name}")


def force_rebalance(nodes: Sequence[BrokerNode], group_id: str) -> None:
    """Members of a classic group have to join again; a group of another type gets a new epoch, and a new assignment with the next
    heartbeat. UnknownGroup where it has no members."""
    shard, group = _find(nodes, group_id)
    if not group.members:
        raise UnknownGroup(f"group {group_id!r} has no members")
    if isinstance(group, ConsumerGroup):
        shard.consumer_groups.raise_epoch(group)
        return
    if isinstance(group, StreamsGroup):
        shard.streams_groups.raise_epoch(group)
        return
    if isinstance(group, ShareGroup):
        shard.share_groups.raise_epoch(group)
        return
    assert isinstance(group, ClassicGroup)
    shard.rebalancer.prepare_or_complete(group, "a rebalance was asked for")


def expire_locks(nodes: Sequence[BrokerNode], group_id: str, topic: str | None, index: int | None) -> None:
    """Records that members of a share group have acquired are available again, or archived, as when their locks have expired: all, or
    those of a topic or a partition. UnknownGroup."""
    _, group = _find(nodes, group_id)
    if not isinstance(group, ShareGroup):
        raise UnknownGroup(f"group {group_id!r} is a {group.group_type} group, and has no locks")
    for services in services_of(nodes):
        for led in services.share_partitions.of_group(group_id):
            partition = led.partition
            if topic in (None, partition.topic) and index in (None, partition.partition):
                led.unlock(math.inf)


def _find(nodes: Sequence[BrokerNode], group_id: str) -> tuple[Shard, Group]:
    shard = COORDINATORS.shard_of(nodes, group_id)
    group = None if shard is None else shard.groups.get(group_id)
    if shard is None or group is None:
        raise UnknownGroup(f"there is no group {group_id!r}")
    return shard, group
