"""OffsetForLeaderEpoch (23), versions 2-4: the end offset of a leader epoch, from which a reader finds where its log diverges
(KIP-101, KIP-279, KIP-320). A request with a replica id is a follower's (broker/requests/replica_authorization.py).

A leader whose session with the active controller has ended answers NOT_LEADER_OR_FOLLOWER: readers may have records of the
next leader behind the end of its log, which would look truncated to them."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

from barnabas.broker.partitions.current_leaders import missing_error
from barnabas.broker.requests.authorization import allows_cluster, refused_topics
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.replica_authorization import may_act_as_replica
from barnabas.broker.requests.sliced_handler import collect, sliced
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


@api(23, 2, 4)
@sliced
def offset_for_leader_epoch(
    context: HandlerContext, request: OffsetForLeaderEpochRequest
) -> Generator[None, None, OffsetForLeaderEpochResponse]:
    is_refused = request.replica_id >= 0 and not may_act_as_replica(context, request.replica_id)
    response = OffsetForLeaderEpochResponse()
    unauthorized = set[str]()
    if not is_refused and not allows_cluster(context, Operation.CLUSTER_ACTION, silent=True):
        named = ((topic.topic, len(topic.partitions)) for topic in request.topics)
        unauthorized = yield from refused_topics(context, Operation.DESCRIBE, named)
    for topic in request.topics:
        is_topic_refused = is_refused or topic.topic in unauthorized
        serve = _refuse if is_topic_refused else partial(_answer, context, topic.topic)
        partitions = yield from collect(serve, topic.partitions)
        response.topics.append(OffsetForLeaderTopicResult(topic.topic, partitions))
        yield
    return response


def _refuse(wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    return EpochEndOffset(ErrorCode.TOPIC_AUTHORIZATION_FAILED, wanted.partition)


def _answer(context: HandlerContext, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    partition = context.services.partitions.get(topic, wanted.partition)
    if partition is None:
        error = missing_error(context.services.controller.image, topic, wanted.partition)
        return EpochEndOffset(partition=wanted.partition, error_code=error)
    error = partition.check_leader_epoch(wanted.current_leader_epoch)
    if not error and not context.services.partitions.leads(partition):
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    if error:
        return EpochEndOffset(partition=wanted.partition, error_code=error)
    epoch, end_offset = partition.epoch_end_offset(wanted.leader_epoch)
    return EpochEndOffset(partition=wanted.partition, leader_epoch=epoch, end_offset=end_offset)
