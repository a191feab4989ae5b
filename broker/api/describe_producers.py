"""DescribeProducers (61), version 0: the producers of partitions, with their open transactions (KIP-664).

Any replica answers, as of the end of its log. Unknown values are -1.
"""

from __future__ import annotations

from collections.abc import Generator

from barnabas.broker.partitions.current_leaders import missing_error
from barnabas.broker.requests.authorization import allows_topic
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.repetitions import MESSAGE, Repetitions
from barnabas.broker.requests.sliced_handler import collect, sliced
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation
from barnabas.controller.operations.topic_names import invalid_topic_name
from barnabas.storage.log.producers import ProducerEntry
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)


@api(61, 0, 0)
@sliced
def describe_producers(
    context: HandlerContext, request: DescribeProducersRequest
) -> Generator[None, None, DescribeProducersResponse]:
    repetitions = Repetitions()
    response = DescribeProducersResponse(topics=[])
    for topic in request.topics:
        answers = TopicResponse(topic.name, [])
        response.topics.append(answers)
        problem = invalid_topic_name(topic.name)
        is_refused = problem is None and not allows_topic(
            context, Operation.READ, topic.name, count=len(topic.partition_indexes)
        )
        for index in topic.partition_indexes:
            if problem is not None:
                answer = PartitionResponse(index, ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
            elif is_refused:
                error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                answer = PartitionResponse(index, error, error.message)
            elif repetitions.are_too_many((topic.name, index)):
                answer = PartitionResponse(index, ErrorCode.INVALID_REQUEST, MESSAGE)
            else:
                answer = yield from _describe(context, topic.name, index)
            answers.partitions.append(answer)
            yield
        yield
    return response


def _describe(context: HandlerContext, topic: str, index: int) -> Generator[None, None, PartitionResponse]:
    partition = context.services.partitions.get(topic, index)
    if partition is None:
        error = missing_error(context.services.controller.image, topic, index)
        is_known = topic in context.services.controller.image.topics
        return PartitionResponse(index, error, None if is_known else error.message)  # as Kafka
    if partition.log.offline:
        return PartitionResponse(index, ErrorCode.KAFKA_STORAGE_ERROR)
    producers = yield from collect(_state, list(partition.log.producers.active.values()))
    return PartitionResponse(index, active_producers=producers)


def _state(entry: ProducerEntry) -> ProducerState:
    return ProducerState(
        entry.producer_id,
        entry.producer_epoch,
        entry.last_sequence,
        entry.last_timestamp,
        entry.coordinator_epoch,
        entry.current_transaction_first_offset,
    )
