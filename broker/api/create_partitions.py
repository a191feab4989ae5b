"""CreatePartitions (37), versions 0-3: `count` is the new total, and can only grow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence

from barnabas.broker.requests.authorization import allows_topic
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import answer_in_slices, collect
from barnabas.broker.requests.throttling import partition_permits
from barnabas.broker.services import HandlerContext, decide
from barnabas.controller.metadata.acls import Operation
from barnabas.controller.operations.partitions import MorePartitions, PartitionsAdded, create_partitions
from barnabas.controller.operations.topics import PARTITIONS_PER_REQUEST_MAX, TOO_MANY_PARTITIONS
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


@api(37, 0, 3, controller=True)
def create(context: HandlerContext, request: CreatePartitionsRequest) -> Outcome:
    if len(request.topics) > PARTITIONS_PER_REQUEST_MAX:
        answer_in_slices(context, _refused(request.topics))
        return PENDING
    unauthorized = _unauthorized(context, request.topics)
    wanted = [_wanted(topic) for topic in request.topics if topic.name not in unauthorized]

    permits = partition_permits(context, strict_from=3)

    def respond(results: Sequence[PartitionsAdded]) -> CreatePartitionsResponse:
        return CreatePartitionsResponse(
            throttle_time_ms=permits.throttle_ms,
            results=[_result(topic) for topic in (*results, *unauthorized.values())],
        )

    return decide(
        context,
        lambda image: create_partitions(
            image,
            wanted,
            validate_only=request.validate_only,
            draw=context.services.runtime.random.randrange,
            loads=context.services.leader_loads(),
            charge=permits.charge,
        ),
        respond,
        lambda error, message: respond([PartitionsAdded(topic.name, error, message) for topic in wanted]),
    )


def _unauthorized(context: HandlerContext, topics: list[CreatePartitionsTopic]) -> dict[str, PartitionsAdded]:
    """The results of the topics that the sender may not alter; not those that are named twice, which fail by that."""
    if context.services.authorizer is None:
        return {}
    counts = Counter(topic.name for topic in topics)
    return {
        name: PartitionsAdded(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)
        for name, count in counts.items()
        if count == 1 and not allows_topic(context, Operation.ALTER, name)
    }


def _refused(topics: list[CreatePartitionsTopic]) -> Generator[None, None, CreatePartitionsResponse]:
    """More topics than a request may create partitions."""
    names = dict.fromkeys(topic.name for topic in topics)
    error = ErrorCode.POLICY_VIOLATION
    results = yield from collect(
        lambda name: _result(PartitionsAdded(name, error, TOO_MANY_PARTITIONS)), names
    )
    return CreatePartitionsResponse(results=results)


def _wanted(topic: CreatePartitionsTopic) -> MorePartitions:
    assignments = None if topic.assignments is None else [entry.broker_ids for entry in topic.assignments]
    return MorePartitions(topic.name, topic.count, assignments)


def _result(topic: PartitionsAdded) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name=topic.name, error_code=topic.error, error_message=topic.message)
