"""What a batch must be to enter the log, and the rare rewriting of one, with Kafka's codes and texts.

Most checks need the header alone. An `Inspection` is the slow path: it reads every record, because a setting of the
topic asks for it (compression.type, compaction's keys, barnabas.validate.records, message.timestamp.before.max.ms), or
because the answer names the records with a wrong timestamp. Few records are read at once; many are read in steps, between
which other requests are served, and are unpacked and packed by a thread.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.runtime.slices import Steps, TooManySteps, run_through
from barnabas.storage.errors import StorageError
from barnabas.storage.log.log_config import LONG_MAX, LogConfig
from barnabas.wire.checksum import crc32c
from barnabas.wire.compression import CODEC_NAMES, Bytes, Codec, CompressionError
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import (
    ATTRIBUTES_OFFSET,
    CODEC_MASK,
    CONTROL_FLAG,
    CRC_OFFSET,
    HEADER_SIZE,
    LOG_APPEND_TIME_FLAG,
    MAX_TIMESTAMP_OFFSET,
    NO_TIMESTAMP,
    BatchHeader,
    RecordBatchError,
    UnsupportedMagic,
    assemble_batch,
    read_header,
)
from barnabas.wire.records import UnpacksTooLarge, compress_records, record_heads, records_payload

if TYPE_CHECKING:
    from mmap import mmap

INVALID_RECORDS_TEXT = "One or more records have been rejected"

RECORD_ERRORS_MAX: Final = 1000  # records that an answer names; Kafka names all
RECORDS_PER_STEP: Final = 512  # some 0.3 ms
# A batch of at most this size, by its header and in fact, is read in the turn of the loop in which it arrives.
MEDIUM_BYTES: Final = 1 << 18
MEDIUM_RECORDS: Final = 20_000  # some 20 ms of the loop's time
_SMALL_BYTES: Final = 1 << 15
_SMALL_RECORDS: Final = 1000
_SMALL_UNPACKED_BYTES: Final = 1 << 17
_SMALL_STEPS: Final = 10


def read_batch_header(records: Bytes, position: int = 0) -> BatchHeader:
    """The header at `position`, or the StorageError for its sender."""
    try:
        return read_header(records, position)
    except RecordBatchError as error:
        raise header_error(error) from None


def header_error(error: RecordBatchError) -> StorageError:
    """The error for the sender of a header that can't be read."""
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
    """INVALID_RECORD for what a client may not send: control batches."""
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


class Inspected(msgspec.Struct, frozen=True):
    """A batch whose records have been read, and converted, as `config` requires."""

    records: memoryview
    header: BatchHeader
    config: LogConfig


class RecordsUnread(Exception):
    """Records must be read before their batch can be appended, and there may be too many for one turn of the loop. Nothing has
    changed. The append can be repeated with the result of `steps`."""

    def __init__(self, inspection: Inspection) -> None:
        super().__init__("records have to be read first")
        self._inspection = inspection

    @property
    def is_medium(self) -> bool:
        """Whether reading takes a few slices at most. It never goes beyond what the header counts."""
        inspection = self._inspection
        return len(inspection.records) <= MEDIUM_BYTES and inspection.header.record_count <= MEDIUM_RECORDS

    def read_from(self, copy: memoryview) -> None:
        """Read the batch at the start of `copy`, which has the same bytes: the buffer of the request is about to be reused."""
        self._inspection.records = copy[: len(self._inspection.records)]

    def steps(self) -> Steps[Inspected]:
        """Read the records. StorageError when the batch must not be appended."""
        return self._inspection.steps()


