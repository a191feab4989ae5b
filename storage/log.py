"""The log of one partition: what is appended, in order, in segments, and how it is found again.

Everything runs on the loop's thread except fsync of rolled segments, which goes to a thread. An append is one
pass: header, CRC, checks, one write of sixteen patched bytes and the rest as it came. State changes only
after the write has succeeded, so a full disk leaves the log as it was.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable

import msgspec
from barnabas.storage import validation
from barnabas.storage.disk import Disk, write_rest
from barnabas.storage.epochs import LeaderEpochCache
from barnabas.storage.errors import OffsetOutOfRange, StorageError
from barnabas.storage.log_config import LONG_MAX, LogConfig
from barnabas.storage.log_reader import ReadableLog
from barnabas.storage.producers import ProducerStateManager
from barnabas.storage.recovery import load_segments
from barnabas.storage.runtime import Runtime
from barnabas.storage.segment import MAX_RELATIVE_OFFSET, Segment
from barnabas.wire.compression import Bytes
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import CONTROL_FLAG, LOG_APPEND_TIME_FLAG, BatchHeader, RecordBatchError
from crc32c import crc32c

logger = logging.getLogger("barnabas.storage")

_PREFIX = struct.Struct(">qii")  # base offset, batch length, leader epoch: what the leader assigns
_PREFIX_SIZE = 16
_JOINED_MAX = 16384  # up to here copying costs less than a second buffer does in the kernel


class AppendResult(msgspec.Struct, gc=False):
    """Where a batch stands. `log_append_time` is -1 under CreateTime, but a duplicate's own time, as Kafka."""

    base_offset: int
    last_offset: int
    log_append_time: int
    log_start_offset: int
    duplicate: bool = False


