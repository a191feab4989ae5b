"""ElectLeaders (43), versions 0-2: makes preferred replicas the leaders (KIP-183), since v1 also any live replica of partitions
without a leader (KIP-460).
"""

from __future__ import annotations

from barnabas.broker.requests.authorization import allows_cluster
from barnabas.broker.requests.context import Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.repetitions import are_too_many_partitions
from barnabas.broker.services import HandlerContext, decide
from barnabas.controller.metadata.acls import Operation
from barnabas.controller.operations.elections import elect_leaders
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)


@api(43, 0, 2, controller=True)
def elect(context: HandlerContext, request: ElectLeadersRequest) -> ElectLeadersResponse | Outcome:
    services = context.services
    named = [len(topic.partitions) for topic in request.topic_partitions or ()]
    if are_too_many_partitions(services.controller.image, named):
        return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
    if not allows_cluster(context, Operation.ALTER):
        return _refused(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return decide(
        context,
        lambda image: elect_leaders(image, services.config, request),
        None,
        lambda error, _: ElectLeadersResponse(error_code=error),
    )


def _refused(request: ElectLeadersRequest, error: ErrorCode) -> ElectLeadersResponse:
    results = [
        ReplicaElectionResult(
            topic.topic, [PartitionResult(index, error, error.message) for index in topic.partitions]
        )
        for topic in request.topic_partitions or ()
    ]
    return ElectLeadersResponse(error_code=error, replica_election_results=results)
