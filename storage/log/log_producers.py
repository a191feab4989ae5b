"""What a log knows of producers and transactions, and what of it lies beside the segments.

A snapshot of the producers (producer_snapshot.py) is written by a thread whenever a segment begins, under its
base offset, and at a clean close under the log's end, so opening the log reads only the batches behind the
newest. The aborted transactions of each segment make up its transaction index (transaction_index.py). Both go
with their segment. A log that no such producer has written to holds neither: two attributes that are None.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

from barnabas.storage.errors import StorageError
from barnabas.storage.log.producer_recovery import ProducerRecovery
from barnabas.storage.log.producer_snapshot import encode_snapshot, snapshot_path
from barnabas.storage.log.producers import BatchMetadata, ProducerEntry, ProducerStateManager
from barnabas.storage.log.reader import ReadResult
from barnabas.storage.log.segments import SegmentedLog
from barnabas.storage.segment.segment import Segment
from barnabas.storage.segment.transaction_index import AbortedTransaction, TransactionIndex
from barnabas.storage.segment.transaction_marker import EndTransactionMarker, find_marker, read_marker
from barnabas.wire.compression import Bytes
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import CONTROL_FLAG, BatchHeader, RecordBatchError

_NO_PRODUCERS: Mapping[int, ProducerEntry] = {}


class ProducerLog(SegmentedLog):
    """The part of `Log` that follows producers."""

    __slots__ = ("_producers", "_snapshot_offset", "_transaction_indexes")

    _producers: ProducerStateManager | None  # None: nobody with a producer id is known
    _transaction_indexes: dict[int, TransactionIndex] | None  # by base offset, of segments that have one
    _snapshot_offset: int  # of the newest snapshot that has been written, or where none is needed

    # --- what is asked

    @property
    def active_producers(self) -> Mapping[int, ProducerEntry]:
        """By producer id, as of the log's end."""
        return self._producers.entries if self._producers is not None else _NO_PRODUCERS

    @property
    def last_stable_offset(self) -> int:
        """Offset up to which (exclusive) every transaction has an end that consumers can see (KIP-98)."""
        high_watermark = self.high_watermark
        producers = self._producers
        if producers is None:
            return high_watermark
        return max(producers.first_unstable_offset(high_watermark), self.log_start_offset)

    def aborted_transactions(self, start: int, end: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions that a reader of [start, end) must leave out,
        and maybe of a few more, in the order of their markers. KAFKA_STORAGE_ERROR when they can't be read."""
        found = self.collect_aborted(start, end)
        return [(transaction.producer_id, transaction.first_offset) for transaction in found]

    def collect_aborted(self, start: int, end: int) -> list[AbortedTransaction]:
        """As `aborted_transactions`, whole entries."""
        found: list[AbortedTransaction] = []
        indexes = self._transaction_indexes
        if not indexes:
            return found
        try:
            for base in self._bases[max(0, bisect_right(self._bases, start) - 1) :]:
                index = indexes.get(base)
                if index is not None and index.collect(start, end, found):
                    break
        except OSError as error:
            raise StorageError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"Error while reading {self.name}: {error}"
            ) from error
        return found

    def aborted_within(self, offset: int, read: ReadResult) -> list[tuple[int, int]]:
        """As `aborted_transactions`, for a reader of `offset` who has got `read`.

        What was read ends before the next entry of the offset index, or with its segment, as Kafka sees it.
        """
        if not self._transaction_indexes or not read.regions:
            return []
        region = read.regions[-1]
        number = bisect_right(self._bases, read.segment_base) - 1
        segment = self._segments[number]
        try:
            beyond = segment.offset_index.first_at(region.position + region.length)
        except OSError as error:
            raise StorageError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"Error while reading {self.name}: {error}"
            ) from error
        if beyond is not None:
            return self.aborted_transactions(offset, segment.base_offset + beyond[0])
        following = self._bases[number + 1 : number + 2]
        return self.aborted_transactions(offset, following[0] if following else self.log_end_offset)

    def transaction_index(self, base_offset: int) -> TransactionIndex | None:
        """The transaction index of the segment at `base_offset`; None when nothing in it was aborted."""
        return self._transaction_indexes.get(base_offset) if self._transaction_indexes else None

    def remove_expired_producers(self, now_ms: int, expiration_ms: int) -> None:
        """Forget producers that have been silent for `expiration_ms` and have no open transaction."""
        producers = self._producers
        if producers is not None:
            producers.remove_expired(now_ms, expiration_ms)
            if not producers.entries:
                self._producers = None

    # --- on an append

    def _check_producer(self, records: Bytes, header: BatchHeader, from_client: bool) -> BatchMetadata | None:
        """The earlier batch that this one repeats, None when it may be appended; StorageError when it may not."""
        producers = self._producers
        if header.attributes & CONTROL_FLAG:
            marker = _marker_to_append(records, self.name)
            if producers is not None and marker is not None:
                producers.check_marker(header, self.log_end_offset, marker)
            return None
        if producers is None:
            return None
        return producers.check(header, self.log_end_offset, from_client=from_client)

    def _producer_appended(self, records: Bytes, header: BatchHeader) -> None:
        """The batch, whose header is final, stands in the active segment."""
        producers = self._producers
        if producers is None:
            producers = self._producers = ProducerStateManager(self.name)
        if not header.attributes & CONTROL_FLAG:
            producers.replay(header, None)
            return
        aborted = producers.replay(header, find_marker(records))
        # The high watermark may yet turn out to stay in front of this batch, until that has been synced.
        producers.committed_to(min(self.high_watermark, header.base_offset))
        if aborted is not None:
            self._note_aborted(aborted)

    def _note_aborted(self, aborted: AbortedTransaction) -> None:
        indexes = self._transaction_indexes
        if indexes is None:
            indexes = self._transaction_indexes = {}
        base = self._active.base_offset
        index = indexes.get(base)
        if index is None:
            index = indexes[base] = TransactionIndex(self._disk, self.directory, base, ())
        index.append(aborted)

    # --- beside the segments

    def _seal_producers(self, sealed_base: int, base_offset: int) -> Callable[[], object]:
        """The active segment has become the one at `base_offset`: what a thread has to write for that."""
        content = encode_snapshot(self.active_producers.values())
        index = self.transaction_index(sealed_base)
        path = snapshot_path(self.directory, base_offset)
        self._snapshot_offset = base_offset

        def write() -> None:
            if index is not None:
                index.save(sync=True)
            self._disk.write_file(path, content)

        return write

    def _after_seal(self, segment: Segment, end_offset: int) -> None:
        super()._after_seal(segment, end_offset)
        index = self.transaction_index(segment.base_offset)
        if index is not None:
            index.unload()
        if end_offset not in self._bases and not self._released:  # truncated meanwhile
            self._disk.remove(snapshot_path(self.directory, end_offset))

    def _save_producers(self) -> None:
        """At a clean close: a snapshot of the log's end, and the transaction indexes that are not on the disk.

        The snapshot need not be synced: should a power failure damage it, an older one and the batches do.
        """
        for index in (self._transaction_indexes or {}).values():
            index.save(sync=True)
        end = self.log_end_offset
        if self._snapshot_offset != end:
            content = encode_snapshot(self.active_producers.values())
            self._disk.write_file(snapshot_path(self.directory, end), content, sync=False)
            self._snapshot_offset = end

    def _take_producers(self, recovery: ProducerRecovery) -> None:
        """Have what `recovery` has brought up to the log's end."""
        self._producers = recovery.producers if recovery.producers.entries else None
        self._transaction_indexes = recovery.transaction_indexes or None
        self._snapshot_offset = recovery.snapshot_offset

    def replace_segments(self, new: Segment, old: Sequence[Segment]) -> None:
        super().replace_segments(new, old)
        indexes = self._transaction_indexes or {}
        for segment in old:
            indexes.pop(segment.base_offset, None)
        index = TransactionIndex.of_swapped(self._disk, self.directory, new)
        if index is not None:
            indexes[new.base_offset] = index
        self._transaction_indexes = indexes or None

    def _truncate_producers(self, *, anew: bool = False) -> None:
        """The log has been cut back to its end, or begins there `anew`: no file is to tell of more, and the
        producers are those of what is left. OSError when that fails."""
        end = self.log_end_offset
        names = self._disk.list(self.directory)
        recovery = ProducerRecovery(self._disk, self.directory, self.name, names, self.log_start_offset)
        if anew:
            recovery.forget()
        else:
            recovery.transaction_indexes = self._transaction_indexes or {}
            producers = self._producers
            if producers is None:
                recovery.offset = end
            elif producers.cut(end):
                recovery.producers = producers
                recovery.offset = end
        recovery.finish(self._segments, end)
        self._take_producers(recovery)


def _marker_to_append(records: Bytes, partition: str) -> EndTransactionMarker | None:
    try:
        return read_marker(records)
    except RecordBatchError as error:
        raise StorageError(ErrorCode.INVALID_RECORD, f"{error} in topic partition {partition}.") from None
