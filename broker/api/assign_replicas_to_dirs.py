"""AssignReplicasToDirs (73), version 0, between nodes: a broker says in which log directory its replicas lie (KIP-858)."""

from __future__ import annotations

from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.services import HandlerContext
from barnabas.controller.operations.directories import answer_assignment
from barnabas.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)


@api(73, 0, 0, controller=True, internal=True)
def assign(context: HandlerContext, request: AssignReplicasToDirsRequest) -> Outcome:
    services = context.services
    services.controller.run(
        lambda image: answer_assignment(image, services.config, request),
        context.complete,
        lambda error, _: context.complete(AssignReplicasToDirsResponse(error_code=error)),
    )
    return PENDING
