"""BrokerRegistration (62), versions 0-4, and BrokerHeartbeat (63), versions 0-2, between nodes (KIP-631): a broker joins the
cluster, says that it is alive, and asks to be unfenced or to shut down. UnregisterBroker (64), version 0 (KIP-500), from
clients: the cluster removes a broker that will not come back; one that is running is refused with INVALID_REQUEST.

BrokerRegistration v2 names the log directories (KIP-858), v3 the epoch of the registration that the last clean stop ended
(KIP-966). BrokerHeartbeat v1 names log directories that have failed (KIP-858), v2 cordoned ones (KIP-1066).
"""

from __future__ import annotations

from barnabas.broker.requests.authorization import allows_cluster
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.services import HandlerContext, decide
from barnabas.controller.metadata.acls import Operation
from barnabas.controller.operations.brokers import unregister
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from barnabas.wire.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from barnabas.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse


@api(62, 0, 4, controller=True, internal=True)
def register(
    context: HandlerContext, request: BrokerRegistrationRequest
) -> BrokerRegistrationResponse | Outcome:
    sessions = context.services.broker_sessions
    if sessions is None:
        return BrokerRegistrationResponse(error_code=ErrorCode.NOT_CONTROLLER)
    sessions.register(request, context.complete)
    return PENDING


@api(63, 0, 2, controller=True, internal=True)
def heartbeat(context: HandlerContext, request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse | Outcome:
    sessions = context.services.broker_sessions
    if sessions is None:
        return BrokerHeartbeatResponse(error_code=ErrorCode.NOT_CONTROLLER)
    sessions.heartbeat(request, context.complete)
    return PENDING


@api(64, 0, 0, controller=True)
def unregister_broker(
    context: HandlerContext, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse | Outcome:
    if not allows_cluster(context, Operation.ALTER):
        refusal = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return UnregisterBrokerResponse(error_code=refusal, error_message=refusal.message)
    services = context.services
    sessions = services.broker_sessions
    broker = services.controller.image.brokers.get(request.broker_id)
    is_alive = sessions is not None and sessions.is_alive(request.broker_id)
    dead_epoch = -1 if broker is None or is_alive else broker.broker_epoch
    return decide(
        context,
        lambda image: unregister(image, services.config, request.broker_id, dead_epoch=dead_epoch),
        lambda _: UnregisterBrokerResponse(error_message=None),
        lambda error, message: UnregisterBrokerResponse(error_code=error, error_message=message),
    )
