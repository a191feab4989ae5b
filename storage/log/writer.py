"""Writing to the end of a log: appends by the leader and by a follower, and new segments.

An append is one pass: header, CRC, checks, and one write of the batch with the sixteen bytes in front that the leader assigns.
They are written into the batch where it lies, so a writable buffer is not copied on its way to the file. State changes only
after the write has succeeded, so a full disk leaves the log as it was.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

from barnabas.runtime.interface import Runtime
from barnabas.runtime.slices import run_through
from barnabas.storage.disk.deletion import delete_later
from barnabas.storage.disk.disk import write_rest
from barnabas.storage.errors import StorageError
from barnabas.storage.log import validation
from barnabas.storage.log.flusher import Flusher, Synced
from barnabas.storage.log.follower_append import FollowerAppend, whole_batches
from barnabas.storage.log.leader_append import AppendResult, check_batch, rewrite_batch
from barnabas.storage.log.leader_epochs import LeaderEpochCache
from barnabas.storage.log.log_config import LONG_MAX, LogConfig
from barnabas.storage.log.log_producers import LogProducers
from barnabas.storage.log.pacing import LARGE_APPEND_BYTES, Pacing, timed_write
from barnabas.storage.log.partition_directory import PartitionDirectory
from barnabas.storage.log.segments import LogSegments
from barnabas.storage.log.verification import Verification
from barnabas.storage.segment.segment import MAX_RELATIVE_OFFSET, Segment
from barnabas.wire.checksum import crc32c
from barnabas.wire.compression import Bytes
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import (
    ATTRIBUTES_OFFSET,
    CONTROL_FLAG,
    EXTENSION_FLAG,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    BatchHeader,
    RecordBatchError,
    read_header,
)

logger = logging.getLogger("barnabas.storage")

_BROKER_FLAGS = LOG_APPEND_TIME_FLAG | EXTENSION_FLAG

_assign = struct.Struct(">qii").pack_into  # base offset, batch length (as it is), leader epoch


class LogWriter:
    """See the module. `end_offset` is the offset of the next record."""

    __slots__ = (
        "_after_max_ms",
        "_directory",
        "_epochs",
        "_flusher",
        "_flushes",
        "_pacing",
        "_producers",
        "_rewrites",
        "_rewrites_own",
        "_roll_after_ms",
        "_runtime",
        "_segment_bytes",
        "_segments",
        "_size_max",
        "_time_ms",
        "_when_discarded",
        "config",
        "end_offset",
    )

    def __init__(
        self,
        directory: PartitionDirectory,
        runtime: Runtime,
        segments: LogSegments,
        epochs: LeaderEpochCache,
        producers: LogProducers,
        flusher: Flusher,
        config: LogConfig,
        end_offset: int,
    ) -> None:
        self._directory = directory
        self._runtime = runtime
        self._time_ms = runtime.time_ms
        self._segments = segments
        self._epochs = epochs
        self._producers = producers
        self._flusher = flusher
        self._pacing: Pacing | None = None  # None: the disk keeps up
        self._when_discarded: list[Callable[[], object]] | None = None  # None: no call waits
        self.end_offset = end_offset
        self.update_config(config)

    def update_config(self, config: LogConfig) -> None:
        """New settings, in force from the next append on."""
        self.config = config
        self._rewrites = (
            config.message_timestamp_type == "LogAppendTime"
            or config.message_timestamp_before_max_ms != LONG_MAX
            or validation.needs_inspection(config)
        )
        # Batches that the broker itself has built, which are uncompressed.
        self._rewrites_own = (
            config.message_timestamp_type == "LogAppendTime"
            or config.compression_type not in ("producer", "uncompressed")
        )
        self._segment_bytes = config.segment_bytes
        self._size_max = min(config.max_message_bytes, config.segment_bytes)
        self._after_max_ms = config.message_timestamp_after_max_ms
        self._flushes = config.flush_messages != LONG_MAX or config.flush_ms != LONG_MAX
        self._set_roll_time()

    def _set_roll_time(self) -> None:
        """For a new segment, or new settings."""
        jitter = min(self.config.segment_jitter_ms, self.config.segment_ms)
        self._roll_after_ms = self.config.segment_ms - (
            self._runtime.random.randrange(jitter) if jitter else 0
        )

    # --- as leader

    def append_as_leader(
        self,
        records: Bytes,
        leader_epoch: int,
        start_offset: int,
        from_client: bool,
        verification: Verification | None,
    ) -> AppendResult:
        """As `Log.append_as_leader`."""
        view = records if type(records) is memoryview else memoryview(records)
        try:
            header = read_header(view)
        except RecordBatchError as error:
            raise validation.header_error(error) from None
        size = header.batch_length + LOG_OVERHEAD
        if size != len(view):
            return self._append_several(view, leader_epoch, start_offset, from_client, verification)
        return self._append_now(view, header, leader_epoch, start_offset, from_client, verification)

    def _append_now(
        self,
        records: memoryview,
        header: BatchHeader,
        leader_epoch: int,
        start_offset: int,
        from_client: bool,
        verification: Verification | None,
    ) -> AppendResult:
        """As `append_batch`, and reads the records at once however many they are."""
        try:
            return self.append_batch(
                records, header, leader_epoch, start_offset, from_client, None, verification
            )
        except validation.RecordsUnread as unread:
            inspected = run_through(unread.steps())
        return self.append_batch(
            inspected.records,
            inspected.header,
            leader_epoch,
            start_offset,
            from_client,
            inspected,
            verification,
        )

    def _append_several(
        self,
        view: memoryview,
        leader_epoch: int,
        start_offset: int,
        from_client: bool,
        verification: Verification | None,
    ) -> AppendResult:
        batches: list[tuple[memoryview, BatchHeader]] = []
        position = 0
        while position < len(view):
            header = validation.read_batch_header(view, position)
            batch = view[position : position + header.size]
            if len(batch) < header.size:
                raise StorageError(
                    ErrorCode.CORRUPT_MESSAGE, f"a batch of {header.size} bytes, {len(batch)} remain"
                )
            check_batch(batch, header, header.size, self.config, self._directory.name, from_client)
            batches.append((batch, header))
            position += header.size
        results = [
            self._append_now(batch, header, leader_epoch, start_offset, from_client, verification)
            for batch, header in batches
        ]
        results[-1].base_offset = results[0].base_offset
        results[-1].records = None
        return results[-1]

    def append_batch(
        self,
        records: memoryview,
        header: BatchHeader,
        leader_epoch: int,
        start_offset: int,
        from_client: bool,
        inspected: validation.Inspected | None,
        verification: Verification | None,
    ) -> AppendResult:
        """As `append_as_leader`, for one batch whose header has been read. RecordsUnread, and nothing has changed, when more
        than a few records of a client have to be read first; `inspected` is the result of that."""
        flusher = self._flusher
        if flusher.failure is not None:
            raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, flusher.failure)
        size = header.batch_length + LOG_OVERHEAD
        attributes = header.attributes
        if (
            header.base_offset
            or size > self._size_max
            or header.last_offset_delta != header.record_count - 1
            or header.record_count < 1
            or (from_client and (attributes & CONTROL_FLAG or header.base_sequence < 0 <= header.producer_id))
            or crc32c(records[ATTRIBUTES_OFFSET:]) != header.crc
        ):
            check_batch(records, header, size, self.config, self._directory.name, from_client)
        now = self._time_ms()
        config = self.config
        log_append_time = -1
        if (self._rewrites and (from_client or attributes & EXTENSION_FLAG or self._rewrites_own)) or (
            attributes & _BROKER_FLAGS and from_client
        ):
            records, header, log_append_time = rewrite_batch(
                records, header, now, config, self._directory.name, from_client, inspected
            )
            size = header.batch_length + LOG_OVERHEAD
        elif header.max_timestamp > now + self._after_max_ms:
            validation.Inspection(records, header, config, self._directory.name, now, True).run(
                may_wait=from_client
            )
        base_offset = self.end_offset
        producers = self._producers
        if header.producer_id >= 0:
            duplicate = producers.check(header, base_offset, from_client, verification)
            if duplicate is not None:
                return AppendResult(
                    duplicate.base_offset,
                    duplicate.last_offset,
                    duplicate.timestamp,
                    start_offset,
                    duplicate=True,
                    awaits_sync=flusher.awaits_sync(duplicate.last_offset),
                )
        header.base_offset = base_offset
        last_offset = base_offset + header.last_offset_delta
        segments = self._segments
        segment = segments.active
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
                written = timed_write(self._directory, self._runtime, file, records, position)
            if written != size:
                write_rest(file, records, written, position)
        except OSError as error:
            self._undo_write(segment, error)
        segment.appended(header, size, config.index_interval_bytes, config.segment_index_bytes)
        segments.last_base_offset = base_offset
        segments.last_position = position
        self.end_offset = last_offset + 1
        if header.producer_id >= 0:
            if attributes & CONTROL_FLAG:
                producers.marker_appended(records, header)
            else:
                producers.appended(header)
        result = AppendResult(base_offset, last_offset, log_append_time, start_offset)
        result.records = records
        if size >= LARGE_APPEND_BYTES:
            result.awaits_write_back = self._large_appended(segment)
        if self._flushes:
            result.awaits_sync = flusher.appended(
                base_offset, last_offset + 1, config.flush_messages, config.flush_ms
            )
        return result

    def _prepare_segment(self, header: BatchHeader, size: int, leader_epoch: int, now: int) -> Segment:
        """The segment to write the batch to: a new one where the settings require it. OSError."""
        segment = self._segments.active
        position = segment.size
        if (
            position > self._segment_bytes - size
            or (position and segment.waited_ms(now, header.max_timestamp) > self._roll_after_ms)
            or segment.index_full
            or header.base_offset + header.last_offset_delta - segment.base_offset > MAX_RELATIVE_OFFSET
        ):
            self.roll()
            segment = self._segments.active
        if leader_epoch > self._epochs.latest_epoch:
            self._epochs.assign(leader_epoch, header.base_offset)
            self._flusher.names_changed()
        if segment.torn:
            segment.cut_torn_tail()
        return segment

    def _undo_write(self, segment: Segment, error: OSError) -> NoReturn:
        """Remove the half batch now, or before the next append when the disk refuses even that."""
        try:
            segment.cut_torn_tail()
        except OSError:
            pass
        logger.error("%s: append failed: %s", self._directory.name, error)
        self._flusher.io_failed(error)
        raise StorageError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"Error while appending records to {self._directory.name}: {error}"
        ) from error

    def _large_appended(self, segment: Segment) -> bool:
        """After a large append: whether its acknowledgement has to wait."""
        is_behind = self._directory.disk.write_pressure.is_on(
            self._directory.log_dir, self._runtime.monotonic()
        )
        pacing = self._pacing
        if pacing is None:
            if not is_behind:
                return False
            pacing = self._pacing = Pacing(self._directory, self._runtime, self._flusher, segment)
        if pacing.appended(segment):
            return True
        if not is_behind and not pacing.is_running:
            self._pacing = None
        return False

    def when_written_back(self, call: Synced) -> None:
        """Call once a thread has written back as much as an append that `awaits_write_back` has to wait for."""
        if self._pacing is None or self._flusher.failure is not None:
            call(self._flusher.failure)
        else:
            self._pacing.when_written_back(call)

    # --- as follower

    def append_as_follower(self, records: memoryview, leader_epoch: int, batches_max: int) -> FollowerAppend:
        """As `Log.append_as_follower`."""
        flusher = self._flusher
        if flusher.failure is not None:
            raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, flusher.failure)
        headers = whole_batches(records, leader_epoch, batches_max, self.end_offset, self._directory.name)
        result = FollowerAppend(0, len(headers))
        if not headers:
            return result
        now = self._time_ms()
        run: list[BatchHeader] = []  # written at once
        start = stop = 0
        segment = self._segments.active
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
            config = self.config
            result.awaits_sync = flusher.appended(
                headers[0].base_offset, self.end_offset, config.flush_messages, config.flush_ms
            )
        return result

    def _prepare_for(self, header: BatchHeader, size: int, now: int) -> Segment:
        """The segment to write the leader's batch to. OSError."""
        reach = header.base_offset + header.last_offset_delta - self._segments.active.base_offset
        if reach > MAX_RELATIVE_OFFSET and header.base_offset > self.end_offset:
            self.end_offset = header.base_offset  # the gap is so wide that the new segment begins behind it
        # Not written to its file before the batch: until both are synced, recovery reads the epoch from the batch.
        self._epochs.assign_unsaved(header.partition_leader_epoch, header.base_offset)
        return self._prepare_segment(header, size, header.partition_leader_epoch, now)

    def _write_run(self, batches: memoryview, headers: list[BatchHeader], result: FollowerAppend) -> None:
        """Write batches of the active segment at once."""
        config = self.config
        segment = self._segments.active
        start = position = segment.size
        size = len(batches)
        try:
            file = segment.open_for_append()
            if size < LARGE_APPEND_BYTES:
                written = file.pwrite(batches, start)
            else:
                written = timed_write(self._directory, self._runtime, file, batches, start)
            if written != size:
                write_rest(file, batches, written, start)
        except OSError as error:
            self._undo_write(segment, error)
        for header in headers:
            position = segment.size
            size = header.batch_length + LOG_OVERHEAD
            segment.appended(header, size, config.index_interval_bytes, config.segment_index_bytes)
            self.end_offset = header.base_offset + header.last_offset_delta + 1
            if header.producer_id >= 0:
                if header.attributes & CONTROL_FLAG:
                    at = position - start
                    self._producers.marker_appended(batches[at : at + size], header)
                else:
                    self._producers.appended(header)
        self._segments.last_base_offset = headers[-1].base_offset
        self._segments.last_position = position
        result.size += len(batches)
        if len(batches) >= LARGE_APPEND_BYTES and self._large_appended(segment):
            result.awaits_write_back = True

    # --- segments

    def roll(self) -> None:
        """Begin a new segment at the log's end; a thread syncs the old one. OSError changes nothing."""
        base = self.end_offset
        old = self._segments.active
        if base == old.base_offset:
            return
        if old.torn:
            old.cut_torn_tail()
        old.open_for_append()  # may fail: nothing has changed yet
        # First, as it may fail: a start would take a file that was made already for a segment of the log.
        old.add_time_index_entry()
        new = Segment.create(self._directory.disk, self._directory.path, base, self._time_ms())
        self._flusher.names_changed()
        self._segments.append(new)
        self._set_roll_time()
        write_beside = self._producers.begin_segment(old.base_offset, base)
        self._flusher.seal(old, base, write_beside, partial(self._sealed, old, base))

    def _sealed(self, segment: Segment, end_offset: int) -> None:
        """The segment's indexes have been written, and the files beside it."""
        bases = self._segments.bases
        if segment.base_offset not in bases and not self._flusher.closed:
            try:
                self.discard([segment])  # removed meanwhile: its new indexes have to follow
            except OSError as error:  # the next start finds no log for them and removes them
                logger.warning("%s: indexes of a removed segment are left: %s", segment.path, error)
        self._producers.segment_sealed(segment.base_offset)
        if end_offset not in bases and not self._flusher.closed:  # truncated meanwhile
            self._producers.remove_snapshot(end_offset)

    def discard(self, segments: Sequence[Segment]) -> None:
        """Remove the files of segments that are no longer in the list. Regions that wait to be sent keep theirs open."""
        for segment in segments:
            segment.release()
        files = [file for segment in segments for file in segment.files]
        delete_later(self._directory.disk, self._runtime, files, self.config.file_delete_delay_ms)

    def discard_below(self, segments: Sequence[Segment]) -> None:
        """As `discard`, for segments at the log's start, once a power failure could not undo the names of later ones: if it took
        both, the log would begin at 0 again. Until then a start finds them, and the start offset that hides them. On a full disk
        they go at once: nothing else would make room. OSError."""

        def names_synced() -> None:
            bases = self._segments.bases
            self._flusher.names_changed()
            try:
                self.discard([segment for segment in segments if segment.base_offset not in bases])
            except OSError as error:  # the next start removes them
                self._flusher.io_failed(error)
            if not self.is_discarding:
                waiting, self._when_discarded = self._when_discarded or (), None
                for call in waiting:
                    call()

        for segment in segments:
            segment.release()
        self._flusher.segments_removed(segments)
        self._flusher.when_names_synced(names_synced)

    @property
    def is_discarding(self) -> bool:
        """Whether segments at the log's start are gone that a kill would bring back."""
        return self._flusher.awaits_names

    def when_discarded(self, call: Callable[[], object]) -> None:
        """Call once that is no longer so; not if the directory fails or the log is closed before."""
        if not self.is_discarding:
            call()
        elif self._when_discarded is None:
            self._when_discarded = [call]
        else:
            self._when_discarded.append(call)

    def restart(self, offset: int) -> None:
        """Remove all segments, and begin the first one of an empty log at `offset`. OSError."""
        self.discard(self._segments[::-1])
        self._segments.restart(
            Segment.create(self._directory.disk, self._directory.path, offset, self._time_ms())
        )
        self._flusher.names_changed()
        self._set_roll_time()

    def truncated(self, offset: int) -> None:
        """The active segment, and the log, end at `offset` now."""
        self.end_offset = offset
        if self._pacing is not None:
            self._pacing.truncated(self._segments.active)
