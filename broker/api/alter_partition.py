"""AlterPartition (56), versions 2-3, between nodes: a leader asks for another ISR (KIP-497).

Version 3 gives the broker epoch of each member, so that one which has started again meanwhile is not counted (KIP-903).
"""

from __future__ import annotations

from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.services import HandlerContext
from barnabas.controller.operations.alter_partition import alter_partition
from barnabas.wire.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse


@api(56, 2, 3, controller=True, internal=True)
def alter(context: HandlerContext, request: AlterPartitionRequest) -> Outcome:
    services = context.services
    services.controller.run(
        lambda image: alter_partition(image, services.config, request),
        context.complete,
        lambda error, _: context.complete(AlterPartitionResponse(error_code=error)),
    )
    return PENDING
