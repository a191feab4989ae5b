"""DeleteTopics (20), versions 1-6: by name, and since version 6 by id.

The topic has left the metadata when the response leaves; its files are deleted after file.delete.delay.ms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator

from barnabas.broker.requests.authorization import allows_cluster, allows_topic
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.repetitions import PARTITIONS_NAMED_MAX, TOO_MANY_TOPICS
from barnabas.broker.requests.sliced_handler import answer_in_slices, collect
from barnabas.broker.requests.throttling import partition_permits
from barnabas.broker.services import HandlerContext, decide
from barnabas.controller.metadata.acls import Operation
from barnabas.controller.operations.topics import DeletedTopic, delete_topics
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from barnabas.wire.primitives import ZERO_UUID

Wanted = list[tuple[str | None, bytes]]


@api(20, 1, 6, controller=True)
def delete(context: HandlerContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse | Outcome:
    wanted: Wanted = [(topic.name, topic.topic_id) for topic in request.topics]
    wanted += [(name, ZERO_UUID) for name in request.topic_names]
    if len(wanted) > max(PARTITIONS_NAMED_MAX, len(context.services.controller.image.topics)):
        answer_in_slices(context, _refuse_many(wanted))
        return PENDING
    if not context.services.config.delete_topic_enable:
        if context.api_version < 3:
            message = "This version does not support topic deletion being disabled."
            return _refuse(wanted, ErrorCode.INVALID_REQUEST, message)
        return _refuse(wanted, ErrorCode.TOPIC_DELETION_DISABLED, ErrorCode.TOPIC_DELETION_DISABLED.message)

    refused = _unauthorized(context, wanted)
    allowed = [topic for topic in wanted if topic not in refused]

    permits = partition_permits(context, strict_from=5)
    return decide(
        context,
        lambda image: delete_topics(image, allowed, permits.charge),
        lambda results: DeleteTopicsResponse(
            throttle_time_ms=permits.throttle_ms,
            responses=[_result(topic) for topic in (*results, *refused.values())],
        ),
        lambda error, message: _refuse(wanted, error, message),
    )


def _unauthorized(context: HandlerContext, wanted: Wanted) -> dict[tuple[str | None, bytes], DeletedTopic]:
    """The results of the topics that the sender may not delete; not those that are named twice, which fail by that. The name of
    one that was named by its id is shown to those who may describe it."""
    refused: dict[tuple[str | None, bytes], DeletedTopic] = {}
    if context.services.authorizer is None or allows_cluster(context, Operation.DELETE, silent=True):
        return refused
    image = context.services.controller.image
    for topic, count in Counter(wanted).items():
        name, topic_id = topic
        shown = name
        if name is None:
            known = image.topic_by_id(topic_id)
            name = None if known is None else known.name
        if name is None or count > 1 or allows_topic(context, Operation.DELETE, name):
            continue
        if shown is None and allows_topic(context, Operation.DESCRIBE, name):
            shown = name
        error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        refused[topic] = DeletedTopic(shown, topic_id, error, error.message)
    return refused


def _result(topic: DeletedTopic) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=topic.name, topic_id=topic.topic_id, error_code=topic.error, error_message=topic.message
    )


def _refuse(wanted: Wanted, error: ErrorCode, message: str | None) -> DeleteTopicsResponse:
    return DeleteTopicsResponse(
        responses=[_result(DeletedTopic(name, topic_id, error, message)) for name, topic_id in wanted]
    )


def _refuse_many(wanted: Wanted) -> Generator[None, None, DeleteTopicsResponse]:
    """More topics than there are."""
    error = ErrorCode.INVALID_REQUEST
    results = yield from collect(lambda topic: _result(DeletedTopic(*topic, error, TOO_MANY_TOPICS)), wanted)
    return DeleteTopicsResponse(responses=results)
