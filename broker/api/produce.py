"""Produce (0), versions 3-13: append record batches to the partitions that this broker leads.

v3 brought record batch v2 and transactional ids, v7 zstd, v8 per-record errors (KIP-467), v10 the new
leader in the answer (KIP-951), v13 topic ids (KIP-516). 0-2 are advertised because librdkafka reads the
minimum (KAFKA-18659); a request there closes the connection, as Kafka does.

The records stay opaque: the log looks at the batch header alone. acks=0 gets no answer, and a failure
under acks=0 closes the connection so that the producer learns of it at all.
"""

from __future__ import annotations

import logging

from barnabas.broker.context import RequestContext
from barnabas.broker.partition import Partition
from barnabas.broker.registry import CLOSE_CONNECTION, NO_RESPONSE, Outcome, api
from barnabas.controller.image import INTERNAL_TOPICS
from barnabas.storage.errors import StorageError
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

log = logging.getLogger("barnabas.produce")

BATCH_OVERHEAD = 61
BATCH_LENGTH_MIN = 14  # the smallest message that any format has; Kafka looks at it before the magic
ZSTD = 4
TRANSACTIONAL = 0x10
ADMIN_CLIENT_ID = "__admin_client"  # Kafka's own exemption for writing to internal topics


@api(0, 3, 13, advertised_min=0)
def produce(context: RequestContext, request: ProduceRequest) -> ProduceResponse | Outcome:
    by_id = context.api_version >= 13
    partitions = context.services.partitions
    topics = []
    failed = False
    for data in request.topic_data:
        answers = []
        for part in data.partition_data:
            partition = (
                partitions.by_id(data.topic_id, part.index)
                if by_id
                else partitions.get(data.name, part.index)
            )
            if request.acks not in (-1, 0, 1):
                answer = _error(part.index, ErrorCode.INVALID_REQUIRED_ACKS)
            elif partition is None:
                answer = _error(part.index, _why_absent(context, data, by_id))
            else:
                answer = _append(context, request, partition, part)
            failed = failed or answer.error_code != 0
            answers.append(answer)
        topics.append(
            TopicProduceResponse(name=data.name, topic_id=data.topic_id, partition_responses=answers)
        )
    if request.acks == 0:
        return CLOSE_CONNECTION if failed else NO_RESPONSE
    return ProduceResponse(responses=topics)


def _append(
    context: RequestContext, request: ProduceRequest, partition: Partition, part: PartitionProduceData
) -> PartitionProduceResponse:
    records = part.records
    refusal = _refusal(context, request, partition, records)
    if refusal is not None:
        return _error(part.index, *refusal)
    try:
        result = partition.append(records)  # type: ignore[arg-type]  # _refusal saw that it is bytes
    except StorageError as error:
        return PartitionProduceResponse(
            index=part.index,
            error_code=error.error,
            base_offset=-1,
            record_errors=[
                BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
                for index, message in error.record_errors
            ],
            error_message=str(error),
        )
    return PartitionProduceResponse(
        index=part.index,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time,
        log_start_offset=result.log_start_offset,
    )


def _refusal(
    context: RequestContext, request: ProduceRequest, partition: Partition, records: object
) -> tuple[ErrorCode, str] | None:
    """What Kafka refuses before the log sees it: anything but exactly one batch in format v2."""
    if partition.topic in INTERNAL_TOPICS and context.client_id != ADMIN_CLIENT_ID:
        return ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {partition.topic}"
    version = context.api_version
    at_least_one = (
        ErrorCode.INVALID_RECORD,
        f"Produce requests with version {version} must have at least one record batch per partition",
    )
    if not isinstance(records, memoryview) or len(records) < 12:
        return at_least_one
    batch_length = int.from_bytes(records[8:12], "big", signed=True)
    if batch_length < BATCH_LENGTH_MIN:
        return (
            ErrorCode.CORRUPT_MESSAGE,
            f"A record batch claims {batch_length} bytes, less than any can have",
        )
    if len(records) < 17:
        return at_least_one
    magic = records[16]
    if magic > 2:
        return ErrorCode.CORRUPT_MESSAGE, f"A record batch has the unknown magic {magic}"
    if len(records) < 12 + batch_length:  # a batch that is cut short counts as none
        return at_least_one
    if magic < 2:
        return (
            ErrorCode.INVALID_RECORD,
            f"Produce requests with version {version} are only allowed to contain record batches with "
            "magic version 2",
        )
    if len(records) < BATCH_OVERHEAD:
        return ErrorCode.CORRUPT_MESSAGE, "The record batch is shorter than its header"
    attributes = records[22]
    if attributes & 7 == ZSTD and version < 7:
        return (
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"Produce requests with version {version} are not allowed to use ZStandard compression",
        )
    if batch_length + 12 < len(records):
        return (
            ErrorCode.INVALID_RECORD,
            f"Produce requests with version {version} are only allowed to contain exactly one record batch "
            "per partition",
        )
    if attributes & TRANSACTIONAL and request.transactional_id is None:
        return ErrorCode.INVALID_TXN_STATE, "A transactional batch needs a transactional id"
    return None


def _why_absent(context: RequestContext, data: TopicProduceData, by_id: bool) -> ErrorCode:
    if by_id and context.services.controller.image.topic_by_id(data.topic_id) is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _error(index: int, error: ErrorCode, message: str | None = None) -> PartitionProduceResponse:
    return PartitionProduceResponse(index=index, error_code=error, base_offset=-1, error_message=message)
