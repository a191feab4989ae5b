"""SyncGroup (14), versions 0-5: the leader hands in the assignment, every member takes its part.

Waits until the assignment is in the log. v3 static members; v5 checks the protocol the client believes in.
"""

from __future__ import annotations

from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.services import HandlerContext
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse


@api(14, 0, 5)
def sync_group(context: HandlerContext, request: SyncGroupRequest) -> SyncGroupResponse | Outcome:
    groups = context.services.groups
    if context.api_version >= 5 and not (request.protocol_type and request.protocol_name):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if not request.group_id:
        return SyncGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    shard = groups.shard_of(request.group_id)
    if isinstance(shard, ErrorCode):
        return SyncGroupResponse(error_code=shard)
    shard.classic.sync(request, groups.outgoing(context.complete))
    return PENDING
