"""The records of streams groups in __consumer_offsets, as Kafka 4.3 writes them: types 17 and 19 to 23, all of version 0.

Source: StreamsGroup*Key/Value.json of the group coordinator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from barnabas.broker.groups.modern.group import ModernGroupRecord
from barnabas.broker.groups.modern.record_codec import RecordCodec
from barnabas.broker.groups.modern.values import TargetEpoch
from barnabas.broker.groups.streams.values import (
    ActiveTasks,
    CurrentAssignment,
    GroupEpoch,
    HeldTasks,
    Key,
    Member,
    MemberState,
    TargetTasks,
    TaskSets,
    Value,
)
from barnabas.wire.message_type import MessageType
from barnabas.wire.messages import consumer_offsets as wire

_TYPES: Final[dict[int, tuple[MessageType[Any], MessageType[Any]]]] = {
    Key.GROUP: (wire.STREAMS_GROUP_METADATA_KEY, wire.STREAMS_GROUP_METADATA_VALUE),
    Key.MEMBER: (wire.STREAMS_GROUP_MEMBER_METADATA_KEY, wire.STREAMS_GROUP_MEMBER_METADATA_VALUE),
    Key.TARGET: (
        wire.STREAMS_GROUP_TARGET_ASSIGNMENT_METADATA_KEY,
        wire.STREAMS_GROUP_TARGET_ASSIGNMENT_METADATA_VALUE,
    ),
    Key.TARGET_OF_MEMBER: (
        wire.STREAMS_GROUP_TARGET_ASSIGNMENT_MEMBER_KEY,
        wire.STREAMS_GROUP_TARGET_ASSIGNMENT_MEMBER_VALUE,
    ),
    Key.CURRENT: (
        wire.STREAMS_GROUP_CURRENT_MEMBER_ASSIGNMENT_KEY,
        wire.STREAMS_GROUP_CURRENT_MEMBER_ASSIGNMENT_VALUE,
    ),
    Key.TOPOLOGY: (wire.STREAMS_GROUP_TOPOLOGY_KEY, wire.STREAMS_GROUP_TOPOLOGY_VALUE),
}
_CurrentTasks = wire.StreamsGroupCurrentMemberAssignmentValueTaskIds


class StreamsGroupRecord(ModernGroupRecord, frozen=True):
    """`name`: of the member."""


def _to_wire(value: Value) -> msgspec.Struct:
    if isinstance(value, GroupEpoch):
        configs = [wire.LastAssignmentConfig(name, text) for name, text in value.configs]
        return wire.StreamsGroupMetadataValue(
            value.epoch, value.metadata_hash, value.validated_topology_epoch, configs
        )
    if isinstance(value, Member):
        return _member_to_wire(value)
    if isinstance(value, TargetEpoch):
        return wire.StreamsGroupTargetAssignmentMetadataValue(value.epoch, value.timestamp_ms)
    if isinstance(value, TargetTasks):
        return wire.StreamsGroupTargetAssignmentMemberValue(
            *(
                [wire.TaskIds(name, sorted(indexes)) for name, indexes in sorted(tasks.items())]
                for tasks in (value.active, value.standby, value.warmup)
            )
        )
    if isinstance(value, CurrentAssignment):
        return wire.StreamsGroupCurrentMemberAssignmentValue(
            value.epoch,
            value.previous_epoch,
            value.state,
            *(_held_to_wire(tasks) for held in (value.assigned, value.revoking) for tasks in held.by_role()),
        )
    return value


def _member_to_wire(member: Member) -> wire.StreamsGroupMemberMetadataValue:
    return wire.StreamsGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None if member.user_endpoint is None else wire.Endpoint(*member.user_endpoint),
        client_tags=[wire.KeyValue(name, text) for name, text in member.client_tags],
    )


def _held_to_wire(tasks: Mapping[str, Mapping[int, int] | frozenset[int]]) -> list[_CurrentTasks]:
    """Active ones have epochs."""
    found = []
    for subtopology_id, indexes in sorted(tasks.items()):
        order = sorted(indexes)
        epochs = [indexes[index] for index in order] if isinstance(indexes, Mapping) else None
        found.append(_CurrentTasks(subtopology_id, order, epochs))
    return found


def _from_wire(value: Any) -> Value:
    match value:
        case wire.StreamsGroupMetadataValue():
            configs = tuple((each.key, each.value) for each in value.last_assignment_configs or ())
            return GroupEpoch(value.epoch, value.metadata_hash, value.validated_topology_epoch, configs)
        case wire.StreamsGroupMemberMetadataValue():
            return _member_from_wire(value)
        case wire.StreamsGroupTargetAssignmentMetadataValue():
            return TargetEpoch(value.assignment_epoch, value.assignment_timestamp)
        case wire.StreamsGroupTargetAssignmentMemberValue():
            roles = value.active_tasks, value.standby_tasks, value.warmup_tasks
            return TargetTasks(*(_sets_from_wire(tasks) for tasks in roles))
        case wire.StreamsGroupCurrentMemberAssignmentValue():
            return _current_from_wire(value)
    return cast("wire.StreamsGroupTopologyValue", value)


def _member_from_wire(value: wire.StreamsGroupMemberMetadataValue) -> Member:
    endpoint = value.user_endpoint
    return Member(
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        topology_epoch=value.topology_epoch,
        process_id=value.process_id,
        user_endpoint=None if endpoint is None else (endpoint.host, endpoint.port),
        client_tags=tuple((each.key, each.value) for each in value.client_tags),
    )


def _current_from_wire(value: wire.StreamsGroupCurrentMemberAssignmentValue) -> CurrentAssignment:
    epoch = value.member_epoch
    assigned = HeldTasks(
        _active_from_wire(value.active_tasks, epoch),
        _sets_from_wire(value.standby_tasks),
        _sets_from_wire(value.warmup_tasks),
    )
    revoking = HeldTasks(
        _active_from_wire(value.active_tasks_pending_revocation, epoch),
        _sets_from_wire(value.standby_tasks_pending_revocation),
        _sets_from_wire(value.warmup_tasks_pending_revocation),
    )
    is_known = value.state in MemberState.__members__.values()
    state = MemberState(value.state) if is_known else MemberState.UNKNOWN
    return CurrentAssignment(epoch, value.previous_member_epoch, state, assigned, revoking)


def _sets_from_wire(tasks: Sequence[wire.TaskIds] | Sequence[_CurrentTasks]) -> TaskSets:
    return {each.subtopology_id: frozenset(each.partitions) for each in tasks}


def _active_from_wire(tasks: Sequence[_CurrentTasks], member_epoch: int) -> ActiveTasks:
    """Records before 4.3 have no assignment epochs; Kafka takes the member's."""
    active: dict[str, dict[int, int]] = {}
    for each in tasks:
        epochs = each.assignment_epochs
        if epochs is None or len(epochs) != len(each.partitions):
            epochs = [max(member_epoch, 0)] * len(each.partitions)
        active[each.subtopology_id] = dict(zip(each.partitions, epochs, strict=True))
    return active


CODEC: Final = RecordCodec(StreamsGroupRecord, _TYPES, _to_wire, _from_wire)
