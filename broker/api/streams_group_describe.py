"""StreamsGroupDescribe (89), version 0: topology, epochs, members and tasks of streams groups (KIP-1071)."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import Final

from barnabas.broker.coordinator.shard_log import coordinator_error
from barnabas.broker.groups.shard import Shard
from barnabas.broker.groups.streams.group import StreamsGroup
from barnabas.broker.groups.streams.topology import ConfiguredTopology, InternalTopic
from barnabas.broker.requests.authorization import allows_group, allows_topic, authorized_operations
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.repetitions import MESSAGE, Repetitions
from barnabas.broker.requests.sliced_handler import answer_in_slices, sliced
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation, ResourceType
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import consumer_offsets as records
from barnabas.wire.messages.streams_group_describe import (
    Assignment,
    DescribedGroup,
    Endpoint,
    KeyValue,
    Member,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    Subtopology,
    TaskIds,
    TopicInfo,
    Topology,
)

HIDDEN_TOPICS: Final = "The described group uses topics that the client is not authorized to describe."


@api(89, 0, 0)
@sliced
def streams_group_describe(
    context: HandlerContext, request: StreamsGroupDescribeRequest
) -> Generator[None, None, Outcome]:
    """Groups are shown as they are committed: the answer waits for what is being appended."""
    waiting = 1

    def settled(_error: ErrorCode = ErrorCode.NONE) -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting:
            answer_in_slices(context, _answer(context, request))

    for shard in {
        id(found): found for group_id in request.group_ids if (found := _shard(context, group_id))
    }.values():
        waiting += 1
        shard.log.when_settled(settled)
        yield
    settled()
    return PENDING


def _shard(context: HandlerContext, group_id: str) -> Shard | None:
    found = context.services.groups.shards.of(group_id)
    return None if isinstance(found, ErrorCode) else found


def _answer(
    context: HandlerContext, request: StreamsGroupDescribeRequest
) -> Generator[None, None, StreamsGroupDescribeResponse]:
    repetitions = Repetitions()
    response = StreamsGroupDescribeResponse()
    are_served = context.services.groups.serves_streams_groups
    for group_id in request.group_ids:
        if not are_served:
            group = _failed(group_id, ErrorCode.UNSUPPORTED_VERSION)
        elif not allows_group(context, Operation.DESCRIBE, group_id):
            group = _failed(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        elif repetitions.are_too_many(group_id):
            group = _failed(group_id, ErrorCode.INVALID_REQUEST, MESSAGE)
        else:
            group = yield from _described(context, group_id)
        if request.include_authorized_operations and not group.error_code:
            group.authorized_operations = authorized_operations(context, ResourceType.GROUP, group_id)
        response.groups.append(group)
        yield
    return response


def _failed(group_id: str, error: ErrorCode, message: str | None = None) -> DescribedGroup:
    return DescribedGroup(group_id=group_id, error_code=error, error_message=message)


def _described(context: HandlerContext, group_id: str) -> Generator[None, None, DescribedGroup]:
    if not group_id:
        return _failed(group_id, ErrorCode.INVALID_GROUP_ID)
    shard = context.services.groups.shards.of(group_id)
    if isinstance(shard, ErrorCode):
        return _failed(group_id, coordinator_error(shard))
    group = shard.groups.get(group_id)
    if group is None:
        return _failed(group_id, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
    if not isinstance(group, StreamsGroup):
        message = f"Group {group_id} is not a streams group."
        return _failed(group_id, ErrorCode.GROUP_ID_NOT_FOUND, message)
    stored = group.topology
    if stored is not None:
        for topic in _topics(stored):
            if not allows_topic(context, Operation.DESCRIBE, topic, silent=True):
                return _failed(group_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED, HIDDEN_TOPICS)
            yield
    described = DescribedGroup(
        group_id=group_id,
        group_state=group.state_name,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch.epoch,
        topology=None if stored is None else _topology(stored, group.configured),
    )
    for member_id in tuple(group.members):
        described.members.append(_member(group, member_id))
        yield
    return described


def _topics(topology: records.StreamsGroupTopologyValue) -> set[str]:
    found: set[str] = set()
    for each in topology.subtopologies:
        found.update(each.source_topics, each.repartition_sink_topics)
        found.update(info.name for info in each.repartition_source_topics)
        found.update(info.name for info in each.state_changelog_topics)
    return found


def _topology(stored: records.StreamsGroupTopologyValue, configured: ConfiguredTopology | None) -> Topology:
    """With the numbers of partitions that follow, once its topics exist."""
    subtopologies = []
    for each in sorted(stored.subtopologies, key=lambda each: each.subtopology_id):
        changelogs = [_given(info) for info in each.state_changelog_topics]
        repartition = [_given(info) for info in each.repartition_source_topics]
        if configured is not None and configured.is_ready:
            found = configured.subtopologies[each.subtopology_id]
            changelogs = [_decided(topic) for topic in found.changelogs]
            repartition = [_decided(topic) for topic in found.repartition_sources]
        subtopologies.append(
            Subtopology(
                each.subtopology_id,
                sorted(each.source_topics),
                sorted(each.repartition_sink_topics),
                sorted(changelogs, key=_name),
                sorted(repartition, key=_name),
            )
        )
    return Topology(stored.epoch, subtopologies)


def _name(topic: TopicInfo) -> str:
    return topic.name


def _given(info: records.TopicInfo) -> TopicInfo:
    configs = [KeyValue(each.key, each.value) for each in info.topic_configs]
    return TopicInfo(info.name, info.partitions, info.replication_factor, configs)


def _decided(topic: InternalTopic) -> TopicInfo:
    return TopicInfo(topic.name, topic.partitions, topic.replication_factor, _pairs(topic.configs))


def _pairs(pairs: Iterable[tuple[str, str]]) -> list[KeyValue]:
    return [KeyValue(*pair) for pair in pairs]


def _member(group: StreamsGroup, member_id: str) -> Member:
    member, current, target = group.members[member_id], group.current(member_id), group.target(member_id)
    return Member(
        member_id=member_id,
        member_epoch=current.epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None if member.user_endpoint is None else Endpoint(*member.user_endpoint),
        client_tags=_pairs(member.client_tags),
        assignment=Assignment(*map(_tasks, current.assigned.by_role())),
        target_assignment=Assignment(*map(_tasks, (target.active, target.standby, target.warmup))),
    )


def _tasks(tasks: Mapping[str, Mapping[int, int] | frozenset[int]]) -> list[TaskIds]:
    return [TaskIds(name, sorted(indexes)) for name, indexes in sorted(tasks.items())]
