"""JoinGroup (11), versions 0-9: enter a classic group, or stay in it for the next generation.

Waits until the rebalance completes. v0 has no rebalance timeout (the session timeout serves); from v4 a new
dynamic member is first given its id (MEMBER_ID_REQUIRED, KIP-394); v5 static members (KIP-345); v7 protocol
type and nullable protocol name (KIP-559); v8 reason (KIP-800); v9 skip_assignment (KIP-814).
"""

from __future__ import annotations

from barnabas.broker.groups.classic import Client, join_error
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.services import HandlerContext
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse


@api(11, 0, 9)
def join_group(context: HandlerContext, request: JoinGroupRequest) -> JoinGroupResponse | Outcome:
    version = context.api_version
    groups = context.services.groups
    if not request.group_id:
        return _fit(join_error(ErrorCode.INVALID_GROUP_ID, request.member_id), version)
    shard = groups.shard_of(request.group_id)
    if isinstance(shard, ErrorCode):
        return _fit(join_error(shard, request.member_id), version)
    if version == 0:
        request.rebalance_timeout_ms = request.session_timeout_ms
    client = Client(context.client_id or "", f"/{context.client_host}", version)
    shard.classic.join(
        request, client, groups.outgoing(lambda response: context.complete(_fit(response, version)))
    )
    return PENDING


def _fit(response: JoinGroupResponse, version: int) -> JoinGroupResponse:
    """No protocol is null where that can be said (v7), else the empty string."""
    if not response.protocol_name:
        response.protocol_name = None if version >= 7 else ""
    return response
