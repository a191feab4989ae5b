"""RemoveRaftVoter (81), version 0: makes a voter a controller that only follows the metadata log (KIP-853).

The rules are in controller/raft/voter_changes.py.
"""

from __future__ import annotations

from barnabas.broker.requests.authorization import allows_cluster
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation
from barnabas.controller.metadata.decision import ApiError
from barnabas.controller.operations.features import KRAFT_VERSION
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse


@api(81, 0, 0, controller=True)
def remove(context: HandlerContext, request: RemoveRaftVoterRequest) -> RemoveRaftVoterResponse | Outcome:
    if not allows_cluster(context, Operation.ALTER):
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return RemoveRaftVoterResponse(error_code=error, error_message=error.message)
    services = context.services

    def answer(error: ApiError | None) -> None:
        if error is not None:
            context.complete(RemoveRaftVoterResponse(error_code=error.error, error_message=error.message))
        else:
            text = ErrorCode.NONE.name  # which is what Kafka says
            context.complete(RemoveRaftVoterResponse(error_message=text))

    services.voter_changes.remove(
        services.controller.image.features.get(KRAFT_VERSION, 0),
        request.cluster_id,
        request.voter_id,
        request.voter_directory_id,
        answer,
    )
    return PENDING
