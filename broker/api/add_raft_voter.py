"""AddRaftVoter (80), versions 0-1: makes a controller that follows the metadata log a voter (KIP-853).

v1 may be answered before the change is committed (KIP-1186). The rules are in controller/raft/voter_changes.py.
"""

from __future__ import annotations

from barnabas.broker.requests.authorization import allows_cluster
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation
from barnabas.controller.metadata.decision import ApiError
from barnabas.controller.operations.features import KRAFT_VERSION
from barnabas.controller.raft.voter_changes import LISTENERS_MAX
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse


@api(80, 0, 1, controller=True)
def add(context: HandlerContext, request: AddRaftVoterRequest) -> AddRaftVoterResponse | Outcome:
    if not allows_cluster(context, Operation.ALTER):
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return AddRaftVoterResponse(error_code=error, error_message=error.message)
    services = context.services

    def answer(error: ApiError | None) -> None:
        if error is not None:
            context.complete(AddRaftVoterResponse(error_code=error.error, error_message=error.message))
        else:
            text = ErrorCode.NONE.name  # which is what Kafka says
            context.complete(AddRaftVoterResponse(error_message=text))

    services.voter_changes.add(
        services.controller.image.features.get(KRAFT_VERSION, 0),
        request.cluster_id,
        request.voter_id,
        request.voter_directory_id,
        [(each.name, each.host, each.port) for each in request.listeners[: LISTENERS_MAX + 1]],
        answer,
        ack_when_committed=request.ack_when_committed,
    )
    return PENDING
