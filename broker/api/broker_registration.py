"""BrokerRegistration (62), versions 0-4, between nodes: a broker that starts asks to be taken in (KIP-631).

Version 2 tells the log directories (KIP-858), version 3 the epoch of the registration that the last clean stop ended
(KIP-966).
"""

from __future__ import annotations

from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.services import HandlerContext
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse


@api(62, 0, 4, controller=True, internal=True)
def register(
    context: HandlerContext, request: BrokerRegistrationRequest
) -> BrokerRegistrationResponse | Outcome:
    sessions = context.services.broker_sessions
    if sessions is None:
        return BrokerRegistrationResponse(error_code=ErrorCode.NOT_CONTROLLER)
    sessions.register(request, context.complete)
    return PENDING
