"""The producers and transactions of one log, in memory and in the files beside the segments.

A thread writes a snapshot of the producers (producer_snapshot.py) whenever a segment begins, under its base offset; a clean
close writes one under the log's end. So opening the log reads only the batches behind the newest snapshot. The aborted
transactions of each segment make up its transaction index (transaction_index.py). Both are removed with their segment. A
log that has no such producer has neither.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from barnabas.storage.errors import StorageError, WouldWait
from barnabas.storage.log.partition_directory import PartitionDirectory
from barnabas.storage.log.producer_recovery import ProducerRecovery
from barnabas.storage.log.producer_snapshot import encode_snapshot, snapshot_path
from barnabas.storage.log.producers import BatchMetadata, ProducerEntry, ProducerStateManager
from barnabas.storage.log.segments import LogSegments, ReadResult
from barnabas.storage.log.verification import Verification, Verifications, check_epoch, is_open
from barnabas.storage.segment.legacy_format import read_stored_header
from barnabas.storage.segment.segment import Segment
from barnabas.storage.segment.transaction_index import AbortedTransaction, TransactionIndex
from barnabas.storage.segment.transaction_marker import find_marker
from barnabas.wire.compression import Bytes
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import (
    CONTROL_FLAG,
    HEADER_SIZE,
    TRANSACTIONAL_FLAG,
    BatchHeader,
)

_NO_PRODUCERS: Mapping[int, ProducerEntry] = {}


class LogProducers:
    """See the module."""

    __slots__ = (
        "_directory",
        "_segments",
        "_snapshot_offset",
        "_transaction_indexes",
        "_verifications",
        "state",
    )

    def __init__(
        self, directory: PartitionDirectory, segments: LogSegments, recovery: ProducerRecovery
    ) -> None:
        """`recovery` has advanced to the log's end."""
        self._directory = directory
        self._segments = segments
        self._take(recovery)

    def _take(self, recovery: ProducerRecovery) -> None:
        # None: no batch of a producer id is known
        self.state: ProducerStateManager | None = None if recovery.producers.is_empty else recovery.producers
        # by base offset, of the segments that have one
        self._transaction_indexes: dict[int, TransactionIndex] | None = recovery.transaction_indexes or None
        # of the newest snapshot that has been written, or where none is needed
        self._snapshot_offset = recovery.snapshot_offset
        self._verifications: Verifications | None = None  # None: no transaction is being verified

    @property
    def active(self) -> Mapping[int, ProducerEntry]:
        """By producer id, as of the log's end."""
        return self.state.entries if self.state is not None else _NO_PRODUCERS

    def segments_removed(self, base_offsets: Iterable[int]) -> None:
        """The segments at the log's start are gone, and their transaction indexes with them."""
        indexes = self._transaction_indexes
        if indexes is not None:
            for base_offset in base_offsets:
                indexes.pop(base_offset, None)
            self._transaction_indexes = indexes or None

    def remove_expired(self, now_ms: int, expiration_ms: int) -> None:
        """Remove producers that have been silent for `expiration_ms` and have no open transaction, and verifications that
        have taken as long."""
        if self._verifications is not None:
            self._verifications.remove_expired(now_ms, expiration_ms)
            self._drop_empty_verifications()
        state = self.state
        if state is not None:
            state.remove_expired(now_ms, expiration_ms)
            if state.is_empty:
                self.state = None

    # --- aborted transactions

    def collect_aborted(
        self, start: int, end: int, limit: int | None = None, *, wait: bool = True
    ) -> list[AbortedTransaction]:
        """The aborted transactions that a reader of [start, end) must leave out, and maybe a few more, in the order of their
        markers; the first `limit` of them. KAFKA_STORAGE_ERROR when they can't be read; without `wait` WouldWait where the
        disk is needed."""
        found: list[AbortedTransaction] = []
        indexes = self._transaction_indexes
        if not indexes:
            return found
        segments = self._segments
        bases = segments.bases[segments.index_of(start) :]
        try:
            for base in bases:
                index = indexes.get(base)
                if index is not None and index.collect(start, end, found, limit, wait=wait):
                    break
        except OSError as error:
            if not wait and isinstance(error, BlockingIOError):
                left = (indexes.get(each) for each in bases[bases.index(base) :])
                searched = [each for each in left if each is not None]
                raise WouldWait(partial(_load_searched, searched, start, end, limit)) from None
            raise self._read_error(error) from error
        return found

    def aborted_within(
        self, offset: int, read: ReadResult, end_offset: int, limit: int | None, *, wait: bool
    ) -> list[AbortedTransaction]:
        """As `collect_aborted`, for a reader of `offset` that has got `read`.

        The bytes end before the next entry of the offset index, or with their segment, as in Kafka; `end_offset` is the log's.
        """
        if not self._transaction_indexes or not read.regions:
            return []
        return self.collect_aborted(offset, self.indexed_end(read, end_offset, wait=wait), limit, wait=wait)

    def indexed_end(self, read: ReadResult, end_offset: int, *, wait: bool) -> int:
        """An offset behind what was read: that of the next entry of the offset index, or of the next segment."""
        segment = self._segments.holding(read.segment_base)
        try:
            beyond = segment.offset_index.first_at(read.position + read.size, wait=wait)
        except OSError as error:
            if not wait and isinstance(error, BlockingIOError):
                raise WouldWait(segment.offset_index.load) from None
            raise self._read_error(error) from error
        if beyond is not None:
            return segment.base_offset + beyond[0]
        bases = self._segments.bases
        following = bisect_right(bases, read.segment_base)
        return bases[following] if following < len(bases) else end_offset

    def end_of_batch(self, read: ReadResult, *, wait: bool) -> int:
        """The offset behind the first batch that was read."""
        region = read.regions[0]
        try:
            header = read_stored_header(
                region.file.pread(HEADER_SIZE, region.position)
                if wait or region.is_hot
                else region.file.pread_now(HEADER_SIZE, region.position)
            )
        except OSError as error:
            if not wait and isinstance(error, BlockingIOError):
                raise WouldWait(partial(region.load, 0, HEADER_SIZE)) from None
            raise self._read_error(error) from error
        return header.next_offset

    def _read_error(self, error: OSError) -> StorageError:
        return StorageError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"Error while reading {self._directory.name}: {error}"
        )

    def transaction_index(self, base_offset: int) -> TransactionIndex | None:
        """The transaction index of the segment at `base_offset`; None when it has no aborted transaction."""
        return self._transaction_indexes.get(base_offset) if self._transaction_indexes else None

    def has_late_transaction(self, now_ms: int, max_timeout_ms: int) -> bool:
        """Whether a transaction is open that its coordinator should have ended long ago; `max_timeout_ms` is
        transaction.max.timeout.ms."""
        return self.state is not None and self.state.has_late_transaction(now_ms, max_timeout_ms)

    # --- appends

    def begin_verification(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        *,
        supports_epoch_bump: bool,
        now_ms: int,
        request_timeout_ms: int,
    ) -> Verification | None:
        """What the producer's next transactional batch has to bring along; None when its transaction is open already.
        INVALID_PRODUCER_EPOCH for a fenced producer, NOT_ENOUGH_REPLICAS when too many are being verified."""
        entry = self.active.get(producer_id)
        check_epoch(entry, producer_id, producer_epoch)
        if is_open(entry, producer_epoch):
            return None
        verifications = self._verifications
        if verifications is None:
            verifications = self._verifications = Verifications(self._directory.name)
        return verifications.begin(
            producer_id, producer_epoch, base_sequence, supports_epoch_bump, now_ms, request_timeout_ms
        )

    def verification_failed(self, producer_id: int, verification: Verification, *, is_final: bool) -> None:
        """A batch that `begin_verification` was called for has not been verified, and will not be sent again if that `is_final`."""
        if self._verifications is not None:
            self._verifications.failed(producer_id, verification, is_final=is_final)
            self._drop_empty_verifications()

    def check(
        self,
        header: BatchHeader,
        end_offset: int,
        from_client: bool,
        verification: Verification | None,
    ) -> BatchMetadata | None:
        """The earlier batch that this one repeats, None when it may be appended at `end_offset`; StorageError when it must
        not be."""
        if header.attributes & CONTROL_FLAG:  # see `Log.marker_to_append`
            return None
        if header.attributes & TRANSACTIONAL_FLAG or self._verifications is not None:
            duplicate = self._check_transaction(header, end_offset, from_client, verification)
            if duplicate is not None:
                return duplicate
        state = self.state
        if state is None:
            return None
        return state.check(header, end_offset, from_client=from_client)

    def _check_transaction(
        self,
        header: BatchHeader,
        end_offset: int,
        from_client: bool,
        verification: Verification | None,
    ) -> BatchMetadata | None:
        """The part of `check` that usual batches do not need."""
        entry = self.active.get(header.producer_id)
        if entry is not None and from_client:
            duplicate = entry.find_duplicate(header)
            if duplicate is not None:
                return duplicate
        verifications = self._verifications or Verifications(self._directory.name)
        verifications.check(header, end_offset, entry, verification, from_client)
        return None

    def appended(self, header: BatchHeader) -> None:
        """A data batch of a producer id, whose header is final, is in the active segment."""
        state = self.state
        if state is None:
            state = self.state = ProducerStateManager(self._directory.name)
        state.replay(header, None)
        if self._verifications is not None and header.attributes & TRANSACTIONAL_FLAG:
            self._verifications.data_appended(header.producer_id)
            self._drop_empty_verifications()

    def _drop_empty_verifications(self) -> None:
        """Without them usual batches take the short way through `check`."""
        if self._verifications is not None and not self._verifications.entries:
            self._verifications = None

    def marker_appended(self, records: Bytes, header: BatchHeader) -> None:
        """A control batch, whose header is final, is in the active segment."""
        state = self.state
        if state is None:
            state = self.state = ProducerStateManager(self._directory.name)
        marker = find_marker(records)
        if self._verifications is not None and header.attributes & TRANSACTIONAL_FLAG:
            self._verifications.marker_appended(header.producer_id, header.producer_epoch)
            self._drop_empty_verifications()
        aborted = state.replay(header, marker)
        if aborted is not None:
            indexes = self._transaction_indexes
            if indexes is None:
                indexes = self._transaction_indexes = {}
            base = self._segments.active.base_offset
            index = indexes.get(base)
            if index is None:
                index = indexes[base] = TransactionIndex(self._directory.disk, self._directory.path, base, ())
            index.append(aborted)

    # --- files beside the segments

    def begin_segment(self, sealed_base: int, base_offset: int) -> Callable[[], object]:
        """Work for a thread when the segment at `base_offset` follows the one at `sealed_base`."""
        content = encode_snapshot(self.active.values())
        index = self.transaction_index(sealed_base)
        disk, path = self._directory.disk, snapshot_path(self._directory.path, base_offset)
        self._snapshot_offset = base_offset

        def write() -> None:
            if index is not None:
                index.save(sync=True)
            disk.write_file(path, content)

        return write

    def segment_sealed(self, base_offset: int) -> None:
        """The thread has written the files beside that segment."""
        index = self.transaction_index(base_offset)
        if index is not None:
            index.unload()

    def remove_snapshot(self, offset: int) -> None:
        self._directory.disk.remove(snapshot_path(self._directory.path, offset))

    def save(self, end_offset: int) -> None:
        """At a clean close: write a snapshot of the log's end, and the transaction indexes that are not on the disk.

        The snapshot is not synced: if a power failure damages it, an older one and the batches serve.
        """
        for index in (self._transaction_indexes or {}).values():
            index.save(sync=True)
        if self._snapshot_offset != end_offset:
            content = encode_snapshot(self.active.values())
            self._directory.disk.write_file(
                snapshot_path(self._directory.path, end_offset), content, sync=False
            )
            self._snapshot_offset = end_offset

    def segments_replaced(self, new: Segment, old: Sequence[Segment]) -> None:
        """Compaction has put `new` in the place of `old`."""
        indexes = self._transaction_indexes or {}
        for segment in old:
            indexes.pop(segment.base_offset, None)
        index = TransactionIndex.of_swapped(self._directory.disk, self._directory.path, new)
        if index is not None:
            indexes[new.base_offset] = index
        self._transaction_indexes = indexes or None

    def take_uncommitted_ends(self, other: LogProducers) -> None:
        """`other` is the same log, with the same high watermark, and knows which transactions' markers lie above that."""
        if self.state is not None and other.state is not None:
            self.state.add_uncommitted_ends(other.state)

    def save_as_of(self, offset: int, producers: Iterable[ProducerEntry]) -> None:
        """Write the snapshot that `begin_at` finds. Blocking. OSError."""
        self._directory.disk.write_file(
            snapshot_path(self._directory.path, offset), encode_snapshot(producers)
        )

    def begin_at(self, start_offset: int, offset: int, high_watermark: int) -> None:
        """The log is empty and begins at `offset`, whose snapshot has been written. OSError."""
        names = self._directory.disk.list(self._directory.path)
        recovery = ProducerRecovery(self._directory, names, start_offset, high_watermark=high_watermark)
        recovery.finish(self._segments, offset)
        self._take(recovery)

    def truncate(
        self, start_offset: int, end_offset: int, high_watermark: int, *, restarted: bool = False
    ) -> None:
        """The log has been cut back to `end_offset`, or restarts there: hold the producers of what is left, and remove the
        files that describe more. OSError."""
        names = self._directory.disk.list(self._directory.path)
        recovery = ProducerRecovery(self._directory, names, start_offset, high_watermark=high_watermark)
        if restarted:
            recovery.reset()
        else:
            recovery.transaction_indexes = self._transaction_indexes or {}
            state = self.state
            if state is None:
                recovery.offset = end_offset
            elif state.cut(end_offset):
                recovery.producers = state
                recovery.offset = end_offset
        recovery.finish(self._segments, end_offset)
        self._take(recovery)


def _load_searched(indexes: Sequence[TransactionIndex], start: int, end: int, limit: int | None) -> None:
    """Bring what `collect_aborted` searches into memory: for threads. All in one go, as a long transaction reaches over many
    segments, and a fetch is not tried again for each."""
    found: list[AbortedTransaction] = []
    for index in indexes:
        index.load()
        if index.collect(start, end, found, limit):
            return
