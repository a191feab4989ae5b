"""ListGroups (16), versions 0-5: the groups that this broker coordinates; clients ask every broker.

v4 filters by state (KIP-518), v5 by type (KIP-848), both without regard to case.
"""

from __future__ import annotations

from collections.abc import Generator

from barnabas.broker.requests.authorization import allows, allows_cluster
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import sliced
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation, ResourceType
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse


@api(16, 0, 5)
@sliced
def list_groups(
    context: HandlerContext, request: ListGroupsRequest
) -> Generator[None, None, ListGroupsResponse]:
    if context.services.groups.shards.is_loading:
        return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    states: set[str] = set()
    types: set[str] = set()
    for wanted, filters in ((states, request.states_filter), (types, request.types_filter)):
        for each in filters:
            wanted.add(each.strip().lower())
            yield
    response = ListGroupsResponse()
    shows_all = allows_cluster(context, Operation.DESCRIBE, silent=True)
    for group in [
        group for shard in context.services.groups.shards.loaded() for group in shard.groups.values()
    ]:
        if (
            (not types or group.group_type in types)
            and (not states or group.state_name.lower() in states)
            and (
                shows_all
                or allows(context, Operation.DESCRIBE, ResourceType.GROUP, group.group_id, silent=True)
            )
        ):
            response.groups.append(
                ListedGroup(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type or "",
                    group_state=group.state_name,
                    group_type=group.group_type,
                )
            )
        yield
    return response
