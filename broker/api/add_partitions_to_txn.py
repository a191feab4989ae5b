"""AddPartitionsToTxn (24), versions 0-5: adds partitions to a transaction, or verifies that they were added.

v0-3 from clients, for one transaction: v2 PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH. v4-5 from brokers, for several
(KIP-890): each verifies, or adds for a producer of transaction.version 2; v5 TRANSACTION_ABORTABLE may be answered. One partition
that can't be added fails all of its transaction; the others get OPERATION_NOT_ATTEMPTED. Internal topics can't be added by v0-3.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import answer_in_slices, sliced
from barnabas.broker.services import HandlerContext
from barnabas.broker.transactions.transaction import TopicPartition
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

Errors = dict[TopicPartition, ErrorCode]


@api(24, 0, 5)
@sliced
def add_partitions_to_txn(
    context: HandlerContext, request: AddPartitionsToTxnRequest
) -> Generator[None, None, AddPartitionsToTxnResponse | Outcome]:
    asked = _transactions(context.api_version, request)
    results: list[Errors] = [{} for _ in asked]
    missing = len(asked)

    def add(index: int, errors: Errors) -> None:
        nonlocal missing
        results[index] = errors
        missing -= 1
        if not missing:
            answer_in_slices(context, _answer(context.api_version, asked, results))

    if not asked:
        return AddPartitionsToTxnResponse()
    for index, transaction in enumerate(asked):
        partitions: Errors = {}
        for topic in transaction.topics:
            for partition in topic.partitions:
                partitions[topic.name, partition] = _refusal(context, topic.name, partition)
                yield
            yield
        yield
        _begin(context, transaction, partitions, partial(add, index))
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
    partitions: Errors,
    done: partial[None],
) -> None:
    """Add or verify the partitions, unless one is refused; `done(errors)` once, perhaps before this returns."""
    if any(partitions.values()):
        done({each: error or ErrorCode.OPERATION_NOT_ATTEMPTED for each, error in partitions.items()})
        return
    coordinator = context.services.transactions
    producer = transaction.transactional_id, transaction.producer_id, transaction.producer_epoch
    if transaction.verify_only:
        done(coordinator.verify_partitions(*producer, partitions))
        return

    def added(error: ErrorCode) -> None:
        if error == ErrorCode.PRODUCER_FENCED and context.api_version < 2:
            error = ErrorCode.INVALID_PRODUCER_EPOCH
        done(dict.fromkeys(partitions, error))

    supports_epoch_bump = context.api_version >= BROKERS_SINCE
    coordinator.add_partitions(*producer, partitions, supports_epoch_bump, added)


def _answer(
    version: int, asked: list[AddPartitionsToTxnTransaction], results: list[Errors]
) -> Generator[None, None, AddPartitionsToTxnResponse]:
    answered = []
    for transaction, errors in zip(asked, results, strict=True):
        topics: dict[str, list[AddPartitionsToTxnPartitionResult]] = {}
        for (topic, partition), error in errors.items():
            topics.setdefault(topic, []).append(AddPartitionsToTxnPartitionResult(partition, error))
            yield
        of_topics = [AddPartitionsToTxnTopicResult(topic, each) for topic, each in topics.items()]
        answered.append(AddPartitionsToTxnResult(transaction.transactional_id, of_topics))
        yield
    if version >= BROKERS_SINCE:
        return AddPartitionsToTxnResponse(results_by_transaction=answered)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=answered[0].topic_results)
