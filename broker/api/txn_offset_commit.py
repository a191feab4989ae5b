"""TxnOffsetCommit (28), versions 0-5: commits a group's offsets as part of a producer's transaction (KIP-98).

v2 leader epochs, and COORDINATOR_LOAD_IN_PROGRESS; v3 the member, its generation and instance (KIP-447); v4
TRANSACTION_ABORTABLE; v5 adds the group's partition to the transaction, so there is no AddOffsetsToTxn before it (KIP-890).
Topics and partitions that do not exist fail alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final

from barnabas.broker.groups.offset_requests import metadata_error
from barnabas.broker.groups.transactional_commits import commit_in_transaction
from barnabas.broker.requests.authorization import allows_group, allows_transactional_id, refused_topics
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import answer_in_slices, collect, sliced
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

KNOWS_LOADING: Final = 2  # the version since which clients take COORDINATOR_LOAD_IN_PROGRESS

# Of the request's topics that exist, what it has for the partitions that exist. As in Kafka a partition may come several times: each
# time has its own error, and the last offset that is accepted counts: it is kept here, or the first one if none is accepted.
Known = dict[str, dict[int, TxnOffsetCommitRequestPartition]]


@api(28, 0, 5)
@sliced
def txn_offset_commit(
    context: HandlerContext, request: TxnOffsetCommitRequest
) -> Generator[None, None, TxnOffsetCommitResponse | Outcome]:
    known: Known = {}
    if not allows_transactional_id(context, Operation.WRITE, request.transactional_id):
        return (yield from _failed(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    if not allows_group(context, Operation.READ, request.group_id):
        return (yield from _failed(request, ErrorCode.GROUP_AUTHORIZATION_FAILED))
    unauthorized = yield from refused_topics(
        context, Operation.READ, ((topic.name, len(topic.partitions)) for topic in request.topics)
    )
    image = context.services.controller.image
    metadata_max = context.services.config.offset_metadata_max_bytes

    def refused(partition: TxnOffsetCommitRequestPartition) -> ErrorCode:
        return metadata_error(partition.committed_metadata, metadata_max)

    for topic in request.topics:
        found = None if topic.name in unauthorized else image.topics.get(topic.name)
        if found is not None:
            partitions = known.setdefault(topic.name, {})
            for partition in topic.partitions:
                index = partition.partition_index
                if index in found.partitions and (index not in partitions or not refused(partition)):
                    partitions[index] = partition
                yield
        yield
    topics = [TxnOffsetCommitRequestTopic(name, list(each.values())) for name, each in known.items() if each]

    def answer(error: ErrorCode) -> Generator[None, None, TxnOffsetCommitResponse]:
        return _answer(request, known, unauthorized, lambda partition: error or refused(partition))

    if not topics:
        return (yield from answer(ErrorCode.NONE))

    def reply(error: ErrorCode) -> None:
        if error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and context.api_version < KNOWS_LOADING:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        answer_in_slices(context, answer(error))

    services = context.services
    if not request.group_id:
        reply(ErrorCode.INVALID_GROUP_ID)
    elif services.groups.topic.image() is None:
        reply(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    else:
        commit_in_transaction(
            services.groups.shards,
            services.add_partitions_to_txn.verify,
            request,
            topics,
            context.api_version,
            reply,
            is_verification_enabled=services.config.transaction_partition_verification_enable,
        )
    return PENDING


def _failed(
    request: TxnOffsetCommitRequest, error: ErrorCode
) -> Generator[None, None, TxnOffsetCommitResponse]:
    response = TxnOffsetCommitResponse()
    for topic in request.topics:
        partitions = yield from collect(
            lambda each: TxnOffsetCommitResponsePartition(each.partition_index, error), topic.partitions
        )
        response.topics.append(TxnOffsetCommitResponseTopic(topic.name, partitions))
        yield
    return response


def _answer(
    request: TxnOffsetCommitRequest,
    known: Known,
    unauthorized: set[str],
    error_of: Callable[[TxnOffsetCommitRequestPartition], ErrorCode],
) -> Generator[None, None, TxnOffsetCommitResponse]:
    """`error_of`: of partitions that exist. One entry for each topic, partitions that do not exist first; a partition that is named
    several times has as many entries."""
    answers: dict[str, TxnOffsetCommitResponseTopic] = {}
    for exists in (False, True):
        for topic in request.topics:
            name, found = topic.name, known.get(topic.name)
            missing = (
                ErrorCode.TOPIC_AUTHORIZATION_FAILED
                if name in unauthorized
                else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
            if found is None and name not in answers:
                answers[name] = TxnOffsetCommitResponseTopic(name)
            for each in topic.partitions:
                if (found is not None and each.partition_index in found) is exists:
                    if name not in answers:
                        answers[name] = TxnOffsetCommitResponseTopic(name)
                    code = error_of(each) if exists else missing
                    answers[name].partitions.append(
                        TxnOffsetCommitResponsePartition(each.partition_index, code)
                    )
                yield
            yield
    return TxnOffsetCommitResponse(topics=list(answers.values()))
