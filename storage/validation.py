"""What a batch must be to enter the log, and the rare rewriting of one, with Kafka's codes and texts.

The checks of `check_header` need the header alone. `inspect_records` is the slow path: it reads every record,
because a setting of the topic asks for it (compression.type, compaction's keys, barnabas.validate.records).
"""

from __future__ import annotations

import struct

from barnabas.storage.errors import StorageError
from barnabas.storage.log_config import LONG_MAX, LogConfig
from barnabas.wire.checksum import crc32c
from barnabas.wire.compression import CODEC_NAMES, Bytes, CompressionError, compress
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import (
    ATTRIBUTES_OFFSET,
    CODEC_MASK,
    CONTROL_FLAG,
    CRC_OFFSET,
    LOG_APPEND_TIME_FLAG,
    MAX_TIMESTAMP_OFFSET,
    NO_TIMESTAMP,
    BatchHeader,
    RecordBatchError,
    UnsupportedMagic,
    assemble_batch,
    read_header,
)
from barnabas.wire.records import decode_records, records_payload

INVALID_RECORDS_TEXT = "One or more records have been rejected"

DECOMPRESSED_LIMIT = 1 << 30  # of a batch that stands in a log: threads read it
# What a client sends is unpacked while everybody waits, so it may not be much larger than it seems.
_RATIO_MAX = 100
_ALWAYS_ALLOWED = 1 << 26


def read_batch_header(records: Bytes, position: int = 0) -> BatchHeader:
    """The header at `position`, or the StorageError that its sender is told."""
    try:
        return read_header(records, position)
    except RecordBatchError as error:
        raise refusal(error) from None


def refusal(error: RecordBatchError) -> StorageError:
    """What the sender of a header that can't be read is told."""
    if isinstance(error, UnsupportedMagic):
        return StorageError(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, str(error))
    return StorageError(ErrorCode.CORRUPT_MESSAGE, str(error))


def check_counts(header: BatchHeader, partition: str) -> None:
    """INVALID_RECORD with the reason; the caller has seen that the counts are wrong."""
    count = header.record_count
    if header.last_offset_delta < 0:
        text = f"Batch has an invalid offset range: [{header.base_offset}, {header.last_offset}]"
    elif count <= 0:
        text = f"Invalid reported count for record batch: {count}"
    else:
        text = (
            f"Inconsistent batch offset range [{header.base_offset}, {header.last_offset}] "
            f"and count of records {count}"
        )
    raise StorageError(ErrorCode.INVALID_RECORD, f"{text} in topic partition {partition}.")


def check_client_attributes(header: BatchHeader, partition: str) -> None:
    """What a client may not send: control batches."""
    if header.attributes & CONTROL_FLAG:
        raise StorageError(
            ErrorCode.INVALID_RECORD,
            f"Clients are not allowed to write control records in topic partition {partition}.",
        )


def without_flag(records: Bytes, header: BatchHeader, flag: int) -> bytes:
    """The batch without a flag that only a broker may set, and `header` changed alike: of the LogAppendTime flag, Kafka
    writes the topic's own timestamp type over it."""
    rewritten = bytearray(records)
    header.attributes &= ~flag
    struct.pack_into(">H", rewritten, ATTRIBUTES_OFFSET, header.attributes & 0xFFFF)
    header.crc = crc32c(memoryview(rewritten)[ATTRIBUTES_OFFSET:])
    struct.pack_into(">I", rewritten, CRC_OFFSET, header.crc)
    return bytes(rewritten)


