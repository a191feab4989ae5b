"""The checks and changes that a leader makes to a batch before it appends it: sizes, CRC, counts, timestamps, flags."""

from __future__ import annotations

import msgspec

from barnabas.storage.errors import StorageError
from barnabas.storage.log import validation
from barnabas.storage.log.log_config import LogConfig
from barnabas.wire.checksum import crc32c
from barnabas.wire.compression import Bytes
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import (
    ATTRIBUTES_OFFSET,
    CONTROL_FLAG,
    EXTENSION_FLAG,
    LOG_APPEND_TIME_FLAG,
    BatchHeader,
)


class AppendResult(msgspec.Struct, gc=False):
    """Where a batch is in the log. `log_append_time` is -1 under CreateTime, but a duplicate's own time, as in Kafka."""

    base_offset: int
    last_offset: int
    log_append_time: int
    log_start_offset: int
    duplicate: bool = False
    awaits_sync: bool = False  # not to be acknowledged before `when_synced(last_offset + 1)`
    awaits_write_back: bool = False  # not to be acknowledged before `when_written_back`, but shown
    awaits_commit: bool = False  # set by the partition when other replicas do not have the batch yet
    records: memoryview | None = None  # the batch as it was written, as long as the request's buffer exists


def check_batch(
    records: memoryview, header: BatchHeader, size: int, config: LogConfig, partition: str, from_client: bool
) -> None:
    """StorageError where the header or the CRC shows that the batch must not be appended; in Kafka's order."""
    if header.base_offset and from_client:
        raise StorageError(
            ErrorCode.INVALID_RECORD,
            f"The baseOffset of the record batch in the append to {partition} should be 0, "
            f"but it is {header.base_offset}",
        )
    if size > config.max_message_bytes:
        raise StorageError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"The record batch size in the append to {partition} is {size} bytes which exceeds the "
            f"maximum configured value of {config.max_message_bytes}.",
        )
    crc = crc32c(records[ATTRIBUTES_OFFSET:])
    if crc != header.crc:
        raise StorageError(
            ErrorCode.CORRUPT_MESSAGE,
            f"Record is corrupt (stored crc = {header.crc}, computed crc = {crc}) "
            f"in topic partition {partition}.",
        )
    count = header.record_count
    if count < 1 or header.last_offset_delta != count - 1:
        validation.check_counts(header, partition)
    if header.attributes & CONTROL_FLAG and from_client:
        validation.check_client_attributes(header, partition)
    if header.producer_id >= 0 and header.base_sequence < 0 and from_client:
        raise StorageError(
            ErrorCode.INVALID_RECORD,
            f"Invalid sequence number {header.base_sequence} in record batch with producerId "
            f"{header.producer_id} in topic partition {partition}.",
        )
    if size > config.segment_bytes:
        raise StorageError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"Message batch size is {size} bytes in append to partition {partition}, which exceeds the "
            f"maximum configured segment size of {config.segment_bytes}.",
        )


def rewrite_batch(
    records: memoryview,
    header: BatchHeader,
    now_ms: int,
    config: LogConfig,
    partition: str,
    from_client: bool,
    inspected: validation.Inspected | None,
) -> tuple[memoryview, BatchHeader, int]:
    """The batch and its header as the topic's settings require, and its LogAppendTime or -1."""
    batch: Bytes = records
    if header.attributes & EXTENSION_FLAG and from_client:
        batch = validation.without_flag(batch, header, EXTENSION_FLAG)
    stamps = config.message_timestamp_type == "LogAppendTime"
    is_stamped = header.attributes & LOG_APPEND_TIME_FLAG and from_client
    if inspected is None or inspected.config is not config:
        # A coordinator builds its records as they have to be; an extension writes what others have published.
        is_foreign = from_client or header.is_from_extension
        checks_times = is_foreign and not (stamps or is_stamped)
        inspection = validation.Inspection(
            batch, header, config, partition, now_ms, checks_times, checks_records=is_foreign
        )
        read = inspection.run(may_wait=from_client)
        batch, header = read.records, read.header
    if stamps:
        batch = validation.stamp_append_time(batch, header, now_ms)
    elif is_stamped:
        batch = validation.without_flag(batch, header, LOG_APPEND_TIME_FLAG)
    return memoryview(batch), header, now_ms if stamps else -1
