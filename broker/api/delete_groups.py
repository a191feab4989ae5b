"""DeleteGroups (42), versions 0-2: deletes empty groups with their offsets."""

from __future__ import annotations

from collections.abc import Generator

from barnabas.broker.requests.authorization import allows_group
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import answer_in_slices, collect, sliced
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)

GROUPS_PER_SLICE = 100


@api(42, 0, 2)
@sliced
def delete_groups(
    context: HandlerContext, request: DeleteGroupsRequest
) -> Generator[None, None, DeleteGroupsResponse | Outcome]:
    """A partition of __consumer_offsets takes the tombstones of GROUPS_PER_SLICE groups as one batch."""
    results: dict[str, ErrorCode] = {}
    by_shard: dict[int, list[str]] = {}
    for group_id in dict.fromkeys(request.groups_names):
        if not allows_group(context, Operation.DELETE, group_id):
            results[group_id] = ErrorCode.GROUP_AUTHORIZATION_FAILED
            yield
            continue
        shard = context.services.groups.shards.of(group_id)
        results[group_id] = shard if isinstance(shard, ErrorCode) else ErrorCode.NONE
        if not isinstance(shard, ErrorCode):
            by_shard.setdefault(shard.index, []).append(group_id)
        yield
    slices = [
        group_ids[start : start + GROUPS_PER_SLICE]
        for group_ids in by_shard.values()
        for start in range(0, len(group_ids), GROUPS_PER_SLICE)
    ]
    missing = len(slices)

    def add(errors: dict[str, ErrorCode]) -> None:
        nonlocal missing
        results.update(errors)
        missing -= 1
        if not missing:
            answer_in_slices(context, _answer(results))

    if not slices:
        return (yield from _answer(results))
    for group_ids in slices:
        shard = context.services.groups.shards.of(group_ids[0])
        if isinstance(shard, ErrorCode):
            add(dict.fromkeys(group_ids, shard))
        else:
            shard.delete_groups(group_ids, add)
        yield
    return PENDING


def _answer(results: dict[str, ErrorCode]) -> Generator[None, None, DeleteGroupsResponse]:
    return DeleteGroupsResponse(
        results=(yield from collect(lambda result: DeletableGroupResult(*result), results.items()))
    )
