"""AllocateProducerIds (67), version 0: a broker asks the controller for a block of producer ids (KIP-730)."""

from __future__ import annotations

from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.decision import ApiError
from barnabas.controller.operations.producer_ids import allocate_block
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)


@api(67, 0, 0, controller=True, internal=True)
def allocate(context: HandlerContext, request: AllocateProducerIdsRequest) -> Outcome:
    def done(block: range | ApiError) -> None:
        if isinstance(block, ApiError):
            failed(block.error, block.message or "")
        else:
            context.complete(
                AllocateProducerIdsResponse(producer_id_start=block.start, producer_id_len=len(block))
            )

    def failed(error: ErrorCode, _message: str) -> None:
        context.complete(AllocateProducerIdsResponse(error_code=error))

    context.services.controller.run(
        lambda image: allocate_block(image, request.broker_id, request.broker_epoch), done, failed
    )
    return PENDING
