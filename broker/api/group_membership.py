"""The members of a classic group: JoinGroup (11), versions 0-9, SyncGroup (14), versions 0-5, Heartbeat (12), versions 0-4, and
LeaveGroup (13), versions 0-5.

JoinGroup enters a group, or stays in it for the next generation, and waits until the rebalance completes. v0 has no
rebalance timeout (the session timeout serves); from v4 a new dynamic member first gets its id (MEMBER_ID_REQUIRED,
KIP-394); v5 static members (KIP-345); v7 protocol type and nullable protocol name (KIP-559); v8 reason (KIP-800); v9
skip_assignment (KIP-814).

SyncGroup takes the leader's assignment and gives every member its part, when the assignment is in the log. v3 static
members; v5 checks the protocol that the client believes in.

Heartbeat: a member is alive; the response says when to join again. v3 static members.

LeaveGroup: members leave, so that the rest need not wait for their session timeout. v0-2 name one member and get its error
at the top; v3 several, also by instance id (KIP-345); v5 reason.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from barnabas.broker.coordinator.shard_log import coordinator_error
from barnabas.broker.groups.classic import join_error
from barnabas.broker.groups.member import Client
from barnabas.broker.groups.shard import Shard
from barnabas.broker.requests.authorization import allows_group
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import encode_in_thread, sliced
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from barnabas.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

MEMBERS_PER_SLICE: Final = 100


@api(11, 0, 9)
def join_group(context: HandlerContext, request: JoinGroupRequest) -> JoinGroupResponse | Outcome:
    version = context.api_version
    if not allows_group(context, Operation.READ, request.group_id):
        return _fit(join_error(ErrorCode.GROUP_AUTHORIZATION_FAILED, ""), version)
    shard = _shard_of(context, request.group_id)
    if isinstance(shard, ErrorCode):
        return _fit(join_error(shard, request.member_id), version)
    if version == 0:
        request.rebalance_timeout_ms = request.session_timeout_ms
    client = Client(context.client_id or "", f"/{context.client_host}", version)
    shard.classic.join(
        request,
        client,
        context.services.groups.outgoing(lambda response: context.complete(_fit(response, version))),
    )
    return PENDING


@api(14, 0, 5)
def sync_group(context: HandlerContext, request: SyncGroupRequest) -> SyncGroupResponse | Outcome:
    if context.api_version >= 5 and not (request.protocol_type and request.protocol_name):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if not allows_group(context, Operation.READ, request.group_id):
        return SyncGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    shard = _shard_of(context, request.group_id)
    if isinstance(shard, ErrorCode):
        return SyncGroupResponse(error_code=shard)
    shard.classic.sync(request, context.services.groups.outgoing(context.complete))
    return PENDING


@api(12, 0, 4)
def heartbeat(context: HandlerContext, request: HeartbeatRequest) -> HeartbeatResponse:
    if not allows_group(context, Operation.READ, request.group_id):
        return HeartbeatResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    shard = _shard_of(context, request.group_id)
    if isinstance(shard, ErrorCode):
        # As Kafka: while its group is loaded a member is alive without proof, and clients know no such error here.
        is_loading = shard == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return HeartbeatResponse(error_code=ErrorCode.NONE if is_loading else shard)
    return HeartbeatResponse(error_code=shard.classic.heartbeat(request))


@api(13, 0, 5)
@sliced
def leave_group(
    context: HandlerContext, request: LeaveGroupRequest
) -> Generator[None, None, LeaveGroupResponse | Outcome]:
    version = context.api_version
    if not allows_group(context, Operation.READ, request.group_id):
        return LeaveGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    members = [MemberIdentity(member_id=request.member_id)] if version < 3 else request.members
    response = LeaveGroupResponse()
    shard = _shard_of(context, request.group_id)
    for start in range(0, max(len(members), 1), MEMBERS_PER_SLICE):
        if isinstance(shard, ErrorCode):
            break
        request.members = members[start : start + MEMBERS_PER_SLICE]
        left = shard.classic.leave(request)
        if left.error_code:
            return LeaveGroupResponse(error_code=left.error_code)
        response.members += left.members
        yield
        shard = _shard_of(context, request.group_id)
    if isinstance(shard, ErrorCode):
        return LeaveGroupResponse(error_code=shard)
    if version < 3:
        response = LeaveGroupResponse(error_code=response.members[0].error_code)

    def settled(error: ErrorCode) -> None:
        if error:
            context.complete(LeaveGroupResponse(error_code=coordinator_error(error)))
        elif len(response.members) > MEMBERS_PER_SLICE:
            encode_in_thread(context, response)
        else:
            context.complete(response)

    shard.log.when_settled(settled)
    return PENDING


def _shard_of(context: HandlerContext, group_id: str) -> Shard | ErrorCode:
    """The part of the coordinator that has the group, or why this broker does not."""
    return context.services.groups.shards.of(group_id) if group_id else ErrorCode.INVALID_GROUP_ID


def _fit(response: JoinGroupResponse, version: int) -> JoinGroupResponse:
    """Make no protocol null in versions that have it (7), and the empty string before."""
    if not response.protocol_name:
        response.protocol_name = None if version >= 7 else ""
    return response
