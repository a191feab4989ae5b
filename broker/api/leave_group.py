"""LeaveGroup (13), versions 0-5: members go, so that the rest need not wait for their session timeout.

v0-2 name one member and get its error at the top; v3 a batch, also by instance id (KIP-345); v5 reason.
"""

from __future__ import annotations

from collections.abc import Generator

from barnabas.broker.groups.rebalance import coordinator_error
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import encode_in_thread, sliced
from barnabas.broker.services import HandlerContext
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity

MEMBERS_PER_SLICE = 100


@api(13, 0, 5)
@sliced
def leave_group(
    context: HandlerContext, request: LeaveGroupRequest
) -> Generator[None, None, LeaveGroupResponse | Outcome]:
    version = context.api_version
    members = [MemberIdentity(member_id=request.member_id)] if version < 3 else request.members
    if not request.group_id:
        return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    response = LeaveGroupResponse()
    shard = context.services.groups.shard_of(request.group_id)
    for start in range(0, max(len(members), 1), MEMBERS_PER_SLICE):
        if isinstance(shard, ErrorCode):
            break
        request.members = members[start : start + MEMBERS_PER_SLICE]
        response.members += shard.classic.leave(request).members
        yield
        shard = context.services.groups.shard_of(request.group_id)
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

    shard.when_settled(settled)
    return PENDING
