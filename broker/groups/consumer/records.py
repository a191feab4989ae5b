"""The records of consumer groups in __consumer_offsets, as Kafka 4.3 writes them: types 3, 5, 6, 7, 8 and 16, all of version 0.

Type 4 (topics of a group before 4.1) is passed over. Source: ConsumerGroup*Key/Value.json of the group coordinator.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from barnabas.broker.groups.consumer.values import (
    AssignedPartitions,
    ClassicMember,
    CurrentAssignment,
    Key,
    Member,
    MemberState,
    ResolvedExpression,
    Value,
    share_epochs,
    share_sets,
)
from barnabas.broker.groups.modern.group import ModernGroupRecord
from barnabas.broker.groups.modern.record_codec import RecordCodec
from barnabas.broker.groups.modern.values import GroupEpoch, Partitions, TargetEpoch
from barnabas.wire.message_type import MessageType
from barnabas.wire.messages import consumer_offsets as wire

_TYPES: Final[dict[int, tuple[MessageType[Any], MessageType[Any]]]] = {
    Key.GROUP: (wire.CONSUMER_GROUP_METADATA_KEY, wire.CONSUMER_GROUP_METADATA_VALUE),
    Key.MEMBER: (wire.CONSUMER_GROUP_MEMBER_METADATA_KEY, wire.CONSUMER_GROUP_MEMBER_METADATA_VALUE),
    Key.TARGET: (
        wire.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA_KEY,
        wire.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA_VALUE,
    ),
    Key.TARGET_OF_MEMBER: (
        wire.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER_KEY,
        wire.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER_VALUE,
    ),
    Key.CURRENT: (
        wire.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT_KEY,
        wire.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT_VALUE,
    ),
    Key.REGULAR_EXPRESSION: (
        wire.CONSUMER_GROUP_REGULAR_EXPRESSION_KEY,
        wire.CONSUMER_GROUP_REGULAR_EXPRESSION_VALUE,
    ),
}


class ConsumerGroupRecord(ModernGroupRecord, frozen=True):
    """`name`: of the member or the regular expression."""


def _to_wire(value: Value) -> msgspec.Struct:
    if isinstance(value, GroupEpoch):
        return wire.ConsumerGroupMetadataValue(value.epoch, value.metadata_hash)
    if isinstance(value, Member):
        return _member_to_wire(value)
    if isinstance(value, TargetEpoch):
        return wire.ConsumerGroupTargetAssignmentMetadataValue(value.epoch, value.timestamp_ms)
    if isinstance(value, CurrentAssignment):
        return wire.ConsumerGroupCurrentMemberAssignmentValue(
            value.epoch,
            value.previous_epoch,
            value.state,
            _assigned_to_wire(value.assigned),
            _assigned_to_wire(value.revoking),
        )
    if isinstance(value, ResolvedExpression):
        topics = sorted(value.topics)
        return wire.ConsumerGroupRegularExpressionValue(topics, value.version, value.timestamp_ms)
    return wire.ConsumerGroupTargetAssignmentMemberValue(
        [wire.TopicPartition(topic_id, sorted(indexes)) for topic_id, indexes in value.items()]
    )


def _member_to_wire(member: Member) -> wire.ConsumerGroupMemberMetadataValue:
    classic = None
    if member.classic is not None:
        protocols = [wire.ClassicProtocol(name, metadata) for name, metadata in member.classic.protocols]
        classic = wire.ClassicMemberMetadata(member.classic.session_timeout_ms, protocols)
    return wire.ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topic_names),
        subscribed_topic_regex=member.regular_expression,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.server_assignor,
        classic_member_metadata=classic,
    )


def _assigned_to_wire(assigned: AssignedPartitions) -> list[wire.TopicPartitions]:
    return [
        wire.TopicPartitions(topic_id, list(epochs), list(epochs.values()))
        for topic_id, epochs in assigned.items()
    ]


def _from_wire(value: Any) -> Value:
    match value:
        case wire.ConsumerGroupMetadataValue():
            return GroupEpoch(value.epoch, value.metadata_hash)
        case wire.ConsumerGroupMemberMetadataValue():
            return _member_from_wire(value)
        case wire.ConsumerGroupTargetAssignmentMetadataValue():
            return TargetEpoch(value.assignment_epoch, value.assignment_timestamp)
        case wire.ConsumerGroupCurrentMemberAssignmentValue():
            return CurrentAssignment(
                value.member_epoch,
                value.previous_member_epoch,
                _state_from_wire(value.state),
                _assigned_from_wire(value.assigned_partitions, value.member_epoch),
                _assigned_from_wire(value.partitions_pending_revocation, value.member_epoch),
            )
        case wire.ConsumerGroupRegularExpressionValue():
            return ResolvedExpression(frozenset(value.topics), value.version, value.timestamp)
    return _target_from_wire(value)


def _target_from_wire(value: wire.ConsumerGroupTargetAssignmentMemberValue) -> Partitions:
    return share_sets({each.topic_id: frozenset(each.partitions) for each in value.topic_partitions}, {})


def _member_from_wire(value: wire.ConsumerGroupMemberMetadataValue) -> Member:
    classic = None
    if value.classic_member_metadata is not None:
        metadata = value.classic_member_metadata
        classic = ClassicMember(
            metadata.session_timeout_ms,
            tuple((each.name, bytes(each.metadata)) for each in metadata.supported_protocols),
        )
    return Member(
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topic_names=frozenset(value.subscribed_topic_names),
        regular_expression=value.subscribed_topic_regex,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        server_assignor=value.server_assignor,
        classic=classic,
    )


def _state_from_wire(state: int) -> MemberState:
    return MemberState(state) if state in MemberState.__members__.values() else MemberState.UNKNOWN


def _assigned_from_wire(topics: list[wire.TopicPartitions], member_epoch: int) -> AssignedPartitions:
    """Records before 4.3 have no assignment epochs; Kafka takes the member's."""
    assigned: dict[bytes, dict[int, int]] = {}
    for each in topics:
        epochs = each.assignment_epochs
        if epochs is None or len(epochs) != len(each.partitions):
            epochs = [max(member_epoch, 0)] * len(each.partitions)
        assigned[each.topic_id] = dict(zip(each.partitions, epochs, strict=True))
    return share_epochs(assigned)


CODEC: Final = RecordCodec(ConsumerGroupRecord, _TYPES, _to_wire, _from_wire)
