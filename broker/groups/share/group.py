"""A share group, and what follows from its records: members, subscriptions, partitions with a delivery state."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection
from typing import Any, Final

from barnabas.broker.groups.member import MEMBER_OVERHEAD_BYTES, NAME_OVERHEAD_BYTES
from barnabas.broker.groups.modern.group import ModernGroup
from barnabas.broker.groups.modern.values import GroupEpoch, Keys, Partitions, TargetEpoch
from barnabas.broker.groups.share.records import ShareGroupRecord
from barnabas.broker.groups.share.values import (
    NO_STATE_TOPICS,
    CurrentAssignment,
    Key,
    Member,
    StateTopics,
    Value,
)

SHARE_TYPE: Final = "share"  # of group, and of protocol
# Records that name partitions, and what they take.
_COUNTED: Final = (Key.TARGET_OF_MEMBER, Key.CURRENT, Key.STATE_TOPICS)
TOPIC_BYTES: Final = 250
PARTITION_BYTES: Final = 30


class ShareGroupState(enum.Enum):
    """The value is what clients see."""

    EMPTY = "Empty"
    STABLE = "Stable"


class ShareGroup(ModernGroup[Member, Partitions, CurrentAssignment]):
    """See the module."""

    group_type = SHARE_TYPE
    protocol_type = SHARE_TYPE
    record_class = ShareGroupRecord
    keys = Keys(Key.GROUP, Key.MEMBER, Key.TARGET, Key.TARGET_OF_MEMBER, Key.CURRENT)
    removal_order = (
        Key.CURRENT, Key.TARGET_OF_MEMBER, Key.TARGET, Key.MEMBER, Key.STATE_TOPICS, Key.GROUP,
    )  # fmt: skip
    no_epoch = GroupEpoch(1, 0)
    no_target_epoch = TargetEpoch(1, 0)
    no_target: Partitions = {}
    no_assignment = CurrentAssignment()
    commits_offsets = False  # its positions are at the share coordinator

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.subscribers: Counter[str] = Counter()  # topic -> members that name it
        # Of topics whose partitions were all initialized, how many those were, as this coordinator has seen them.
        self.partition_counts: dict[bytes, int] = {}
        self.has_unassigned: bool | None = None  # whether initialized partitions are not; None: not known
        self.initializing_since_ms: int | None = None  # when the last initialization began; None: not here
        self._initialization_epoch = 0

    # -- what the records say

    @property
    def state_topics(self) -> StateTopics:
        value = self.values.get((Key.STATE_TOPICS, ""), NO_STATE_TOPICS)
        assert isinstance(value, StateTopics)
        return value

    @property
    def has_state_topics(self) -> bool:
        """Whether any of its partitions ever had a delivery state."""
        return (Key.STATE_TOPICS, "") in self.values

    def has_state_of(self, topic_ids: Collection[bytes]) -> bool:
        states = self.state_topics
        return any(
            topic_id in topics
            for topics in (states.initializing, states.initialized, states.deleting)
            for topic_id in topic_ids
        )

    def assigned_partitions(self) -> Partitions:
        """The targets of all members together, by topic id."""
        assigned: dict[bytes, set[int]] = {}
        for member_id in self.members:
            for topic_id, indexes in self.target(member_id).items():
                assigned.setdefault(topic_id, set()).update(indexes)
        return {topic_id: frozenset(indexes) for topic_id, indexes in assigned.items()}

    @property
    def state(self) -> ShareGroupState:
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    @property
    def state_name(self) -> str:
        return self.state.value

    def subscribed_topics(self) -> set[str]:
        return set(self.subscribers)

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.subscribers

    # -- initializations

    def initialization_began(self, now_ms: int) -> None:
        """One with the present epoch of the group."""
        self.initializing_since_ms = now_ms
        self._initialization_epoch = self.epoch

    @property
    def may_be_initializing(self) -> bool:
        """Whether an initialization with the present epoch may still have an effect, by this coordinator or an earlier one."""
        if self.initializing_since_ms is None:
            return bool(self.state_topics.initializing)
        return self._initialization_epoch >= self.epoch

    # -- changes

    def _changing(self, key: int, name: str, value: Value | None) -> None:
        self.has_unassigned = None
        if key in _COUNTED:
            self.member_bytes += _size(value) - _size(self.values.get((key, name)))
        if key != Key.MEMBER:
            return
        before = self.members.pop(name, None)
        if before is not None:
            self._count(before, -1)
        if value is not None:
            assert isinstance(value, Member)
            self.members[name] = value
            self._count(value, 1)

    def _count(self, member: Member, by: int) -> None:
        texts = member.client_id, member.client_host, member.rack_id or ""
        size = MEMBER_OVERHEAD_BYTES + sum(map(len, texts))
        size += sum(len(name) + NAME_OVERHEAD_BYTES for name in member.topic_names)
        self.member_bytes += by * size
        self.described_bytes += by * size
        for topic in member.topic_names:
            count = self.subscribers[topic] + by
            if count:
                self.subscribers[topic] = count
            else:
                del self.subscribers[topic]


def _size(value: Any) -> int:
    """About how many bytes the value of such a record takes."""
    topics: Collection[Collection[int]] = ()
    if isinstance(value, CurrentAssignment):
        topics = value.assigned.values()
    elif isinstance(value, StateTopics):
        states = (*value.initializing.values(), *value.initialized.values())
        topics = [each.partitions for each in states]
    elif value is not None:
        topics = value.values()
    return len(topics) * TOPIC_BYTES + sum(map(len, topics)) * PARTITION_BYTES
