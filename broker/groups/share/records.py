"""The records of share groups in __consumer_offsets, as Kafka 4.3 writes them: types 10 to 15, all of version 0.

Source: ShareGroup*Key/Value.json of the group coordinator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from barnabas.broker.groups.modern.group import ModernGroupRecord
from barnabas.broker.groups.modern.record_codec import RecordCodec
from barnabas.broker.groups.modern.values import GroupEpoch, Partitions, TargetEpoch
from barnabas.broker.groups.share.values import (
    CurrentAssignment,
    Key,
    Member,
    StateTopic,
    StateTopics,
    Value,
)
from barnabas.wire.message_type import MessageType
from barnabas.wire.messages import consumer_offsets as wire

_TYPES: Final[dict[int, tuple[MessageType[Any], MessageType[Any]]]] = {
    Key.MEMBER: (wire.SHARE_GROUP_MEMBER_METADATA_KEY, wire.SHARE_GROUP_MEMBER_METADATA_VALUE),
    Key.GROUP: (wire.SHARE_GROUP_METADATA_KEY, wire.SHARE_GROUP_METADATA_VALUE),
    Key.TARGET: (
        wire.SHARE_GROUP_TARGET_ASSIGNMENT_METADATA_KEY,
        wire.SHARE_GROUP_TARGET_ASSIGNMENT_METADATA_VALUE,
    ),
    Key.TARGET_OF_MEMBER: (
        wire.SHARE_GROUP_TARGET_ASSIGNMENT_MEMBER_KEY,
        wire.SHARE_GROUP_TARGET_ASSIGNMENT_MEMBER_VALUE,
    ),
    Key.CURRENT: (
        wire.SHARE_GROUP_CURRENT_MEMBER_ASSIGNMENT_KEY,
        wire.SHARE_GROUP_CURRENT_MEMBER_ASSIGNMENT_VALUE,
    ),
    Key.STATE_TOPICS: (
        wire.SHARE_GROUP_STATE_PARTITION_METADATA_KEY,
        wire.SHARE_GROUP_STATE_PARTITION_METADATA_VALUE,
    ),
}
_TargetPartition = wire.ShareGroupTargetAssignmentMemberValueTopicPartition
_CurrentPartitions = wire.ShareGroupCurrentMemberAssignmentValueTopicPartitions


class ShareGroupRecord(ModernGroupRecord, frozen=True):
    """`name`: of the member."""


def _to_wire(value: Value) -> msgspec.Struct:
    if isinstance(value, Member):
        return wire.ShareGroupMemberMetadataValue(
            value.rack_id, value.client_id, value.client_host, sorted(value.topic_names)
        )
    if isinstance(value, GroupEpoch):
        return wire.ShareGroupMetadataValue(value.epoch, value.metadata_hash)
    if isinstance(value, TargetEpoch):
        return wire.ShareGroupTargetAssignmentMetadataValue(value.epoch, value.timestamp_ms)
    if isinstance(value, CurrentAssignment):
        assigned = [
            _CurrentPartitions(topic_id, sorted(indexes)) for topic_id, indexes in value.assigned.items()
        ]
        return wire.ShareGroupCurrentMemberAssignmentValue(
            value.epoch, value.previous_epoch, value.state, assigned
        )
    if isinstance(value, StateTopics):
        return wire.ShareGroupStatePartitionMetadataValue(
            _state_topics_to_wire(value.initializing),
            _state_topics_to_wire(value.initialized),
            [wire.TopicInfo(topic_id, name) for topic_id, name in value.deleting.items()],
        )
    return wire.ShareGroupTargetAssignmentMemberValue(
        [_TargetPartition(topic_id, sorted(indexes)) for topic_id, indexes in value.items()]
    )


def _state_topics_to_wire(topics: Mapping[bytes, StateTopic]) -> list[wire.TopicPartitionsInfo]:
    return [
        wire.TopicPartitionsInfo(topic_id, each.name, sorted(each.partitions))
        for topic_id, each in topics.items()
    ]


def _from_wire(value: Any) -> Value:
    match value:
        case wire.ShareGroupMemberMetadataValue():
            names = frozenset(value.subscribed_topic_names)
            return Member(value.rack_id, value.client_id, value.client_host, names)
        case wire.ShareGroupMetadataValue():
            return GroupEpoch(value.epoch, value.metadata_hash)
        case wire.ShareGroupTargetAssignmentMetadataValue():
            return TargetEpoch(value.assignment_epoch, value.assignment_timestamp)
        case wire.ShareGroupCurrentMemberAssignmentValue():
            assigned = _partitions_from_wire(value.assigned_partitions)
            return CurrentAssignment(value.member_epoch, value.previous_member_epoch, value.state, assigned)
        case wire.ShareGroupStatePartitionMetadataValue():
            return StateTopics(
                _state_topics_from_wire(value.initializing_topics),
                _state_topics_from_wire(value.initialized_topics),
                {each.topic_id: each.topic_name for each in value.deleting_topics},
            )
    return _partitions_from_wire(value.topic_partitions)


def _partitions_from_wire(topics: Sequence[_TargetPartition | _CurrentPartitions]) -> Partitions:
    return {each.topic_id: frozenset(each.partitions) for each in topics}


def _state_topics_from_wire(topics: Sequence[wire.TopicPartitionsInfo]) -> dict[bytes, StateTopic]:
    return {each.topic_id: StateTopic(each.topic_name, frozenset(each.partitions)) for each in topics}


CODEC: Final = RecordCodec(ShareGroupRecord, _TYPES, _to_wire, _from_wire)
