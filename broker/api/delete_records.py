"""DeleteRecords (21), versions 0-2: raise a partition's log start offset (KIP-107). Offset -1 means the high watermark. Whole
segments below the new start are removed; other records below it can no longer be read.

The response waits until every live replica has raised its start (the low watermark), at most the request's timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial

from barnabas.broker.partitions.current_leaders import missing_error
from barnabas.broker.partitions.partition import Partition
from barnabas.broker.requests.authorization import refused_topics
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import collect, sliced
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation
from barnabas.controller.metadata.image import INTERNAL_TOPICS
from barnabas.storage.errors import StorageError
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

HIGH_WATERMARK = -1

# (the leader, the start offset that every replica has to reach, the result then)
Waiting = tuple[Partition, int, DeleteRecordsPartitionResult]


@api(21, 0, 2)
@sliced
def delete_records(
    context: HandlerContext, request: DeleteRecordsRequest
) -> Generator[None, None, DeleteRecordsResponse | Outcome]:
    wanted: dict[str, dict[int, DeleteRecordsPartition]] = {}  # the last of repetitions counts, as in Kafka
    for topic in request.topics:
        for partition in topic.partitions:
            wanted.setdefault(topic.name, {})[partition.partition_index] = partition
            yield
        yield
    unauthorized = yield from refused_topics(
        context, Operation.DELETE, ((name, len(each)) for name, each in wanted.items())
    )
    waiting: list[Waiting] = []
    response = DeleteRecordsResponse()
    for name, partitions in wanted.items():
        delete = partial(_delete, context, name, waiting)
        serve = _refuse if name in unauthorized else delete
        results = yield from collect(serve, partitions.values())
        response.topics.append(DeleteRecordsTopicResult(name, results))
    return _wait(context, response, waiting, request.timeout_ms) if waiting else response


def _refuse(wanted: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
    return _error(wanted, ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def _delete(
    context: HandlerContext, topic: str, waiting: list[Waiting], wanted: DeleteRecordsPartition
) -> DeleteRecordsPartitionResult:
    partition = context.services.partitions.get(topic, wanted.partition_index)
    if partition is None:
        return _error(wanted, missing_error(context.services.controller.image, topic, wanted.partition_index))
    if topic in INTERNAL_TOPICS:
        return _error(wanted, ErrorCode.INVALID_TOPIC_EXCEPTION)
    if partition.log.offline:
        return _error(wanted, ErrorCode.KAFKA_STORAGE_ERROR)
    if not partition.is_leader:
        return _error(wanted, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if "delete" not in partition.log.config.cleanup_policy:
        return _error(wanted, ErrorCode.POLICY_VIOLATION)
    offset = partition.high_watermark if wanted.offset == HIGH_WATERMARK else wanted.offset
    if not partition.log.log_start_offset <= offset <= partition.high_watermark and not (
        0 <= offset < partition.log.log_start_offset
    ):
        return _error(wanted, ErrorCode.OFFSET_OUT_OF_RANGE)
    try:
        partition.log.increment_log_start_offset(offset)
    except StorageError as failure:
        return _error(wanted, failure.error)
    partition.interrupt_waiters()
    answer = DeleteRecordsPartitionResult(
        partition_index=wanted.partition_index, low_watermark=partition.low_watermark
    )
    if answer.low_watermark < offset or not partition.log.is_start_kept:
        waiting.append((partition, offset, answer))
    return answer


def _wait(
    context: HandlerContext, response: DeleteRecordsResponse, waiting: list[Waiting], timeout_ms: int
) -> Outcome:
    """Answer when all replicas have reached the offsets, or the time is up."""
    missing = {id(answer): answer for _, _, answer in waiting}

    def reached(partition: Partition, answer: DeleteRecordsPartitionResult, error: ErrorCode) -> None:
        if missing.pop(id(answer), None) is None:
            return  # too late
        answer.error_code = error
        answer.low_watermark = -1 if error else partition.low_watermark
        if not missing:
            complete()

    def time_is_up() -> None:
        for answer in missing.values():
            answer.error_code, answer.low_watermark = ErrorCode.REQUEST_TIMED_OUT, -1
        missing.clear()
        complete()

    def complete() -> None:
        timer.cancel()
        context.complete(response)

    timer = context.services.runtime.call_later(max(timeout_ms, 0) / 1000, time_is_up)
    for partition, offset, answer in waiting:
        call: Callable[[ErrorCode], object] = partial(reached, partition, answer)
        partition.when_deleted(offset, call)
    return PENDING


def _error(wanted: DeleteRecordsPartition, error: ErrorCode) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(
        partition_index=wanted.partition_index, low_watermark=-1, error_code=error
    )
