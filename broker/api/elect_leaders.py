"""ElectLeaders (43), versions 0-2: preferred replicas lead again (KIP-183).

Version 1: or, for partitions that nobody leads, whoever is there (KIP-460).
"""

from __future__ import annotations

from barnabas.broker.context import RequestContext
from barnabas.broker.registry import PENDING, Outcome, api
from barnabas.controller.operations.elections import elect_leaders
from barnabas.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse


@api(43, 0, 2, controller=True)
def elect(context: RequestContext, request: ElectLeadersRequest) -> Outcome:
    services = context.services
    services.controller.run(
        lambda image: elect_leaders(image, services.config, request),
        context.complete,
        lambda error, _: context.complete(ElectLeadersResponse(error_code=error)),
    )
    return PENDING
