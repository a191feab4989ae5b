"""OffsetFetch (9), versions 1-10: a group's stored positions.

v2 null topics ask for all, and errors stand at the top; v7 require_stable (KIP-447: wait for what is on its
way to the log; a coordinator that has been replaced and does not know it can't answer these, where Kafka's may tell
what was true before); v8 several groups (KIP-709); v10 names topics by id. A position that does not exist is
offset -1 without an error. v1-7 are served as a request for one group.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from barnabas.broker.context import RequestContext
from barnabas.broker.groups.offsets import CommittedOffset
from barnabas.broker.groups.rebalance import coordinator_error
from barnabas.broker.groups.shard import Shard
from barnabas.broker.registry import PENDING, Outcome, api
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from barnabas.wire.primitives import ZERO_UUID


@api(9, 1, 10)
def offset_fetch(context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse | Outcome:
    groups = request.groups if context.api_version >= 8 else [_only_group(request)]
    answers: list[OffsetFetchResponseGroup | None] = [None] * len(groups)
    missing = len(groups)

    def add(index: int, answer: OffsetFetchResponseGroup) -> None:
        nonlocal missing
        answers[index] = answer
        missing -= 1
        if not missing:
            context.complete(_response(context.api_version, groups, answers))

    if not groups:
        return OffsetFetchResponse()
    for index, group in enumerate(groups):
        _serve(context, group, request.require_stable, partial(add, index))
    return PENDING


def _serve(
    context: RequestContext,
    group: OffsetFetchRequestGroup,
    require_stable: bool,
    reply: Callable[[OffsetFetchResponseGroup], None],
) -> None:
    shard = context.services.groups.shard_of(group.group_id)
    if isinstance(shard, ErrorCode):
        reply(_group_error(group, shard))
        return

    def settled(error: ErrorCode) -> None:
        reply(_group_error(group, _fetch_error(error)) if error else _fetch(context, shard, group))

    if require_stable:
        shard.when_stable(group.group_id, settled)
    else:
        shard.when_load_committed(settled)


def _only_group(request: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    topics = request.topics
    return OffsetFetchRequestGroup(
        group_id=request.group_id,
        topics=None
        if topics is None
        else [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in topics
        ],
    )


def _fetch_error(append_error: ErrorCode) -> ErrorCode:
    """What a client hears when what is on its way is not committed: ask again, or find who coordinates now."""
    return ErrorCode.NOT_COORDINATOR if append_error in _GONE else coordinator_error(append_error)


_GONE = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)


def _group_error(group: OffsetFetchRequestGroup, error: ErrorCode) -> OffsetFetchResponseGroup:
    return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error)


def _fetch(context: RequestContext, shard: Shard, group: OffsetFetchRequestGroup) -> OffsetFetchResponseGroup:
    topics = _all(context, shard, group) if group.topics is None else _asked(context, shard, group)
    return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)


def _all(
    context: RequestContext, shard: Shard, group: OffsetFetchRequestGroup
) -> list[OffsetFetchResponseTopics]:
    image = context.services.controller.image
    by_id = context.api_version >= 10
    answers = []
    for name, partitions in shard.offsets.committed_topics(group.group_id).items():
        known = image.topics.get(name)
        if by_id and known is None:
            continue  # it has no name on this version's wire
        answers.append(
            OffsetFetchResponseTopics(
                name=name,
                topic_id=known.topic_id if known is not None else ZERO_UUID,
                partitions=[_stored(index, position) for index, position in partitions.items()],
            )
        )
    return answers


def _asked(
    context: RequestContext, shard: Shard, group: OffsetFetchRequestGroup
) -> list[OffsetFetchResponseTopics]:
    image = context.services.controller.image
    by_id = context.api_version >= 10
    answers = []
    unknown = []
    for topic in group.topics or ():
        name = topic.name
        if by_id:
            known = image.topic_by_id(topic.topic_id)
            if known is None:
                unknown.append(_unknown_topic(topic))
                continue
            name = known.name
        partitions = []
        for index in topic.partition_indexes:
            position = shard.offsets.get(group.group_id, name, index)
            if position is not None and _is_of_another_topic(position, topic.topic_id):
                position = None
            partitions.append(_stored(index, position))
        answers.append(OffsetFetchResponseTopics(name=name, topic_id=topic.topic_id, partitions=partitions))
    return answers + unknown


def _is_of_another_topic(position: CommittedOffset, topic_id: bytes) -> bool:
    """Committed for a topic of that name that has been deleted since."""
    return topic_id != ZERO_UUID and position.topic_id not in (ZERO_UUID, topic_id)


def _stored(index: int, position: CommittedOffset | None) -> OffsetFetchResponsePartitions:
    if position is None:
        return OffsetFetchResponsePartitions(
            partition_index=index, committed_offset=-1, committed_leader_epoch=-1, metadata=""
        )
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=position.offset,
        committed_leader_epoch=position.leader_epoch,
        metadata=position.metadata,
    )


def _unknown_topic(topic: OffsetFetchRequestTopics) -> OffsetFetchResponseTopics:
    partitions = [_stored(index, None) for index in topic.partition_indexes]
    for partition in partitions:
        partition.error_code = ErrorCode.UNKNOWN_TOPIC_ID
    return OffsetFetchResponseTopics(topic_id=topic.topic_id, partitions=partitions)


def _response(
    version: int, groups: list[OffsetFetchRequestGroup], answers: list[OffsetFetchResponseGroup | None]
) -> OffsetFetchResponse:
    complete = [answer for answer in answers if answer is not None]
    if version >= 8:
        return OffsetFetchResponse(groups=complete)
    answer = complete[0]
    if version < 2 and answer.error_code:
        return OffsetFetchResponse(topics=_errors_by_partition(groups[0], answer.error_code))
    return OffsetFetchResponse(
        error_code=answer.error_code, topics=[_old_topic(topic) for topic in answer.topics]
    )


def _old_topic(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(
        name=topic.name,
        partitions=[
            OffsetFetchResponsePartition(
                partition_index=each.partition_index,
                committed_offset=each.committed_offset,
                committed_leader_epoch=each.committed_leader_epoch,
                metadata=each.metadata,
                error_code=each.error_code,
            )
            for each in topic.partitions
        ],
    )


def _errors_by_partition(group: OffsetFetchRequestGroup, error: int) -> list[OffsetFetchResponseTopic]:
    return [
        OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[
                OffsetFetchResponsePartition(
                    partition_index=index, committed_offset=-1, metadata="", error_code=error
                )
                for index in topic.partition_indexes
            ],
        )
        for topic in group.topics or ()
    ]
