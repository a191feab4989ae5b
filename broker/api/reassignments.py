"""AlterPartitionReassignments (45), versions 0-1, and ListPartitionReassignments (46), version 0 (KIP-455): partitions move to
other replicas.

v1 of the first says whether the number of replicas may change (KIP-860). Its response says that the move has begun; it is
complete when ListPartitionReassignments no longer lists it.
"""

from __future__ import annotations

from typing import Final

from barnabas.broker.requests.authorization import allows_cluster
from barnabas.broker.requests.context import Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.repetitions import TOO_MANY_PARTITIONS, are_too_many_partitions
from barnabas.broker.services import HandlerContext, decide
from barnabas.controller.metadata.acls import Operation
from barnabas.controller.operations.reassignments import alter_reassignments, list_reassignments
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from barnabas.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

_REFUSED: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@api(45, 0, 1, controller=True)
def alter_partition_reassignments(
    context: HandlerContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse | Outcome:
    services = context.services
    named = [len(topic.partitions) for topic in request.topics]
    if are_too_many_partitions(services.controller.image, named):
        return AlterPartitionReassignmentsResponse(
            error_code=ErrorCode.INVALID_REQUEST, error_message=TOO_MANY_PARTITIONS
        )
    if not allows_cluster(context, Operation.ALTER):
        return _refused(request)
    return decide(
        context,
        lambda image: alter_reassignments(image, services.config, request),
        None,
        lambda error, message: AlterPartitionReassignmentsResponse(error_code=error, error_message=message),
    )


def _refused(request: AlterPartitionReassignmentsRequest) -> AlterPartitionReassignmentsResponse:
    def result(index: int) -> ReassignablePartitionResponse:
        return ReassignablePartitionResponse(index, _REFUSED, _REFUSED.message)

    return AlterPartitionReassignmentsResponse(
        error_code=_REFUSED,
        error_message=_REFUSED.message,
        responses=[
            ReassignableTopicResponse(topic.name, [result(each.partition_index) for each in topic.partitions])
            for topic in request.topics
        ],
    )


@api(46, 0, 0, controller=True)
def list_partition_reassignments(
    context: HandlerContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    if not allows_cluster(context, Operation.DESCRIBE):
        return ListPartitionReassignmentsResponse(error_code=_REFUSED, error_message=_REFUSED.message)
    named = [len(topic.partition_indexes) for topic in request.topics or ()]
    if are_too_many_partitions(context.services.controller.image, named):
        return ListPartitionReassignmentsResponse(
            error_code=ErrorCode.INVALID_REQUEST, error_message=TOO_MANY_PARTITIONS
        )
    return list_reassignments(context.services.controller.image, request)
