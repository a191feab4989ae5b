"""ListPartitionReassignments (46), version 0: the reassignments in progress (KIP-455)."""

from __future__ import annotations

from barnabas.broker.requests.registry import api
from barnabas.broker.requests.repetitions import TOO_MANY_PARTITIONS, are_too_many_partitions
from barnabas.broker.services import HandlerContext
from barnabas.controller.operations.reassignments import list_reassignments
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


@api(46, 0, 0, controller=True)
def list_them(
    context: HandlerContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    named = [len(topic.partition_indexes) for topic in request.topics or ()]
    if are_too_many_partitions(context.services.controller.image, named):
        return ListPartitionReassignmentsResponse(
            error_code=ErrorCode.INVALID_REQUEST, error_message=TOO_MANY_PARTITIONS
        )
    return list_reassignments(context.services.controller.image, request)