class Inspection(msgspec.Struct):
    """Reads the records of a batch as the topic's settings require."""

    records: Bytes
    header: BatchHeader
    config: LogConfig
    partition: str  # for messages
    now_ms: int
    checks_times: bool  # not under LogAppendTime
    checks_records: bool = True  # as far as the settings require it

    def run(self, *, may_wait: bool) -> Inspected:
        """Read the records now. With `may_wait`, RecordsUnread where they are not few."""
        if not may_wait:
            return run_through(self.steps())
        if not self._is_small:
            self._refuse_far_ahead()
            raise RecordsUnread(self)
        try:
            return run_through(self.steps(_SMALL_UNPACKED_BYTES), _SMALL_STEPS)
        except (UnpacksTooLarge, TooManySteps):
            self._refuse_far_ahead()
            raise RecordsUnread(self) from None

    def steps(self, unpacked_max: int | None = None) -> Steps[Inspected]:
        """StorageError when the batch must not be appended: INVALID_TIMESTAMP or INVALID_RECORD, with the records at fault;
        MESSAGE_TOO_LARGE when its conversion makes it so. UnpacksTooLarge beyond `unpacked_max`, if that is given."""
        config, header = self.config, self.header
        checks_records = self.checks_records and (config.validate_records or config.is_compacted)
        checks_times = self.checks_times and (
            config.message_timestamp_before_max_ms != LONG_MAX or self._is_far_ahead
        )
        if not self._is_small:
            self._refuse_far_ahead()
        codec = CODEC_NAMES.get(
            "none" if config.compression_type == "uncompressed" else config.compression_type, Codec(0)
        )
        converts = config.compression_type != "producer" and codec != header.codec and not header.is_control
        if not (checks_records or checks_times or converts):
            return Inspected(memoryview(self.records), header, config)
        try:
            payload = yield partial(records_payload, self.records, header, unpacked_max)
            if checks_records or checks_times:
                yield from self._check_records(payload, checks_records, checks_times)
            if not converts:
                return Inspected(memoryview(self.records), header, config)
            if codec == Codec.NONE:
                self._check_converted_size(HEADER_SIZE + len(payload))
            packed = yield partial(compress_records, codec, payload)
        except (RecordBatchError, CompressionError) as error:
            if unpacked_max is not None and isinstance(error, UnpacksTooLarge):
                raise
            raise StorageError(
                ErrorCode.INVALID_RECORD, f"{error} in topic partition {self.partition}."
            ) from None
        self._check_converted_size(HEADER_SIZE + len(packed))
        converted = msgspec.structs.replace(header, attributes=header.attributes & ~CODEC_MASK | codec)
        batch = yield partial(assemble_batch, converted, packed)
        return Inspected(memoryview(batch), converted, config)

    @property
    def _is_small(self) -> bool:
        """Whether the batch is small by its header. Reading never goes beyond what the header says."""
        return self.header.size <= _SMALL_BYTES and self.header.record_count <= _SMALL_RECORDS

    @property
    def _is_far_ahead(self) -> bool:
        return self.header.max_timestamp > self.now_ms + self.config.message_timestamp_after_max_ms

    def _refuse_far_ahead(self) -> None:
        """INVALID_TIMESTAMP by the header alone, without reading many records to name those at fault."""
        if self.checks_times and self._is_far_ahead:
            raise StorageError(
                ErrorCode.INVALID_TIMESTAMP,
                f"{INVALID_RECORDS_TEXT} due to invalid timestamp: the largest of the batch, "
                f"{self.header.max_timestamp}, is more than "
                f"{self.config.message_timestamp_after_max_ms} ms ahead of {self.now_ms}",
            )

    def _check_converted_size(self, size: int) -> None:
        if size > self.config.max_message_bytes:
            raise StorageError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"Message batch size is {size} bytes in append to partition {self.partition}, which exceeds the "
                f"maximum configured size of {self.config.max_message_bytes}.",
            )

    def _check_records(
        self, payload: bytes | mmap, checks_records: bool, checks_times: bool
    ) -> Generator[None, None, None]:
        """INVALID_RECORD or INVALID_TIMESTAMP with the records at fault, of many the first."""
        header = self.header
        low = self.now_ms - self.config.message_timestamp_before_max_ms
        high = self.now_ms + self.config.message_timestamp_after_max_ms
        needs_keys = self.config.is_compacted
        base = header.base_timestamp
        append_time = header.max_timestamp if header.is_log_append_time else None
        errors: list[tuple[int, str | None]] = []
        total = wrong_times = index = 0
        for head in record_heads(header, payload):
            if head is None:
                yield
                continue
            offset_delta, timestamp_delta, key_size = head
            if checks_records and offset_delta != index:
                raise _rejected(
                    [
                        (
                            index,
                            f"Record offset {header.base_offset + offset_delta} of record {index} is not in "
                            f"sequence in topic partition {self.partition}.",
                        )
                    ]
                )
            if key_size < 0 and needs_keys:
                total += 1
                if total <= RECORD_ERRORS_MAX:
                    errors.append(
                        (
                            index,
                            "Compacted topic cannot accept message without key in topic partition "
                            f"{self.partition}",
                        )
                    )
            elif checks_times:
                timestamp = base + timestamp_delta if append_time is None else append_time
                if not low <= timestamp <= high and timestamp != NO_TIMESTAMP:
                    total += 1
                    wrong_times += 1
                    if total <= RECORD_ERRORS_MAX:
                        errors.append((index, _wrong_time(timestamp, index, low, high)))
            index += 1
            if not index % RECORDS_PER_STEP:
                yield
        if checks_times and not total and header.max_timestamp > high:
            # The header's max timestamp is wrong. Kafka would correct it.
            wrong_times, errors = 1, [(0, _wrong_time(header.max_timestamp, 0, low, high))]
        if wrong_times:
            raise StorageError(
                ErrorCode.INVALID_TIMESTAMP, INVALID_RECORDS_TEXT + " due to invalid timestamp", errors
            )
        if errors:
            raise _rejected(errors, total)


def _wrong_time(timestamp: int, index: int, low: int, high: int) -> str:
    return (
        f"Timestamp {timestamp} of message with offset {index} is out of range. "
        f"The timestamp should be within [{low}, {high}]"
    )


def _rejected(errors: list[tuple[int, str | None]], total: int = 1) -> StorageError:
    """INVALID_RECORD with the records at fault, worded as Kafka words it."""
    first = ", ".join(f"RecordError(batchIndex={index}, message='{text}')" for index, text in errors[:3])
    return StorageError(
        ErrorCode.INVALID_RECORD,
        f"{INVALID_RECORDS_TEXT} due to {total} record errors in total, and only showing the first three "
        f"errors at most: [{first}]",
        errors,
    )
