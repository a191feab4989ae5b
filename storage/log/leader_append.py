"""Appending to a log: checks, offsets, one write.

An append is one pass: header, CRC, checks, and one write of the batch with the sixteen bytes in front that the
leader assigns. They are patched where the batch lies, so a writable buffer is not copied on its way to the
file. State changes only after the write has succeeded, so a full disk leaves the log as it was.
"""

from __future__ import annotations

import logging
import struct

import msgspec

from barnabas.runtime.slices import run_through
from barnabas.storage.disk.disk import write_rest
from barnabas.storage.errors import StorageError
from barnabas.storage.log import validation
from barnabas.storage.log.log_config import LONG_MAX, LogConfig
from barnabas.storage.log.pacing import LARGE_APPEND_BYTES, PacedLog
from barnabas.storage.segment.segment import MAX_RELATIVE_OFFSET, Segment
from barnabas.wire.checksum import crc32c
from barnabas.wire.compression import Bytes
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import (
    ATTRIBUTES_OFFSET,
    BRIDGED_FLAG,
    CONTROL_FLAG,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    BatchHeader,
    RecordBatchError,
    read_header,
)

logger = logging.getLogger("barnabas.storage")

_BROKERS_FLAGS = LOG_APPEND_TIME_FLAG | BRIDGED_FLAG

_assign = struct.Struct(">qii").pack_into  # base offset, batch length (as it is), leader epoch


class AppendResult(msgspec.Struct, gc=False):
    """Where a batch stands. `log_append_time` is -1 under CreateTime, but a duplicate's own time, as Kafka."""

    base_offset: int
    last_offset: int
    log_append_time: int
    log_start_offset: int
    duplicate: bool = False
    awaits_sync: bool = False  # not to be acknowledged before `when_synced(last_offset + 1)`
    awaits_write_back: bool = False  # not to be acknowledged before `when_written_back`, but shown
    awaits_commit: bool = False  # set by who replicates: other replicas do not have it yet
    records: memoryview | None = None  # the batch as it was written, as long as the request's buffer is there


