"""LeaveGroup (13), versions 0-5: members go, so that the rest need not wait for their session timeout.

v0-2 name one member and get its error at the top; v3 a batch, also by instance id (KIP-345); v5 reason.
"""

from __future__ import annotations

from barnabas.broker.context import RequestContext
from barnabas.broker.groups.rebalance import coordinator_error
from barnabas.broker.registry import PENDING, Outcome, api
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity


@api(13, 0, 5)
def leave_group(context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse | Outcome:
    version = context.api_version
    if version < 3:
        request.members = [MemberIdentity(member_id=request.member_id)]
    if not request.group_id:
        return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    shard = context.services.groups.shard_of(request.group_id)
    if isinstance(shard, ErrorCode):
        return LeaveGroupResponse(error_code=shard)
    response = shard.classic.leave(request)
    if version < 3:
        response = LeaveGroupResponse(error_code=response.members[0].error_code)

    def settled(error: ErrorCode) -> None:
        failed = LeaveGroupResponse(error_code=coordinator_error(error))
        context.complete(failed if error else response)

    shard.when_settled(settled)
    return PENDING
