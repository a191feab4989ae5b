"""`broker.transactions`: the transactional ids of a test broker, and what can be made to happen to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.broker.transactions.state import ENDING, TransactionState
from barnabas.controller.operations.internal_topics import TRANSACTION_STATE_TOPIC
from barnabas.testing.contents import services_of
from barnabas.testing.operations import LOOK_AGAIN_S, RequestFailed, when
from barnabas.testing.steering.groups import Coordinators
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator, Sequence

    from barnabas.broker.transactions.shard import TransactionShard
    from barnabas.broker.transactions.transaction import Transaction
    from barnabas.testing.broker_loop import BrokerLoop
    from barnabas.testing.broker_node import BrokerNode
    from barnabas.testing.clock import BrokerClock
    from barnabas.testing.faults.engine import Faults
    from barnabas.testing.faults.rules import Rule
    from barnabas.testing.operations import Done

WRITE_TXN_MARKERS: Final = 27
BROKERS: Final = "broker-*"  # the client ids of requests between brokers


class UnknownTransactionalId(LookupError):
    """No producer has used this transactional id, or it has expired."""


class TransactionInfo(msgspec.Struct, frozen=True):
    """A transactional id as its coordinator has it. `state` is Kafka's name, such as Ongoing, PrepareCommit or CompleteAbort;
    `partitions` are those of the open transaction, or those without a marker of one that is ending."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    partitions: tuple[tuple[str, int], ...]
    start_ms: int  # of the last transaction, since the epoch; -1 before the first
    coordinator: int  # its node

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open, or is ending and not all its markers are written."""
        return self.state in _OPEN


_OPEN: Final = frozenset(state.label for state in (TransactionState.ONGOING, *ENDING))

COORDINATORS: Final[Coordinators[TransactionShard]] = Coordinators(
    TRANSACTION_STATE_TOPIC,
    lambda services: services.transactions.shards,
    UnknownTransactionalId,
    "transactional id",
)


class Transactions:
    """See the module. Its iteration gives all transactional ids, by name; those that are being loaded are left out."""

    def __init__(
        self, nodes: Sequence[BrokerNode], loop: BrokerLoop, faults: Faults, clock: BrokerClock
    ) -> None:
        self._nodes = nodes
        self._loop = loop
        self._faults = faults
        self._clock = clock

    # -- what there is

    def __iter__(self) -> Iterator[TransactionInfo]:
        return iter(self._loop.call(lambda: _all(self._nodes)))

    def open(self) -> list[TransactionInfo]:
        """Those with an open or an ending transaction."""
        return [each for each in self if each.is_open]

    def get(self, transactional_id: str) -> TransactionInfo | None:
        """None where no coordinator knows the id."""
        return next((each for each in self if each.transactional_id == transactional_id), None)

    # -- ends

    def abort(self, transactional_id: str) -> Awaitable[None]:
        """Abort the open transaction as its timeout does: its producer is fenced. Done when all markers are written, or as soon as
        the end is decided while a rule is about them. UnknownTransactionalId, ValueError where none is open."""
        return self._loop.perform(lambda done: self._abort(transactional_id, done))

    def fence(self, transactional_id: str) -> Awaitable[None]:
        """Fence the producer, as Admin.fenceProducers and another producer with the id do; an open transaction is aborted. Done as
        in `abort`. UnknownTransactionalId."""
        return self._loop.perform(lambda done: self._fence(transactional_id, done))

    def time_out(self, transactional_id: str) -> Awaitable[None]:
        """Advance the broker's clock until the coordinator has aborted the open transaction for its timeout.
        UnknownTransactionalId, ValueError where none is open."""
        return self._clock.advance(self._loop.call(lambda: self._seconds_left(transactional_id)))

    def hold_markers(self, topic: str | None = None, partition: int | None = None) -> Rule:
        """Hold the markers of transactions that end from now on, of all partitions or of these, until `release()` of the rule:
        the ends are decided, and readers of what is committed wait."""
        held = self._faults.on("WriteTxnMarkers", topic=topic, partition=partition, client_id=BROKERS)
        return held.hold()

    # -- coordinators

    def coordinator(self, transactional_id: str) -> int:
        """The node that coordinates the id. UnknownTransactionalId while there has been none at all."""
        return self._loop.call(lambda: COORDINATORS.node_of(self._nodes, transactional_id))

    def move_coordinator(self, transactional_id: str, node: int | None = None) -> Awaitable[None]:
        """Move the coordinator to another node; the old one answers NOT_COORDINATOR. ValueError, UnknownTransactionalId."""
        return self._loop.perform(lambda done: COORDINATORS.move(self._nodes, transactional_id, node, done))

    def load_coordinator(self, transactional_id: str, seconds: float | None = None) -> None:
        """Have it answer COORDINATOR_LOAD_IN_PROGRESS for so long, until `coordinator_loaded`, or until it moves."""
        self._loop.call(lambda: COORDINATORS.load(self._nodes, transactional_id, seconds))

    def coordinator_loaded(self, transactional_id: str) -> None:
        """Have it serve its transactional ids again."""
        self._loop.call(lambda: COORDINATORS.loaded(self._nodes, transactional_id))

    # -- on the loop

    def _abort(self, transactional_id: str, done: Done) -> None:
        shard, transaction = _find(self._nodes, transactional_id)
        if transaction.state != TransactionState.ONGOING or transaction.pending is not None:
            raise _nothing_open(transaction)

        def decided(error: ErrorCode) -> None:
            if error:
                done(RequestFailed(error, f"the abort of {transactional_id!r}"))
            elif self._markers_are_steered():
                done(None)
            else:
                when(self._nodes, lambda: _has_ended(self._nodes, transactional_id), lambda: done(None), done)

        shard.abort(transaction, decided)

    def _fence(self, transactional_id: str, done: Done) -> None:
        _, transaction = _find(self._nodes, transactional_id)
        coordinator = COORDINATORS.services_of(self._nodes, transactional_id).transactions
        epoch = transaction.data.producer_epoch

        def answered(error: ErrorCode, _producer_id: int, _producer_epoch: int) -> None:
            if error == ErrorCode.CONCURRENT_TRANSACTIONS:
                is_fenced = transaction.data.producer_epoch != epoch
                if is_fenced and self._markers_are_steered():
                    done(None)
                else:
                    self._nodes[0].loop.call_later(LOOK_AGAIN_S, initialize)
            else:
                done(RequestFailed(error, f"the fence of {transactional_id!r}") if error else None)

        def initialize() -> None:
            coordinator.initialize(
                transactional_id, transaction.data.timeout_ms, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, answered
            )

        initialize()

    def _seconds_left(self, transactional_id: str) -> float:
        _, transaction = _find(self._nodes, transactional_id)
        data = transaction.data
        if data.state != TransactionState.ONGOING:
            raise _nothing_open(transaction)
        services = COORDINATORS.services_of(self._nodes, transactional_id)
        left_ms = max(0, data.start_timestamp + data.timeout_ms - services.runtime.time_ms())
        interval_ms = services.config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        return (left_ms + interval_ms) / 1000 + _MARKERS_S

    def _markers_are_steered(self) -> bool:
        return any(rule.conditions.api_key == WRITE_TXN_MARKERS for rule in self._faults.rules)


_MARKERS_S: Final = 0.5  # for the abort and its markers


def _all(nodes: Sequence[BrokerNode]) -> list[TransactionInfo]:
    found = [
        _info(transaction, services.node_id)
        for services in services_of(nodes)
        for shard in services.transactions.shards.loaded()
        for transaction in shard.transactions.values()
    ]
    return sorted(found, key=lambda each: each.transactional_id)


def _info(transaction: Transaction, node_id: int) -> TransactionInfo:
    data = transaction.data
    return TransactionInfo(
        transactional_id=transaction.transactional_id,
        state=data.state.label,
        producer_id=data.producer_id,
        producer_epoch=data.producer_epoch,
        timeout_ms=data.timeout_ms,
        partitions=tuple(sorted(data.partitions)),
        start_ms=data.start_timestamp,
        coordinator=node_id,
    )


def _find(nodes: Sequence[BrokerNode], transactional_id: str) -> tuple[TransactionShard, Transaction]:
    shard = COORDINATORS.shard_of(nodes, transactional_id)
    transaction = None if shard is None else shard.transactions.get(transactional_id)
    if shard is None or transaction is None:
        raise UnknownTransactionalId(f"there is no transactional id {transactional_id!r}")
    return shard, transaction


def _has_ended(nodes: Sequence[BrokerNode], transactional_id: str) -> bool:
    _, transaction = _find(nodes, transactional_id)
    return transaction.pending is None and transaction.state not in (TransactionState.ONGOING, *ENDING)


def _nothing_open(transaction: Transaction) -> ValueError:
    pending = "" if transaction.pending is None else f", on its way to {transaction.pending.state.label}"
    return ValueError(
        f"{transaction.transactional_id!r} has no open transaction: it is {transaction.state.label}{pending}"
    )
