"""The transactional ids of one partition of __transaction_state.

A decision is pending from its append on, and applied when it is committed; only then its response leaves. Once the end of a
transaction is committed its completion is pending, as in Kafka, until all markers are written and the completion is, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.coordinator.compacted_records import CompactedRecords
from barnabas.broker.coordinator.record_encoding import UnknownRecord
from barnabas.broker.coordinator.shard_log import COMMITTED, ShardLog, coordinator_error
from barnabas.broker.coordinator.unknown_records import UnknownRecords
from barnabas.broker.transactions.records import TransactionRecord, decode_record, encode_batch
from barnabas.broker.transactions.state import ENDING, TransactionState
from barnabas.broker.transactions.transaction import (
    NEEDS_PRODUCER_ID,
    Accepted,
    NeedsProducerId,
    TopicPartition,
    Transaction,
    Transition,
)
from barnabas.runtime.backoff import Backoff
from barnabas.runtime.slices import in_slices
from barnabas.storage.errors import StorageError
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

if TYPE_CHECKING:
    from barnabas.broker.coordinator.log import CoordinatorLog
    from barnabas.broker.coordinator.shard_log import End
    from barnabas.broker.transactions.markers import TransactionMarkerSender
    from barnabas.runtime.interface import Runtime

log = logging.getLogger("barnabas.transactions")

Done = Callable[[ErrorCode], object]
DoneWithProducer = Callable[[ErrorCode, int, int], object]  # error, producer id, epoch; -1 and -1 on an error

RELEASED_AT_ONCE: Final = 100
EXPIRED_IDS_MAX: Final = 500  # in one batch of tombstones
EXPIRED_BYTES_MAX: Final = (
    1 << 18
)  # of their ids, so that the batch fits into any max.message.bytes that is usual
_APPEND_TIMEOUT_MS: Final = 30_000  # of tombstones; all others have the timeout of their transaction
_RETRY_FIRST_S: Final = 0.1
_RETRY_MAX_S: Final = 2.0
_COMPLETE: Final = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


class TransactionShard:
    """One partition of __transaction_state."""

    def __init__(
        self,
        index: int,
        coordinator_log: CoordinatorLog,
        runtime: Runtime,
        markers: TransactionMarkerSender,
        *,
        transaction_version: Callable[[], int],
        leader_epoch: Callable[[], int],
    ) -> None:
        """`transaction_version()`: the finalized one. `leader_epoch()`: the partition's, which is the coordinator's epoch."""
        self.index = index
        self.transactions: dict[str, Transaction] = {}
        self._ongoing: dict[Transaction, None] = {}  # those that may time out
        self._coordinator_log = coordinator_log
        self._runtime = runtime
        self._now_ms = runtime.time_ms
        self._markers = markers
        self._transaction_version = transaction_version
        self._leader_epoch = leader_epoch
        self._log: ShardLog[TransactionRecord] = ShardLog(
            coordinator_log,
            index,
            runtime,
            _APPEND_TIMEOUT_MS,
            lambda records, now_ms: encode_batch(records, now_ms, transaction_version()),
            self._replay,
        )
        self._to_complete: dict[Transaction, Backoff] = {}  # whose completion could not be appended

    # -- requests

    def initialize(
        self,
        transactional_id: str,
        timeout_ms: int,
        producer_id: int,
        producer_epoch: int,
        new_producer_id: int | None,
        done: DoneWithProducer,
    ) -> NeedsProducerId | None:
        """NEEDS_PRODUCER_ID: nothing is done; repeat it with a new producer id."""
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            if new_producer_id is None:
                return NEEDS_PRODUCER_ID
            transaction = Transaction.new(transactional_id, new_producer_id, timeout_ms, self._now_ms())
            self.transactions[transactional_id] = transaction
        decision = transaction.initialize(
            timeout_ms=timeout_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            now_ms=self._now_ms(),
            transaction_version=self._transaction_version(),
            new_producer_id=new_producer_id,
        )
        if isinstance(decision, NeedsProducerId):
            return decision
        if isinstance(decision, ErrorCode):
            done(decision, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
            return None

        def ended(error: ErrorCode) -> None:
            if not error and decision.is_fence:
                error = ErrorCode.CONCURRENT_TRANSACTIONS  # the client asks again
            if error:
                done(error, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
            else:
                done(error, decision.producer_id, decision.producer_epoch)

        self._write(transaction, decision, ended)
        return None

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        supports_epoch_bump: bool,
        done: Done,
    ) -> None:
        """AddPartitionsToTxn and AddOffsetsToTxn."""
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            done(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
            return
        decision = transaction.add_partitions(
            producer_id,
            producer_epoch,
            partitions,
            supports_epoch_bump=supports_epoch_bump,
            now_ms=self._now_ms(),
        )
        if isinstance(decision, ErrorCode):
            done(decision)
        elif isinstance(decision, Accepted):
            done(ErrorCode.NONE)
        else:
            self._write(transaction, decision, done)

    def verify_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
    ) -> dict[TopicPartition, ErrorCode]:
        """Whether each of the partitions is in the open transaction."""
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            return dict.fromkeys(partitions, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return transaction.verify_partitions(producer_id, producer_epoch, partitions)

    def end(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        bumps_epoch: bool,
        new_producer_id: int | None,
        done: DoneWithProducer,
    ) -> NeedsProducerId | None:
        """EndTxn; see `initialize` for NEEDS_PRODUCER_ID."""
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            done(ErrorCode.INVALID_PRODUCER_ID_MAPPING, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
            return None
        now_ms = self._now_ms()
        if bumps_epoch:
            decision = transaction.end_bumping(
                producer_id, producer_epoch, commit=commit, now_ms=now_ms, new_producer_id=new_producer_id
            )
        else:
            decision = transaction.end(producer_id, producer_epoch, commit=commit, now_ms=now_ms)
        if isinstance(decision, NeedsProducerId):
            return decision
        if isinstance(decision, ErrorCode):
            done(decision, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        elif isinstance(decision, Accepted):
            done(ErrorCode.NONE, decision.producer_id, decision.producer_epoch)
        else:
            producer = decision.next_identity if bumps_epoch else (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)

            def ended(error: ErrorCode) -> None:
                done(error, *((NO_PRODUCER_ID, NO_PRODUCER_EPOCH) if error else producer))

            self._write(transaction, decision, ended)
        return None

    # -- timeouts and expiry

    def abort_timed_out(self) -> Iterator[None]:
        """Abort the transactions that have been open for longer than their timeout, in steps."""
        for transaction in tuple(self._ongoing):
            if self._log.is_closed:
                return
            if transaction.is_timed_out(self._now_ms()):
                log.info(
                    "%.200r: the transaction of producer %d, epoch %d, is aborted: it is open for more than %d ms",
                    transaction.transactional_id,
                    transaction.data.producer_id,
                    transaction.data.producer_epoch,
                    transaction.data.timeout_ms,
                )
                self.abort(transaction, _ignore)
            yield

    def abort(self, transaction: Transaction, done: Done) -> None:
        """Abort the open transaction at a higher epoch, which fences its producer; `done(error)` when that is decided."""
        self._write(transaction, transaction.fence(self._now_ms(), self._transaction_version()), done)

    def expire(self, now_ms: int, expiration_ms: int) -> Iterator[None]:
        """Remove the ids that have not been used for so long, in steps."""
        expired: list[Transaction] = []
        byte_count = 0
        for transaction in tuple(self.transactions.values()):
            if transaction.is_expired(now_ms, expiration_ms):
                expired.append(transaction)
                byte_count += len(transaction.transactional_id.encode())
            if len(expired) == EXPIRED_IDS_MAX or byte_count > EXPIRED_BYTES_MAX:
                self._remove(expired, now_ms, expiration_ms)
                expired, byte_count = [], 0
            yield
        self._remove(expired, now_ms, expiration_ms)

    def _remove(self, transactions: list[Transaction], now_ms: int, expiration_ms: int) -> None:
        # An id may have been used since it was looked at.
        expired = [each for each in transactions if each.is_expired(now_ms, expiration_ms)]
        if self._log.is_closed or not expired:
            return
        log.info("%s: %d transactional ids expire", self._log.name, len(expired))
        for each in expired:
            each.begin(each.expire())
        self._append(expired, _APPEND_TIMEOUT_MS, _ignore)

    # -- changes

    def _write(self, transaction: Transaction, transition: Transition, done: Done) -> None:
        """Append the transition; `done(error)` when it is committed, or has failed."""
        transaction.begin(transition)
        self._append([transaction], transition.timeout_ms, done)

    def _append(self, transactions: Sequence[Transaction], timeout_ms: int, done: Done) -> None:
        """Append the pending transitions as one batch."""
        records = [_pending_record(each) for each in transactions]
        is_appending = True

        def ended(error: ErrorCode) -> None:
            if is_appending and error not in COMMITTED:  # it was not appended, and is not replayed
                for each in transactions:
                    self._failed(each)
            done(coordinator_error(error))

        self._log.append(records, ended, timeout_ms=timeout_ms)
        is_appending = False

    def _replay(self, record: TransactionRecord, append: int | None) -> End | None:
        """Of a record that was appended (see ShardLog): its transition is applied when it is committed."""
        transaction = self.transactions[record.transactional_id]
        if append is not None:
            return partial(self._ended, transaction)
        self._committed(transaction)
        return None

    def _ended(self, transaction: Transaction, is_committed: bool) -> None:
        if is_committed:
            self._committed(transaction)
        else:
            self._failed(transaction)

    def _committed(self, transaction: Transaction) -> None:
        state = transaction.apply().state
        self._to_complete.pop(transaction, None)
        if state == TransactionState.ONGOING:
            self._ongoing[transaction] = None
        else:
            self._ongoing.pop(transaction, None)
        if state in ENDING:
            self._write_markers(transaction)
        elif state == TransactionState.DEAD:
            del self.transactions[transaction.transactional_id]

    def _failed(self, transaction: Transaction) -> None:
        """The pending transition is not in the log."""
        assert transaction.pending is not None
        if transaction.pending.state in _COMPLETE:
            backoff = self._to_complete.get(transaction)
            if backoff is None:
                backoff = self._to_complete[transaction] = Backoff(
                    self._runtime, _RETRY_FIRST_S, _RETRY_MAX_S
                )
            self._runtime.call_later(backoff.next_s(), partial(self._complete, transaction))
            return
        transaction.drop()
        if transaction.data.producer_epoch == NO_PRODUCER_EPOCH:  # it never was in the log
            del self.transactions[transaction.transactional_id]

    # -- markers

    def _write_markers(self, transaction: Transaction) -> None:
        """The end of the transaction is committed: have it written to its partitions, then complete it."""
        data = transaction.data
        transaction.begin(transaction.complete(self._now_ms()))
        if not data.partitions:
            self._complete(transaction)
            return
        self._markers.send(
            self.index,
            self._leader_epoch(),
            transaction.transactional_id,
            data.producer_id,
            data.producer_epoch,
            commit=data.state == TransactionState.PREPARE_COMMIT,
            partitions=data.partitions,
            transaction_version=data.client_transaction_version,
            written=partial(self._markers_written, transaction),
            fenced=partial(self._fenced, transaction),
        )

    def _markers_written(self, transaction: Transaction, partitions: Collection[TopicPartition]) -> None:
        transaction.remove_partitions(partitions)
        if not transaction.data.partitions:
            self._complete(transaction)

    def _complete(self, transaction: Transaction) -> None:
        if not self._log.is_closed:
            self._append([transaction], transaction.data.timeout_ms, _ignore)

    def _fenced(self, transaction: Transaction) -> None:
        log.warning(
            "%.200r: a newer coordinator ends the transaction of producer %d, epoch %d: its markers are not sent any more",
            transaction.transactional_id,
            transaction.data.producer_id,
            transaction.data.producer_epoch,
        )

    @property
    def completions_to_retry(self) -> int:
        """How many ended transactions could not be written as complete so far."""
        return len(self._to_complete)

    # -- loading (CoordinatorShard)

    def load(self, done: Callable[[Exception | None], object]) -> None:
        """Rebuild the ids from the partition, then send the markers of transactions that were ending.

        It is loaded when all its records are committed: a marker must not be sent for an end that may be lost."""

        def replayed(error: Exception | None) -> None:
            if error is not None:
                done(error)
            else:
                self._coordinator_log.when_committed(self.index, committed)

        def committed(error: ErrorCode) -> None:
            if self._log.is_closed:
                return
            if error not in COMMITTED:
                done(StorageError(error, "its last records were not committed"))
                return
            done(None)
            in_slices(self._runtime, self._resume(), lambda: None)

        self._log.load(TransactionReplay(self._log.name, self._restore), replayed)

    def _restore(self, record: TransactionRecord) -> None:
        if record.data is None:
            self.transactions.pop(record.transactional_id, None)
            return
        transaction = Transaction(record.transactional_id, record.data)
        self.transactions[record.transactional_id] = transaction
        if transaction.state == TransactionState.ONGOING:
            self._ongoing[transaction] = None

    def _resume(self) -> Iterator[None]:
        for transaction in tuple(self.transactions.values()):
            if self._log.is_closed:
                return
            if transaction.state in ENDING and transaction.pending is None:
                self._write_markers(transaction)
            yield

    def unload(self) -> None:
        """Every request that waits gets NOT_COORDINATOR, nothing is appended any more, and no marker is sent."""
        self._markers.forget(self.index)
        self._log.close()
        in_slices(self._runtime, _release(self.transactions, self._ongoing), lambda: None)
        self.transactions, self._ongoing = {}, {}

    def summary(self) -> str:
        return f"{len(self.transactions)} transactional ids" if self.transactions else ""


class TransactionReplay(CompactedRecords):
    """Passes the last record of each transactional id to `apply`. As in Kafka, records of later versions are passed over."""

    def __init__(self, name: str, apply: Callable[[TransactionRecord], object]) -> None:
        super().__init__(name, self._decode)
        self._apply = apply
        self._unknown = UnknownRecords()

    def _decode(self, key: bytes | None, value: bytes | None) -> None:
        try:
            self._apply(decode_record(key, value))
        except UnknownRecord as error:
            self._unknown.count(error)

    def finish(self) -> Iterator[None]:
        """Replay, and warn of what could not be read."""
        yield from super().finish()
        self._unknown.warn(self.name)


def _pending_record(transaction: Transaction) -> TransactionRecord:
    pending = transaction.pending
    assert pending is not None
    is_removal = pending.state == TransactionState.DEAD
    return TransactionRecord(transaction.transactional_id, None if is_removal else pending)


def _release(*held: dict[Any, Any]) -> Iterator[None]:
    """Free the memory of very many ids, in steps."""
    for each in held:
        while each:
            for _ in range(min(len(each), RELEASED_AT_ONCE)):
                each.popitem()
            yield


def _ignore(_error: ErrorCode) -> None:
    """No request waits for it."""