class AppendableLog(PacedLog):
    """The appending part of `Log`."""

    __slots__ = (
        "_after_max_ms",
        "_flushes",
        "_rewrites",
        "_segment_bytes",
        "_size_max",
    )

    def update_config(self, config: LogConfig) -> None:
        """New settings, in force from the next append on."""
        self.config = config
        self._rewrites = (
            config.message_timestamp_type == "LogAppendTime"
            or config.message_timestamp_before_max_ms != LONG_MAX
            or validation.needs_inspection(config)
        )
        self._segment_bytes = config.segment_bytes
        self._size_max = min(config.max_message_bytes, config.segment_bytes)
        self._after_max_ms = config.message_timestamp_after_max_ms
        self._flushes = config.flush_messages != LONG_MAX or config.flush_ms != LONG_MAX
        self._roll_after_ms = self._next_roll_after_ms()

    def append_as_leader(
        self, records: Bytes, leader_epoch: int, *, from_client: bool = True
    ) -> AppendResult:
        """Assign offsets to the batches in `records`, write them, and say where the (last) batch stands.

        Nothing has changed when it raises StorageError: CORRUPT_MESSAGE, UNSUPPORTED_FOR_MESSAGE_FORMAT,
        MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_RECORD, INVALID_TIMESTAMP,
        OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, KAFKA_STORAGE_ERROR. `from_client` False allows
        control batches, and the flags that only brokers set. A writable memoryview is ours: it is written into.
        """
        view = records if type(records) is memoryview else memoryview(records)
        try:
            header = read_header(view)
        except RecordBatchError as error:
            raise validation.refusal(error) from None
        size = header.batch_length + LOG_OVERHEAD
        if size != len(view):
            return self._append_several(view, leader_epoch, from_client)
        return self._append_now(view, header, leader_epoch, from_client)

    def _append_now(
        self, records: memoryview, header: BatchHeader, leader_epoch: int, from_client: bool
    ) -> AppendResult:
        """`append_batch`, however long the reading of the records takes."""
        try:
            return self.append_batch(records, header, leader_epoch, from_client)
        except validation.RecordsUnread as unread:
            inspected = run_through(unread.steps())
        return self.append_batch(inspected.records, inspected.header, leader_epoch, from_client, inspected)

    def _append_several(self, view: memoryview, leader_epoch: int, from_client: bool) -> AppendResult:
        batches: list[tuple[memoryview, BatchHeader]] = []
        position = 0
        while position < len(view):
            header = validation.read_batch_header(view, position)
            batch = view[position : position + header.size]
            if len(batch) < header.size:
                raise StorageError(
                    ErrorCode.CORRUPT_MESSAGE, f"a batch of {header.size} bytes, {len(batch)} remain"
                )
            self._check(batch, header, header.size, from_client)
            batches.append((batch, header))
            position += header.size
        results = [self._append_now(batch, header, leader_epoch, from_client) for batch, header in batches]
        results[-1].base_offset = results[0].base_offset
        results[-1].records = None
        return results[-1]

    def _check(self, records: memoryview, header: BatchHeader, size: int, from_client: bool) -> None:
        """What the header and the CRC alone can refuse, in Kafka's order."""
        if header.base_offset and from_client:
            raise StorageError(
                ErrorCode.INVALID_RECORD,
                f"The baseOffset of the record batch in the append to {self.name} should be 0, "
                f"but it is {header.base_offset}",
            )
        config = self.config
        if size > config.max_message_bytes:
            raise StorageError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"The record batch size in the append to {self.name} is {size} bytes which exceeds the "
                f"maximum configured value of {config.max_message_bytes}.",
            )
        crc = crc32c(records[ATTRIBUTES_OFFSET:])
        if crc != header.crc:
            raise StorageError(
                ErrorCode.CORRUPT_MESSAGE,
                f"Record is corrupt (stored crc = {header.crc}, computed crc = {crc}) "
                f"in topic partition {self.name}.",
            )
        count = header.record_count
        if count < 1 or header.last_offset_delta != count - 1:
            validation.check_counts(header, self.name)
        if header.attributes & CONTROL_FLAG and from_client:
            validation.check_client_attributes(header, self.name)
        if header.producer_id >= 0 and header.base_sequence < 0 and from_client:
            raise StorageError(
                ErrorCode.INVALID_RECORD,
                f"Invalid sequence number {header.base_sequence} in record batch with producerId "
                f"{header.producer_id} in topic partition {self.name}.",
            )
        if size > config.segment_bytes:
            raise StorageError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"Message batch size is {size} bytes in append to partition {self.name}, which exceeds the "
                f"maximum configured segment size of {config.segment_bytes}.",
            )

    def append_batch(
        self,
        records: memoryview,
        header: BatchHeader,
        leader_epoch: int,
        from_client: bool = True,
        inspected: validation.Inspected | None = None,
    ) -> AppendResult:
        """As `append_as_leader`, for exactly one batch whose header has been read. RecordsUnread, and nothing has changed, when
        more than a few records of a client have to be read first; `inspected` is what has come of that."""
        if self.failure is not None:
            raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, self.failure)
        size = header.batch_length + LOG_OVERHEAD
        attributes = header.attributes
        if (
            header.base_offset
            or size > self._size_max
            or header.last_offset_delta != header.record_count - 1
            or header.record_count < 1
            or attributes & CONTROL_FLAG
            or header.base_sequence < 0 <= header.producer_id
            or crc32c(records[ATTRIBUTES_OFFSET:]) != header.crc
        ):
            self._check(records, header, size, from_client)
        now = self._time_ms()
        log_append_time = -1
        if self._rewrites or (attributes & _BROKERS_FLAGS and from_client):
            records, header, log_append_time = self._rewritten(records, header, now, from_client, inspected)
            size = header.batch_length + LOG_OVERHEAD
        elif header.max_timestamp > now + self._after_max_ms:
            self._inspect(records, header, now, checks_times=True, may_wait=from_client)
        if header.producer_id >= 0:
            duplicate = self._check_producer(records, header, from_client)
            if duplicate is not None:
                return AppendResult(
                    duplicate.base_offset,
                    duplicate.last_offset,
                    duplicate.timestamp,
                    self.log_start_offset,
                    duplicate=True,
                    awaits_sync=0 <= self._held_from <= duplicate.last_offset,
                )
        base_offset = header.base_offset = self.log_end_offset
        last_offset = base_offset + header.last_offset_delta
        config = self.config
        segment = self._active
        position = segment.size
        try:
            if (
                position > self._segment_bytes - size
                or header.max_timestamp - segment.first_timestamp > self._roll_after_ms
                or segment.first_timestamp < 0
                or segment.index_full
                or segment.torn
                or last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
                or leader_epoch > self._epochs.latest_epoch
            ):
                segment = self._prepare_segment(header, size, leader_epoch, now)
                position = segment.size
            if records.readonly:
                records = memoryview(bytearray(records))
            _assign(records, 0, base_offset, header.batch_length, leader_epoch)
            file = segment.open_for_append()
            if size < LARGE_APPEND_BYTES:
                written = file.pwrite(records, position)
            else:
                written = self._write_large(file, records, position)
            if written != size:
                write_rest(file, records, written, position)
        except OSError as error:
            self._undo_write(segment, error)
        segment.appended(header, size, config.index_interval_bytes, config.segment_index_bytes)
        self._last_base_offset = base_offset
        self._last_position = position
        self.log_end_offset = last_offset + 1
        if header.producer_id >= 0:
            self._producer_appended(records, header)
        result = AppendResult(base_offset, last_offset, log_append_time, self.log_start_offset)
        result.records = records
        if size >= LARGE_APPEND_BYTES:
            result.awaits_write_back = self._large_appended(segment)
        if self._flushes:
            result.awaits_sync = self._flush_as_configured(base_offset)
        return result

    def _prepare_segment(self, header: BatchHeader, size: int, leader_epoch: int, now: int) -> Segment:
        """The segment to write the batch to: a new one where the settings ask for it."""
        segment = self._active
        position = segment.size
        if (
            position > self._segment_bytes - size
            or (position and segment.waited_ms(now, header.max_timestamp) > self._roll_after_ms)
            or segment.index_full
            or header.base_offset + header.last_offset_delta - segment.base_offset > MAX_RELATIVE_OFFSET
        ):
            self.roll()
            segment = self._active
        if leader_epoch > self._epochs.latest_epoch:
            self._epochs.assign(leader_epoch, header.base_offset)
            self._new_names += 1
        if segment.torn:
            segment.cut_torn_tail()
        return segment

    def _rewritten(
        self,
        records: memoryview,
        header: BatchHeader,
        now: int,
        from_client: bool,
        inspected: validation.Inspected | None,
    ) -> tuple[memoryview, BatchHeader, int]:
        """The batch and its header as the topic's settings want them, and its LogAppendTime or -1."""
        config = self.config
        batch: Bytes = records
        if header.attributes & BRIDGED_FLAG and from_client:
            batch = validation.without_flag(batch, header, BRIDGED_FLAG)
        stamps = config.message_timestamp_type == "LogAppendTime"
        is_stamped = header.attributes & LOG_APPEND_TIME_FLAG and from_client
        if inspected is None or inspected.config is not config:
            checks_times = not (stamps or is_stamped)
            read = self._inspect(batch, header, now, checks_times=checks_times, may_wait=from_client)
            batch, header = read.records, read.header
        if stamps:
            batch = validation.stamp_append_time(batch, header, now)
        elif is_stamped:
            batch = validation.without_flag(batch, header, LOG_APPEND_TIME_FLAG)
        return memoryview(batch), header, now if stamps else -1

    def _inspect(
        self, records: Bytes, header: BatchHeader, now: int, *, checks_times: bool, may_wait: bool
    ) -> validation.Inspected:
        inspection = validation.Inspection(records, header, self.config, self.name, now, checks_times)
        return inspection.run(may_wait=may_wait)

    def _undo_write(self, segment: Segment, error: OSError) -> None:
        """No half batch stays: cut it off now, or before the next append when the disk refuses even that."""
        try:
            segment.cut_torn_tail()
        except OSError:
            pass
        logger.error("%s: append failed: %s", self.name, error)
        self.io_failed(error)
        raise StorageError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"Error while appending records to {self.name}: {error}"
        ) from error
