"""BrokerHeartbeat (63), versions 0-2, between nodes: a broker lives, and wants to serve or to stop (KIP-631).

Version 1 tells log directories that have failed (KIP-858), version 2 those that shall take nothing new (KIP-1066).
"""

from __future__ import annotations

from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.services import HandlerContext
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse


@api(63, 0, 2, controller=True, internal=True)
def heartbeat(context: HandlerContext, request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse | Outcome:
    sessions = context.services.broker_sessions
    if sessions is None:
        return BrokerHeartbeatResponse(error_code=ErrorCode.NOT_CONTROLLER)
    sessions.heartbeat(request, context.complete)
    return PENDING
