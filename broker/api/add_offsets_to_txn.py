"""AddOffsetsToTxn (25), versions 0-4: announces that a transaction will commit offsets of a group.

It adds the group's partition of __consumer_offsets to the transaction. v2 PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH
(KIP-588), v4 TRANSACTION_ABORTABLE may be answered (KIP-890).
"""

from __future__ import annotations

from barnabas.broker.requests.authorization import allows_group, allows_transactional_id
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse


@api(25, 0, 4)
def add_offsets_to_txn(
    context: HandlerContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse | Outcome:
    if not allows_transactional_id(context, Operation.WRITE, request.transactional_id):
        return AddOffsetsToTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not allows_group(context, Operation.READ, request.group_id):
        return AddOffsetsToTxnResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)

    def added(error: ErrorCode) -> None:
        if error == ErrorCode.PRODUCER_FENCED and context.api_version < 2:
            error = ErrorCode.INVALID_PRODUCER_EPOCH
        context.complete(AddOffsetsToTxnResponse(error_code=error))

    offsets = context.services.groups.topic
    context.services.transactions.add_partitions(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        [(offsets.name, offsets.partition_of(request.group_id))],
        False,
        added,
    )
    return PENDING
