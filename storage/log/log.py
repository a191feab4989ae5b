"""The log of one partition, put together: opened and recovered here, closed here.

What it does stands in the files it inherits from, one concern each: log_reader (reading), log_sync (fsync),
log_watermark (what is committed),
log_segments (rolling, removing, truncating), log_pacing (a disk that is behind), log_append (appending).
Everything runs on the loop's thread except syncing, which goes to a thread where nobody waits for it.
"""

from __future__ import annotations

import logging

from barnabas.runtime.interface import Runtime
from barnabas.storage.disk.disk import Disk
from barnabas.storage.log.flusher import EPOCH_FILE, LogEvents
from barnabas.storage.log.follower_append import FollowerAppend, ReplicaLog
from barnabas.storage.log.leader_append import AppendResult
from barnabas.storage.log.leader_epochs import LeaderEpochCache
from barnabas.storage.log.log_config import LONG_MAX, LogConfig
from barnabas.storage.log.producers import PRODUCER_ID_EXPIRATION_MS
from barnabas.storage.log.reader import NO_READERS
from barnabas.storage.log.recovery import load_segments
from barnabas.storage.segment.segment import Segment
from barnabas.wire.record_batch import RecordBatchError

logger = logging.getLogger("barnabas.storage")

__all__ = ["AppendResult", "FollowerAppend", "Log"]


class Log(ReplicaLog):
    """See the module. Offsets are of records, sizes in bytes, times in ms since the epoch."""

    __slots__ = ("topic_id",)

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
        high_watermark: int | None = None,
        producer_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS,
        events: LogEvents | None = None,
    ) -> None:
        """Open the log in `directory` (`<log_dir>/<topic>-<partition>`), which exists; recover it unless `clean`.
        `high_watermark` is the checkpointed one, which counts until the log has its role; None: it has one, and is the
        only replica.

        OSError when the directory can't be read or written.
        """
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.log_dir = log_dir
        self.directory = directory or f"{log_dir}/{self.name}"
        self.failure: str | None = None  # set when the disk has lost what it had taken; only a restart heals
        self._disk = disk
        self._runtime = runtime
        self._time_ms = runtime.time_ms
        self._events = events
        self.cleaning = False
        self.offline = False
        self._epochs = LeaderEpochCache(disk, f"{self.directory}/{EPOCH_FILE}")
        self._new_names = 1
        self._names_synced = 0
        self._not_indexed = ()
        self._flush_pending = False
        self._pacing = None
        self._held_from = -1
        self._high_watermark = -1
        self.checkpointed_high_watermark = high_watermark
        self._sealing = ()
        self._sync_to = -1
        self._sync_waiters = None
        self._syncing = False
        self._released = False
        self._truncations = 0  # a sync that began before one says nothing about what was written after
        self.update_config(config)
        self._open(clean, recovery_point, log_start_offset, producer_expiration_ms)

    def _open(
        self, clean: bool, recovery_point: int, log_start_offset: int, producer_expiration_ms: int
    ) -> None:
        epochs_known = self._epochs.load()
        known_epochs = self._epochs.entries
        loaded = load_segments(
            self._disk,
            self.directory,
            self.name,
            self.config,
            self._epochs,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            now_ms=self._time_ms(),
            producer_expiration_ms=producer_expiration_ms,
        )
        self._segments = loaded.segments
        self._bases = [segment.base_offset for segment in loaded.segments]
        self._active = loaded.segments[-1]
        self._roll_after_ms = self._next_roll_after_ms()
        self._resume = NO_READERS
        self._last_base_offset = -1
        self._last_position = 0
        self.log_end_offset = loaded.next_offset
        self.log_start_offset = max(log_start_offset, self._bases[0])
        self.recovery_point = self.log_end_offset if clean else min(recovery_point, self.log_end_offset)
        self._take_producers(loaded.producers)
        if clean and self.log_end_offset:  # a clean stop has synced them; a new log has none yet
            self._names_synced = self._new_names
        if not epochs_known and self.log_end_offset > self._bases[0]:
            self._recover_epochs()
        self._epochs.truncate_from_end(self.log_end_offset + 1)
        if self._epochs.entries != known_epochs:
            self._new_names += 1
            if not clean:
                self._epochs.save()

    def _recover_epochs(self) -> None:
        """Read from the batches what a power failure has made of the file: recovery saw the last segments only."""
        self._epochs.clear()
        try:
            for header in self.headers(self._bases[0]):
                self._epochs.recover(header.partition_leader_epoch, header.base_offset)
        except RecordBatchError as error:  # what can be read further is served all the same
            logger.warning("%s: its leader epochs are known up to a damaged batch: %s", self.name, error)

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

    # --- leader epochs

    @property
    def has_unsaved_epochs(self) -> bool:
        """Whether an epoch has begun that `save_epochs` has to write down."""
        return self._epochs.unsaved

    def assign_epoch_start_offset(self, leader_epoch: int) -> None:
        """A new leader's reign begins at the log's end. `save_epochs` has to follow soon."""
        self._epochs.assign_unsaved(leader_epoch, self.log_end_offset)

    def epoch_end_offset(self, leader_epoch: int) -> tuple[int, int]:
        """(epoch, end offset) as OffsetForLeaderEpoch answers; (-1, -1) when undefined."""
        return self._epochs.end_offset(leader_epoch, self.log_end_offset)

    def epoch_for_offset(self, offset: int) -> int:
        """The leader epoch that `offset` belongs to; -1 when unknown."""
        return self._epochs.epoch_for_offset(offset)

    def close(self) -> None:
        """Sync, write the indexes and let go of the files. StorageError or OSError when the disk refuses: the
        log is whole, but not clean."""
        if self._active.torn:
            self._active.cut_torn_tail()
        self.flush()
        if self.log_end_offset > self._bases[0]:
            self._names_work()()
        if self._active.knows_timestamps:  # or nothing has been appended
            self._active.add_time_index_entry()
        for segment in self._segments:
            segment.save_indexes(sync=True)
        self._save_producers()
        self.release()

    def release(self) -> None:
        """Let go of the files and nothing else, as before they are deleted. What waits for a sync waits in vain."""
        self._released = True
        if self._sync_waiters:
            self._runtime.call_soon(lambda: self._call_waiters(LONG_MAX, f"{self.name} has been closed"))
        for segment in self._segments:
            segment.release()
