"""The decisions about one transactional id: pure functions of its state, without I/O.

A decision is a `Transition`, the data to append to the log; an ErrorCode to answer; or an `Accepted`, the answer to a request
that changes nothing. A transition is pending from the decision until its append has ended: meanwhile all requests except
verification get CONCURRENT_TRANSACTIONS. It is applied when it is committed, and dropped when the append fails.

Versions: a client of transaction.version 0 or 1 keeps its epoch from one transaction to the next. With version 2 (KIP-890)
each end raises the epoch, so that a late write of the last transaction is recognized; a request that carries the epoch before
the present one is a retry of the end. Epoch 32767 is never given to a client: a fence needs it to abort.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import msgspec

from barnabas.broker.transactions.state import ENDING, IDLE, PREDECESSORS, TransactionState
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import MAX_PRODUCER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID

if TYPE_CHECKING:
    from barnabas.controller.metadata.image import MetadataImage

LAST_CLIENT_EPOCH: Final = 32766
NO_TIMESTAMP: Final = -1
EPOCH_BUMP_LEVEL: Final = 2  # the transaction.version since which each end raises the epoch
NO_TIMEOUT_MS: Final = 2**31 - 1  # a two-phase commit's, which never times out (KIP-939)

TopicPartition = tuple[str, int]


def transaction_version(image: MetadataImage) -> int:
    """The finalized level of the feature transaction.version; 0 when it is not finalized."""
    return image.features.get("transaction.version", 0)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Topics and their partitions, both in order."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return topics


_S = TransactionState
_E = ErrorCode


class Transition(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a transactional id after a change. `last_producer_epoch` and `is_fence` do not stand in the log."""

    producer_id: int
    previous_producer_id: int = NO_PRODUCER_ID  # before the last transition
    next_producer_id: int = NO_PRODUCER_ID  # of the next transaction, when this one uses up the epochs
    producer_epoch: int
    last_producer_epoch: int = NO_PRODUCER_EPOCH  # whose holder may repeat InitProducerId; -1 after a load
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition] = frozenset()
    start_timestamp: int = NO_TIMESTAMP
    last_update_timestamp: int
    client_transaction_version: int = 0  # 0 or 2
    is_fence: bool = False  # the coordinator aborts, not the producer

    @property
    def next_identity(self) -> tuple[int, int]:
        """(producer id, epoch) of the next transaction, once this one is ended."""
        if self.client_transaction_version >= EPOCH_BUMP_LEVEL and self.next_producer_id != NO_PRODUCER_ID:
            return self.next_producer_id, 0
        return self.producer_id, self.producer_epoch


