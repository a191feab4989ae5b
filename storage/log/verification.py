"""The transactions of one partition that are being verified (KIP-890).

Before the first batch of a transaction is appended, the broker asks the transaction coordinator whether the partition belongs
to it. `begin` makes the producer's Verification, and the append has to bring it back. It is gone when a marker was appended in
between: then the coordinator's answer is of a transaction that has ended, and the batch is refused. Until the first batch is
appended, it also holds back batches that follow one which is still being verified.

A client may name any producer id, and the coordinator refuses most of them. So a Verification is dropped when it is refused and
no other batch waits for an answer, and one whose batch waits never makes room for that of another.

Nothing of this is in the log: a restart forgets it, and the producer sends its batch again.
"""

from __future__ import annotations

from typing import Final

import msgspec

from barnabas.storage.errors import StorageError
from barnabas.storage.log.producers import ProducerEntry
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import NO_PRODUCER_EPOCH, NO_SEQUENCE, TRANSACTIONAL_FLAG, BatchHeader

ENTRIES_MAX: Final = 10_000  # of one partition
# What has been waiting for longer than this and than WAIT_ANSWERS answers makes room: an answer may be behind another that takes as
# long.
WAIT_MS_MAX: Final = 120_000
WAIT_ANSWERS: Final = 4
REQUEST_TIMEOUT_MS: Final = 30_000  # the default of request.timeout.ms: the longest time of an answer


class Verification(msgspec.Struct, eq=False):
    """A transaction of one producer that is being verified; it equals only itself."""

    producer_epoch: int
    lowest_sequence: int
    supports_epoch_bump: bool  # transaction.version 2
    began_ms: int
    until_ms: int = -1  # by then the last batch that waits has an answer
    waiting: int = 0  # batches that are neither refused nor appended

    def _asked_again(self, producer_epoch: int, base_sequence: int) -> None:
        if producer_epoch > self.producer_epoch:
            self.producer_epoch = producer_epoch
            self.lowest_sequence = base_sequence
        elif producer_epoch == self.producer_epoch and base_sequence < self.lowest_sequence:
            self.lowest_sequence = base_sequence


# For an append while transaction.partition.verification.enable is false.
VERIFICATION_OFF: Final = Verification(NO_PRODUCER_EPOCH, NO_SEQUENCE, False, -1)


class Verifications:
    """At most one for each producer id, and ENTRIES_MAX of all."""

    __slots__ = ("_idle", "_partition", "entries")

    def __init__(self, partition: str) -> None:
        self._partition = partition
        self.entries: dict[int, Verification] = {}  # the one that was asked about last is the last
        self._idle: dict[int, None] = {}  # producer ids of those that no batch waits for, the oldest first

    def begin(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        supports_epoch_bump: bool,
        now_ms: int,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> Verification:
        """The producer's Verification, which covers a batch with this sequence from now on. NOT_ENOUGH_REPLICAS, which every
        producer repeats a batch after, when too many wait."""
        found = self.entries.get(producer_id)
        if found is None:
            if len(self.entries) >= ENTRIES_MAX:
                self._make_room(now_ms)
            found = Verification(producer_epoch, base_sequence, supports_epoch_bump, now_ms)
        else:
            found._asked_again(producer_epoch, base_sequence)
            self._remove(producer_id)
        found.until_ms = now_ms + max(WAIT_MS_MAX, WAIT_ANSWERS * request_timeout_ms)
        found.waiting += 1
        self.entries[producer_id] = found
        return found

    def _make_room(self, now_ms: int) -> None:
        oldest = next(iter(self._idle), None)
        if oldest is None:
            oldest = next(iter(self.entries))
            if now_ms < self.entries[oldest].until_ms:
                raise StorageError(
                    ErrorCode.NOT_ENOUGH_REPLICAS,
                    f"Too many transactions are being verified in {self._partition}",
                )
        self._remove(oldest)

    def _remove(self, producer_id: int) -> None:
        self.entries.pop(producer_id, None)
        self._idle.pop(producer_id, None)

    def failed(self, producer_id: int, verification: Verification, *, is_final: bool) -> None:
        """A batch that `begin` was called for has not been verified. `is_final`: its producer will not send it again. Otherwise
        batches behind it are held back still."""
        verification.waiting -= 1
        if verification.waiting or self.entries.get(producer_id) is not verification:
            return
        if is_final:
            self._remove(producer_id)
        else:
            self._idle[producer_id] = None

    def check(
        self,
        header: BatchHeader,
        offset: int,
        entry: ProducerEntry | None,
        verification: Verification | None,
        from_client: bool,
    ) -> None:
        """Whether a data batch that repeats no other may be appended, as far as the verification goes.

        Raises INVALID_PRODUCER_EPOCH for a fenced producer, INVALID_TXN_STATE for the first batch of a transaction that brings
        none or one that has ended, OUT_OF_ORDER_SEQUENCE_NUMBER for a batch behind one that is still missing.
        """
        known = self.entries.get(header.producer_id)
        if header.attributes & TRANSACTIONAL_FLAG and not is_open(entry, header.producer_epoch):
            check_epoch(entry, header.producer_id, header.producer_epoch)
            if verification is not VERIFICATION_OFF and (verification is None or verification is not known):
                raise StorageError(
                    ErrorCode.INVALID_TXN_STATE, "Record was not part of an ongoing transaction"
                )
        if known is None or not from_client:
            return
        if entry is not None and header.producer_epoch < entry.producer_epoch:
            return  # refused for its epoch
        at = f"for producer {header.producer_id} at offset {offset} in partition {self._partition}"
        sequence = header.base_sequence
        if known.supports_epoch_bump and sequence and (entry is None or not entry.batches):
            raise StorageError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Invalid sequence number {at}: {sequence} (incoming seq. number). Expected sequence 0 for "
                "transactions v2 idempotent producer with no existing state.",
            )
        if sequence > known.lowest_sequence:
            raise StorageError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Out of order sequence number {at}: {sequence} (incoming seq. number), "
                f"{known.lowest_sequence} (earliest seen sequence)",
            )

    def data_appended(self, producer_id: int) -> None:
        """A transactional batch is in the log: its transaction is open."""
        self._remove(producer_id)

    def marker_appended(self, producer_id: int, producer_epoch: int) -> None:
        """A marker is in the log. In version 2 the next transaction has the marker's epoch, and may be being verified already."""
        known = self.entries.get(producer_id)
        if known is not None and not (known.supports_epoch_bump and known.producer_epoch == producer_epoch):
            self._remove(producer_id)

    def remove_expired(self, now_ms: int, expiration_ms: int) -> None:
        """Remove those that began `expiration_ms` ago or longer."""
        for producer_id in [
            producer_id
            for producer_id, known in self.entries.items()
            if now_ms - known.began_ms >= expiration_ms
        ]:
            self._remove(producer_id)


def is_open(entry: ProducerEntry | None, producer_epoch: int) -> bool:
    """Whether the producer has an open transaction of this epoch."""
    return (
        entry is not None
        and entry.current_transaction_first_offset >= 0
        and entry.producer_epoch == producer_epoch
    )


def check_epoch(entry: ProducerEntry | None, producer_id: int, producer_epoch: int) -> None:
    """INVALID_PRODUCER_EPOCH for an epoch below the producer's."""
    if entry is not None and producer_epoch < entry.producer_epoch:
        raise StorageError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"Epoch of producer {producer_id} is {producer_epoch}, which is smaller than the last seen epoch "
            f"{entry.producer_epoch}",
        )
