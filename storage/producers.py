"""Idempotent producers (KIP-98): the last batches of each, to tell the next from the duplicate and the lost.

Five batches are remembered, because a producer may have five requests in flight. The state is a function of
the batch headers in the log and is rebuilt from them.
"""

from __future__ import annotations

from collections import deque

import msgspec
from barnabas.storage.errors import StorageError
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import NO_PRODUCER_EPOCH, NO_SEQUENCE, BatchHeader

BATCHES_REMEMBERED = 5
MAX_SEQUENCE = 0x7FFFFFFF


class BatchMetadata(msgspec.Struct, gc=False):
    """What a duplicate is recognised by, and what its sender is answered."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int  # max timestamp of the batch, ms


class ProducerEntry(msgspec.Struct):
    """One producer id. The epoch is -1 until its first batch."""

    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    batches: deque[BatchMetadata] = msgspec.field(default_factory=deque)
    last_timestamp: int = -1
    coordinator_epoch: int = -1
    current_transaction_first_offset: int = -1

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else -1


class ProducerStateManager:
    """The producers of one partition."""

    __slots__ = ("_partition", "entries")

    def __init__(self, partition: str) -> None:
        self._partition = partition
        self.entries: dict[int, ProducerEntry] = {}

    def check(self, header: BatchHeader) -> BatchMetadata | None:
        """The earlier batch that `header` repeats, or None when it may be appended.

        Raises INVALID_PRODUCER_EPOCH for a fenced producer, OUT_OF_ORDER_SEQUENCE_NUMBER for a gap or a batch
        older than the five remembered.
        """
        entry = self.entries.get(header.producer_id)
        if entry is None:
            return None
        epoch = header.producer_epoch
        base_sequence = header.base_sequence
        if epoch == entry.producer_epoch:
            last_sequence = NO_SEQUENCE
            if entry.batches:
                last_sequence = entry.batches[-1].last_sequence
                wanted = header.last_sequence
                for batch in entry.batches:
                    if batch.base_sequence == base_sequence and batch.last_sequence == wanted:
                        return batch
            if base_sequence != (last_sequence + 1 if last_sequence != MAX_SEQUENCE else 0):
                raise StorageError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"Out of order sequence number for producer {header.producer_id} in partition "
                    f"{self._partition}: {base_sequence} (incoming seq. number), "
                    f"{last_sequence} (current end sequence number)",
                )
            return None
        if epoch < entry.producer_epoch:
            raise StorageError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Epoch of producer {header.producer_id} in {self._partition} is {epoch}, which is smaller "
                f"than the last seen epoch {entry.producer_epoch}",
            )
        if base_sequence != 0 and entry.producer_epoch != NO_PRODUCER_EPOCH:
            raise StorageError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Invalid sequence number for new epoch of producer {header.producer_id} in partition "
                f"{self._partition}: {epoch} (request epoch), {base_sequence} (seq. number), "
                f"{entry.producer_epoch} (current producer epoch)",
            )
        return None

    def update(self, header: BatchHeader) -> None:
        """A batch with a producer id now stands in the log at `header.base_offset`."""
        entry = self.entries.get(header.producer_id)
        if entry is None:
            entry = self.entries[header.producer_id] = ProducerEntry(header.producer_id)
        if entry.producer_epoch != header.producer_epoch:
            entry.producer_epoch = header.producer_epoch
            entry.batches.clear()
        entry.last_timestamp = header.max_timestamp
        if header.is_control:
            entry.current_transaction_first_offset = -1
            return
        if header.is_transactional and entry.current_transaction_first_offset < 0:
            entry.current_transaction_first_offset = header.base_offset
        if len(entry.batches) == BATCHES_REMEMBERED:
            entry.batches.popleft()
        entry.batches.append(
            BatchMetadata(
                header.base_sequence,
                header.last_sequence,
                header.base_offset,
                header.base_offset + header.last_offset_delta,
                header.max_timestamp,
            )
        )

    def remove_expired(self, now_ms: int, expiration_ms: int) -> None:
        """Forget producers that have been silent for `expiration_ms` and have no open transaction."""
        for producer_id, entry in list(self.entries.items()):
            if entry.current_transaction_first_offset < 0 and now_ms - entry.last_timestamp >= expiration_ms:
                del self.entries[producer_id]

    def clear(self) -> None:
        self.entries.clear()
