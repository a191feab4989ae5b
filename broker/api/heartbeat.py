"""Heartbeat (12), versions 0-4: a member is alive; the answer tells it when to join again. v3 static members."""

from __future__ import annotations

from barnabas.broker.requests.registry import api
from barnabas.broker.services import HandlerContext
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


@api(12, 0, 4)
def heartbeat(context: HandlerContext, request: HeartbeatRequest) -> HeartbeatResponse:
    if not request.group_id:
        return HeartbeatResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    shard = context.services.groups.shard_of(request.group_id)
    if isinstance(shard, ErrorCode):
        # As Kafka: while its group is loaded a member is alive without proof, and clients know no such error here.
        is_loading = shard == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return HeartbeatResponse(error_code=ErrorCode.NONE if is_loading else shard)
    return HeartbeatResponse(error_code=shard.classic.heartbeat(request))
