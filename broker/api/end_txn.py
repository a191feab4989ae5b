"""EndTxn (26), versions 0-5: commits or aborts a transaction.

The answer comes when the decision is committed; markers follow. v2 PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH (KIP-588), v4
TRANSACTION_ABORTABLE may be answered, v5 raises the epoch and answers the producer id and the epoch of the next transaction
(KIP-890). As in Kafka the version of the request alone decides whether the epoch is raised.
"""

from __future__ import annotations

from barnabas.broker.requests.authorization import allows_transactional_id
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.end_txn import EndTxnRequest, EndTxnResponse


@api(26, 0, 5)
def end_txn(context: HandlerContext, request: EndTxnRequest) -> EndTxnResponse | Outcome:
    if not allows_transactional_id(context, Operation.WRITE, request.transactional_id):
        return EndTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)

    def ended(error: ErrorCode, producer_id: int, producer_epoch: int) -> None:
        if error == ErrorCode.PRODUCER_FENCED and context.api_version < 2:
            error = ErrorCode.INVALID_PRODUCER_EPOCH
        context.complete(
            EndTxnResponse(error_code=error, producer_id=producer_id, producer_epoch=producer_epoch)
        )

    context.services.transactions.end(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        request.committed,
        context.api_version >= 5,
        ended,
    )
    return PENDING
