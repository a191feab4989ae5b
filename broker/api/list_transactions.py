"""ListTransactions (66), versions 0-2: the transactional ids that this broker coordinates; clients ask every broker (KIP-664).

v1 filters by duration (KIP-994): an id whose start time is -1 passes, as it does in Kafka. v2 filters by an RE2 pattern that has
to match the whole id (KIP-1152).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TypeVar

from barnabas.broker.coordinator.re2_parser import PatternError
from barnabas.broker.coordinator.re2_pattern import Pattern
from barnabas.broker.requests.authorization import allows_transactional_id
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import sliced
from barnabas.broker.services import HandlerContext
from barnabas.broker.transactions.state import STATES_BY_LABEL
from barnabas.broker.transactions.state import TransactionState as State
from barnabas.controller.metadata.acls import Operation
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)

T = TypeVar("T")


@api(66, 0, 2)
@sliced
def list_transactions(
    context: HandlerContext, request: ListTransactionsRequest
) -> Generator[None, None, ListTransactionsResponse]:
    transactions = context.services.transactions.transactions()
    if isinstance(transactions, ErrorCode):
        return ListTransactionsResponse(error_code=transactions)
    try:
        text = request.transactional_id_pattern
        pattern = (yield from Pattern.compile(text)) if text else None
    except PatternError:
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    labels = yield from _distinct(request.state_filters)
    states = {STATES_BY_LABEL[each] for each in labels if each in STATES_BY_LABEL}
    producer_ids = yield from _distinct(request.producer_id_filters)
    response = ListTransactionsResponse(
        unknown_state_filters=[each for each in labels if each not in STATES_BY_LABEL]
    )
    now_ms = context.services.runtime.time_ms()
    for transaction in transactions:
        yield
        data = transaction.data
        if (
            data.state == State.DEAD
            or (labels and data.state not in states)
            or (producer_ids and data.producer_id not in producer_ids)
            or 0 <= request.duration_filter >= now_ms - data.start_timestamp
            or not allows_transactional_id(
                context, Operation.DESCRIBE, transaction.transactional_id, silent=True
            )
        ):
            continue
        if pattern is not None and not (yield from pattern.matches(transaction.transactional_id)):
            continue
        response.transaction_states.append(
            TransactionState(
                transactional_id=transaction.transactional_id,
                producer_id=data.producer_id,
                transaction_state=data.state.label,
            )
        )
    return response


def _distinct(values: Iterable[T]) -> Generator[None, None, dict[T, None]]:
    """In their order."""
    found: dict[T, None] = {}
    for each in values:
        found[each] = None
        yield
    return found
