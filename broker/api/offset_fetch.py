"""OffsetFetch (9), versions 1-10: a group's committed offsets.

v2 null topics ask for all, and errors stand at the top; v7 require_stable (KIP-447); v8 several groups (KIP-709); v10 names
topics by id. An offset that was never committed is -1 without an error.
With require_stable the response waits for commits that are not replicated yet, and an offset that an open transaction has
written is UNSTABLE_OFFSET_COMMIT. A coordinator that was replaced without knowing it cannot answer these; Kafka's may answer
with older offsets.
v1-7 are served as a request for one group. A coordinator whose session with the active controller has ended answers
NOT_COORDINATOR: another may have newer offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial

from barnabas.broker.coordinator.shard_log import coordinator_error
from barnabas.broker.groups.modern.offset_checks import check_fetch
from barnabas.broker.groups.offsets import CommittedOffset
from barnabas.broker.groups.shard import Shard
from barnabas.broker.requests.authorization import allows_group, allows_topic
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.repetitions import Repetitions
from barnabas.broker.requests.sliced_handler import answer_in_slices, collect, sliced
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation
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
@sliced
def offset_fetch(
    context: HandlerContext, request: OffsetFetchRequest
) -> Generator[None, None, OffsetFetchResponse | Outcome]:
    groups = request.groups if context.api_version >= 8 else [(yield from _only_group(request))]
    settled: list[Shard | ErrorCode] = [ErrorCode.NONE] * len(groups)
    missing = len(groups)

    def add(index: int, outcome: Shard | ErrorCode) -> None:
        nonlocal missing
        settled[index] = outcome
        missing -= 1
        if not missing:
            answer_in_slices(context, _answer(context, groups, settled, request.require_stable))

    if not groups:
        return OffsetFetchResponse()
    for index, group in enumerate(groups):
        if not allows_group(context, Operation.DESCRIBE, group.group_id):
            add(index, ErrorCode.GROUP_AUTHORIZATION_FAILED)
            yield
            continue
        _settle(context, group.group_id, request.require_stable, partial(add, index))
        yield
    return PENDING


def _settle(
    context: HandlerContext,
    group_id: str,
    require_stable: bool,
    reply: Callable[[Shard | ErrorCode], None],
) -> None:
    """Reply with the group's shard, once its offsets may be read for this request."""
    shard = context.services.groups.shards.of(group_id)
    if isinstance(shard, ErrorCode):
        reply(shard)
        return

    def settled(error: ErrorCode) -> None:
        reply(_fetch_error(error) if error else shard)

    if require_stable:
        shard.when_stable(group_id, settled)
    else:
        shard.log.when_load_committed(settled)


def _answer(
    context: HandlerContext,
    groups: list[OffsetFetchRequestGroup],
    settled: list[Shard | ErrorCode],
    require_stable: bool,
) -> Generator[None, None, OffsetFetchResponse]:
    repetitions = Repetitions()
    answers = []
    for group, shard in zip(groups, settled, strict=True):
        answer = OffsetFetchResponseGroup(group_id=group.group_id)
        answers.append(answer)
        if isinstance(shard, ErrorCode):
            answer.error_code = shard
        elif not context.services.partitions.has_session():
            answer.error_code = ErrorCode.NOT_COORDINATOR
        elif repetitions.are_too_many(group.group_id):
            answer.error_code = ErrorCode.INVALID_REQUEST
        elif (error := _check_member(shard, group)) != ErrorCode.NONE:
            answer.error_code = error
        elif group.topics is None:
            yield from _all(context, shard, group, answer, require_stable)
        else:
            yield from _asked(context, shard, group, answer, require_stable)
        yield
    return (yield from _response(context.api_version, groups, answers))


def _check_member(shard: Shard, group: OffsetFetchRequestGroup) -> ErrorCode:
    """Members of consumer and streams groups fetch with their epoch (v9)."""
    found = shard.store.modern(group.group_id)
    if found is None or not found.commits_offsets:  # of a share group there are none
        return ErrorCode.NONE
    return check_fetch(found, group.member_id, group.member_epoch)


def _only_group(request: OffsetFetchRequest) -> Generator[None, None, OffsetFetchRequestGroup]:
    if request.topics is None:
        return OffsetFetchRequestGroup(group_id=request.group_id, topics=None)
    topics = yield from collect(
        lambda topic: OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes),
        request.topics,
    )
    return OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)


def _fetch_error(append_error: ErrorCode) -> ErrorCode:
    """The error of a client whose group's pending commits failed: ask again, or find the new coordinator."""
    return ErrorCode.NOT_COORDINATOR if append_error in _GONE else coordinator_error(append_error)


_GONE = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)


