"""ConsumerGroupHeartbeat (68), versions 0-1: the one request of a member of a consumer group (KIP-848).

v1 requires a member id that the client has made, and has regular expressions.
"""

from __future__ import annotations

from collections.abc import Generator

from barnabas.broker.coordinator.re2_parser import PatternError
from barnabas.broker.coordinator.re2_pattern import Pattern
from barnabas.broker.groups.consumer.values import LEFT_FOR_NOW
from barnabas.broker.groups.member import Client
from barnabas.broker.groups.modern.values import JOINING, LEAVING
from barnabas.broker.requests.authorization import allows_group, allows_topic, refused_topics
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.repetitions import (
    PARTITIONS_NAMED_MAX,
    TOO_MANY_PARTITIONS,
    TOO_MANY_TOPICS,
    are_too_many_partitions,
)
from barnabas.broker.requests.sliced_handler import sliced
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation
from barnabas.controller.metadata.decision import ApiError
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


@api(68, 0, 1)
def consumer_group_heartbeat(
    context: HandlerContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | Outcome:
    groups = context.services.groups
    if not groups.serves_consumer_groups:
        return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    if not allows_group(context, Operation.READ, request.group_id):
        return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    shard = groups.shards.of(request.group_id)
    if not isinstance(shard, ErrorCode) and not shard.expressions.is_due(request.group_id):
        renewed = shard.consumer.renewed(request, _client(context))
        if renewed is not None:
            return renewed
    answered: ConsumerGroupHeartbeatResponse | Outcome = _decide(context, request)  # type: ignore[assignment]
    return answered


@sliced
def _decide(
    context: HandlerContext, request: ConsumerGroupHeartbeatRequest
) -> Generator[None, None, ConsumerGroupHeartbeatResponse | Outcome]:
    try:
        yield from _check(context, request)
    except ApiError as refusal:
        return ConsumerGroupHeartbeatResponse(error_code=refusal.error, error_message=refusal.message)
    groups = context.services.groups
    shard = groups.shards.of(request.group_id)
    if isinstance(shard, ErrorCode):
        return ConsumerGroupHeartbeatResponse(error_code=shard)
    shard.consumer.heartbeat(request, _client(context), groups.outgoing(context.complete))
    if request.member_epoch >= JOINING:

        def may_describe(topic: str) -> bool:
            return allows_topic(context, Operation.DESCRIBE, topic, silent=True)

        shard.expressions.refresh(request.group_id, may_describe)
    return PENDING


def _client(context: HandlerContext) -> Client:
    return Client(context.client_id or "", f"/{context.client_host}", context.api_version)


def _check(context: HandlerContext, request: ConsumerGroupHeartbeatRequest) -> Generator[None, None, None]:
    """ApiError when the request is refused whatever the group's state."""
    image = context.services.controller.image
    names = request.subscribed_topic_names
    if names and len(names) > max(PARTITIONS_NAMED_MAX, len(image.topics)):
        raise _invalid(TOO_MANY_TOPICS)
    if are_too_many_partitions(image, [len(each.partitions) for each in request.topic_partitions or ()]):
        raise _invalid(TOO_MANY_PARTITIONS)
    if names and (
        yield from refused_topics(context, Operation.DESCRIBE, ((name, 1) for name in dict.fromkeys(names)))
    ):
        raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)
    _check_form(context, request)
    if request.subscribed_topic_regex:
        yield from _check_expression(request.subscribed_topic_regex)


def _check_form(context: HandlerContext, request: ConsumerGroupHeartbeatRequest) -> None:
    epoch = request.member_epoch
    if not request.member_id and (context.api_version >= 1 or epoch > JOINING or epoch == LEAVING):
        raise _invalid("MemberId can't be empty.")
    if not request.group_id:
        raise _invalid("GroupId can't be empty.")
    if request.instance_id == "":
        raise _invalid("InstanceId can't be empty.")
    if request.rack_id == "":
        raise _invalid("RackId can't be empty.")
    if epoch == JOINING:
        _check_first(request)
    elif epoch == LEFT_FOR_NOW and request.instance_id is None:
        raise _invalid("InstanceId can't be null.")
    elif epoch < LEFT_FOR_NOW:
        raise _invalid("MemberEpoch is invalid.")
    assignors = context.services.config.group_consumer_assignors
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise ApiError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
        )


def _check_first(request: ConsumerGroupHeartbeatRequest) -> None:
    """The first request of a member, or the first one after it was fenced."""
    if request.rebalance_timeout_ms == -1:
        raise _invalid("RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        raise _invalid("TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise _invalid(
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
        )


def _check_expression(expression: str) -> Generator[None, None, None]:
    try:
        yield from Pattern.compile(expression)
    except PatternError as error:
        raise ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{expression}` is not a valid regular expression: {error}.",
        ) from None


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)
