"""ListPartitionReassignments (46), version 0: the moves of partitions that are under way (KIP-455)."""

from __future__ import annotations

from barnabas.broker.context import RequestContext
from barnabas.broker.registry import api
from barnabas.controller.operations.reassignments import list_reassignments
from barnabas.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


@api(46, 0, 0, controller=True)
def list_them(
    context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    return list_reassignments(context.services.controller.image, request)
