"""ElectLeaders (43), versions 0-2: preferred replicas lead again (KIP-183).

Version 1: or, for partitions without a leader, any replica that is alive (KIP-460).
"""

from __future__ import annotations

from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.repetitions import are_too_many_partitions
from barnabas.broker.services import HandlerContext
from barnabas.controller.operations.elections import elect_leaders
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse


@api(43, 0, 2, controller=True)
def elect(context: HandlerContext, request: ElectLeadersRequest) -> Outcome:
    services = context.services
    named = [len(topic.partitions) for topic in request.topic_partitions or ()]
    if are_too_many_partitions(services.controller.image, named):
        context.complete(ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST))
        return PENDING
    services.controller.run(
        lambda image: elect_leaders(image, services.config, request),
        context.complete,
        lambda error, _: context.complete(ElectLeadersResponse(error_code=error)),
    )
    return PENDING
