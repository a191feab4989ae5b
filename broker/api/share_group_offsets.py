"""DescribeShareGroupOffsets (90), versions 0-1; AlterShareGroupOffsets (91) and DeleteShareGroupOffsets (92), version 0 (KIP-932).

Version 1 of 90 has the lag: records between the start offset and the end of the partition that are not delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from functools import partial

from barnabas.broker.groups.shard import Shard
from barnabas.broker.groups.share.offsets import SharePosition, TopicPartition, TopicResults
from barnabas.broker.requests.authorization import allows_group, allows_topic
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.repetitions import (
    MESSAGE,
    TOO_MANY_PARTITIONS,
    Repetitions,
    are_too_many_partitions,
)
from barnabas.broker.requests.sliced_handler import answer_in_slices, sliced
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import alter_share_group_offsets as altering
from barnabas.wire.messages import delete_share_group_offsets as deleting
from barnabas.wire.messages import describe_share_group_offsets as describing
from barnabas.wire.primitives import ZERO_UUID

Described = describing.DescribeShareGroupOffsetsResponseGroup
Positions = Mapping[TopicPartition, SharePosition]


# -- DescribeShareGroupOffsets


@api(90, 0, 1)
@sliced
def describe_share_group_offsets(
    context: HandlerContext, request: describing.DescribeShareGroupOffsetsRequest
) -> Generator[None, None, Outcome]:
    """The groups are read one after the other."""
    named = [
        len(topic.partitions) for group in request.groups for topic in group.topics or () if topic is not None
    ]
    is_too_large = are_too_many_partitions(context.services.controller.image, named)
    repetitions = Repetitions()
    groups = iter(request.groups)
    answers: list[Described] = []

    def answered(answer: Described) -> None:
        answers.append(answer)
        context.services.runtime.call_soon(describe_next)

    def describe_next() -> None:
        group = next(groups, None)
        if group is None:
            answer_in_slices(context, _described(answers))
        elif is_too_large:
            answered(_failed(group.group_id, ErrorCode.INVALID_REQUEST, TOO_MANY_PARTITIONS))
        elif repetitions.are_too_many(group.group_id):
            answered(_failed(group.group_id, ErrorCode.INVALID_REQUEST, MESSAGE))
        else:
            _describe(context, group, answered)

    describe_next()
    yield
    return PENDING


def _described(
    answers: list[Described],
) -> Generator[None, None, describing.DescribeShareGroupOffsetsResponse]:
    yield
    return describing.DescribeShareGroupOffsetsResponse(groups=answers)


def _failed(group_id: str, error: ErrorCode, message: str | None = None) -> Described:
    return Described(group_id=group_id, error_code=error, error_message=message)


def _describe(
    context: HandlerContext,
    group: describing.DescribeShareGroupOffsetsRequestGroup,
    answered: Callable[[Described], object],
) -> None:
    group_id = group.group_id
    if not context.services.groups.serves_share_groups:
        answered(_failed(group_id, ErrorCode.UNSUPPORTED_VERSION))
        return
    if not allows_group(context, Operation.DESCRIBE, group_id):
        answered(_failed(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED))
        return
    shard = context.services.groups.shards.of(group_id)
    if isinstance(shard, ErrorCode):
        answered(_failed(group_id, shard, shard.message))
        return
    positions_of: dict[str, dict[int, None]] = {}
    answers: dict[str, describing.DescribeShareGroupOffsetsResponseTopic] = {}
    if group.topics is None:
        for name, indexes in shard.share_offsets.initialized(group_id).items():
            if allows_topic(context, Operation.DESCRIBE, name, silent=True):
                positions_of[name] = dict.fromkeys(indexes)
    else:
        for topic in group.topics:
            if topic is not None:
                _name_topic(context, topic, positions_of, answers)

    def found(positions: Positions) -> None:
        image = context.services.controller.image
        for name, indexes in positions_of.items():
            known = image.topics.get(name)
            answers[name] = describing.DescribeShareGroupOffsetsResponseTopic(
                name,
                ZERO_UUID if known is None else known.topic_id,
                [_partition(index, positions.get((name, index), SharePosition())) for index in indexes],
            )
        answered(Described(group_id=group_id, topics=list(answers.values())))

    shard.share_offsets.describe(group_id, positions_of, found)


def _name_topic(
    context: HandlerContext,
    topic: describing.DescribeShareGroupOffsetsRequestTopic,
    positions_of: dict[str, dict[int, None]],
    answers: dict[str, describing.DescribeShareGroupOffsetsResponseTopic],
) -> None:
    """Add the partitions whose positions are to be found, each once; or the answer, if the sender may not see the topic or there is
    none."""
    name = topic.topic_name
    if not allows_topic(context, Operation.DESCRIBE, name):
        position = SharePosition(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    elif name not in context.services.controller.image.topics:
        position = SharePosition()
    else:
        positions_of.setdefault(name, {}).update(dict.fromkeys(topic.partitions))
        return
    answer = answers.setdefault(name, describing.DescribeShareGroupOffsetsResponseTopic(name, ZERO_UUID, []))
    answer.partitions.extend(_partition(index, position) for index in topic.partitions)


def _partition(index: int, position: SharePosition) -> describing.DescribeShareGroupOffsetsResponsePartition:
    """A partition without a position has the start offset -1."""
    return describing.DescribeShareGroupOffsetsResponsePartition(
        index,
        position.start_offset,
        position.leader_epoch,
        position.lag,
        position.error,
        position.error.message if position.error else None,
    )


# -- AlterShareGroupOffsets


@api(91, 0, 0)
@sliced
def alter_share_group_offsets(
    context: HandlerContext, request: altering.AlterShareGroupOffsetsRequest
) -> Generator[None, None, altering.AlterShareGroupOffsetsResponse | Outcome]:
    shard = _shard(context, Operation.READ, request.group_id)
    named = [len(topic.partitions) for topic in request.topics]
    if not isinstance(shard, ErrorCode) and are_too_many_partitions(context.services.controller.image, named):
        shard = ErrorCode.INVALID_REQUEST
    if isinstance(shard, ErrorCode):
        return altering.AlterShareGroupOffsetsResponse(error_code=shard, error_message=shard.message)
    refused: dict[TopicPartition, ErrorCode] = {}
    starts: dict[TopicPartition, int] = {}
    known: dict[str, None] = {}
    image = context.services.controller.image
    for topic in request.topics:
        is_allowed = allows_topic(context, Operation.READ, topic.topic_name)
        if is_allowed and topic.topic_name in image.topics:
            known[topic.topic_name] = None
        for each in topic.partitions:
            if is_allowed:
                starts[topic.topic_name, each.partition_index] = each.start_offset
            else:
                refused[topic.topic_name, each.partition_index] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        yield

    def reply(error: ErrorCode, message: str | None, errors: Mapping[TopicPartition, ErrorCode]) -> None:
        if error:
            text = error.message if message is None else message
            context.complete(altering.AlterShareGroupOffsetsResponse(error_code=error, error_message=text))
            return
        results = {**refused, **dict.fromkeys(starts, ErrorCode.NONE), **errors}
        answer_in_slices(context, _altered(context, known, results))

    shard.share_offsets.alter(request.group_id, known, starts, reply)
    return PENDING


def _shard(context: HandlerContext, operation: Operation, group_id: str) -> Shard | ErrorCode:
    groups = context.services.groups
    if not groups.serves_share_groups:
        return ErrorCode.UNSUPPORTED_VERSION
    if not allows_group(context, operation, group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return groups.shards.of(group_id) if group_id else ErrorCode.INVALID_GROUP_ID


def _altered(
    context: HandlerContext, known: Iterable[str], results: Mapping[TopicPartition, ErrorCode]
) -> Generator[None, None, altering.AlterShareGroupOffsetsResponse]:
    """`known`: topics that are answered also if none of their partitions was named."""
    image = context.services.controller.image
    topics: dict[str, altering.AlterShareGroupOffsetsResponseTopic] = {}

    def answer_of(name: str) -> altering.AlterShareGroupOffsetsResponseTopic:
        answer = topics.get(name)
        if answer is None:
            topic = image.topics.get(name)
            topic_id = ZERO_UUID if topic is None else topic.topic_id
            answer = topics[name] = altering.AlterShareGroupOffsetsResponseTopic(name, topic_id, [])
        return answer

    for name in known:
        answer_of(name)
        yield
    for (name, index), error in results.items():
        message = error.message if error else None
        answer_of(name).partitions.append(
            altering.AlterShareGroupOffsetsResponsePartition(index, error, message)
        )
        yield
    return altering.AlterShareGroupOffsetsResponse(responses=list(topics.values()))


# -- DeleteShareGroupOffsets


@api(92, 0, 0)
@sliced
def delete_share_group_offsets(
    context: HandlerContext, request: deleting.DeleteShareGroupOffsetsRequest
) -> Generator[None, None, deleting.DeleteShareGroupOffsetsResponse | Outcome]:
    shard = _shard(context, Operation.DELETE, request.group_id)
    image = context.services.controller.image
    if not isinstance(shard, ErrorCode) and are_too_many_partitions(image, [1] * len(request.topics)):
        shard = ErrorCode.INVALID_REQUEST
    if isinstance(shard, ErrorCode):
        return deleting.DeleteShareGroupOffsetsResponse(error_code=shard, error_message=shard.message)
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    refused: TopicResults = {}
    names: dict[str, None] = {}
    for topic in request.topics:
        if allows_topic(context, Operation.READ, topic.topic_name):
            names[topic.topic_name] = None
        else:
            refused[topic.topic_name] = denied, denied.message
        yield
    ids = {name: image.topics[name].topic_id for name in names if name in image.topics}
    answer = partial(_deleted, context, refused, ids)
    shard.share_offsets.delete(request.group_id, names, answer)
    return PENDING


def _deleted(
    context: HandlerContext,
    refused: TopicResults,
    ids: Mapping[str, bytes],
    error: ErrorCode,
    message: str | None,
    results: TopicResults,
) -> None:
    if error:
        text = error.message if message is None else message
        context.complete(deleting.DeleteShareGroupOffsetsResponse(error_code=error, error_message=text))
        return
    responses = []
    for name, (code, reason) in {**refused, **results}.items():
        is_unknown = name in refused or code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        topic_id = ZERO_UUID if is_unknown else ids.get(name, ZERO_UUID)
        responses.append(deleting.DeleteShareGroupOffsetsResponseTopic(name, topic_id, code, reason))
    context.complete(deleting.DeleteShareGroupOffsetsResponse(responses=responses))
