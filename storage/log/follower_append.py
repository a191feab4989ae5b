"""Appending what a leader has: whole batches exactly as they were fetched, at the offsets that they have there.

Nothing is decoded and nothing is patched, so the copy is byte for byte the leader's. All batches of a call are checked
before the first is written: lengths, CRC, offsets that ascend. Those that go to one segment are written in one
piece. What a producer or a transaction did is followed as at recovery, not judged: the leader has judged it.

As Kafka's UnifiedLog.appendAsFollower. A batch of a later leader epoch than the fetch was made in is left out
with everything behind it (KAFKA-18723): a leader that has become a follower itself may have cut its log and
written on while its answer was on its way.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from barnabas.storage.disk.disk import write_rest
from barnabas.storage.errors import StorageError
from barnabas.storage.log import validation
from barnabas.storage.log.pacing import LARGE_APPEND_BYTES
from barnabas.storage.log.truncation import TruncatableLog
from barnabas.storage.segment.legacy_format import read_stored_header, verify_stored_crc
from barnabas.storage.segment.segment import MAX_RELATIVE_OFFSET, Segment
from barnabas.wire.checksum import crc32c
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import (
    ATTRIBUTES_OFFSET,
    CONTROL_FLAG,
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    RecordBatchError,
    read_header,
)

logger = logging.getLogger("barnabas.storage")

ANY_EPOCH: Final = 0x7FFFFFFF
ALL_BATCHES: Final = 0x7FFFFFFF


class FollowerAppend(msgspec.Struct, gc=False):
    """What has been appended: so many bytes, whole batches. `awaits_sync`: it is not to be claimed before
    `when_synced(log_end_offset)`; `awaits_write_back`: more is not to be fetched before `when_written_back`.
    `is_partial`: `batches_max` has left some behind."""

    size: int
    batches: int = 0
    is_partial: bool = False
    awaits_sync: bool = False
    awaits_write_back: bool = False

    def add(self, before: FollowerAppend) -> None:
        """Make this the result of both, `before` being the earlier one."""
        self.size += before.size
        self.batches += before.batches
        self.awaits_sync |= before.awaits_sync
        self.awaits_write_back |= before.awaits_write_back


class UnexpectedAppendOffset(StorageError):
    """The first batch begins below the log's end."""

    def __init__(self, name: str, first_offset: int, last_offset: int, end_offset: int) -> None:
        super().__init__(
            ErrorCode.INVALID_RECORD,
            f"Unexpected offset in append to {name}. First offset {first_offset}, last offset {last_offset} of "
            f"the first batch, the log's next offset is {end_offset}",
        )
        self.first_offset = first_offset
        self.last_offset = last_offset


