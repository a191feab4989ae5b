"""DescribeGroups (15), versions 0-6: state, members and assignments of classic groups.

v3 authorized operations; v4 instance ids; from v6 a missing group is GROUP_ID_NOT_FOUND, before it is Dead
without an error (KIP-1043), and so is a group of another type.
"""

from __future__ import annotations

from collections.abc import Generator

from barnabas.broker.groups.group import ClassicGroup
from barnabas.broker.groups.member import Member
from barnabas.broker.groups.state import GroupState
from barnabas.broker.requests.authorization import allows_group, authorized_operations
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.repetitions import MESSAGE, Repetitions
from barnabas.broker.requests.sliced_handler import collect, sliced
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation, ResourceType
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)


@api(15, 0, 6)
@sliced
def describe_groups(
    context: HandlerContext, request: DescribeGroupsRequest
) -> Generator[None, None, DescribeGroupsResponse]:
    repetitions = Repetitions()

    def described(group_id: str) -> DescribedGroup:
        if not allows_group(context, Operation.DESCRIBE, group_id):
            group = DescribedGroup(group_id=group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        elif repetitions.are_too_many(group_id):
            group = DescribedGroup(
                group_id=group_id, error_code=ErrorCode.INVALID_REQUEST, error_message=MESSAGE
            )
        else:
            group = _describe(context, group_id)
        if request.include_authorized_operations and not group.error_code:
            group.authorized_operations = authorized_operations(context, ResourceType.GROUP, group_id)
        return group

    return DescribeGroupsResponse(groups=(yield from collect(described, request.groups)))


def _describe(context: HandlerContext, group_id: str) -> DescribedGroup:
    shard = context.services.groups.shards.of(group_id)
    if isinstance(shard, ErrorCode):
        return DescribedGroup(group_id=group_id, error_code=shard)
    group = shard.groups.get(group_id)
    if isinstance(group, ClassicGroup):
        return describe(group)
    dead = DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
    if context.api_version >= 6:
        dead.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        is_missing = group is None
        dead.error_message = f"Group {group_id} {'not found' if is_missing else 'is not a classic group'}."
    return dead


def describe(group: ClassicGroup) -> DescribedGroup:
    """The group; subscriptions of its members only when Stable, when they belong to a chosen protocol."""
    protocol = group.protocol_name if group.state is GroupState.STABLE else None
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol or "",
        members=[_member(member, protocol) for member in group.members.values()],
    )


def _member(member: Member, protocol: str | None) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=b"" if protocol is None else member.subscription(protocol),
        member_assignment=member.assignment,
    )
