"""State of producers with an id (KIP-98, KIP-360): the last batches of each, to distinguish the next batch from a duplicate
and from one after a gap, and open transactions.

Five batches are remembered, because a producer may have five requests in flight. The state is a function of
the batches in the log: `replay` applies one of them, `check` decides whether another one may be appended. A snapshot
(producer_snapshot.py) holds the last batch of each producer, so after a clean restart only that one is known
as a duplicate, as in Kafka.
"""

from __future__ import annotations

from collections import deque

import msgspec

from barnabas.storage.errors import StorageError
from barnabas.storage.segment.transaction_index import AbortedTransaction
from barnabas.storage.segment.transaction_marker import EndTransactionMarker
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import (
    CONTROL_FLAG,
    MAX_PRODUCER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    TRANSACTIONAL_FLAG,
    BatchHeader,
)

BATCHES_REMEMBERED = 5
MAX_SEQUENCE = 0x7FFFFFFF
PRODUCER_ID_EXPIRATION_MS = 86_400_000  # the default of producer.id.expiration.ms

# Open and without a write for transaction.max.timeout.ms and this: nothing will end the transaction.
LATE_TRANSACTION_BUFFER_MS = 300_000

# Kafka names the version of the transaction in its text; a batch of data has none.
_NO_TRANSACTION_VERSION = -1


