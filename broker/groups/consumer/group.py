"""A consumer group, and what follows from its records: members, owners of partitions, subscriptions."""

from __future__ import annotations

import enum
from collections import Counter
from typing import Any, Final

import msgspec

from barnabas.broker.groups.consumer.records import ConsumerGroupRecord
from barnabas.broker.groups.consumer.values import (
    CurrentAssignment,
    Key,
    Member,
    ResolvedExpression,
    Value,
)
from barnabas.broker.groups.member import MEMBER_OVERHEAD_BYTES, NAME_OVERHEAD_BYTES, PROTOCOL_OVERHEAD_BYTES
from barnabas.broker.groups.modern.group import ModernGroup
from barnabas.broker.groups.modern.values import GroupEpoch, Keys, Partitions, TargetEpoch

CONSUMER_TYPE: Final = "consumer"  # of group, and of protocol
RESOLVED_NAME_BYTES: Final = 80  # of a topic that an expression matches
TOPIC_BYTES: Final = 250  # of a topic in a member's target and in what it has
PARTITION_BYTES: Final = 150  # of a partition in them, and in `owners`


class ConsumerGroupState(enum.Enum):
    """The value is what clients see."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"  # the target assignment is older than the group
    RECONCILING = "Reconciling"  # not every member has its target
    STABLE = "Stable"


class ConsumerGroup(ModernGroup[Member, Partitions, CurrentAssignment]):
    """See the module."""

    group_type = CONSUMER_TYPE
    protocol_type = CONSUMER_TYPE
    record_class = ConsumerGroupRecord
    keys = Keys(Key.GROUP, Key.MEMBER, Key.TARGET, Key.TARGET_OF_MEMBER, Key.CURRENT)
    removal_order = (
        Key.CURRENT, Key.TARGET_OF_MEMBER, Key.TARGET, Key.MEMBER, Key.REGULAR_EXPRESSION, Key.GROUP,
    )  # fmt: skip
    # As in Kafka: a member of a group without topics has an epoch that is no join.
    no_epoch = GroupEpoch(1, 0)
    no_target_epoch = TargetEpoch(0, 0)
    no_target: Partitions = {}
    no_assignment = CurrentAssignment()

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.static_members: dict[str, str] = {}  # instance id -> member id
        self.owners: dict[
            tuple[bytes, int], str
        ] = {}  # partition -> the member that has it, also while it gives it up
        self.subscriptions: dict[
            frozenset[str], tuple[frozenset[str], int]
        ] = {}  # names of topics -> the one object for them, and how many members have it
        self.subscribers: Counter[str] = Counter()  # topic -> subscriptions that name it
        self.expressions: Counter[str] = Counter()  # regular expression -> members
        self.resolved: dict[str, ResolvedExpression] = {}
        self.assignors: Counter[str] = Counter()  # server assignor -> members that ask for it
        self.classic_count = 0  # members of the classic protocol
        self.classic_protocols: Counter[str] = Counter()  # their assignors
        self.is_resolving = False  # its regular expressions
        self.resolving_failed_ms = 0  # when that failed last
        self._held_bytes: dict[str, int] = {}  # of partitions, by member id

    # -- what the records say

    def assignment_epoch(self, member_id: str, partition: tuple[str, bytes, int]) -> int | None:
        _, topic_id, index = partition
        return self.current(member_id).assignment_epoch(topic_id, index)

    def is_classic_member(self, member_id: str) -> bool:
        return self.members[member_id].classic is not None

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch.epoch:
            return ConsumerGroupState.ASSIGNING
        return ConsumerGroupState.STABLE if self.is_reconciled() else ConsumerGroupState.RECONCILING

    @property
    def state_name(self) -> str:
        return self.state.value

    def subscribed_topics(self) -> set[str]:
        """Names of all topics that any member reads, existing or not."""
        topics = set(self.subscribers)
        for resolved in self.resolved.values():
            topics |= resolved.topics
        return topics

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.subscribers or any(topic in each.topics for each in self.resolved.values())

    def topics_of(self, member: Member) -> frozenset[str]:
        """Names of the topics that the member reads."""
        resolved = self.resolved.get(member.regular_expression or "")
        return member.topic_names if resolved is None else member.topic_names | resolved.topics

    # -- changes

    def apply(self, key: int, name: str, value: Any) -> None:
        """Set a value, or (None) remove it. Members that name the same topics share the set of names."""
        if key == Key.MEMBER and value is not None:
            names, _ = self.subscriptions.get(value.topic_names, (value.topic_names, 0))
            if names is not value.topic_names:
                value = msgspec.structs.replace(value, topic_names=names)
        super().apply(key, name, value)

    def _changing(self, key: int, name: str, value: Value | None) -> None:
        if key == Key.MEMBER:
            self._apply_member(name, value)
        elif key == Key.TARGET_OF_MEMBER:
            target: Any = value  # records of this key have it
            self._count_held(name, target or self.no_target, self.current(name))
        elif key == Key.CURRENT:
            self._apply_current(name, value)
        elif key == Key.REGULAR_EXPRESSION:
            before = self.resolved.pop(name, None)
            if before is not None:
                self.member_bytes -= len(before.topics) * RESOLVED_NAME_BYTES
            if value is not None:
                assert isinstance(value, ResolvedExpression)
                self.resolved[name] = value
                self.member_bytes += len(value.topics) * RESOLVED_NAME_BYTES

    def _apply_member(self, member_id: str, value: Value | None) -> None:
        before = self.members.pop(member_id, None)
        if before is not None:
            self._count(before, -1)
            if before.instance_id is not None and self.static_members.get(before.instance_id) == member_id:
                del self.static_members[before.instance_id]
        if value is not None:
            assert isinstance(value, Member)
            self.members[member_id] = value
            self._count(value, 1)
            if value.instance_id is not None:
                self.static_members[value.instance_id] = member_id

    def _count(self, member: Member, by: int) -> None:
        size = _size(member)
        names, count = self.subscriptions.get(member.topic_names, (member.topic_names, 0))
        if count + by:
            self.subscriptions[names] = names, count + by
        else:
            del self.subscriptions[names]
        if not count or not count + by:
            size += sum(len(name) + NAME_OVERHEAD_BYTES for name in names)
            for topic in names:
                _add(self.subscribers, topic, by)
        self.member_bytes += by * size
        self.described_bytes += by * size
        if member.regular_expression:
            _add(self.expressions, member.regular_expression, by)
        if member.server_assignor is not None:
            _add(self.assignors, member.server_assignor, by)
        if member.classic is not None:
            self.classic_count += by
            for name in {name for name, _ in member.classic.protocols}:
                _add(self.classic_protocols, name, by)

    def _apply_current(self, member_id: str, value: Value | None) -> None:
        owners = self.owners
        for partition in self.current(member_id).held():
            if owners.get(partition) == member_id:
                del owners[partition]
        assert value is None or isinstance(value, CurrentAssignment)
        if value is not None:
            for partition in value.held():
                owners[partition] = member_id
        self._count_held(member_id, self.target(member_id), value or self.no_assignment)

    def _count_held(self, member_id: str, target: Partitions, current: CurrentAssignment) -> None:
        """A member's partitions: those that it has, or is to have, whichever are more. So its step to its target takes nothing
        that was not counted before."""
        topics = max(len(target), len(current.assigned) + len(current.revoking))
        partitions = max(
            sum(map(len, target.values())),
            sum(map(len, current.assigned.values())) + sum(map(len, current.revoking.values())),
        )
        size = topics * TOPIC_BYTES + partitions * PARTITION_BYTES
        self.member_bytes += size - self._held_bytes.pop(member_id, 0)
        if size:
            self._held_bytes[member_id] = size


def _size(member: Member) -> int:
    """About how many bytes it takes, without its names of topics and its partitions."""
    texts = (member.client_id, member.instance_id, member.rack_id, member.regular_expression)
    size = MEMBER_OVERHEAD_BYTES + sum(len(each or "") for each in texts)
    if member.classic is not None:
        protocols = member.classic.protocols
        size += sum(len(name) + len(metadata) + PROTOCOL_OVERHEAD_BYTES for name, metadata in protocols)
    return size


def _add(counter: Counter[str], name: str, by: int) -> None:
    count = counter[name] + by
    if count:
        counter[name] = count
    else:
        del counter[name]