def _all(
    context: HandlerContext,
    shard: Shard,
    group: OffsetFetchRequestGroup,
    answer: OffsetFetchResponseGroup,
    require_stable: bool,
) -> Generator[None, None, None]:
    image = context.services.controller.image
    by_id = context.api_version >= 10
    committed = shard.offsets.committed_topics(group.group_id)
    for name, positions in [(name, list(partitions.items())) for name, partitions in committed.items()]:
        known = image.topics.get(name)
        if by_id and known is None:
            continue  # it has no name on this version's wire
        if not allows_topic(context, Operation.DESCRIBE, name, silent=True):
            yield
            continue
        answer.topics.append(
            OffsetFetchResponseTopics(
                name=name,
                topic_id=known.topic_id if known is not None else ZERO_UUID,
                partitions=[
                    _stored(index, None, ErrorCode.UNSTABLE_OFFSET_COMMIT)
                    if require_stable and shard.offsets.is_pending(group.group_id, name, index)
                    else _stored(index, position)
                    for index, position in positions
                ],
            )
        )
        yield


def _asked(
    context: HandlerContext,
    shard: Shard,
    group: OffsetFetchRequestGroup,
    answer: OffsetFetchResponseGroup,
    require_stable: bool,
) -> Generator[None, None, None]:
    image = context.services.controller.image
    by_id = context.api_version >= 10
    unknown = []
    repetitions = Repetitions()
    for topic in group.topics or ():
        name = topic.name
        if by_id:
            known = image.topic_by_id(topic.topic_id)
            if known is None:
                unknown.append((yield from _refused_topic(topic, "", ErrorCode.UNKNOWN_TOPIC_ID)))
                yield
                continue
            name = known.name
        if not allows_topic(context, Operation.DESCRIBE, name, count=len(topic.partition_indexes)):
            refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            unknown.append((yield from _refused_topic(topic, name, refused)))
            continue
        described = OffsetFetchResponseTopics(name=name, topic_id=topic.topic_id)
        answer.topics.append(described)
        for index in topic.partition_indexes:
            if require_stable and shard.offsets.is_pending(group.group_id, name, index):
                described.partitions.append(_stored(index, None, ErrorCode.UNSTABLE_OFFSET_COMMIT))
                yield
                continue
            position = shard.offsets.get(group.group_id, name, index)
            if position is not None and _is_of_another_topic(position, topic.topic_id):
                position = None
            stored = _stored(index, position)
            if stored.metadata and repetitions.are_too_many((name, index)):  # it may be 4 KB long
                stored = _stored(index, None, ErrorCode.INVALID_REQUEST)
            described.partitions.append(stored)
            yield
        yield
    answer.topics += unknown


def _is_of_another_topic(position: CommittedOffset, topic_id: bytes) -> bool:
    """Whether it was committed for a topic of that name that has been deleted since."""
    return topic_id != ZERO_UUID and position.topic_id not in (ZERO_UUID, topic_id)


def _stored(
    index: int, position: CommittedOffset | None, error: ErrorCode = ErrorCode.NONE
) -> OffsetFetchResponsePartitions:
    if position is None:
        return OffsetFetchResponsePartitions(
            partition_index=index,
            committed_offset=-1,
            committed_leader_epoch=-1,
            metadata="",
            error_code=error,
        )
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=position.offset,
        committed_leader_epoch=position.leader_epoch,
        metadata=position.metadata,
    )


def _refused_topic(
    topic: OffsetFetchRequestTopics, name: str, error: ErrorCode
) -> Generator[None, None, OffsetFetchResponseTopics]:
    partitions = yield from collect(lambda index: _stored(index, None, error), topic.partition_indexes)
    return OffsetFetchResponseTopics(name=name, topic_id=topic.topic_id, partitions=partitions)


def _response(
    version: int, groups: list[OffsetFetchRequestGroup], answers: list[OffsetFetchResponseGroup]
) -> Generator[None, None, OffsetFetchResponse]:
    if version >= 8:
        return OffsetFetchResponse(groups=answers)
    answer = answers[0]
    if version < 2 and answer.error_code:
        return (yield from _errors_by_partition(groups[0], ErrorCode(answer.error_code)))
    response = OffsetFetchResponse(error_code=answer.error_code)
    for topic in answer.topics:
        partitions = yield from collect(_old_form, topic.partitions)
        response.topics.append(OffsetFetchResponseTopic(topic.name, partitions))
        yield
    return response


def _old_form(partition: OffsetFetchResponsePartitions) -> OffsetFetchResponsePartition:
    return OffsetFetchResponsePartition(
        partition_index=partition.partition_index,
        committed_offset=partition.committed_offset,
        committed_leader_epoch=partition.committed_leader_epoch,
        metadata=partition.metadata,
        error_code=partition.error_code,
    )


def _errors_by_partition(
    group: OffsetFetchRequestGroup, error: ErrorCode
) -> Generator[None, None, OffsetFetchResponse]:
    response = OffsetFetchResponse()
    for topic in group.topics or ():
        partitions = yield from collect(
            lambda index: _old_form(_stored(index, None, error)), topic.partition_indexes
        )
        response.topics.append(OffsetFetchResponseTopic(topic.name, partitions))
        yield
    return response
