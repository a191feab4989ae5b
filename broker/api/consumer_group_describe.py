"""ConsumerGroupDescribe (69), versions 0-1: epochs, members and assignments of consumer groups (KIP-848).

v1 tells members of the classic protocol from others.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Final

from barnabas.broker.coordinator.shard_log import coordinator_error
from barnabas.broker.groups.consumer.group import ConsumerGroup
from barnabas.broker.groups.consumer.values import CurrentAssignment, Partitions
from barnabas.broker.groups.consumer.values import Member as MemberValue
from barnabas.broker.groups.shard import Shard
from barnabas.broker.requests.authorization import (
    allows_group,
    allows_topic,
    authorized_operations,
)
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.repetitions import MESSAGE, Repetitions
from barnabas.broker.requests.sliced_handler import answer_in_slices, sliced
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation, ResourceType
from barnabas.controller.metadata.image import MetadataImage
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)

CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1
HIDDEN_TOPICS: Final = "The group has described topic(s) that the client is not authorized to describe."


@api(69, 0, 1)
@sliced
def consumer_group_describe(
    context: HandlerContext, request: ConsumerGroupDescribeRequest
) -> Generator[None, None, Outcome]:
    """The answer waits for what is being appended when the request comes; each group is shown as it is at one moment after that."""
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
    context: HandlerContext, request: ConsumerGroupDescribeRequest
) -> Generator[None, None, ConsumerGroupDescribeResponse]:
    repetitions = Repetitions()
    response = ConsumerGroupDescribeResponse()
    are_served = context.services.groups.serves_consumer_groups
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
    if not isinstance(group, ConsumerGroup):
        message = f"Group {group_id} is not a consumer group."
        return _failed(group_id, ErrorCode.GROUP_ID_NOT_FOUND, message)
    image = context.services.controller.image
    described = DescribedGroup(
        group_id=group_id,
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
        member = _member(image, *each)
        described.members.append(member)
        for assignment in (member.assignment, member.target_assignment):
            topics.update(each.topic_name for each in assignment.topic_partitions)
        yield
    for topic in sorted(topics):
        if not allows_topic(context, Operation.DESCRIBE, topic, silent=True):
            return _failed(group_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED, HIDDEN_TOPICS)
        yield
    return described


def _member(
    image: MetadataImage, member_id: str, member: MemberValue, current: CurrentAssignment, target: Partitions
) -> Member:
    return Member(
        member_id=member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=current.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topic_names),
        subscribed_topic_regex=member.regular_expression,
        assignment=_assignment(image, _held(current)),
        target_assignment=_assignment(image, target),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


def _held(current: CurrentAssignment) -> Mapping[bytes, set[int]]:
    held: dict[bytes, set[int]] = {}
    for topic_id, index in current.held():
        held.setdefault(topic_id, set()).add(index)
    return held


def _assignment(image: MetadataImage, partitions: Mapping[bytes, frozenset[int] | set[int]]) -> Assignment:
    """Of topics that exist."""
    return Assignment(
        [
            TopicPartitions(topic_id, topic.name, sorted(indexes))
            for topic_id, indexes in partitions.items()
            if (topic := image.topic_by_id(topic_id)) is not None
        ]
    )
