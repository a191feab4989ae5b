"""DeleteRecords (21), versions 0-2: move a partition's log start offset up (KIP-107). Offset -1 means the
high watermark. Whole segments below the new start are removed; the rest only can no longer be read."""

from __future__ import annotations

from barnabas.broker.context import RequestContext
from barnabas.broker.registry import api
from barnabas.controller.image import INTERNAL_TOPICS
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


@api(21, 0, 2)
def delete_records(context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[_delete(context, topic.name, wanted) for wanted in topic.partitions],
            )
            for topic in request.topics
            if topic.partitions
        ]
    )


def _delete(
    context: RequestContext, topic: str, wanted: DeleteRecordsPartition
) -> DeleteRecordsPartitionResult:
    partition = context.services.partitions.get(topic, wanted.partition_index)
    if partition is None:
        return _error(wanted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if topic in INTERNAL_TOPICS:
        return _error(wanted, ErrorCode.INVALID_TOPIC_EXCEPTION)
    if partition.log.offline:
        return _error(wanted, ErrorCode.KAFKA_STORAGE_ERROR)
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
    return DeleteRecordsPartitionResult(
        partition_index=wanted.partition_index, low_watermark=partition.log.log_start_offset
    )


def _error(wanted: DeleteRecordsPartition, error: ErrorCode) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(
        partition_index=wanted.partition_index, low_watermark=-1, error_code=error
    )
