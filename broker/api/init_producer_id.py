"""InitProducerId (22), versions 0-5: a producer id and an epoch for an idempotent or a transactional producer.

v3 the producer's former id and epoch (KIP-360), v4 PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH (KIP-588), v5 as v4.
Without a transactional id it is a new producer id with epoch 0, also for a producer that names its former one. With one it is
that of the transactional id, with the next epoch: an open transaction is aborted first, and CONCURRENT_TRANSACTIONS has the
client ask again. Not implemented: two-phase commit (v6, KIP-939), which Kafka 4.3 does not advertise.
"""

from __future__ import annotations

from barnabas.broker.requests.authorization import (
    allows_cluster,
    allows_on_any_topic,
    allows_transactional_id,
)
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


@api(22, 0, 5)
def init_producer_id(
    context: HandlerContext, request: InitProducerIdRequest
) -> InitProducerIdResponse | Outcome:
    refusal = _refusal(context, request)
    if refusal:
        return InitProducerIdResponse(error_code=refusal, producer_epoch=-1)
    if (request.producer_id == -1) != (request.producer_epoch == -1) or request.transactional_id == "":
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=-1)

    def answer(error: ErrorCode, producer_id: int, producer_epoch: int) -> None:
        if error == ErrorCode.PRODUCER_FENCED and context.api_version < 4:
            error = ErrorCode.INVALID_PRODUCER_EPOCH
        context.complete(
            InitProducerIdResponse(error_code=error, producer_id=producer_id, producer_epoch=producer_epoch)
        )

    def answer_without_transactions(producer_id: int, error: ErrorCode) -> None:
        if error:  # as Kafka while it waits for a block; the controller's error would end the producer
            answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1, -1)
        else:
            answer(error, producer_id, 0)

    if request.transactional_id is None:
        context.services.producer_ids.next(answer_without_transactions)
    else:
        context.services.transactions.initialize(
            request.transactional_id,
            request.transaction_timeout_ms,
            request.producer_id,
            request.producer_epoch,
            answer,
        )
    return PENDING


def _refusal(context: HandlerContext, request: InitProducerIdRequest) -> ErrorCode:
    """Why the sender gets no producer id. Without a transactional id WRITE on any topic is enough (KIP-679)."""
    if request.transactional_id is not None:
        allowed = allows_transactional_id(context, Operation.WRITE, request.transactional_id)
        return ErrorCode.NONE if allowed else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if allows_cluster(context, Operation.IDEMPOTENT_WRITE, silent=True) or allows_on_any_topic(
        context, Operation.WRITE
    ):
        return ErrorCode.NONE
    return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
