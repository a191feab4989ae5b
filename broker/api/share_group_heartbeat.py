"""ShareGroupHeartbeat (76), version 1: the one request of a member of a share group (KIP-932).

The client makes the member id. Partitions are assigned once they have a delivery state, so with one of the next heartbeats.
"""

from __future__ import annotations

from collections.abc import Generator

from barnabas.broker.groups.member import Client
from barnabas.broker.groups.modern.values import JOINING, LEAVING
from barnabas.broker.groups.share.values import MEMBER_ID_MAX
from barnabas.broker.requests.authorization import allows_group, refused_topics
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.repetitions import PARTITIONS_NAMED_MAX, TOO_MANY_TOPICS
from barnabas.broker.requests.sliced_handler import sliced
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation
from barnabas.controller.metadata.decision import ApiError
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)


@api(76, 1, 1)
@sliced
def share_group_heartbeat(
    context: HandlerContext, request: ShareGroupHeartbeatRequest
) -> Generator[None, None, ShareGroupHeartbeatResponse | Outcome]:
    groups = context.services.groups
    try:
        if not groups.serves_share_groups:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, None)
        yield from _check(context, request)
    except ApiError as refusal:
        return ShareGroupHeartbeatResponse(error_code=refusal.error, error_message=refusal.message)
    shard = groups.shards.of(request.group_id)
    if isinstance(shard, ErrorCode):
        return ShareGroupHeartbeatResponse(error_code=shard)
    client = Client(context.client_id or "", f"/{context.client_host}", context.api_version)
    shard.share.heartbeat(request, client, groups.outgoing(context.complete))
    return PENDING


def _check(context: HandlerContext, request: ShareGroupHeartbeatRequest) -> Generator[None, None, None]:
    """ApiError when the request is refused whatever the group's state."""
    if not allows_group(context, Operation.READ, request.group_id):
        raise ApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED, None)
    if not request.member_id or len(request.member_id) > MEMBER_ID_MAX:
        raise ApiError(ErrorCode.INVALID_REQUEST, None)
    image = context.services.controller.image
    if len(request.subscribed_topic_names or ()) > max(PARTITIONS_NAMED_MAX, len(image.topics)):
        raise _invalid(TOO_MANY_TOPICS)
    names = dict.fromkeys(request.subscribed_topic_names or ())
    if names and (yield from refused_topics(context, Operation.DESCRIBE, ((name, 1) for name in names))):
        raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)
    if not request.group_id:
        raise _invalid("GroupId can't be empty.")
    if request.rack_id == "":
        raise _invalid("RackId can't be empty.")
    if request.member_epoch == JOINING and not names:
        raise _invalid("SubscribedTopicNames must be set in first request.")
    if request.member_epoch < LEAVING:
        raise _invalid("MemberEpoch is invalid.")


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)