class BatchMetadata(msgspec.Struct, gc=False):
    """A batch that was appended: identifies its duplicate, and answers the duplicate's sender."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int  # max timestamp of the batch, ms


class ProducerEntry(msgspec.Struct):
    """One producer id. The epoch is -1 until its first batch."""

    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    batches: deque[BatchMetadata] = msgspec.field(default_factory=lambda: deque(maxlen=BATCHES_REMEMBERED))
    last_timestamp: int = -1
    coordinator_epoch: int = -1
    current_transaction_first_offset: int = -1

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        """Of the last data batch in its current epoch; -1 when there is none."""
        return self.batches[-1].last_offset if self.batches else -1

    def find_duplicate(self, header: BatchHeader) -> BatchMetadata | None:
        """The remembered batch that this one repeats."""
        if header.producer_epoch == self.producer_epoch:
            wanted = header.base_sequence, header.last_sequence
            for batch in self.batches:
                if (batch.base_sequence, batch.last_sequence) == wanted:
                    return batch
        return None


class ProducerStateManager:
    """The producers of one partition."""

    __slots__ = ("_ended", "_partition", "entries", "ongoing")

    def __init__(self, partition: str) -> None:
        self._partition = partition
        self.entries: dict[int, ProducerEntry] = {}
        self.ongoing: dict[int, int] = {}  # first offset of each open transaction -> producer, ascending
        # (first offset, the marker's) of ended transactions whose markers may not be committed; both ascend
        self._ended: deque[tuple[int, int]] = deque()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known of any producer, nor of a transaction whose marker may not be committed."""
        return not self.entries and not self._ended

    def first_unstable_offset(self, high_watermark: int) -> int:
        """The first offset of the oldest transaction that has no marker below the high watermark; the high watermark when
        there is none."""
        first = next(iter(self.ongoing), high_watermark)
        if self._ended:
            self.committed_to(high_watermark)
            if self._ended:
                first = min(first, self._ended[0][0])
        return min(first, high_watermark)

    def committed_to(self, high_watermark: int) -> None:
        """Forget the ended transactions whose markers lie below the high watermark."""
        ended = self._ended
        while ended and ended[0][1] < high_watermark:
            ended.popleft()

    def add_uncommitted_ends(self, earlier: ProducerStateManager) -> None:
        """Take over the ended transactions that `earlier`, the same partition up to an earlier offset, has not forgotten."""
        later, self._ended = self._ended, earlier._ended.copy()
        for first_offset, marker_offset in later:
            self.hold_back(first_offset, marker_offset)

    def hold_back(self, first_offset: int, marker_offset: int) -> None:
        """Hold read_committed readers back at `first_offset` until the high watermark has passed a marker, which lies behind
        those of earlier calls."""
        ended = self._ended
        while ended and ended[-1][0] >= first_offset:  # this one holds readers back further, and longer
            ended.pop()
        ended.append((first_offset, marker_offset))

    def has_late_transaction(self, now_ms: int, max_timeout_ms: int) -> bool:
        """Whether the oldest open transaction has had no write for longer than any transaction may take."""
        oldest = next(iter(self.ongoing.values()), None)
        if oldest is None:
            return False
        last_timestamp = self.entries[oldest].last_timestamp
        return 0 < last_timestamp < now_ms - max_timeout_ms - LATE_TRANSACTION_BUFFER_MS

    # --- what may be appended

    def check(self, header: BatchHeader, offset: int, *, from_client: bool) -> BatchMetadata | None:
        """The earlier batch that a data batch for `offset` repeats, or None when it may be appended.

        Raises INVALID_PRODUCER_EPOCH for a fenced producer, OUT_OF_ORDER_SEQUENCE_NUMBER for a gap or a batch
        older than the remembered ones, INVALID_TXN_STATE for a plain batch inside a transaction. Sequences are
        looked at only when a client sent them.
        """
        entry = self.entries.get(header.producer_id)
        if entry is None:
            return None
        epoch = header.producer_epoch
        if from_client:
            if epoch == entry.producer_epoch:
                batches = entry.batches
                last_sequence = batches[-1].last_sequence if batches else NO_SEQUENCE
                expected = last_sequence + 1 if last_sequence != MAX_SEQUENCE else 0
                # 0 may be the next one of a producer with batches, and be that of one of them.
                if header.base_sequence != expected or (not expected and batches):
                    duplicate = entry.find_duplicate(header)
                    if duplicate is not None:
                        return duplicate
                    if header.base_sequence != expected:
                        raise self._out_of_order(header, offset, last_sequence)
            elif epoch > entry.producer_epoch:
                self._check_first_of_epoch(header, offset, entry)
        if epoch < entry.producer_epoch:
            raise self._fenced(header.producer_id, epoch, offset, entry, "<", _NO_TRANSACTION_VERSION)
        if entry.current_transaction_first_offset >= 0 and not header.attributes & TRANSACTIONAL_FLAG:
            raise StorageError(
                ErrorCode.INVALID_TXN_STATE,
                f"Expected transactional write from producer {header.producer_id} at offset {offset} "
                f"in partition {self._partition}",
            )
        return None

    def check_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        transaction_version: int,
        offset: int,
    ) -> None:
        """Whether a coordinator may end the producer's transaction with a marker at `offset`.

        In version 2 a marker has a later epoch than its transaction. The same epoch is that of a marker that is sent again; but
        after 32767, which has no later one, it may be the first.

        Raises INVALID_PRODUCER_EPOCH, or TRANSACTION_COORDINATOR_FENCED after a marker of a later coordinator epoch.
        """
        entry = self.entries.get(producer_id)
        if entry is None:
            return
        is_v2 = transaction_version >= 2
        if producer_epoch < entry.producer_epoch or (
            is_v2
            and producer_epoch == entry.producer_epoch < MAX_PRODUCER_EPOCH
            and entry.current_transaction_first_offset >= 0
        ):
            comparison = "<=" if is_v2 else "<"
            raise self._fenced(producer_id, producer_epoch, offset, entry, comparison, transaction_version)
        if coordinator_epoch < entry.coordinator_epoch:
            raise StorageError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"Invalid coordinator epoch for producerId {producer_id} at offset {offset} in partition "
                f"{self._partition}: {coordinator_epoch} (zombie), {entry.coordinator_epoch} (current)",
            )

    def _check_first_of_epoch(self, header: BatchHeader, offset: int, entry: ProducerEntry) -> None:
        if header.base_sequence != 0 and entry.producer_epoch != NO_PRODUCER_EPOCH:
            raise StorageError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Invalid sequence number for new epoch of producer {header.producer_id}at offset {offset} in "
                f"partition {self._partition}: {header.producer_epoch} (request epoch), {header.base_sequence} "
                f"(seq. number), {entry.producer_epoch} (current producer epoch)",
            )

    def _out_of_order(self, header: BatchHeader, offset: int, last_sequence: int) -> StorageError:
        return StorageError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"Out of order sequence number for producer {header.producer_id} at offset {offset} in partition "
            f"{self._partition}: {header.base_sequence} (incoming seq. number), "
            f"{last_sequence} (current end sequence number)",
        )

    def _fenced(
        self,
        producer_id: int,
        producer_epoch: int,
        offset: int,
        entry: ProducerEntry,
        comparison: str,
        transaction_version: int,
    ) -> StorageError:
        return StorageError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"Epoch of producer {producer_id} at offset {offset} in {self._partition} is {producer_epoch}, "
            f"which is {comparison} the last seen epoch {entry.producer_epoch} (TV{transaction_version})",
        )

    # --- what is in the log

    def replay(self, header: BatchHeader, marker: EndTransactionMarker | None) -> AbortedTransaction | None:
        """Apply a batch with a producer id that is in the log at `header.base_offset`. `marker` is that of a control batch,
        None when it ends no transaction. Returns the transaction that it aborts."""
        attributes = header.attributes
        if attributes & CONTROL_FLAG:
            return self._end_transaction(header, marker) if marker is not None else None
        entry = self._entry(header)
        base_offset = header.base_offset
        timestamp = entry.last_timestamp = header.max_timestamp
        if attributes & TRANSACTIONAL_FLAG and entry.current_transaction_first_offset < 0:
            entry.current_transaction_first_offset = base_offset
            self.ongoing[base_offset] = header.producer_id
        entry.batches.append(
            BatchMetadata(
                header.base_sequence,
                header.last_sequence,
                base_offset,
                base_offset + header.last_offset_delta,
                timestamp,
            )
        )
        return None

    def _end_transaction(
        self, header: BatchHeader, marker: EndTransactionMarker
    ) -> AbortedTransaction | None:
        entry = self._entry(header)
        first_offset = entry.current_transaction_first_offset
        entry.current_transaction_first_offset = -1
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp = header.max_timestamp
        if first_offset < 0:  # the transaction has no batch in this partition
            return None
        self.ongoing.pop(first_offset, None)
        self.hold_back(first_offset, header.base_offset)
        if marker.commit:
            return None
        stable = next(iter(self.ongoing), header.base_offset + 1)
        return AbortedTransaction(header.producer_id, first_offset, header.base_offset, stable)

    def _entry(self, header: BatchHeader) -> ProducerEntry:
        entry = self.entries.get(header.producer_id)
        if entry is None:
            entry = self.entries[header.producer_id] = ProducerEntry(header.producer_id)
        if entry.producer_epoch != header.producer_epoch:
            entry.producer_epoch = header.producer_epoch
            entry.batches.clear()
        return entry

    # --- truncation, snapshots, expiration

    def cut(self, end_offset: int) -> bool:
        """Remove the batches from `end_offset` on. False, and nothing has changed, when only reading the log can show what
        was before: all batches of a producer would be removed, or there have been transactions."""
        cut: list[ProducerEntry] = []
        for entry in self.entries.values():
            if (
                entry.current_transaction_first_offset >= 0
                or entry.coordinator_epoch >= 0
                or not entry.batches
            ):
                return False
            if entry.last_offset >= end_offset:
                if entry.batches[0].last_offset >= end_offset:
                    return False
                cut.append(entry)
        for entry in cut:
            while entry.last_offset >= end_offset:
                entry.batches.pop()
            entry.last_timestamp = entry.batches[-1].timestamp
        return True

    def restore(self, entries: list[ProducerEntry], now_ms: int, expiration_ms: int) -> None:
        """Replace the state by the entries of a snapshot, without those that have expired."""
        self.entries = {
            entry.producer_id: entry for entry in entries if not _expired(entry, now_ms, expiration_ms)
        }
        self._ended.clear()
        opened = (entry for entry in entries if entry.current_transaction_first_offset >= 0)
        self.ongoing = {
            entry.current_transaction_first_offset: entry.producer_id
            for entry in sorted(opened, key=lambda entry: entry.current_transaction_first_offset)
        }

    def remove_expired(self, now_ms: int, expiration_ms: int) -> None:
        """Remove producers that have been silent for `expiration_ms` and have no open transaction."""
        expired = [
            producer_id
            for producer_id, entry in self.entries.items()
            if _expired(entry, now_ms, expiration_ms)
        ]
        for producer_id in expired:
            del self.entries[producer_id]


def _expired(entry: ProducerEntry, now_ms: int, expiration_ms: int) -> bool:
    return entry.current_transaction_first_offset < 0 and now_ms - entry.last_timestamp >= expiration_ms
