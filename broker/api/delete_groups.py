"""DeleteGroups (42), versions 0-2: delete empty groups with their offsets."""

from __future__ import annotations

from barnabas.broker.context import RequestContext
from barnabas.broker.groups.shard import Shard
from barnabas.broker.registry import PENDING, Outcome, api
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)


@api(42, 0, 2)
def delete_groups(context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse | Outcome:
    """Each partition of __consumer_offsets takes its groups' tombstones as one batch."""
    results: dict[str, ErrorCode] = {}
    by_shard: dict[int, tuple[Shard, list[str]]] = {}
    for group_id in dict.fromkeys(request.groups_names):
        shard = context.services.groups.shard_of(group_id)
        if isinstance(shard, ErrorCode):
            results[group_id] = shard
        else:
            by_shard.setdefault(shard.index, (shard, []))[1].append(group_id)
    missing = len(by_shard)

    def add(errors: dict[str, ErrorCode]) -> None:
        nonlocal missing
        results.update(errors)
        missing -= 1
        if not missing:
            context.complete(_response(results))

    if not by_shard:
        return _response(results)
    for shard, group_ids in by_shard.values():
        shard.offset_requests.delete_groups(group_ids, add)
    return PENDING


def _response(results: dict[str, ErrorCode]) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id=group_id, error_code=error) for group_id, error in results.items()
        ]
    )
