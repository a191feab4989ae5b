"""AddPartitionsToTxn (24), versions 0-5: adds partitions to a transaction, or verifies that they were added.

v0-3 from clients, for one transaction: v2 PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH. v4-5 from brokers, for several
(KIP-890): each verifies, or adds for a producer of transaction.version 2; v5 TRANSACTION_ABORTABLE may be answered. One partition
that can't be added fails all of its transaction; the others get OPERATION_NOT_ATTEMPTED. Internal topics can't be added by v0-3.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial

import msgspec

from barnabas.broker.requests.authorization import allows_cluster, allows_transactional_id, refused_topics
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import answer_in_slices, sliced
from barnabas.broker.services import HandlerContext
from barnabas.broker.transactions.transaction import TopicPartition
from barnabas.controller.metadata.acls import Operation
from barnabas.controller.metadata.image import INTERNAL_TOPICS
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

BROKERS_SINCE = 4


class _Asked(msgspec.Struct):
    """One transaction of the request. `results` has the errors of partitions that can't be added; all others get `outcome`."""

    transaction: AddPartitionsToTxnTransaction
    results: list[AddPartitionsToTxnTopicResult] = []
    outcome: ErrorCode | dict[TopicPartition, ErrorCode] = ErrorCode.NONE


@api(24, 0, 5)
@sliced
def add_partitions_to_txn(
    context: HandlerContext, request: AddPartitionsToTxnRequest
) -> Generator[None, None, AddPartitionsToTxnResponse | Outcome]:
    asked = [_Asked(each) for each in _transactions(context.api_version, request)]
    missing = len(asked)

    def done(each: _Asked, outcome: ErrorCode | dict[TopicPartition, ErrorCode]) -> None:
        nonlocal missing
        each.outcome = outcome
        missing -= 1
        if not missing:
            answer_in_slices(context, _answer(context.api_version, asked))

    if context.api_version >= BROKERS_SINCE and not allows_cluster(context, Operation.CLUSTER_ACTION):
        return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if not asked:
        return AddPartitionsToTxnResponse()
    for each in asked:
        unauthorized = set[str]()
        if context.api_version < BROKERS_SINCE:
            transactional_id = each.transaction.transactional_id
            if not allows_transactional_id(context, Operation.WRITE, transactional_id):
                return (yield from _refused(each, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
            named = [
                (topic.name, len(topic.partitions))
                for topic in each.transaction.topics
                if topic.name not in INTERNAL_TOPICS
            ]
            unauthorized = yield from refused_topics(context, Operation.WRITE, named)
        partitions = yield from _check(context, each, unauthorized)
        if partitions is None:
            done(each, ErrorCode.OPERATION_NOT_ATTEMPTED)
        else:
            _begin(context, each.transaction, partitions, partial(done, each))
        yield
    return PENDING


def _transactions(version: int, request: AddPartitionsToTxnRequest) -> list[AddPartitionsToTxnTransaction]:
    if version >= BROKERS_SINCE:
        return request.transactions
    return [
        AddPartitionsToTxnTransaction(
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
            False,
            request.v3_and_below_topics,
        )
    ]


def _refused(asked: _Asked, error: ErrorCode) -> Generator[None, None, AddPartitionsToTxnResponse]:
    """The answer to a client that may not use the transactional id."""
    asked.outcome = error
    for topic in asked.transaction.topics:
        results = AddPartitionsToTxnTopicResult(topic.name, [])
        asked.results.append(results)
        for index in topic.partitions:
            results.results_by_partition.append(AddPartitionsToTxnPartitionResult(index, error))
            yield
        yield
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=asked.results)


def _check(
    context: HandlerContext, asked: _Asked, unauthorized: set[str]
) -> Generator[None, None, dict[TopicPartition, None] | None]:
    """The partitions of the transaction; None when one can't be added."""
    known: dict[TopicPartition, None] | None = {}
    for topic in asked.transaction.topics:
        results = AddPartitionsToTxnTopicResult(topic.name, [])
        asked.results.append(results)
        for index in topic.partitions:
            error = (
                ErrorCode.TOPIC_AUTHORIZATION_FAILED
                if topic.name in unauthorized
                else _refusal(context, topic.name, index)
            )
            results.results_by_partition.append(AddPartitionsToTxnPartitionResult(index, error))
            if error:
                known = None
            elif known is not None:
                known[topic.name, index] = None
            yield
        yield
    return known


def _refusal(context: HandlerContext, topic: str, partition: int) -> ErrorCode:
    if context.api_version < BROKERS_SINCE and topic in INTERNAL_TOPICS:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    found = context.services.controller.image.topics.get(topic)
    if found is None or partition not in found.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE


def _begin(
    context: HandlerContext,
    transaction: AddPartitionsToTxnTransaction,
    partitions: dict[TopicPartition, None],
    done: Callable[[ErrorCode | dict[TopicPartition, ErrorCode]], object],
) -> None:
    """Add or verify the partitions; `done(outcome)` once, perhaps before this returns."""
    coordinator = context.services.transactions
    producer = transaction.transactional_id, transaction.producer_id, transaction.producer_epoch
    if transaction.verify_only:
        done(coordinator.verify_partitions(*producer, partitions))
        return

    def added(error: ErrorCode) -> None:
        if error == ErrorCode.PRODUCER_FENCED and context.api_version < 2:
            error = ErrorCode.INVALID_PRODUCER_EPOCH
        done(error)

    coordinator.add_partitions(*producer, partitions, context.api_version >= BROKERS_SINCE, added)


def _answer(version: int, asked: list[_Asked]) -> Generator[None, None, AddPartitionsToTxnResponse]:
    for each in asked:
        outcome = each.outcome
        for topic in each.results:
            for result in topic.results_by_partition:
                if not result.partition_error_code:
                    key = topic.name, result.partition_index
                    error = outcome if isinstance(outcome, ErrorCode) else outcome[key]
                    result.partition_error_code = error
                yield
            yield
        yield
    if version < BROKERS_SINCE:
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=asked[0].results)
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            AddPartitionsToTxnResult(each.transaction.transactional_id, each.results) for each in asked
        ]
    )