def check_timestamps(
    records: Bytes, header: BatchHeader, now_ms: int, config: LogConfig, partition: str
) -> None:
    """INVALID_TIMESTAMP when a record's time lies outside the topic's bounds, with every such record.

    The header's largest time bounds them from above. Nothing bounds them from below, as a record may be older
    than the first, so all are read when message.timestamp.before.max.ms is set, or when some are too far ahead
    and have to be named. INVALID_RECORD when they can't be read.
    """
    low = now_ms - config.message_timestamp_before_max_ms
    high = now_ms + config.message_timestamp_after_max_ms
    if header.max_timestamp <= high and config.message_timestamp_before_max_ms == LONG_MAX:
        return
    try:
        times = [record.timestamp for record in decode_records(records, _unpacked_limit(header))]
    except RecordBatchError as error:
        raise StorageError(ErrorCode.INVALID_RECORD, f"{error} in topic partition {partition}.") from None
    wrong = [
        (index, timestamp)
        for index, timestamp in enumerate(times)
        if timestamp != NO_TIMESTAMP and not low <= timestamp <= high
    ]
    if not wrong and header.max_timestamp > high:
        wrong = [(0, header.max_timestamp)]  # a header that lies, which Kafka would put right
    if wrong:
        errors: list[tuple[int, str | None]] = [
            (
                index,
                f"Timestamp {timestamp} of message with offset {index} is out of range. "
                f"The timestamp should be within [{low}, {high}]",
            )
            for index, timestamp in wrong
        ]
        raise StorageError(
            ErrorCode.INVALID_TIMESTAMP, INVALID_RECORDS_TEXT + " due to invalid timestamp", errors
        )


def stamp_append_time(records: Bytes, header: BatchHeader, now_ms: int) -> bytes:
    """The batch with LogAppendTime `now_ms` in its header, and `header` changed alike."""
    stamped = bytearray(records)
    header.attributes |= LOG_APPEND_TIME_FLAG
    header.max_timestamp = now_ms
    struct.pack_into(">H", stamped, ATTRIBUTES_OFFSET, header.attributes & 0xFFFF)
    struct.pack_into(">q", stamped, MAX_TIMESTAMP_OFFSET, now_ms)
    header.crc = crc32c(memoryview(stamped)[ATTRIBUTES_OFFSET:])
    struct.pack_into(">I", stamped, CRC_OFFSET, header.crc)
    return bytes(stamped)


def needs_inspection(config: LogConfig) -> bool:
    """Whether the topic's settings need every record to be looked at."""
    return config.validate_records or config.is_compacted or config.compression_type != "producer"


def inspect_records(
    records: Bytes, header: BatchHeader, config: LogConfig, partition: str
) -> tuple[Bytes, BatchHeader]:
    """Read the records as the settings ask; the batch to write, recompressed when its codec must change.

    INVALID_RECORD when the records lie, lack keys on a compacted topic, or can't be decompressed.
    """
    try:
        if config.validate_records or config.is_compacted:
            _check_records(records, header, config, partition)
        wanted = CODEC_NAMES.get(
            "none" if config.compression_type == "uncompressed" else config.compression_type, header.codec
        )
        if wanted == header.codec:
            return records, header
        payload = records_payload(records, header, _unpacked_limit(header))
        packed = compress(CODEC_NAMES[_name(wanted)], payload)
    except (RecordBatchError, CompressionError) as error:
        raise StorageError(ErrorCode.INVALID_RECORD, f"{error} in topic partition {partition}.") from None
    header.attributes = header.attributes & ~CODEC_MASK | wanted
    rewritten = assemble_batch(header, packed)
    return rewritten, read_header(rewritten)


def _unpacked_limit(header: BatchHeader) -> int:
    return min(DECOMPRESSED_LIMIT, max(_ALWAYS_ALLOWED, _RATIO_MAX * header.size))


def _name(codec: int) -> str:
    return next(name for name, value in CODEC_NAMES.items() if value == codec)


def _check_records(records: Bytes, header: BatchHeader, config: LogConfig, partition: str) -> None:
    keyless: list[tuple[int, str | None]] = []
    for index, record in enumerate(decode_records(records, _unpacked_limit(header))):
        if record.offset != header.base_offset + index:
            raise _rejected(
                [
                    (
                        index,
                        f"Record offset {record.offset} of record {index} is not in sequence in "
                        f"topic partition {partition}.",
                    )
                ]
            )
        if config.is_compacted and record.key is None:
            keyless.append(
                (index, f"Compacted topic cannot accept message without key in topic partition {partition}")
            )
    if keyless:
        raise _rejected(keyless)


def _rejected(errors: list[tuple[int, str | None]]) -> StorageError:
    """INVALID_RECORD with the records at fault, worded as Kafka words it."""
    first = ", ".join(f"RecordError(batchIndex={index}, message='{text}')" for index, text in errors[:3])
    return StorageError(
        ErrorCode.INVALID_RECORD,
        f"{INVALID_RECORDS_TEXT} due to {len(errors)} record errors in total, and only showing the first three "
        f"errors at most: [{first}]",
        errors,
    )
