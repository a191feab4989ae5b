"""OffsetCommit (8), versions 2-10: stores a group's offsets.

v2-4 retention time; v6 leader epochs; v7 static members; v9 KIP-848 (and GROUP_ID_NOT_FOUND); v10 names topics by id
(KIP-848). Topics and partitions that do not exist fail alone; the rest is committed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from barnabas.broker.requests.authorization import allows_group, refused_topics
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import answer_in_slices, collect, sliced
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation
from barnabas.controller.metadata.image import MetadataImage
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

Topic = tuple[str, bytes]  # name and id
Errors = dict[tuple[Topic, int], int]  # by topic and partition
NO_PARTITION = -(1 << 31)  # the index for a topic that is named without partitions


@api(8, 2, 10)
@sliced
def offset_commit(
    context: HandlerContext, request: OffsetCommitRequest
) -> Generator[None, None, OffsetCommitResponse | Outcome]:
    if not allows_group(context, Operation.READ, request.group_id):
        return (yield from _failed(request, ErrorCode.GROUP_AUTHORIZATION_FAILED))
    known: dict[Topic, dict[int, OffsetCommitRequestPartition]] = {}  # the last of repetitions counts
    refused: Errors = {}
    image = context.services.controller.image
    by_id = context.api_version >= 10
    unauthorized = yield from refused_topics(
        context, Operation.READ, _named_topics(image, request.topics, by_id)
    )
    for topic in request.topics:
        found = image.topic_by_id(topic.topic_id) if by_id else image.topics.get(topic.name)
        if found is not None:
            topic.name, topic.topic_id = found.name, found.topic_id
        error = (
            ErrorCode.UNKNOWN_TOPIC_ID if by_id and found is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
        if topic.name in unauthorized:
            found, error = None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
        for partition in topic.partitions:
            index = partition.partition_index
            if found is not None and index in found.partitions:
                known.setdefault((topic.name, topic.topic_id), {})[index] = partition
            else:
                refused[(topic.name, topic.topic_id), index] = error
            yield
        if found is None and not topic.partitions:
            refused[(topic.name, topic.topic_id), NO_PARTITION] = error
        yield
    if not known:
        return (yield from _answer(request, refused, {}))
    shard = context.services.groups.shards.of(request.group_id)
    if isinstance(shard, ErrorCode):
        return (yield from _failed(request, shard))

    def reply(error: ErrorCode, results: list[OffsetCommitResponseTopic]) -> None:
        committed = {
            ((topic.name, topic.topic_id), each.partition_index): each.error_code
            for topic in results
            for each in topic.partitions
        }
        answer_in_slices(context, _failed(request, error) if error else _answer(request, refused, committed))

    topics = [
        OffsetCommitRequestTopic(name=name, topic_id=topic_id, partitions=list(partitions.values()))
        for (name, topic_id), partitions in known.items()
    ]
    shard.offset_requests.commit(request, topics, context.api_version, reply)
    return PENDING


def _named_topics(
    image: MetadataImage, topics: list[OffsetCommitRequestTopic], by_id: bool
) -> Iterator[tuple[str, int]]:
    """The names of topics, without those whose id is not known, and how many of their partitions are named."""
    for topic in topics:
        found = image.topic_by_id(topic.topic_id) if by_id else topic
        if found is not None:
            yield found.name, len(topic.partitions)


def _failed(request: OffsetCommitRequest, error: ErrorCode) -> Generator[None, None, OffsetCommitResponse]:
    def fail(partition: OffsetCommitRequestPartition) -> OffsetCommitResponsePartition:
        return OffsetCommitResponsePartition(partition.partition_index, error)

    response = OffsetCommitResponse()
    for topic in request.topics:
        partitions = yield from collect(fail, topic.partitions)
        response.topics.append(OffsetCommitResponseTopic(topic.name, topic.topic_id, partitions))
        yield
    return response


def _answer(
    request: OffsetCommitRequest, refused: Errors, committed: Errors
) -> Generator[None, None, OffsetCommitResponse]:
    """One entry for each topic, refused partitions first. A partition that is named several times has as many entries."""
    answers: dict[Topic, OffsetCommitResponseTopic] = {}
    for errors in (refused, committed):
        for topic in request.topics if errors else ():
            key = topic.name, topic.topic_id
            if (key, NO_PARTITION) in errors:
                answers.setdefault(key, OffsetCommitResponseTopic(*key))
            for partition in topic.partitions:
                error = errors.get((key, partition.partition_index))
                if error is not None:
                    answer = answers.get(key)
                    if answer is None:
                        answer = answers[key] = OffsetCommitResponseTopic(*key)
                    answer.partitions.append(OffsetCommitResponsePartition(partition.partition_index, error))
                yield
            yield
    return OffsetCommitResponse(topics=list(answers.values()))
