"""AlterPartitionReassignments (45), versions 0-1: begins or cancels moving partitions to other replicas (KIP-455).

Version 1: whether the number of replicas may change by that (KIP-860). The answer says that the move has begun; it is done
when ListPartitionReassignments does not tell of it any more.
"""

from __future__ import annotations

from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.repetitions import TOO_MANY_PARTITIONS, are_too_many_partitions
from barnabas.broker.services import HandlerContext
from barnabas.controller.operations.reassignments import alter_reassignments
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)


@api(45, 0, 1, controller=True)
def alter(context: HandlerContext, request: AlterPartitionReassignmentsRequest) -> Outcome:
    services = context.services
    named = [len(topic.partitions) for topic in request.topics]
    if are_too_many_partitions(services.controller.image, named):
        context.complete(
            AlterPartitionReassignmentsResponse(
                error_code=ErrorCode.INVALID_REQUEST, error_message=TOO_MANY_PARTITIONS
            )
        )
        return PENDING
    services.controller.run(
        lambda image: alter_reassignments(image, services.config, request),
        context.complete,
        lambda error, message: context.complete(
            AlterPartitionReassignmentsResponse(error_code=error, error_message=message)
        ),
    )
    return PENDING
