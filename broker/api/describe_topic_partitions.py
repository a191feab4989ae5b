"""DescribeTopicPartitions (75), version 0 (KIP-966): topics in pages, by name, ascending.

A request that names no topics asks for all. The page ends at response.partition.limit (at least one partition, at most
max.request.partition.size.limit); the cursor says where the next one begins. A partition without a live leader has leader
-1 and no error, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Generator

from barnabas.broker.cluster.metadata_view import MetadataView
from barnabas.broker.requests.authorization import allows_topic, authorized_operations
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.repetitions import PARTITIONS_NAMED_MAX
from barnabas.broker.requests.sliced_handler import collect, sliced
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation, ResourceType
from barnabas.controller.metadata.image import INTERNAL_TOPICS, PartitionState
from barnabas.controller.operations.topic_names import invalid_topic_name
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    ResponseCursor,
)


@api(75, 0, 0)
@sliced
def describe(
    context: HandlerContext, request: DescribeTopicPartitionsRequest
) -> Generator[None, None, DescribeTopicPartitionsResponse]:
    view = context.services.metadata_view(context.listener)
    image = view.image
    named = [topic.name for topic in request.topics]
    cursor = request.cursor
    if len(named) > max(PARTITIONS_NAMED_MAX, len(image.topics)):
        return (yield from _refuse(named))
    names = sorted(set(named or image.topics))
    unauthorized = list[str]()
    if context.services.authorizer is not None:
        shown = yield from _described(context, names, is_named=bool(named))
        unauthorized = sorted(set(names).difference(shown)) if named else []
        names = shown
    if cursor is not None:
        if cursor.partition_index < 0 or (named and cursor.topic_name not in named):
            return (yield from _refuse(named))
        names = [name for name in names if name >= cursor.topic_name]
    response = DescribeTopicPartitionsResponse()
    room = max(
        1, min(request.response_partition_limit, context.services.config.max_request_partition_size_limit)
    )
    for name in names:
        if room <= 0:
            response.next_cursor = ResponseCursor(topic_name=name, partition_index=0)
            break
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        described = _describe(view, name, first, room)
        described.topic_authorized_operations = authorized_operations(context, ResourceType.TOPIC, name)
        response.topics.append(described)
        room -= len(described.partitions)
        topic = image.topics.get(name)
        end = first + len(described.partitions)
        if topic is not None and end < len(topic.partitions):
            response.next_cursor = ResponseCursor(topic_name=name, partition_index=end)
            break
        yield
    response.topics += yield from collect(
        lambda name: DescribeTopicPartitionsResponseTopic(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name),
        unauthorized,
    )
    return response


def _described(
    context: HandlerContext, names: list[str], *, is_named: bool
) -> Generator[None, None, list[str]]:
    """The topics that the sender may describe."""
    shown = []
    for name in names:
        if allows_topic(context, Operation.DESCRIBE, name, silent=not is_named):
            shown.append(name)
        yield
    return shown


def _refuse(names: list[str]) -> Generator[None, None, DescribeTopicPartitionsResponse]:
    topics = yield from collect(
        lambda name: DescribeTopicPartitionsResponseTopic(ErrorCode.INVALID_REQUEST, name), names
    )
    return DescribeTopicPartitionsResponse(topics=topics)


def _describe(view: MetadataView, name: str, first: int, room: int) -> DescribeTopicPartitionsResponseTopic:
    topic = view.image.topics.get(name)
    if topic is None:
        return DescribeTopicPartitionsResponseTopic(
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if invalid_topic_name(name) is None
            else ErrorCode.INVALID_TOPIC_EXCEPTION,
            name=name,
            is_internal=name in INTERNAL_TOPICS,
        )
    last = min(len(topic.partitions), first + room)
    return DescribeTopicPartitionsResponseTopic(
        name=name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[_partition(view, index, topic.partitions[index]) for index in range(first, last)],
    )


def _partition(
    view: MetadataView, index: int, state: PartitionState
) -> DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponsePartition(
        partition_index=index,
        leader_id=view.leader(state),
        leader_epoch=state.leader_epoch,
        replica_nodes=state.replicas,
        isr_nodes=state.isr,
        eligible_leader_replicas=state.eligible_leader_replicas,
        last_known_elr=state.last_known_elr,
        offline_replicas=view.offline_replicas(state),
    )