class ReplicaLog(TruncatableLog):
    """The following part of `Log`."""

    __slots__ = ()

    def append_as_follower(
        self, records: memoryview, leader_epoch: int = ANY_EPOCH, batches_max: int = ALL_BATCHES
    ) -> FollowerAppend:
        """Append the first `batches_max` whole batches in `records`; a last one that is cut is left out, as Kafka's fetches
        cut it.

        Nothing has changed when it raises UnexpectedAppendOffset or StorageError CORRUPT_MESSAGE. After
        KAFKA_STORAGE_ERROR the log ends behind some whole batch of these.
        """
        if self.failure is not None:
            raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, self.failure)
        headers = self._checked(records, leader_epoch, batches_max)
        result = FollowerAppend(0, len(headers))
        if not headers:
            return result
        first_offset = headers[0].base_offset
        now = self._time_ms()
        run: list[BatchHeader] = []  # that will be written in one piece
        start = stop = 0
        segment = self._active
        for header in headers:
            size = header.batch_length + LOG_OVERHEAD
            if (
                segment.size + stop - start > self._segment_bytes - size
                or header.max_timestamp - segment.first_timestamp > self._roll_after_ms
                or segment.first_timestamp < 0
                or segment.index_full
                or segment.torn
                or header.base_offset + header.last_offset_delta - segment.base_offset > MAX_RELATIVE_OFFSET
                or header.partition_leader_epoch > self._epochs.latest_epoch
            ):
                if run:
                    self._write_run(records[start:stop], run, result)
                    run, start = [], stop
                try:
                    segment = self._prepare_for(header, size, now)
                except OSError as error:
                    self._undo_write(segment, error)
            run.append(header)
            stop += size
        self._write_run(records[start:stop], run, result)
        result.is_partial = len(headers) == batches_max and result.size < len(records)
        if self._flushes:
            result.awaits_sync = self._flush_as_configured(first_offset)
        return result

    def _checked(self, records: memoryview, leader_epoch: int, batches_max: int) -> list[BatchHeader]:
        """The headers of the first `batches_max` whole batches, which all may be appended."""
        headers: list[BatchHeader] = []
        position, end = 0, len(records)
        next_offset = self.log_end_offset
        try:
            while end - position > LOG_OVERHEAD and len(headers) < batches_max:
                if end - position >= HEADER_SIZE and records[position + 16] == 2:
                    header = read_header(records, position)
                else:  # a cut batch, or what no one may write any more
                    length = int.from_bytes(
                        records[position + 8 : position + LOG_OVERHEAD], "big", signed=True
                    )
                    if length < 0 or length > end - position - LOG_OVERHEAD:
                        break
                    header = read_stored_header(records, position)
                size = header.batch_length + LOG_OVERHEAD
                if size > end - position:
                    break
                if header.magic != 2:
                    verify_stored_crc(records, position, header)
                elif crc32c(records[position + ATTRIBUTES_OFFSET : position + size]) != header.crc:
                    raise StorageError(
                        ErrorCode.CORRUPT_MESSAGE,
                        f"Record is corrupt (crc) in a fetched batch of {self.name}",
                    )
                if header.partition_leader_epoch > leader_epoch:
                    logger.info(
                        "%s: a batch of leader epoch %d was fetched in epoch %d and is left out",
                        self.name,
                        header.partition_leader_epoch,
                        leader_epoch,
                    )
                    break
                if header.base_offset < next_offset or header.last_offset_delta < 0:
                    if not headers and header.last_offset_delta >= 0:
                        raise UnexpectedAppendOffset(
                            self.name, header.base_offset, header.last_offset, next_offset
                        )
                    raise StorageError(
                        ErrorCode.CORRUPT_MESSAGE, f"Out of order offsets in fetched batches of {self.name}"
                    )
                headers.append(header)
                next_offset = header.base_offset + header.last_offset_delta + 1
                position += size
        except RecordBatchError as error:
            raise validation.refusal(error) from None
        return headers

    def _prepare_for(self, header: BatchHeader, size: int, now: int) -> Segment:
        """The segment to write the batch to. OSError."""
        reach = header.base_offset + header.last_offset_delta - self._active.base_offset
        if reach > MAX_RELATIVE_OFFSET and header.base_offset > self.log_end_offset:
            self.log_end_offset = (
                header.base_offset
            )  # over a gap so wide that the new segment begins behind it
        # Not written down before the batch: until it is synced, and the file with it, the batch itself tells.
        self._epochs.assign_unsaved(header.partition_leader_epoch, header.base_offset)
        return self._prepare_segment(header, size, header.partition_leader_epoch, now)

    def _write_run(self, batches: memoryview, headers: list[BatchHeader], result: FollowerAppend) -> None:
        """Write what goes to the active segment in one piece."""
        config = self.config
        segment = self._active
        start = position = segment.size
        size = len(batches)
        try:
            file = segment.open_for_append()
            if size < LARGE_APPEND_BYTES:
                written = file.pwrite(batches, start)
            else:
                written = self._write_large(file, batches, start)
            if written != size:
                write_rest(file, batches, written, start)
        except OSError as error:
            self._undo_write(segment, error)
        for header in headers:
            position = segment.size
            size = header.batch_length + LOG_OVERHEAD
            segment.appended(header, size, config.index_interval_bytes, config.segment_index_bytes)
            self.log_end_offset = header.base_offset + header.last_offset_delta + 1
            if header.producer_id >= 0:
                is_control = header.attributes & CONTROL_FLAG
                at = position - start
                self._producer_appended(batches[at : at + size] if is_control else b"", header)
        self._last_base_offset = headers[-1].base_offset
        self._last_position = position
        result.size += len(batches)
        if len(batches) >= LARGE_APPEND_BYTES and self._large_appended(segment):
            result.awaits_write_back = True
