"""ConsumerGroupDescribe (69), versions 0-1; ShareGroupDescribe (77), version 1; StreamsGroupDescribe (89), version 0: epochs, members
and assignments of the modern groups (KIP-848, KIP-932, KIP-1071).

Version 1 of 69 tells members of the classic protocol from others.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Final, NamedTuple

from barnabas.broker.coordinator.shard_log import coordinator_error
from barnabas.broker.groups.consumer.group import ConsumerGroup
from barnabas.broker.groups.consumer.values import CurrentAssignment
from barnabas.broker.groups.consumer.values import Member as ConsumerMember
from barnabas.broker.groups.coordinator import GroupCoordinator
from barnabas.broker.groups.modern.group import AnyGroup
from barnabas.broker.groups.modern.values import Partitions
from barnabas.broker.groups.shard import Shard
from barnabas.broker.groups.share.group import ShareGroup
from barnabas.broker.groups.streams.group import StreamsGroup
from barnabas.broker.groups.streams.topology import ConfiguredTopology, InternalTopic
from barnabas.broker.groups.streams.values import CurrentAssignment as HeldAssignment
from barnabas.broker.groups.streams.values import Member as StreamsMember
from barnabas.broker.groups.streams.values import TargetTasks
from barnabas.broker.requests.authorization import allows_group, allows_topic, authorized_operations
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.repetitions import MESSAGE, Repetitions
from barnabas.broker.requests.sliced_handler import answer_in_slices, sliced
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation, ResourceType
from barnabas.controller.metadata.decision import ApiError
from barnabas.controller.metadata.image import MetadataImage
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import consumer_group_describe as consumer
from barnabas.wire.messages import consumer_offsets as records
from barnabas.wire.messages import share_group_describe as share
from barnabas.wire.messages import streams_group_describe as streams

CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1
SIMPLE_ASSIGNOR: Final = "simple"  # of share groups
HIDDEN_TOPICS: Final = "The group has described topic(s) that the client is not authorized to describe."
HIDDEN_STREAMS_TOPICS: Final = (
    "The described group uses topics that the client is not authorized to describe."
)

Steps = Generator[None, None, Any]
# Of all groups without any: a request may name a million, and each list of its own would be one more object for the garbage collector.
_NO_MEMBERS: Final[list[Any]] = []


class _Kind(NamedTuple):
    """What the three APIs differ in. `describe(context, shard, group)` returns the description in the end, or raises ApiError."""

    group_class: type[AnyGroup]
    name: str
    is_served: Callable[[GroupCoordinator], bool]
    response_class: type[Any]
    described_class: type[Any]
    describe: Callable[[HandlerContext, Shard, Any], Steps]


# -- ConsumerGroupDescribe


@api(69, 0, 1)
@sliced
def consumer_group_describe(
    context: HandlerContext, request: consumer.ConsumerGroupDescribeRequest
) -> Generator[None, None, Outcome]:
    kind = _Kind(
        ConsumerGroup,
        "consumer",
        lambda groups: groups.serves_consumer_groups,
        consumer.ConsumerGroupDescribeResponse,
        consumer.DescribedGroup,
        _consumer_group,
    )
    return (yield from _describe(context, request, kind))


def _consumer_group(context: HandlerContext, shard: Shard, group: ConsumerGroup) -> Steps:
    image = context.services.controller.image
    described = consumer.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state_name,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch.epoch,
        assignor_name=shard.consumer_groups.changes.assignor_of(group),
    )
    topics: set[str] = set()
    found = [
        (member_id, member, group.current(member_id), group.target(member_id))
        for member_id, member in group.members.items()
    ]
    for each in found:
        member = _consumer_member(image, *each)
        described.members.append(member)
        for assignment in (member.assignment, member.target_assignment):
            topics.update(each.topic_name for each in assignment.topic_partitions)
        yield
    yield from _check_topics(context, topics, HIDDEN_TOPICS)
    return described


def _consumer_member(
    image: MetadataImage,
    member_id: str,
    member: ConsumerMember,
    current: CurrentAssignment,
    target: Partitions,
) -> consumer.Member:
    held: dict[bytes, set[int]] = {}
    for topic_id, index in current.held():
        held.setdefault(topic_id, set()).add(index)
    assigned, targeted = (
        consumer.Assignment([consumer.TopicPartitions(*each) for each in _existing(image, partitions)])
        for partitions in (held, target)
    )
    return consumer.Member(
        member_id=member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=current.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topic_names),
        subscribed_topic_regex=member.regular_expression,
        assignment=assigned,
        target_assignment=targeted,
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


# -- ShareGroupDescribe


@api(77, 1, 1)
@sliced
def share_group_describe(
    context: HandlerContext, request: share.ShareGroupDescribeRequest
) -> Generator[None, None, Outcome]:
    kind = _Kind(
        ShareGroup,
        "share",
        lambda groups: groups.serves_share_groups,
        share.ShareGroupDescribeResponse,
        share.DescribedGroup,
        _share_group,
    )
    return (yield from _describe(context, request, kind))


def _share_group(context: HandlerContext, _shard: Shard, group: ShareGroup) -> Steps:
    image = context.services.controller.image
    described = share.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state_name,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch.epoch,
        assignor_name=SIMPLE_ASSIGNOR,
    )
    topics: set[str] = set()
    found = [(*each, group.current(each[0])) for each in group.members.items()]
    for member_id, member, current in found:
        assigned = [share.TopicPartitions(*each) for each in _existing(image, current.assigned)]
        topics.update(each.topic_name for each in assigned)
        described.members.append(
            share.Member(
                member_id=member_id,
                rack_id=member.rack_id,
                member_epoch=current.epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=sorted(member.topic_names),
                assignment=share.Assignment(assigned),
            )
        )
        yield
    yield from _check_topics(context, topics, HIDDEN_TOPICS)
    return described


# -- StreamsGroupDescribe


@api(89, 0, 0)
@sliced
def streams_group_describe(
    context: HandlerContext, request: streams.StreamsGroupDescribeRequest
) -> Generator[None, None, Outcome]:
    kind = _Kind(
        StreamsGroup,
        "streams",
        lambda groups: groups.serves_streams_groups,
        streams.StreamsGroupDescribeResponse,
        streams.DescribedGroup,
        _streams_group,
    )
    return (yield from _describe(context, request, kind))


def _streams_group(context: HandlerContext, _shard: Shard, group: StreamsGroup) -> Steps:
    stored = group.topology
    if stored is not None:
        yield from _check_topics(context, _topics_of(stored), HIDDEN_STREAMS_TOPICS)
    described = streams.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state_name,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch.epoch,
        topology=None if stored is None else _topology(stored, group.configured),
    )
    found = [
        (member_id, member, group.current(member_id), group.target(member_id))
        for member_id, member in group.members.items()
    ]
    for each in found:
        described.members.append(_streams_member(*each))
        yield
    return described


def _topics_of(topology: records.StreamsGroupTopologyValue) -> set[str]:
    found: set[str] = set()
    for each in topology.subtopologies:
        found.update(each.source_topics, each.repartition_sink_topics)
        found.update(info.name for info in each.repartition_source_topics)
        found.update(info.name for info in each.state_changelog_topics)
    return found


def _topology(
    stored: records.StreamsGroupTopologyValue, configured: ConfiguredTopology | None
) -> streams.Topology:
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
            streams.Subtopology(
                each.subtopology_id,
                sorted(each.source_topics),
                sorted(each.repartition_sink_topics),
                sorted(changelogs, key=_name),
                sorted(repartition, key=_name),
            )
        )
    return streams.Topology(stored.epoch, subtopologies)


def _name(topic: streams.TopicInfo) -> str:
    return topic.name


def _given(info: records.StreamsGroupTopologyValueTopicInfo) -> streams.TopicInfo:
    configs = [streams.KeyValue(each.key, each.value) for each in info.topic_configs]
    return streams.TopicInfo(info.name, info.partitions, info.replication_factor, configs)


def _decided(topic: InternalTopic) -> streams.TopicInfo:
    return streams.TopicInfo(topic.name, topic.partitions, topic.replication_factor, _pairs(topic.configs))


def _pairs(pairs: Iterable[tuple[str, str]]) -> list[streams.KeyValue]:
    return [streams.KeyValue(*pair) for pair in pairs]


def _streams_member(
    member_id: str, member: StreamsMember, current: HeldAssignment, target: TargetTasks
) -> streams.Member:
    return streams.Member(
        member_id=member_id,
        member_epoch=current.epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None if member.user_endpoint is None else streams.Endpoint(*member.user_endpoint),
        client_tags=_pairs(member.client_tags),
        assignment=streams.Assignment(*map(_tasks, current.assigned.by_role())),
        target_assignment=streams.Assignment(*map(_tasks, (target.active, target.standby, target.warmup))),
    )


def _tasks(tasks: Mapping[str, Mapping[int, int] | frozenset[int]]) -> list[streams.TaskIds]:
    return [streams.TaskIds(name, sorted(indexes)) for name, indexes in sorted(tasks.items())]


# -- all


def _describe(context: HandlerContext, request: Any, kind: _Kind) -> Generator[None, None, Outcome]:
    """The answer waits for what is being appended when the request comes; each group is shown as it is at one moment after that."""
    shards: dict[int, Shard] = {}
    for group_id in request.group_ids:
        found = context.services.groups.shards.of(group_id)
        if not isinstance(found, ErrorCode):
            shards[found.index] = found
        yield
    waiting = 1 + len(shards)

    def settled(_error: ErrorCode = ErrorCode.NONE) -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting:
            answer_in_slices(context, _answer(context, request, kind))

    for shard in shards.values():
        shard.log.when_settled(settled)
    settled()
    return PENDING


def _answer(context: HandlerContext, request: Any, kind: _Kind) -> Steps:
    repetitions = Repetitions()
    response = kind.response_class()
    is_served = kind.is_served(context.services.groups)
    for group_id in request.group_ids:
        try:
            if not is_served:
                raise ApiError(ErrorCode.UNSUPPORTED_VERSION, None)
            if not allows_group(context, Operation.DESCRIBE, group_id):
                raise ApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED, None)
            if repetitions.are_too_many(group_id):
                raise ApiError(ErrorCode.INVALID_REQUEST, MESSAGE)
            group = yield from _described(context, group_id, kind)
            if request.include_authorized_operations:
                group.authorized_operations = authorized_operations(context, ResourceType.GROUP, group_id)
        except ApiError as refusal:
            group = kind.described_class(
                group_id=group_id,
                error_code=refusal.error,
                error_message=refusal.message,
                members=_NO_MEMBERS,
            )
        response.groups.append(group)
        yield
    return response


def _described(context: HandlerContext, group_id: str, kind: _Kind) -> Steps:
    if not group_id:
        raise ApiError(ErrorCode.INVALID_GROUP_ID, None)
    shard = context.services.groups.shards.of(group_id)
    if isinstance(shard, ErrorCode):
        raise ApiError(coordinator_error(shard), None)
    group = shard.groups.get(group_id)
    if group is None:
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
    if not isinstance(group, kind.group_class):
        text = f"Group {group_id} is not a {kind.name} group."
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, text)
    return (yield from kind.describe(context, shard, group))


def _check_topics(context: HandlerContext, names: set[str], message: str) -> Generator[None, None, None]:
    for name in sorted(names):
        if not allows_topic(context, Operation.DESCRIBE, name, silent=True):
            raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, message)
        yield


def _existing(
    image: MetadataImage, partitions: Mapping[bytes, frozenset[int] | set[int]]
) -> list[tuple[bytes, str, list[int]]]:
    """(id, name, partitions) of topics that exist."""
    return [
        (topic_id, topic.name, sorted(indexes))
        for topic_id, indexes in partitions.items()
        if (topic := image.topic_by_id(topic_id)) is not None
    ]