class Accepted(msgspec.Struct, frozen=True):
    """NONE is answered, and nothing changes."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class NeedsProducerId:
    """The request can be decided only with a new producer id: allocate one and decide again."""


NEEDS_PRODUCER_ID: Final = NeedsProducerId()
ACCEPTED: Final = Accepted()

EndDecision = Transition | Accepted | NeedsProducerId | ErrorCode


class _End(Enum):
    """Outcomes of EndTxn that write something."""

    PREPARE = "the transaction ends"
    EMPTY_ABORT = "nothing was sent: an abort that only raises the epoch"


_Outcome = _End | ErrorCode

# Outcomes of EndTxn 0-4 by state: (of a commit, of an abort). The epoch equals the stored one.
_END: Final[dict[TransactionState, tuple[_Outcome, _Outcome]]] = {
    _S.EMPTY: (_E.INVALID_TXN_STATE, _E.INVALID_TXN_STATE),
    _S.ONGOING: (_End.PREPARE, _End.PREPARE),
    _S.PREPARE_COMMIT: (_E.CONCURRENT_TRANSACTIONS, _E.INVALID_TXN_STATE),
    _S.PREPARE_ABORT: (_E.INVALID_TXN_STATE, _E.CONCURRENT_TRANSACTIONS),
    _S.COMPLETE_COMMIT: (_E.NONE, _E.INVALID_TXN_STATE),
    _S.COMPLETE_ABORT: (_E.INVALID_TXN_STATE, _E.NONE),
}


class _Sender(Enum):
    """What the epoch of an EndTxn 5 says about the request."""

    CURRENT = "the holder of the stored epoch"
    RETRY = "an end that has raised the epoch is repeated"
    OVERFLOW_RETRY = "an end that has changed the producer id is repeated"
    OTHER = "a fenced producer"


# Outcomes of EndTxn 5 by state and sender; PRODUCER_FENCED where there is no entry.
_END_BUMPING: Final[dict[tuple[TransactionState, _Sender], tuple[_Outcome, _Outcome]]] = {
    (_S.EMPTY, _Sender.CURRENT): (_E.INVALID_TXN_STATE, _End.EMPTY_ABORT),
    (_S.ONGOING, _Sender.CURRENT): (_End.PREPARE, _End.PREPARE),
    (_S.PREPARE_COMMIT, _Sender.RETRY): (_E.CONCURRENT_TRANSACTIONS, _E.INVALID_TXN_STATE),
    (_S.PREPARE_ABORT, _Sender.RETRY): (_E.INVALID_TXN_STATE, _E.CONCURRENT_TRANSACTIONS),
    (_S.COMPLETE_COMMIT, _Sender.CURRENT): (_E.INVALID_TXN_STATE, _End.EMPTY_ABORT),
    (_S.COMPLETE_COMMIT, _Sender.RETRY): (_E.NONE, _E.INVALID_TXN_STATE),
    (_S.COMPLETE_COMMIT, _Sender.OVERFLOW_RETRY): (_E.NONE, _E.INVALID_TXN_STATE),
    (_S.COMPLETE_ABORT, _Sender.CURRENT): (_E.INVALID_TXN_STATE, _End.EMPTY_ABORT),
    (_S.COMPLETE_ABORT, _Sender.RETRY): (_E.INVALID_TXN_STATE, _E.NONE),
    (_S.COMPLETE_ABORT, _Sender.OVERFLOW_RETRY): (_E.INVALID_TXN_STATE, _E.NONE),
}


class Transaction:
    """One transactional id. The decisions change nothing; `begin`, `apply` and `drop` do."""

    __slots__ = ("data", "has_failed_epoch_fence", "pending", "transactional_id")

    def __init__(self, transactional_id: str, data: Transition) -> None:
        self.transactional_id = transactional_id
        self.data = data
        self.pending: Transition | None = None
        self.has_failed_epoch_fence = False  # the stored epoch is raised already, but not in the log

    @classmethod
    def new(cls, transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
        """An id that is not in the log yet: its first InitProducerId raises the epoch to 0."""
        data = Transition(
            producer_id=producer_id,
            producer_epoch=NO_PRODUCER_EPOCH,
            timeout_ms=timeout_ms,
            state=_S.EMPTY,
            last_update_timestamp=now_ms,
        )
        return cls(transactional_id, data)

    @property
    def state(self) -> TransactionState:
        return self.data.state

    # -- InitProducerId

    def initialize(
        self,
        *,
        timeout_ms: int,
        producer_id: int,
        producer_epoch: int,
        now_ms: int,
        transaction_version: int,
        new_producer_id: int | None = None,
    ) -> Transition | NeedsProducerId | ErrorCode:
        """`producer_id` and `producer_epoch` are -1 if the producer has none. A transition to PREPARE_ABORT is a fence of an
        open transaction: CONCURRENT_TRANSACTIONS is answered, and the client's next attempt gets an epoch."""
        data = self.data
        is_given = producer_id != NO_PRODUCER_ID
        if self.pending is not None:
            return _E.CONCURRENT_TRANSACTIONS
        if is_given and not self._may_initialize(producer_id, producer_epoch):
            return _E.PRODUCER_FENCED
        if data.state in ENDING:
            return _E.CONCURRENT_TRANSACTIONS
        if data.state == _S.ONGOING:
            return self.fence(now_ms, transaction_version)
        if data.producer_epoch >= LAST_CLIENT_EPOCH and (
            not is_given
            or producer_epoch == data.producer_epoch
            # The fence of the last client epoch has used epoch 32767, which no client gets.
            or (data.producer_epoch > LAST_CLIENT_EPOCH and producer_epoch == data.last_producer_epoch)
        ):
            if new_producer_id is None:
                return NEEDS_PRODUCER_ID
            next_id, epoch = new_producer_id, 0
            last_epoch = producer_epoch if is_given else NO_PRODUCER_EPOCH
        elif not is_given or data.producer_epoch in (NO_PRODUCER_EPOCH, producer_epoch):
            # Without an epoch in the request the last one is forgotten: its holder is fenced and may not retry.
            next_id, epoch = data.producer_id, data.producer_epoch + 1
            last_epoch = data.producer_epoch if is_given else NO_PRODUCER_EPOCH
        elif producer_epoch == data.last_producer_epoch:
            next_id, epoch, last_epoch = data.producer_id, data.producer_epoch, data.last_producer_epoch
        else:
            return _E.PRODUCER_FENCED
        return self._transition(
            _S.EMPTY,
            producer_id=next_id,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_timestamp=NO_TIMESTAMP,
            last_update_timestamp=now_ms,
        )

    def _may_initialize(self, producer_id: int, producer_epoch: int) -> bool:
        data = self.data
        return (
            data.producer_epoch == NO_PRODUCER_EPOCH
            or producer_id == data.producer_id
            or (producer_id == data.previous_producer_id and producer_epoch >= LAST_CLIENT_EPOCH)
        )

    # -- AddPartitionsToTxn

    def add_partitions(
        self,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
        *,
        supports_epoch_bump: bool,
        now_ms: int,
    ) -> Transition | Accepted | ErrorCode:
        """Add partitions to the open transaction, or begin one."""
        data = self.data
        if self.pending is not None:  # before all others: the client may use the pending producer id already
            return _E.CONCURRENT_TRANSACTIONS
        error = self._check_participant(producer_id, producer_epoch)
        if error:
            return error
        all_partitions = data.partitions.union(partitions)
        if data.state == _S.ONGOING and all_partitions == data.partitions:
            return ACCEPTED
        return self._transition(
            _S.ONGOING,
            partitions=all_partitions,
            start_timestamp=now_ms if data.state in IDLE else data.start_timestamp,
            last_update_timestamp=now_ms,
            client_transaction_version=EPOCH_BUMP_LEVEL if supports_epoch_bump else 0,
        )

    def verify_partitions(
        self, producer_id: int, producer_epoch: int, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Whether the partitions are in the open transaction. A pending transition does not count: the partition is checked
        again when the batch is appended."""
        error = self._check_participant(producer_id, producer_epoch)
        if error:
            return dict.fromkeys(partitions, error)
        present = self.data.partitions
        return {each: _E.NONE if each in present else _E.TRANSACTION_ABORTABLE for each in partitions}

    def _check_participant(self, producer_id: int, producer_epoch: int) -> ErrorCode:
        data = self.data
        if producer_id != data.producer_id:
            return _E.INVALID_PRODUCER_ID_MAPPING
        if producer_epoch != data.producer_epoch:
            return _E.PRODUCER_FENCED
        return _E.CONCURRENT_TRANSACTIONS if data.state in ENDING else _E.NONE

    # -- EndTxn

    def end(
        self, producer_id: int, producer_epoch: int, *, commit: bool, now_ms: int
    ) -> Transition | Accepted | ErrorCode:
        """EndTxn 0-4: the epoch stays."""
        data = self.data
        if producer_id != data.producer_id:
            return _E.INVALID_PRODUCER_ID_MAPPING
        if producer_epoch != data.producer_epoch:
            return _E.PRODUCER_FENCED
        if self.pending is not None:
            return _E.CONCURRENT_TRANSACTIONS
        outcome = _END[data.state][not commit]
        if isinstance(outcome, ErrorCode):
            return outcome or ACCEPTED
        return self._prepare(commit=commit, now_ms=now_ms)

    def end_bumping(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        now_ms: int,
        new_producer_id: int | None = None,
    ) -> EndDecision:
        """EndTxn 5: the epoch is raised, or the producer id changes when there is no higher epoch."""
        data = self.data
        if self.pending is not None:  # before all others: the client may use the pending producer id already
            return _E.CONCURRENT_TRANSACTIONS
        sender = self._sender(producer_id, producer_epoch)
        if producer_id != data.producer_id and sender != _Sender.OVERFLOW_RETRY:
            return _E.INVALID_PRODUCER_ID_MAPPING
        outcomes = _END_BUMPING.get((data.state, sender))
        if outcomes is None:
            return _E.PRODUCER_FENCED
        outcome = outcomes[not commit]
        if isinstance(outcome, ErrorCode):
            if not outcome and data.producer_epoch == MAX_PRODUCER_EPOCH:
                # A fence has aborted the transaction: an end would have changed the producer id. Kafka gives the epoch to the
                # fenced client, which no fence can follow.
                return _E.PRODUCER_FENCED
            return outcome or Accepted(data.producer_id, data.producer_epoch)
        if data.producer_epoch < LAST_CLIENT_EPOCH:
            new_producer_id = NO_PRODUCER_ID
        elif new_producer_id is None:
            return NEEDS_PRODUCER_ID
        return self._prepare_bumping(
            commit=commit,
            now_ms=now_ms,
            next_producer_id=new_producer_id,
            start_timestamp=now_ms if outcome == _End.EMPTY_ABORT else data.start_timestamp,
        )

    def _sender(self, producer_id: int, producer_epoch: int) -> _Sender:
        data = self.data
        # Kafka does not look at the version of the last end. One of version 0 or 1 has not raised the epoch: InitProducerId has, and
        # what has the epoch before it is fenced. Taken for a repetition it would get the epoch of its successor.
        has_raised = data.client_transaction_version >= EPOCH_BUMP_LEVEL
        if has_raised and producer_epoch + 1 == data.producer_epoch:
            return _Sender.RETRY
        if (producer_id, producer_epoch, data.producer_epoch) == (
            data.previous_producer_id,
            LAST_CLIENT_EPOCH,
            0,
        ):
            return _Sender.OVERFLOW_RETRY
        return _Sender.CURRENT if producer_epoch == data.producer_epoch else _Sender.OTHER

    def _prepare(self, *, commit: bool, now_ms: int) -> Transition:
        return self._transition(
            _S.PREPARE_COMMIT if commit else _S.PREPARE_ABORT,
            next_producer_id=NO_PRODUCER_ID,
            last_update_timestamp=now_ms,
            client_transaction_version=0,
        )

    def _prepare_bumping(
        self,
        *,
        commit: bool,
        now_ms: int,
        next_producer_id: int,
        start_timestamp: int,
        is_fence: bool = False,
    ) -> Transition:
        data = self.data
        return self._transition(
            _S.PREPARE_COMMIT if commit else _S.PREPARE_ABORT,
            is_fence=is_fence,
            producer_epoch=min(data.producer_epoch + 1, MAX_PRODUCER_EPOCH),
            last_producer_epoch=data.producer_epoch,
            next_producer_id=next_producer_id,
            start_timestamp=start_timestamp,
            last_update_timestamp=now_ms,
            client_transaction_version=EPOCH_BUMP_LEVEL,
        )

    # -- fences, completion, expiry

    def fence(self, now_ms: int, transaction_version: int) -> Transition:
        """Abort the open transaction at a higher epoch, as InitProducerId and the timeout do; `transaction_version` is the
        finalized one."""
        assert self.state == _S.ONGOING
        assert self.pending is None
        # A fence of an earlier version that has failed has raised the epoch already.
        if transaction_version >= EPOCH_BUMP_LEVEL and not self.has_failed_epoch_fence:
            return self._prepare_bumping(
                commit=False,
                now_ms=now_ms,
                next_producer_id=NO_PRODUCER_ID,
                start_timestamp=self.data.start_timestamp,
                is_fence=True,
            )
        epoch = self.data.producer_epoch + (not self.has_failed_epoch_fence)
        return self._transition(
            _S.PREPARE_ABORT,
            is_fence=True,
            producer_epoch=min(epoch, MAX_PRODUCER_EPOCH),
            last_producer_epoch=NO_PRODUCER_EPOCH,
            next_producer_id=NO_PRODUCER_ID,
            last_update_timestamp=now_ms,
            client_transaction_version=0,
        )

    def complete(self, now_ms: int) -> Transition:
        """The end of a prepared transaction, to be written when all its markers are."""
        data = self.data
        producer_id, epoch = data.next_identity
        return self._transition(
            _S.COMPLETE_COMMIT if data.state == _S.PREPARE_COMMIT else _S.COMPLETE_ABORT,
            producer_id=producer_id,
            producer_epoch=epoch,
            next_producer_id=NO_PRODUCER_ID,
            partitions=frozenset(),
            last_update_timestamp=now_ms,
        )

    def expire(self) -> Transition:
        """The removal of the id; it is written as a tombstone."""
        return self._transition(_S.DEAD, partitions=frozenset())

    def is_timed_out(self, now_ms: int) -> bool:
        """Whether the open transaction takes longer than its timeout."""
        data = self.data
        return (
            data.state == _S.ONGOING
            and self.pending is None
            and data.timeout_ms != NO_TIMEOUT_MS
            and data.start_timestamp + data.timeout_ms < now_ms
        )

    def is_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Whether the id has not been used for so long that it is removed."""
        data = self.data
        return (
            data.state in IDLE
            and self.pending is None
            and data.last_update_timestamp <= now_ms - expiration_ms
        )

    # -- changes

    def begin(self, transition: Transition) -> None:
        """The transition is pending from now on."""
        assert self.pending is None
        self.pending = transition
        if transition.is_fence and transition.client_transaction_version < EPOCH_BUMP_LEVEL:
            # As in Kafka the producer is fenced whether or not the append succeeds.
            self.data = msgspec.structs.replace(
                self.data, producer_epoch=transition.producer_epoch, last_producer_epoch=NO_PRODUCER_EPOCH
            )

    def apply(self) -> Transition:
        """The pending transition is committed."""
        transition = self._end_pending()
        if transition.state in ENDING:
            self.has_failed_epoch_fence = False
        self.data = transition
        return transition

    def drop(self) -> None:
        """The append of the pending transition has failed."""
        transition = self._end_pending()
        if transition.is_fence and transition.client_transaction_version < EPOCH_BUMP_LEVEL:
            self.has_failed_epoch_fence = True

    def remove_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """The markers of these partitions are written."""
        assert self.state in ENDING
        self.data = msgspec.structs.replace(self.data, partitions=self.data.partitions.difference(partitions))

    def _end_pending(self) -> Transition:
        transition, self.pending = self.pending, None
        assert transition is not None
        return transition

    def _transition(self, state: TransactionState, *, is_fence: bool = False, **changes: Any) -> Transition:
        """The data after a change; an unlisted transition is a programming error."""
        data = self.data
        assert data.state in PREDECESSORS[state], (
            f"{self.transactional_id}: {data.state.label} to {state.label}"
        )
        changed = msgspec.structs.replace(
            data, state=state, previous_producer_id=data.producer_id, is_fence=is_fence, **changes
        )
        assert changed.producer_epoch >= 0 or state == _S.DEAD
        return changed
