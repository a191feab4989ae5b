"""The log of one partition: append, read, truncate, close.

A `Log` consists of its `segments` (segments.py), the writer of its end (writer.py), its `flusher`, which syncs it, its
`producers` and their transactions (log_producers.py), and its leader `epochs` (leader_epochs.py). `Log` does what needs more
than one of them. Everything runs on the loop's thread except syncing.

High watermark: a log that is the only replica is committed up to its end, or up to what has been synced while flush.messages
holds records back. Of a replicated log it is what the leader has computed from its followers, or has sent to a follower: it
moves by `set_high_watermark` alone, never back unless the log is truncated. After a start it is the checkpoint's until the log
has its role: its end may hold what was never committed.

Truncation survives a crash at any step. First the checkpoints are lowered (`LogEvents.truncating`), then segments are removed
from the end, then the last one is cut, and then all of that is synced. `cut_to` leaves the syncing to a thread, as a follower
may have a thousand logs to truncate at once. Until it is done nothing may be appended, or a power failure could leave old and
new bytes side by side.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from barnabas.runtime.interface import Runtime
from barnabas.runtime.slices import Steps, run_through
from barnabas.storage.disk.deletion import delete_later
from barnabas.storage.disk.disk import Disk
from barnabas.storage.errors import OffsetOutOfRange, StorageError, WouldWait, is_transient
from barnabas.storage.log.flusher import Flusher, Synced
from barnabas.storage.log.follower_append import ALL_BATCHES, ANY_EPOCH, FollowerAppend
from barnabas.storage.log.leader_append import AppendResult
from barnabas.storage.log.leader_epochs import LeaderEpochCache
from barnabas.storage.log.local_start import remove_local_start, write_local_start
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.log.log_producers import LogProducers
from barnabas.storage.log.partition_directory import PartitionDirectory
from barnabas.storage.log.producer_recovery import ProducerRecovery
from barnabas.storage.log.producers import PRODUCER_ID_EXPIRATION_MS
from barnabas.storage.log.recovery import LoadedLog, LogLoader, new_log
from barnabas.storage.log.segments import NOTHING_READ, AuxState, LogSegments, ReadResult, RemoteReads
from barnabas.storage.log.timestamps import TimestampOffset
from barnabas.storage.log.validation import Inspected
from barnabas.storage.log.verification import REQUEST_TIMEOUT_MS, Verification
from barnabas.storage.log.writer import LogWriter
from barnabas.storage.segment.segment import Segment, offset_file_name
from barnabas.storage.segment.transaction_index import AbortedTransaction
from barnabas.storage.segment.transaction_marker import build_marker
from barnabas.wire.compression import Bytes
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import (
    BatchHeader,
    RecordBatchError,
)

logger = logging.getLogger("barnabas.storage")

__all__ = ["AppendResult", "FollowerAppend", "Log", "LogEvents", "ReadResult"]


def _ignore(*_: object) -> None:
    pass


class LogEvents(msgspec.Struct, frozen=True):
    """What a log reports to its owner.

    `start_offset_changed(log)`: records at the log's start can no longer be read. `truncating(log, offset)`: everything from
    `offset` on is about to be removed; raises OSError when it must not be, because it could come back.
    `directory_failed(log_dir, reason)`: the disk has failed, and not only for lack of room or of descriptors.
    """

    start_offset_changed: Callable[[Log], object] = _ignore
    truncating: Callable[[Log, int], object] = _ignore
    directory_failed: Callable[[str, str], object] = _ignore


_NO_EVENTS = LogEvents()


class Log:
    """See the module. Offsets are of records, sizes in bytes, times in ms since the epoch.

    It and its parts have slots: a broker holds 10,000 logs, and a dict in each would be most of its size.
    """

    __slots__ = (
        "_directory",
        "_events",
        "_high_watermark",
        "_runtime",
        "_writer",
        "checkpointed_high_watermark",
        "checkpointed_start_offset",
        "cleaning",
        "epochs",
        "flusher",
        "gap_from",
        "log_start_offset",
        "offline",
        "partition",
        "producers",
        "remote",
        "segments",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        directory: PartitionDirectory,
        runtime: Runtime,
        topic: str,
        partition: int,
        topic_id: bytes,
        config: LogConfig,
        loaded: LoadedLog,
        *,
        clean: bool,
        recovery_point: int,
        log_start_offset: int,
        high_watermark: int | None,
        events: LogEvents,
    ) -> None:
        """A log of what a LogLoader has loaded; `open` does both."""
        end_offset = loaded.end_offset
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.log_start_offset = max(log_start_offset, loaded.segments.bases[0])
        # From the last run's checkpoint, until it is known whether the log is tiered: only then may it begin before its first segment.
        # None where nothing is tiered.
        self.checkpointed_start_offset: int | None = None
        self.remote: RemoteReads | None = None  # the tiered part
        self.gap_from = loaded.gap_from  # see `settle_recovery`
        self.offline = False  # the log directory has failed: nothing can be read any more
        self.cleaning = False  # a cleaner works on the segments: retention passes the log over
        self._high_watermark = -1  # of a replicated log; -1: this is the only replica
        # From the last run's checkpoint, and perhaps beyond what a crash has left of the log; None once the log has its role.
        self.checkpointed_high_watermark = high_watermark
        self._directory = directory
        self._runtime = runtime
        self._events = events
        self.segments = loaded.segments
        self.epochs = loaded.epochs
        self.producers = LogProducers(directory, loaded.segments, loaded.producers)
        self.flusher = Flusher(
            directory,
            runtime,
            loaded.segments,
            loaded.epochs,
            events.directory_failed,
            recovery_point=end_offset if clean else min(recovery_point, end_offset),
            # a clean stop has synced them; a new log has none yet
            names_synced=clean and end_offset > 0 and not loaded.epochs_changed,
        )
        self._writer = LogWriter(
            directory,
            runtime,
            loaded.segments,
            loaded.epochs,
            self.producers,
            self.flusher,
            config,
            end_offset,
        )

    @classmethod
    def create(
        cls,
        disk: Disk,
        runtime: Runtime,
        log_dir: str,
        topic: str,
        partition: int,
        topic_id: bytes,
        config: LogConfig,
        *,
        events: LogEvents = _NO_EVENTS,
    ) -> Log:
        """A new log in `<log_dir>/<topic>-<partition>`, which has just been made. OSError when the disk refuses."""
        name = f"{topic}-{partition}"
        files = PartitionDirectory(disk, log_dir, f"{log_dir}/{name}", name)
        return cls(
            files,
            runtime,
            topic,
            partition,
            topic_id,
            config,
            new_log(files, runtime.time_ms()),
            clean=True,
            recovery_point=0,
            log_start_offset=0,
            high_watermark=None,
            events=events,
        )

    @classmethod
    def open(
        cls,
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
        high_watermark: int | None = None,
        producer_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS,
        events: LogEvents = _NO_EVENTS,
    ) -> Log:
        """Open the log in `directory` (`<log_dir>/<topic>-<partition>`), which exists; recover it unless `clean`.
        `high_watermark` is the checkpointed one, which counts until the log has its role; None: it has one, and is the
        only replica.

        OSError when the directory can't be read or written.
        """
        name = f"{topic}-{partition}"
        files = PartitionDirectory(disk, log_dir, directory or f"{log_dir}/{name}", name)
        loaded = LogLoader(
            files,
            config,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            high_watermark=high_watermark,
            now_ms=runtime.time_ms(),
            producer_expiration_ms=producer_expiration_ms,
        ).load()
        return cls(
            files,
            runtime,
            topic,
            partition,
            topic_id,
            config,
            loaded,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            high_watermark=high_watermark,
            events=events,
        )

    @classmethod
    def without_files(
        cls,
        disk: Disk,
        runtime: Runtime,
        topic: str,
        partition: int,
        topic_id: bytes,
        config: LogConfig,
        reason: str,
    ) -> Log:
        """The log of a partition whose log could not be made, or lies in an offline directory: empty and offline, so every
        operation is KAFKA_STORAGE_ERROR. It belongs to no LogManager."""
        nowhere = PartitionDirectory(disk, "", "", f"{topic}-{partition}")
        segments = LogSegments([Segment(disk, "", 0, 0, fresh=True)])
        producers = ProducerRecovery(nowhere, (), 0)
        log = cls(
            nowhere,
            runtime,
            topic,
            partition,
            topic_id,
            config,
            LoadedLog(segments, 0, LeaderEpochCache(nowhere), False, producers),
            clean=True,
            recovery_point=0,
            log_start_offset=0,
            high_watermark=None,
            events=_NO_EVENTS,
        )
        log.fail(reason)
        log.release()
        return log

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return self.segments.size

    @property
    def name(self) -> str:
        """`<topic>-<partition>`, for messages."""
        return self._directory.name

    @property
    def directory(self) -> str:
        """The path of the directory that holds the log's files."""
        return self._directory.path

    @property
    def log_dir(self) -> str:
        """The path of the log directory (log.dirs) above it."""
        return self._directory.log_dir

    @property
    def config(self) -> LogConfig:
        return self._writer.config

    @property
    def local_log_start_offset(self) -> int:
        """The first offset that is here, and not only in remote storage (KIP-405)."""
        return max(self.log_start_offset, self.segments.bases[0])

    def is_over_remote_quota(self, offset: int) -> bool:
        """Whether the offset is in remote storage alone, from which clients get nothing for now (KIP-956)."""
        return (
            self.remote is not None
            and self.log_start_offset <= offset < self.local_log_start_offset
            and self.remote.is_over_quota
        )

    @property
    def is_tiering(self) -> bool:
        """Whether its segments are copied to remote storage before they are removed."""
        return self.remote is not None and not self.config.remote_log_copy_disable

    def begin_tiering(self, remote: RemoteReads) -> None:
        """What has no segment here is read from `remote` from now on."""
        if self.checkpointed_start_offset is not None:
            self.log_start_offset = min(self.log_start_offset, self.checkpointed_start_offset)
            self.checkpointed_start_offset = None
        self.remote = remote
        self.epochs.must_last = True
        self.epochs.truncate_from_start_unsaved(self.log_start_offset)
        self._events.start_offset_changed(self)  # a tiered log has to have its start in the checkpoint

    def end_tiering(self) -> None:
        """The log begins at its first segment from now on."""
        self.remote = None
        self.epochs.must_last = False
        self.forget_local_start()
        first = min(self.segments.bases[0], self.high_watermark)
        if self.log_start_offset < first:
            self.increment_log_start_offset(first)
        try:
            self.epochs.truncate_from_start(self.log_start_offset)
        except OSError as error:
            self.io_failed(error)

    def update_config(self, config: LogConfig) -> None:
        """New settings, in force from the next append on."""
        self._writer.update_config(config)

    @property
    def log_end_offset(self) -> int:
        """Offset of the next record."""
        return self._writer.end_offset

    # --- high watermark

    @property
    def high_watermark(self) -> int:
        """Offset up to which (exclusive) every in-sync replica has the log, as far as this one knows. With one replica: its
        end, or the end of what has been synced while flush.messages holds records back."""
        high_watermark = self._high_watermark
        if high_watermark >= 0:
            return high_watermark
        checkpointed = self.checkpointed_high_watermark
        if checkpointed is not None:
            return min(max(checkpointed, self.log_start_offset), self.log_end_offset)
        held_from = self.flusher.held_from
        return self._writer.end_offset if held_from < 0 else held_from

    @property
    def last_stable_offset(self) -> int:
        """Offset up to which (exclusive) every transaction has an end that consumers can see (KIP-98)."""
        high_watermark = self.high_watermark
        producers = self.producers.state
        if producers is None:
            return high_watermark
        return max(producers.first_unstable_offset(high_watermark), self.log_start_offset)

    @property
    def replica_end_offset(self) -> int:
        """The end of what this replica counts as held: without the records that flush.messages holds back."""
        held_from = self.flusher.held_from
        return self._writer.end_offset if held_from < 0 else held_from

    @property
    def is_replicated(self) -> bool:
        """Whether the high watermark is what `set_high_watermark` has set."""
        return self._high_watermark >= 0

    def replicate(self) -> None:
        """The partition has other replicas from now on. What was committed stays committed; at a start that is what the
        checkpoint says."""
        if self._high_watermark < 0:
            self._high_watermark = self.high_watermark
            self._limit_high_watermark()
            self.checkpointed_high_watermark = None

    def end_replication(self) -> None:
        """The partition has no other replicas from now on."""
        self._high_watermark = -1
        self.checkpointed_high_watermark = None

    def set_high_watermark(self, offset: int) -> bool:
        """Raise the high watermark to `offset`, or to the log's end if that is lower; whether it has moved. It never goes
        back."""
        offset = min(offset, self.log_end_offset)
        if offset <= self._high_watermark:
            return False
        assert self._high_watermark >= 0, "the only replica's high watermark follows from its end"
        self._high_watermark = offset
        return True

    def take_high_watermark(self, other: Log) -> None:
        """Take over the high watermark of the log that this one replaces."""
        self.checkpointed_high_watermark = other.checkpointed_high_watermark
        if other._high_watermark >= 0:
            self._high_watermark = other._high_watermark
            self._limit_high_watermark()
        self.producers.take_uncommitted_ends(other.producers)

    def _limit_high_watermark(self) -> None:
        """After the log's start or end has moved."""
        if self._high_watermark >= 0:
            self._high_watermark = min(max(self._high_watermark, self.log_start_offset), self.log_end_offset)

    # --- append

    def append_as_leader(
        self,
        records: Bytes,
        leader_epoch: int,
        *,
        from_client: bool = True,
        verification: Verification | None = None,
    ) -> AppendResult:
        """Assign offsets to the batches in `records` and write them; the result is of the (last) batch.

        Nothing has changed when it raises StorageError: CORRUPT_MESSAGE, UNSUPPORTED_FOR_MESSAGE_FORMAT,
        MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_RECORD, INVALID_TIMESTAMP,
        OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, TRANSACTION_COORDINATOR_FENCED,
        KAFKA_STORAGE_ERROR. `from_client` False allows control batches, and the flags that only brokers set. The first batch
        of a transaction needs the `verification` that `begin_verification` has returned. A writable memoryview is written into.
        """
        return self._writer.append_as_leader(
            records, leader_epoch, self.log_start_offset, from_client, verification
        )

    def append_batch(
        self,
        records: memoryview,
        header: BatchHeader,
        leader_epoch: int,
        from_client: bool = True,
        inspected: Inspected | None = None,
        verification: Verification | None = None,
    ) -> AppendResult:
        """As `append_as_leader`, for one batch whose header has been read. RecordsUnread, and nothing has changed, when more than a
        few records of a client have to be read first; `inspected` is the result of that."""
        return self._writer.append_batch(
            records, header, leader_epoch, self.log_start_offset, from_client, inspected, verification
        )

    def begin_verification(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        *,
        supports_epoch_bump: bool,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> Verification | None:
        """What the first batch of the producer's transaction has to bring along once the coordinator has verified it; None when
        the transaction is open already. INVALID_PRODUCER_EPOCH for a fenced producer, NOT_ENOUGH_REPLICAS when too many are being
        verified.

        `base_sequence` is that of the batch; -1 of one without. `supports_epoch_bump`: the producer uses transaction.version 2.
        """
        return self.producers.begin_verification(
            producer_id,
            producer_epoch,
            base_sequence,
            supports_epoch_bump=supports_epoch_bump,
            now_ms=self._runtime.time_ms(),
            request_timeout_ms=request_timeout_ms,
        )

    def verification_failed(self, producer_id: int, verification: Verification, *, is_final: bool) -> None:
        """The batch that `begin_verification` has returned this for was not verified. `is_final`: its producer will not send it
        again."""
        self.producers.verification_failed(producer_id, verification, is_final=is_final)

    def marker_to_append(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> bytes:
        """The marker that ends the producer's transaction, to be appended at once: the append does not check it. INVALID_PRODUCER_EPOCH
        or TRANSACTION_COORDINATOR_FENCED when it is out of date."""
        state = self.producers.state
        if state is not None:
            state.committed_to(self.high_watermark)
            state.check_marker(
                producer_id, producer_epoch, coordinator_epoch, transaction_version, self.log_end_offset
            )
        return build_marker(
            producer_id,
            producer_epoch,
            commit=commit,
            coordinator_epoch=coordinator_epoch,
            timestamp=self._runtime.time_ms(),
        )

    def append_as_follower(
        self, records: memoryview, leader_epoch: int = ANY_EPOCH, batches_max: int = ALL_BATCHES
    ) -> FollowerAppend:
        """Append the first `batches_max` whole batches in `records`, those of one segment in one write; a last one that is
        cut is left out, as Kafka's fetches cut it.

        Nothing has changed when it raises UnexpectedAppendOffset or StorageError CORRUPT_MESSAGE. After
        KAFKA_STORAGE_ERROR the log ends behind some whole batch of these.
        """
        end_offset = self._writer.end_offset
        result = self._writer.append_as_follower(records, leader_epoch, batches_max)
        if self.producers.state is not None:
            self.producers.state.committed_to(min(self.high_watermark, end_offset))
        return result

    def when_written_back(self, call: Synced) -> None:
        """Call once a thread has written back as much as an append that `awaits_write_back` has to wait for."""
        self._writer.when_written_back(call)

    # --- read

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        min_one_batch: bool = True,
        end_offset: int | None = None,
        wait: bool = True,
    ) -> ReadResult:
        """The batches from the one that holds `offset` on, of one segment, up to `end_offset` and `max_bytes`.

        With `min_one_batch` the first batch comes whole however large it is; without, nothing comes when it
        does not fit. OffsetOutOfRange outside [log_start_offset, log_end_offset]. Without `wait` it raises
        WouldWait where finding the batches would wait for the disk; sending them may, still. What is in the object store alone is
        never waited for here: then it raises WouldWait with `wait`, too.
        """
        if self.offline:
            raise self._offline_error()
        end = self._writer.end_offset
        if not self.log_start_offset <= offset <= end:
            raise OffsetOutOfRange(
                f"Received request for offset {offset} for partition {self.name}, but we only have log "
                f"segments from offset {self.log_start_offset} up to {end}."
            )
        limit = end if end_offset is None or end_offset > end else end_offset
        if offset >= limit:
            return NOTHING_READ
        if self.remote is not None and offset < self.segments.bases[0]:
            return self.remote.read(offset, max_bytes, min_one_batch, limit)
        try:
            return self.segments.read(offset, max_bytes, min_one_batch, limit, end, wait)
        except OSError as error:
            if not wait and isinstance(error, BlockingIOError):
                raise WouldWait(self.segments.preparation(offset, max_bytes, limit)) from None
            if error.errno == errno.EIO:  # takes the directory offline, as in Kafka
                self.io_failed(error)
            raise StorageError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"Error while reading {self.name}: {error}"
            ) from error
        except RecordBatchError as error:
            raise StorageError(ErrorCode.CORRUPT_MESSAGE, f"{self.name}: {error}") from error

    def _offline_error(self) -> StorageError:
        return StorageError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log directory of {self.name} is offline")

    def timestamp_lookup(self, timestamp: int | None) -> Steps[TimestampOffset | None]:
        """The first record at or after `timestamp`, None when all are older; or with None the first record that has the
        largest timestamp, which as in Kafka looks at what is here alone. In steps: it may wait for the disk and
        unpack a batch. StorageError, also where a segment has been removed meanwhile."""
        if self.offline:
            raise self._offline_error()
        try:
            tiered: Sequence[Segment] = ()
            if self.remote is not None and timestamp is not None:
                tiered = yield from self.remote.segments(self.log_start_offset, self.local_log_start_offset)
            return (yield from self.segments.lookup(timestamp, self.log_start_offset, tiered))
        except (OSError, RecordBatchError) as error:
            raise StorageError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"Error while reading {self.name}: {error}"
            ) from error

    def timestamp_search(self, timestamp: int | None) -> Callable[[], TimestampOffset | None]:
        """The same lookup, over the segments of now, as one blocking call for a thread."""
        return partial(run_through, self.segments.lookup(timestamp, self.log_start_offset))

    # --- segments

    def roll(self) -> None:
        """Begin a new segment at the log's end; a thread syncs the old one. OSError changes nothing."""
        self._writer.roll()

    def increment_log_start_offset(self, offset: int) -> None:
        """Make everything below `offset` invisible and remove the segments that hold nothing else.

        Nothing happens when it is invisible already. OffsetOutOfRange beyond the log's end, or a replicated log's high
        watermark.
        """
        if self.offline:
            raise self._offline_error()
        limit = self._high_watermark if self._high_watermark >= 0 else self.log_end_offset
        if offset > limit:
            raise OffsetOutOfRange(
                f"Cannot increment the log start offset to {offset} of partition {self.name} since it is "
                f"larger than the high watermark {limit}"
            )
        if offset <= self.log_start_offset:
            return
        try:
            if offset == self.log_end_offset and self.segments.active.size:
                self._writer.roll()
            self.log_start_offset = offset
            if self.epochs.must_last:
                self.epochs.hide_below(offset)
            else:
                self.epochs.truncate_from_start(offset)
            self.flusher.names_changed()
            self.remove_segments_below(offset)
        except OSError as error:
            self.io_failed(error)
            raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name}: {error}") from error
        self._events.start_offset_changed(self)

    @property
    def is_start_kept(self) -> bool:
        """Whether a kill would bring back no segment that lies below the log's start."""
        return not self._writer.is_discarding

    def when_start_kept(self, call: Callable[[], object]) -> None:
        """Call once that is so; not if the directory fails or the log is closed before."""
        self._writer.when_discarded(call)

    def remove_segments_below(self, offset: int) -> int:
        """Remove the segments whose records all lie below `offset`, never the active one; bytes freed.

        OSError when the disk refuses; the log is without them all the same.
        """
        if offset > self.log_start_offset:  # tiered: the log's start does not hide them from the next start
            self._note_local_start(offset)
        removed = self.segments.remove_below(offset)
        if removed:
            self.producers.segments_removed(segment.base_offset for segment in removed)
            self._writer.discard_below(removed)
        return sum(segment.size for segment in removed)

    def forget_local_start(self) -> None:
        """The log begins with its first segment, whichever that is: it restarts, is not tiered any more, or does not begin behind what is
        tiered after all."""
        remove_local_start(self._directory.disk, self.directory)

    def _note_local_start(self, offset: int) -> None:
        first = self.segments.bases[self.segments.index_of(offset)]
        try:
            write_local_start(self._directory.disk, self.directory, first)
        except OSError as error:
            if not is_transient(error):
                raise
            logger.warning("%s: removing segments although their removal may not last: %s", self.name, error)

    def replace_segments(self, new: Segment, old: Sequence[Segment]) -> None:
        """Put `new` in the place of `old`, which the log holds, and remove their files.

        The producer snapshot of the first stays: it describes what lies before. OSError when a file can't be
        renamed; the log has `new` all the same.
        """
        self.segments.replace(new, old)
        for segment in old:
            segment.release()
        files = [file for segment in old for file in segment.files]
        files.remove(f"{self.directory}/{offset_file_name(new.base_offset, '.snapshot')}")
        delete_later(self._directory.disk, self._runtime, files, self.config.file_delete_delay_ms)
        self.producers.segments_replaced(new, old)

    # --- truncation

    def truncate_to(self, offset: int) -> None:
        """Remove everything from `offset` on; the batch that holds it is removed whole. Blocking. OSError when it fails;
        CORRUPT_MESSAGE, and nothing has changed, when damage keeps the batch from being found."""
        make_last = self.cut_to(offset)
        if make_last is not None:
            make_last()

    def cut_to(self, offset: int) -> Callable[[], object] | None:
        """As `truncate_to` without the blocking part, which is returned for a thread: nothing may be appended before it is
        done. None when there was nothing to cut."""
        if offset >= self.log_end_offset:
            # An epoch that began at the end without a record may be one that the leader never saw.
            self.epochs.truncate_from_end(self.log_end_offset)
            return None
        segments = self.segments
        if offset < segments.bases[0]:
            start = min(offset, self.log_start_offset)
            # Which producers had written what is tiered is not known here: the replica begins anew, behind what its leader has tiered.
            return self.restart_at(offset if self.remote is None else start, start)
        try:
            located = segments.holding(offset).locate(offset)
        except RecordBatchError as error:
            raise StorageError(ErrorCode.CORRUPT_MESSAGE, f"{self.name}: {error}") from error
        start_moved = offset < self.log_start_offset
        self._events.truncating(self, offset)
        try:
            removed = segments.remove_beyond(offset)
            if removed:
                self._writer.discard(removed[::-1])  # from the end, so that a crash leaves no hole
            active = segments.active
            if located is not None:
                active.truncate(located[0], sync=False)
            file = active.open_for_append()
            self._forget_from(offset)
            self.epochs.truncate_from_end(offset)
            self.producers.truncate(self.log_start_offset, offset, self.high_watermark)
        except OSError as error:  # what the files hold is unknown until the next start recovers the log
            self.flusher.fail(f"{self.name} can't be cut back: {error}", error)
            raise
        if start_moved:
            self._events.start_offset_changed(self)
        disk, directory = self._directory.disk, self._directory.path

        def make_last() -> None:
            if removed:
                disk.sync_directory(directory)
            file.sync()

        return make_last

    def settle_recovery(self, *, may_cut: bool) -> None:
        """After a start, once it is known what the log is. A power failure may keep the name of a closed segment whose records it has
        lost, and later segments with theirs: with `may_cut` everything from there on is removed, as another replica has it. What else
        the crash has left unsynced is synced soon. Blocking, if there is a gap. OSError, StorageError."""
        gap_from = self.gap_from
        if gap_from is not None and may_cut:
            logger.warning(
                "%s: records are missing from %d on, up to a later segment; what lies behind is removed",
                self.name,
                gap_from,
            )
            self.truncate_to(gap_from)
        self.gap_from = None
        if self.flusher.recovery_point < self.segments.active.base_offset:
            self.flusher.sync_soon(self.log_end_offset)

    def restart_at(self, offset: int, log_start_offset: int = -1) -> Callable[[], object]:
        """Remove everything and continue at `offset`, what lies below `log_start_offset` (-1: the same) invisible.
        As Kafka's truncateFullyAndStartAt. What is returned is as with `cut_to`. OSError."""
        self._events.truncating(self, offset)
        try:
            self.forget_local_start()
            self._writer.restart(offset)
            self._forget_from(offset)
            self.flusher.restarted(offset)
            self.log_start_offset = offset if log_start_offset < 0 else log_start_offset
            self._limit_high_watermark()
            if self.log_start_offset < offset:  # what is tiered stays
                self.epochs.truncate_from_end(offset)
            else:
                self.epochs.clear()
            self.epochs.save()
            self.producers.truncate(self.log_start_offset, offset, self.high_watermark, restarted=True)
        except OSError as error:
            self.flusher.fail(f"{self.name} can't be restarted: {error}", error)
            raise
        self._events.start_offset_changed(self)
        disk, directory = self._directory.disk, self._directory.path
        return lambda: disk.sync_directory(directory)

    def prepare_restart_behind(self, state: AuxState) -> None:
        """Before `restart_behind`, in a thread: a crash in between changes nothing. OSError."""
        write_local_start(self._directory.disk, self.directory, state.offset)
        self.producers.save_as_of(state.offset, state.producers)

    def restart_behind(self, state: AuxState, log_start_offset: int) -> Callable[[], object]:
        """Remove everything, and continue behind what is tiered, from the leader's log start on (KIP-405). The log's start must be in
        its checkpoint. What is returned is as with `cut_to`. OSError."""
        offset = state.offset
        self._events.truncating(self, offset)
        log_start_offset = min(max(self.log_start_offset, log_start_offset), offset)
        try:
            self.epochs.replace(state.epochs, log_start_offset)
            self._writer.restart(offset)
            self._forget_from(offset)
            self.flusher.restarted(offset)
            self.log_start_offset = log_start_offset
            if self._high_watermark >= 0:
                self._high_watermark = offset  # only what is committed is tiered
            self.producers.begin_at(self.log_start_offset, offset, self.high_watermark)
        except OSError as error:
            self.flusher.fail(f"{self.name} can't be restarted: {error}", error)
            raise
        self._events.start_offset_changed(self)
        disk, directory = self._directory.disk, self._directory.path
        return lambda: disk.sync_directory(directory)

    def _forget_from(self, offset: int) -> None:
        """Lower the end of the log to `offset` in everything that is held in memory."""
        self._writer.truncated(offset)
        self.log_start_offset = min(self.log_start_offset, offset)
        self.segments.forget_positions()
        self.flusher.truncated(offset)
        self._limit_high_watermark()
        self.flusher.refuse_waiters(offset)

    # --- leader epochs

    def assign_epoch_start_offset(self, leader_epoch: int) -> None:
        """A new leader's epoch begins at the log's end. `save_epochs` has to follow soon."""
        if not self.offline:
            self.epochs.assign_unsaved(leader_epoch, self.log_end_offset)

    def save_epochs(self) -> None:
        """Write the leader epochs that have begun, if they are not in their file. OSError."""
        self.flusher.save_epochs()

    def epoch_end_offset(self, leader_epoch: int) -> tuple[int, int]:
        """(epoch, end offset) as OffsetForLeaderEpoch answers; (-1, -1) when undefined."""
        return self.epochs.end_offset(leader_epoch, self.log_end_offset)

    # --- aborted transactions

    def aborted_within(
        self, offset: int, read: ReadResult, limit: int | None = None, *, wait: bool = True
    ) -> list[tuple[int, int]]:
        """(producer id, first offset) of each aborted transaction that a reader of `offset`, which has got `read`, must leave
        out, and maybe a few more; the first `limit` of them, in the order of their markers. KAFKA_STORAGE_ERROR when they
        can't be read; without `wait` WouldWait where the disk is needed."""
        if self._is_remote(read):
            assert self.remote is not None
            found = self.aborted_between(offset, self.remote.indexed_end(read), limit, wait=wait)
        else:
            found = self.producers.aborted_within(offset, read, self.log_end_offset, limit, wait=wait)
        return [(transaction.producer_id, transaction.first_offset) for transaction in found]

    def aborted_in_batch(self, offset: int, read: ReadResult, *, wait: bool = True) -> list[tuple[int, int]]:
        """As `aborted_within`, of the first batch that was read, and no more."""
        end = self.producers.end_of_batch(read, wait=wait)
        found = self.aborted_between(offset, end, None, wait=wait)
        return [(transaction.producer_id, transaction.first_offset) for transaction in found]

    def _is_remote(self, read: ReadResult) -> bool:
        return self.remote is not None and bool(read.regions) and read.segment_base < self.segments.bases[0]

    def aborted_between(
        self, start: int, end: int, limit: int | None, *, wait: bool
    ) -> list[AbortedTransaction]:
        """The aborted transactions that a reader of [start, end) must leave out, and maybe a few more, in the order of their markers;
        the first `limit` of them. As `aborted_within` besides."""
        found: list[AbortedTransaction] = []
        remote = self.remote
        if remote is not None and start < self.segments.bases[0]:
            if remote.collect_aborted(start, end, found, limit):
                return found
            limit = None if limit is None else limit - len(found)
        return found + self.producers.collect_aborted(start, end, limit, wait=wait)

    def is_indexed_between(self, shorter: ReadResult, longer: ReadResult, *, wait: bool = True) -> bool:
        """Whether the offset index tells the ends of two reads from the same offset apart."""
        if self._is_remote(longer):
            assert self.remote is not None
            return self.remote.indexed_end(shorter) < self.remote.indexed_end(longer)
        end = self.log_end_offset
        return self.producers.indexed_end(shorter, end, wait=wait) < self.producers.indexed_end(
            longer, end, wait=wait
        )

    # --- sync

    @property
    def failure(self) -> str | None:
        """Why nothing can be appended: the disk may have lost what it had accepted. Only a restart resets it."""
        return self.flusher.failure

    @property
    def closed(self) -> bool:
        """Whether the log has released its files."""
        return self.flusher.closed

    def is_sealing_from(self, offset: int) -> bool:
        """Whether a thread is writing the files beside a segment that `cut_to(offset)` would change."""
        return self.flusher.is_sealing_from(self.segments.bases[self.segments.index_of(offset)])

    def flush(self) -> None:
        """Sync everything appended so far. Blocking; KAFKA_STORAGE_ERROR when it fails."""
        self.flusher.flush(self.log_end_offset)

    # --- failure and close

    def io_failed(self, error: BaseException) -> None:
        """Report an error of this log's files to its owner, if it says that the whole directory has failed."""
        self.flusher.io_failed(error)

    def fail(self, reason: str) -> None:
        """The directory has failed: everything is KAFKA_STORAGE_ERROR from now on. Files are released."""
        self.offline = True
        self.flusher.take_offline(reason)
        self.segments.release()

    def close(self) -> None:
        """Sync, write the indexes and release the files. StorageError or OSError when the disk refuses: the
        log is whole, but not clean."""
        if self.segments.active.torn:
            self.segments.active.cut_torn_tail()
        self.flush()
        if self.log_end_offset > self.segments.bases[0]:
            self.flusher.names_work()()
        if self.segments.active.knows_timestamps:  # or nothing has been appended
            self.segments.active.add_time_index_entry()
        for segment in self.segments:
            segment.save_indexes(sync=True)
        self.flusher.write_missing()
        self.producers.save(self.log_end_offset)
        self.release()

    def release(self) -> None:
        """Release the files and nothing else, before they are deleted. Callers of `when_synced` get an error."""
        self.flusher.close()
        self.segments.release()
