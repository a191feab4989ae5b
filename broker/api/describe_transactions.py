"""DescribeTransactions (65), version 0: transactional ids that this broker coordinates (KIP-664).

While a transaction is ending its topics are those that still lack a marker. The start time is -1 before the first transaction.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from barnabas.broker.requests.authorization import allows_topic, allows_transactional_id
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.repetitions import Repetitions
from barnabas.broker.requests.sliced_handler import collect, sliced
from barnabas.broker.services import HandlerContext
from barnabas.broker.transactions.state import TransactionState as State
from barnabas.broker.transactions.transaction import by_topic
from barnabas.controller.metadata.acls import Operation
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)

if TYPE_CHECKING:
    from barnabas.broker.transactions.coordinator import TransactionCoordinator


@api(65, 0, 0)
@sliced
def describe_transactions(
    context: HandlerContext, request: DescribeTransactionsRequest
) -> Generator[None, None, DescribeTransactionsResponse]:
    coordinator = context.services.transactions
    repetitions = Repetitions()

    def described(transactional_id: str) -> TransactionState:
        if not allows_transactional_id(context, Operation.DESCRIBE, transactional_id):
            error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            return TransactionState(error_code=error, transactional_id=transactional_id)
        if repetitions.are_too_many(transactional_id):
            return TransactionState(error_code=ErrorCode.INVALID_REQUEST, transactional_id=transactional_id)
        return _describe(context, coordinator, transactional_id)

    states = yield from collect(described, request.transactional_ids)
    return DescribeTransactionsResponse(transaction_states=states)


def _describe(
    context: HandlerContext, coordinator: TransactionCoordinator, transactional_id: str
) -> TransactionState:
    found = coordinator.describe(transactional_id)
    if not isinstance(found, ErrorCode) and found.state == State.DEAD:
        found = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    if isinstance(found, ErrorCode):
        return TransactionState(error_code=found, transactional_id=transactional_id)
    data = found.data
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=data.state.label,
        transaction_timeout_ms=data.timeout_ms,
        transaction_start_time_ms=data.start_timestamp,
        producer_id=data.producer_id,
        producer_epoch=data.producer_epoch,
        topics=[
            TopicData(topic=topic, partitions=partitions)
            for topic, partitions in by_topic(data.partitions).items()
            if allows_topic(context, Operation.DESCRIBE, topic, silent=True)
        ],
    )
