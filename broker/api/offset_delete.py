"""OffsetDelete (47), version 0 (KIP-496): remove positions that a group no longer needs.

A topic that the group reads is refused; a position that is not there is deleted all the same.
"""

from __future__ import annotations

from barnabas.broker.context import RequestContext
from barnabas.broker.registry import PENDING, Outcome, api
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


@api(47, 0, 0)
def offset_delete(context: RequestContext, request: OffsetDeleteRequest) -> OffsetDeleteResponse | Outcome:
    image = context.services.controller.image
    known: dict[str, list[int]] = {}
    refused: dict[str, list[int]] = {}
    for topic in request.topics:
        found = image.topics.get(topic.name)
        existing = () if found is None else found.partitions
        for partition in topic.partitions:
            index = partition.partition_index
            (known if index in existing else refused).setdefault(topic.name, []).append(index)
    if not request.group_id:
        return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    shard = context.services.groups.shard_of(request.group_id)
    if isinstance(shard, ErrorCode):
        return OffsetDeleteResponse(error_code=shard)

    def reply(error: ErrorCode, errors: dict[str, ErrorCode]) -> None:
        context.complete(
            OffsetDeleteResponse(error_code=error) if error else _response(refused, known, errors)
        )

    shard.offset_requests.delete(request.group_id, known, reply)
    return PENDING


def _response(
    refused: dict[str, list[int]], known: dict[str, list[int]], errors: dict[str, ErrorCode]
) -> OffsetDeleteResponse:
    """One entry a topic, what was refused first."""
    topics = []
    for name in {**refused, **known}:
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        results = [(index, unknown) for index in refused.get(name, ())]
        results += [(index, errors[name]) for index in known.get(name, ())]
        topics.append(
            OffsetDeleteResponseTopic(
                name=name,
                partitions=[
                    OffsetDeleteResponsePartition(partition_index=index, error_code=error)
                    for index, error in results
                ],
            )
        )
    return OffsetDeleteResponse(topics=topics)
