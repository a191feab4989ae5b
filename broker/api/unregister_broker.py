"""UnregisterBroker (64), version 0: the cluster forgets a broker that will not come back (KIP-500). One that is running is
refused with INVALID_REQUEST."""

from __future__ import annotations

from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.decision import ApiError
from barnabas.controller.operations.brokers import unregister
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse


@api(64, 0, 0, controller=True)
def forget(context: HandlerContext, request: UnregisterBrokerRequest) -> Outcome:
    services = context.services

    def done(api_error: ApiError | None) -> None:
        failed(
            ErrorCode.NONE if api_error is None else api_error.error,
            None if api_error is None else api_error.message,
        )

    def failed(error: ErrorCode, message: str | None) -> None:
        context.complete(UnregisterBrokerResponse(error_code=error, error_message=message))

    sessions = services.broker_sessions
    is_alive = sessions is not None and sessions.is_alive(request.broker_id)
    services.controller.run(
        lambda image: unregister(image, services.config, request.broker_id, is_alive=is_alive), done, failed
    )
    return PENDING
