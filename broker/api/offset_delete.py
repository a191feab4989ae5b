"""OffsetDelete (47), version 0 (KIP-496): deletes committed offsets of a group.

A topic that the group subscribes to is refused; deleting an offset that does not exist succeeds.
"""

from __future__ import annotations

from collections.abc import Generator

from barnabas.broker.requests.authorization import allows_group, refused_topics
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import answer_in_slices, sliced
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


@api(47, 0, 0)
@sliced
def offset_delete(
    context: HandlerContext, request: OffsetDeleteRequest
) -> Generator[None, None, OffsetDeleteResponse | Outcome]:
    if not allows_group(context, Operation.DELETE, request.group_id):
        return OffsetDeleteResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    unauthorized = yield from refused_topics(
        context, Operation.READ, ((topic.name, len(topic.partitions)) for topic in request.topics)
    )
    image = context.services.controller.image
    known: dict[str, list[int]] = {}
    refused: dict[str, list[int]] = {}
    for topic in request.topics:
        found = None if topic.name in unauthorized else image.topics.get(topic.name)
        existing = () if found is None else found.partitions
        for partition in topic.partitions:
            index = partition.partition_index
            (known if index in existing else refused).setdefault(topic.name, []).append(index)
            yield
        yield
    if not request.group_id:
        return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    shard = context.services.groups.shards.of(request.group_id)
    if isinstance(shard, ErrorCode):
        return OffsetDeleteResponse(error_code=shard)

    def reply(error: ErrorCode, errors: dict[str, ErrorCode]) -> None:
        if error:
            context.complete(OffsetDeleteResponse(error_code=error))
        else:
            answer_in_slices(context, _answer(refused, unauthorized, known, errors))

    shard.offset_requests.delete(request.group_id, known, reply)
    return PENDING


def _answer(
    refused: dict[str, list[int]],
    unauthorized: set[str],
    known: dict[str, list[int]],
    errors: dict[str, ErrorCode],
) -> Generator[None, None, OffsetDeleteResponse]:
    """One entry for each topic, refused partitions first."""
    response = OffsetDeleteResponse()
    for name in {**refused, **known}:
        result = OffsetDeleteResponseTopic(name=name)
        response.topics.append(result)
        for indexes, error in (
            (
                refused.get(name, ()),
                ErrorCode.TOPIC_AUTHORIZATION_FAILED
                if name in unauthorized
                else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ),
            (known.get(name, ()), errors.get(name, ErrorCode.NONE)),
        ):
            for index in indexes:
                result.partitions.append(
                    OffsetDeleteResponsePartition(partition_index=index, error_code=error)
                )
                yield
        yield
    return response