class Log(ReadableLog):
    """See the module. Offsets are of records, sizes in bytes, times in ms since the epoch."""

    def __init__(
        self,
        disk: Disk,
        runtime: Runtime,
        log_dir: str,
        topic: str,
        partition: int,
        topic_id: bytes,
        config: LogConfig,
        *,
        directory: str | None = None,
        clean: bool = True,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        start_offset_changed: Callable[[], object] | None = None,
    ) -> None:
        """Open the log in `directory` (`<log_dir>/<topic>-<partition>`), which exists; recover it unless `clean`.

        OSError when the directory can't be read or written.
        """
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.log_dir = log_dir
        self.name = f"{topic}-{partition}"
        self.directory = directory or f"{log_dir}/{self.name}"
        self.failure: str | None = None  # set when the disk has lost what it had taken; only a restart heals
        self._disk = disk
        self._runtime = runtime
        self._time_ms = runtime.time_ms
        self._start_offset_changed = start_offset_changed
        self._epochs = LeaderEpochCache(disk, f"{self.directory}/leader-epoch-checkpoint")
        self._producers = ProducerStateManager(self.name)
        self._producers_rebuilt = False
        self._new_names = True  # whether the directory may hold names that a power failure would take
        self._flush_pending = False
        self._released = False
        self._truncations = 0  # a sync that began before one says nothing about what was written after
        self.update_config(config)
        self._open(clean, recovery_point, log_start_offset)

    def _open(self, clean: bool, recovery_point: int, log_start_offset: int) -> None:
        self._epochs.load()
        known_epochs = self._epochs.entries
        loaded = load_segments(
            self._disk,
            self.directory,
            self.config,
            self._epochs,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            now_ms=self._time_ms(),
        )
        self._segments = loaded.segments
        self._bases = [segment.base_offset for segment in loaded.segments]
        self._active = loaded.segments[-1]
        self._roll_after_ms = self._next_roll_after_ms()
        self._resume: dict[int, int] = {}
        self._last_base_offset = -1
        self._last_position = 0
        self.log_end_offset = loaded.next_offset
        self.log_start_offset = max(log_start_offset, self._bases[0])
        self.recovery_point = self.log_end_offset if clean else min(recovery_point, self.log_end_offset)
        self._producers_rebuilt = self.log_start_offset == self.log_end_offset
        self._epochs.truncate_from_end(self.log_end_offset + 1)
        if not clean and self._epochs.entries != known_epochs:
            self._epochs.save()

    # --- what is asked often

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._segments)

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(self._segments)

    @property
    def latest_epoch(self) -> int:
        return self._epochs.latest_epoch

    @property
    def producers(self) -> ProducerStateManager:
        """The producers' state, rebuilt from the batch headers when it is first asked for."""
        if not self._producers_rebuilt:
            self._rebuild_producers()
        return self._producers

    def update_config(self, config: LogConfig) -> None:
        """New settings, in force from the next append on."""
        self.config = config
        self._inspects = validation.needs_inspection(config)
        self._stamps = config.message_timestamp_type == "LogAppendTime"
        self._before_max_ms = config.message_timestamp_before_max_ms
        self._after_max_ms = config.message_timestamp_after_max_ms
        self._flushes = config.flush_messages != LONG_MAX or config.flush_ms != LONG_MAX

    # --- appending

    def append_as_leader(
        self, records: Bytes, leader_epoch: int, *, from_client: bool = True
    ) -> AppendResult:
        """Assign offsets to the batches in `records`, write them, and say where the (last) batch stands.

        Nothing has changed when it raises StorageError: CORRUPT_MESSAGE, UNSUPPORTED_FOR_MESSAGE_FORMAT,
        MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_RECORD, INVALID_TIMESTAMP,
        OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, KAFKA_STORAGE_ERROR. `from_client` False allows
        control batches.
        """
        header = validation.read_batch_header(records)
        size = header.batch_length + 12
        if size != len(records):
            return self._append_several(records, leader_epoch, from_client)
        return self._append(records, header, size, leader_epoch, from_client)

    def _append_several(self, records: Bytes, leader_epoch: int, from_client: bool) -> AppendResult:
        view = memoryview(records)
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
        results = [
            self._append(batch, header, header.size, leader_epoch, from_client) for batch, header in batches
        ]
        results[-1].base_offset = results[0].base_offset
        return results[-1]

    def _check(self, records: Bytes, header: BatchHeader, size: int, from_client: bool) -> None:
        """What the header and the CRC alone can refuse."""
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
        crc = crc32c(memoryview(records)[21:])
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

    def _append(
        self, records: Bytes, header: BatchHeader, size: int, leader_epoch: int, from_client: bool
    ) -> AppendResult:
        if self.failure is not None:
            raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, self.failure)
        self._check(records, header, size, from_client)
        now = self._time_ms()
        log_append_time = -1
        if self._inspects:
            records, header = validation.inspect_records(records, header, self.config, self.name)
            size = header.batch_length + 12
        if self._stamps:
            records = validation.stamp_append_time(records, header, now)
            log_append_time = now
        elif header.attributes & LOG_APPEND_TIME_FLAG and from_client:
            records = validation.claim_create_time(records, header)
        elif (
            header.max_timestamp > now + self._after_max_ms
            or header.base_timestamp < now - self._before_max_ms
        ):
            validation.check_timestamps(header, now, self.config)
        if header.producer_id >= 0 and from_client:
            duplicate = self.producers.check(header)
            if duplicate is not None:
                return AppendResult(
                    duplicate.base_offset,
                    duplicate.last_offset,
                    duplicate.timestamp,
                    self.log_start_offset,
                    duplicate=True,
                )
        base_offset = header.base_offset = self.log_end_offset
        last_offset = base_offset + header.last_offset_delta
        self._write(records, header, size, leader_epoch, now)
        self.log_end_offset = last_offset + 1
        if header.producer_id >= 0:
            self.producers.update(header)
        if self._flushes:
            self._flush_as_configured()
        return AppendResult(base_offset, last_offset, log_append_time, self.log_start_offset)

    def _write(self, records: Bytes, header: BatchHeader, size: int, leader_epoch: int, now: int) -> None:
        """The batch behind the last one, in a new segment where the settings ask for it."""
        config = self.config
        segment = self._active
        position = segment.size
        try:
            if (
                position > config.segment_bytes - size
                or (position and segment.waited_ms(now, header.max_timestamp) > self._roll_after_ms)
                or segment.index_full
                or header.base_offset + header.last_offset_delta - segment.base_offset > MAX_RELATIVE_OFFSET
            ):
                self.roll()
                segment = self._active
                position = segment.size
            if leader_epoch > self._epochs.latest_epoch:
                self._epochs.assign(leader_epoch, header.base_offset)
            if segment.torn:
                segment.cut_torn_tail()
            file = segment.open_for_append()
            prefix = _PREFIX.pack(header.base_offset, header.batch_length, leader_epoch)
            rest = memoryview(records)[_PREFIX_SIZE:]
            if size <= _JOINED_MAX:
                written = file.pwrite(b"".join((prefix, rest)), position)
            else:
                written = file.pwritev((prefix, rest), position)
            if written != size:
                write_rest(file, b"".join((prefix, rest)), written, position)
        except OSError as error:
            self._undo_write(segment, error)
        header.partition_leader_epoch = leader_epoch
        segment.appended(header, size, config.index_interval_bytes, config.segment_index_bytes)
        self._last_base_offset = header.base_offset
        self._last_position = position

    def _undo_write(self, segment: Segment, error: OSError) -> None:
        """No half batch stays: cut it off now, or before the next append when the disk refuses even that."""
        try:
            segment.cut_torn_tail()
        except OSError:
            pass
        logger.error("%s: append failed: %s", self.name, error)
        raise StorageError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"Error while appending records to {self.name}: {error}"
        ) from error

    def roll(self) -> None:
        """Begin a new segment at the log's end; the old one is synced by a thread. OSError changes nothing."""
        base = self.log_end_offset
        old = self._active
        if base == old.base_offset:
            return
        new = Segment.create(self._disk, self.directory, base, self._time_ms())
        old.add_time_index_entry()
        self._new_names = True
        self._segments.append(new)
        self._bases.append(base)
        self._active = new
        self._resume.clear()
        self._roll_after_ms = self._next_roll_after_ms()
        self._seal(old, base)

    def _next_roll_after_ms(self) -> int:
        jitter = min(self.config.segment_jitter_ms, self.config.segment_ms)
        return self.config.segment_ms - (self._runtime.random.randrange(jitter) if jitter else 0)

    def _seal(self, segment: Segment, end_offset: int) -> None:
        file = segment.open_for_append()
        segment.release()

        def work() -> None:
            file.sync()
            try:
                segment.save_indexes(sync=True)
            except OSError as error:  # they are rebuilt, should memory be lost
                logger.warning("%s: indexes stay in memory: %s", segment.path, error)

        def synced() -> None:
            segment.offset_index.unload()
            segment.time_index.unload()

        self._sync_in_thread(work, segment, end_offset, synced)

    def _sync_in_thread(
        self, work: Callable[[], object], segment: Segment, end_offset: int, synced: Callable[[], object]
    ) -> None:
        """Raise the recovery point to `end_offset` when `work` has synced `segment`, all before it being so."""
        truncations = self._truncations

        def done(_: object, error: BaseException | None) -> None:
            if error is not None:
                if not self._released:
                    self._fail(f"{segment.path} can't be synced: {error}")
                return
            if segment.base_offset <= self.recovery_point < end_offset and truncations == self._truncations:
                self.recovery_point = end_offset
            synced()

        self._runtime.run_in_thread(work, done)

    def _fail(self, reason: str) -> None:
        if self.failure is None:
            self.failure = reason
            logger.error("%s: no more appends until a restart: %s", self.name, reason)

    # --- leader epochs

    def assign_epoch_start_offset(self, leader_epoch: int) -> None:
        """A new leader's reign begins at the log's end. OSError when that can't be noted."""
        self._epochs.assign(leader_epoch, self.log_end_offset)

    def epoch_end_offset(self, leader_epoch: int) -> tuple[int, int]:
        """(epoch, end offset) as OffsetForLeaderEpoch answers; (-1, -1) when undefined."""
        return self._epochs.end_offset(leader_epoch, self.log_end_offset)

    def epoch_for_offset(self, offset: int) -> int:
        """The leader epoch that `offset` belongs to; -1 when unknown."""
        return self._epochs.epoch_for_offset(offset)

    # --- shortening

    def increment_log_start_offset(self, offset: int) -> None:
        """Make everything below `offset` invisible and remove the segments that hold nothing else.

        Nothing happens when it already is. OffsetOutOfRange beyond the log's end.
        """
        if offset > self.log_end_offset:
            raise OffsetOutOfRange(
                f"Cannot increment the log start offset to {offset} of partition {self.name} since it is "
                f"larger than the high watermark {self.log_end_offset}"
            )
        if offset <= self.log_start_offset:
            return
        try:
            if offset == self.log_end_offset and self._active.size:
                self.roll()
            self.log_start_offset = offset
            self._epochs.truncate_from_start(offset)
            self.remove_segments_below(offset)
        except OSError as error:
            raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name}: {error}") from error
        if self._start_offset_changed is not None:
            self._start_offset_changed()

    def remove_segments_below(self, offset: int) -> int:
        """Remove the segments whose records all lie below `offset`, never the active one; bytes freed."""
        freed = 0
        while len(self._segments) > 1 and self._bases[1] <= offset:
            segment = self._segments.pop(0)
            del self._bases[0]
            freed += segment.size
            segment.remove()
        return freed

    def truncate_to(self, offset: int) -> None:
        """Forget everything from `offset` on; the batch that holds it goes whole. OSError when it fails."""
        if offset >= self.log_end_offset:
            return
        if offset < self._bases[0]:
            self._start_over(offset)
        else:
            while self._segments[-1].base_offset > offset:
                self._segments.pop().remove()
                self._bases.pop()
            self._active = self._segments[-1]
            if len(self._active.offset_index) and self._active.offset_index.on_disk_only:
                self._active.offset_index.load()
                self._active.time_index.load()
            located = self._active.locate(offset)
            if located is not None:
                self._active.truncate(located[0])
        self._truncations += 1
        self._resume.clear()
        self._last_base_offset = -1
        self.log_end_offset = offset
        self.log_start_offset = min(self.log_start_offset, offset)
        self.recovery_point = min(self.recovery_point, offset)
        self._epochs.truncate_from_end(offset)
        self._producers_rebuilt = False

    def _start_over(self, offset: int) -> None:
        for segment in self._segments:
            segment.remove()
        self._active = Segment.create(self._disk, self.directory, offset, self._time_ms())
        self._segments = [self._active]
        self._bases = [offset]

    def _rebuild_producers(self) -> None:
        self._producers.clear()
        try:
            for header in self.headers(self.log_start_offset):
                if header.producer_id >= 0:
                    self._producers.update(header)
        except (OSError, RecordBatchError) as error:
            raise StorageError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"Error while reading {self.name}: {error}"
            ) from error
        self._producers_rebuilt = True

    # --- the disk

    def _flush_as_configured(self) -> None:
        """flush.messages at once, as its promise is about each acknowledgement; flush.ms by a timer."""
        config = self.config
        if self.log_end_offset - self.recovery_point >= config.flush_messages:
            self.flush()
        elif config.flush_ms != LONG_MAX and not self._flush_pending:
            self._flush_pending = True
            self._runtime.call_later(config.flush_ms / 1000, self._flush_due)

    def _flush_due(self) -> None:
        self._flush_pending = False
        if self._released or self.recovery_point >= self.log_end_offset:
            return
        try:
            file = self._active.open_for_append()
        except OSError as error:
            self._fail(f"{self.name} can't be synced: {error}")
            return
        self._sync_in_thread(file.sync, self._active, self.log_end_offset, lambda: None)

    def flush(self) -> None:
        """Return once everything appended would survive a power failure; KAFKA_STORAGE_ERROR when it might not."""
        if self.recovery_point >= self.log_end_offset:
            return
        try:
            for index, segment in enumerate(self._segments):
                if segment is self._active:
                    segment.open_for_append().sync()
                elif self._bases[index + 1] > self.recovery_point:
                    segment.open_for_append().sync()
                    segment.release()
            if self._new_names:  # a synced file whose name is lost is lost
                self._disk.sync_directory(self.directory)
                self._disk.sync_directory(self.log_dir)
                self._new_names = False
        except OSError as error:
            self._fail(f"{self.name} can't be synced: {error}")
            raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, str(self.failure)) from error
        self.recovery_point = self.log_end_offset

    def close(self) -> None:
        """Sync, write the indexes and let go of the files. StorageError or OSError when the disk refuses: the
        log is whole, but not clean."""
        if self._active.torn:
            self._active.cut_torn_tail()
        self.flush()
        self._active.add_time_index_entry()
        for segment in self._segments:
            segment.save_indexes()
        self.release()

    def release(self) -> None:
        """Let go of the files and nothing else, as before they are deleted."""
        self._released = True
        for segment in self._segments:
            segment.release()
