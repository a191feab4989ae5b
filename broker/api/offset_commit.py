"""OffsetCommit (8), versions 2-10: store a group's positions.

v2-4 carry a retention time; v6 leader epochs; v7 static members; v9 serves KIP-848 (and GROUP_ID_NOT_FOUND);
v10 names topics by id (KIP-848). Topics and partitions that do not exist fail alone; the rest is committed.
"""

from __future__ import annotations

from barnabas.broker.context import RequestContext
from barnabas.broker.registry import PENDING, Outcome, api
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)


@api(8, 2, 10)
def offset_commit(context: RequestContext, request: OffsetCommitRequest) -> OffsetCommitResponse | Outcome:
    known, refused = _split(context, request)
    if not known:
        return OffsetCommitResponse(topics=refused)
    shard = context.services.groups.shard_of(request.group_id)
    if isinstance(shard, ErrorCode):
        return _failed(request, shard)

    def reply(error: ErrorCode, results: list[OffsetCommitResponseTopic]) -> None:
        response = _failed(request, error) if error else OffsetCommitResponse(topics=_merge(refused, results))
        context.complete(response)

    shard.offset_requests.commit(request, known, context.api_version, reply)
    return PENDING


def _split(
    context: RequestContext, request: OffsetCommitRequest
) -> tuple[list[OffsetCommitRequestTopic], list[OffsetCommitResponseTopic]]:
    """(what exists, the answers for what does not). Topics of known ids get their names and the reverse."""
    image = context.services.controller.image
    by_id = context.api_version >= 10
    known: list[OffsetCommitRequestTopic] = []
    refused: list[OffsetCommitResponseTopic] = []
    for topic in request.topics:
        found = image.topic_by_id(topic.topic_id) if by_id else image.topics.get(topic.name)
        if found is None:
            error = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            refused.append(_refuse(topic, topic.partitions, error))
            continue
        topic.name, topic.topic_id = found.name, found.topic_id
        present = [each for each in topic.partitions if each.partition_index in found.partitions]
        if len(present) < len(topic.partitions):
            absent = [each for each in topic.partitions if each.partition_index not in found.partitions]
            refused.append(_refuse(topic, absent, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            topic.partitions = present
        if present:
            known.append(topic)
    return known, refused


def _refuse(
    topic: OffsetCommitRequestTopic, partitions: list[OffsetCommitRequestPartition], error: ErrorCode
) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error)
            for each in partitions
        ],
    )


def _failed(request: OffsetCommitRequest, error: ErrorCode) -> OffsetCommitResponse:
    return OffsetCommitResponse(topics=[_refuse(topic, topic.partitions, error) for topic in request.topics])


def _merge(
    refused: list[OffsetCommitResponseTopic], results: list[OffsetCommitResponseTopic]
) -> list[OffsetCommitResponseTopic]:
    """One entry a topic, what was refused first."""
    merged = {topic.topic_id + topic.name.encode(): topic for topic in refused}
    for topic in results:
        entry = merged.setdefault(topic.topic_id + topic.name.encode(), topic)
        if entry is not topic:
            entry.partitions.extend(topic.partitions)
    return list(merged.values())
