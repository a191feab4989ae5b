"""InitProducerId (22), versions 0-5, for idempotent producers: a new producer id with epoch 0.

A producer that names its former id (versions 3+) gets a new one, as in Kafka without transactions.

Not implemented: transactions. A request with a transactional id gets an error that ends the client's attempt
(refused_transactions.py).
"""

from __future__ import annotations

from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.refused_transactions import PRODUCER_ID_REFUSAL
from barnabas.broker.requests.registry import api
from barnabas.broker.services import HandlerContext
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


@api(22, 0, 5)
def init_producer_id(
    context: HandlerContext, request: InitProducerIdRequest
) -> InitProducerIdResponse | Outcome:
    if (request.producer_id == -1) != (request.producer_epoch == -1) or request.transactional_id == "":
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=-1)
    if request.transactional_id is not None:
        context.services.refused_transactions.warn(request.transactional_id)
        return InitProducerIdResponse(error_code=PRODUCER_ID_REFUSAL, producer_epoch=-1)

    def answer(producer_id: int, error: ErrorCode) -> None:
        if error:  # as Kafka while it waits for a block; the controller's error would end the producer
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        context.complete(
            InitProducerIdResponse(
                error_code=error, producer_id=producer_id, producer_epoch=-1 if error else 0
            )
        )

    context.services.producer_ids.next(answer)
    return PENDING
