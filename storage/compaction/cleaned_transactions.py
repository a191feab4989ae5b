"""Transactions during compaction: whose batches are removed, and which markers may be.

Batches of aborted transactions are removed at once. A marker stays until no batch of its transaction is left before
it, and then for delete.retention.ms more (KIP-534, batch_filter.py), so that a reader of the batches also reads the marker.
The aborted transactions of which batches are left make up the new `.txnindex`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from barnabas.storage.segment.transaction_index import AbortedTransaction
from barnabas.storage.segment.transaction_marker import ABORT, COMMIT
from barnabas.wire.record_batch import BatchHeader


class CleanedTransactions:
    """Follows the batches of one pass, in offset order, over several segments."""

    def __init__(self) -> None:
        self._retained: list[AbortedTransaction] = []
        self._ahead: list[tuple[int, int, AbortedTransaction]] = []  # a heap by first offset
        self._known: set[AbortedTransaction] = set()
        self._aborted: dict[int, AbortedTransaction] = {}  # producer -> the one it is in
        self._seen: set[int] = set()  # producers of `_aborted` with a batch
        self._committed: set[int] = set()

    def add_aborted(self, transactions: Iterable[AbortedTransaction]) -> None:
        """Add those that overlap the next segment; known ones are skipped."""
        for transaction in transactions:
            if transaction not in self._known:
                self._known.add(transaction)
                heapq.heappush(self._ahead, (transaction.first_offset, len(self._known), transaction))

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a data batch belongs to an aborted transaction."""
        self._take_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        producer_id = header.producer_id
        if producer_id in self._aborted:
            self._seen.add(producer_id)
            return True
        self._committed.add(producer_id)
        return False

    def marker_may_go(self, header: BatchHeader, marker: int | None) -> bool:
        """Whether the transaction that this marker ends has no batch left. `marker` is the control record's type, None for a
        control batch that an earlier cleaning has emptied."""
        self._take_up_to(header.last_offset)
        producer_id = header.producer_id
        if marker is None:
            return True
        if marker == ABORT:
            transaction = self._aborted.pop(producer_id, None)
            if transaction is not None and producer_id in self._seen:
                self._seen.discard(producer_id)
                self._retained.append(transaction)
                return False
            return True
        if marker == COMMIT:
            if producer_id in self._committed:
                self._committed.discard(producer_id)
                return False
            return True
        return False

    def take_retained(self) -> list[AbortedTransaction]:
        """The aborted transactions with batches left whose markers were read since the last call: the index of the segment
        that was written."""
        retained, self._retained = self._retained, []
        return retained

    def _take_up_to(self, offset: int) -> None:
        ahead = self._ahead
        while ahead and ahead[0][0] <= offset:
            transaction = heapq.heappop(ahead)[2]
            self._aborted.setdefault(transaction.producer_id, transaction)
