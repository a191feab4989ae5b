"""A holder of a transactional id: the requests of one simulated transactional producer.

A holder uses its id until it is fenced, crashes or gives up. It speaks the protocol of transaction.version 0 and 1 or that of 2,
as Kafka's Java client does, and reacts to errors as that one does. What it does goes into a TransactionHistory
(compat_tests/harness/transaction_history.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from barnabas.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from barnabas.wire.messages.end_txn import EndTxnRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from barnabas.wire.records import Record, build_batch
from compat_tests.harness.transaction_history import (
    ABORTED,
    COMMITTED,
    OPEN,
    UNKNOWN,
    Fence,
    Initialization,
    Transaction,
    TransactionHistory,
)
from compat_tests.simulation.coordinators import COORDINATOR_MOVED, GROUP, TRANSACTION, WAIT, Coordinators
from compat_tests.simulation.history import History, Partition, Violation
from compat_tests.simulation.late_requests import LateRequests
from compat_tests.simulation.producers import RETRIABLE as PRODUCE_RETRIABLE
from compat_tests.simulation.wire_client import Client, NoResponse

PRODUCE = 0
INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 22, 24, 25, 26, 28
OPERATION_S = 12.0  # after so long a holder gives up
E = ErrorCode

NEVER_PRODUCED = COORDINATOR_MOVED | {E.COORDINATOR_LOAD_IN_PROGRESS, E.NETWORK_EXCEPTION}
FENCED = frozenset({E.PRODUCER_FENCED, E.INVALID_PRODUCER_EPOCH, E.INVALID_PRODUCER_ID_MAPPING})
ABORTABLE = frozenset(
    {
        E.TRANSACTION_ABORTABLE,
        E.INVALID_TXN_STATE,
        E.OUT_OF_ORDER_SEQUENCE_NUMBER,
        E.UNKNOWN_PRODUCER_ID,
    }
)


class Fenced(Exception):
    """The holder may not go on."""


class Abortable(Exception):
    """The transaction must be aborted, and the producer initialized anew."""


class GaveUp(Exception):
    """An operation takes too long, or the holder crashes: another one follows it."""


class Holder:
    """One user of a transactional id. Every operation may raise Fenced or GaveUp."""

    def __init__(
        self,
        client: Client,
        history: History,
        transactions: TransactionHistory,
        transactional_id: str,
        holder: str,
        late: LateRequests,
        *,
        raises_epochs: bool,
    ) -> None:
        self.client = client
        self.late = late
        self.history = history
        self.transactions = transactions
        self.transactional_id = transactional_id
        self.name = holder
        self._raises_epochs = raises_epochs
        self._coordinators = Coordinators(client, history, lambda: True)
        self.identity = -1, -1
        self._sequences: dict[Partition, int] = {}
        self._added: set[Partition] = set()
        self._transaction: Transaction | None = None  # the last one
        self.timeout_ms = 0
        self._began_at = math.inf  # when the open transaction may have begun at its coordinator
        self._initialized_at = 0.0

    async def _repeat(
        self,
        what: str,
        ask: Callable[[], Any],
        error_of: Callable[[Any], int],
        *,
        kind: int = TRANSACTION,
        key: str = "",
        more: frozenset[ErrorCode] = frozenset(),
    ) -> Any:
        """An answer that is no retriable error; `more` are errors that the caller handles."""
        key = key or self.transactional_id
        give_up_at = self.client.now() + OPERATION_S
        while self.client.now() < give_up_at:
            api, version, request = ask()
            answer = await self._coordinators.ask(kind, key, api, version, request)
            if answer is None:
                continue
            error = E(error_of(answer))
            if error is E.NONE or error in more:
                return answer
            self.history.count(f"{what} {error.name}")
            if error in FENCED:
                self._note_fence(what, error)
                raise Fenced(error.name)
            if error in ABORTABLE:
                raise Abortable(error.name)
            if error not in WAIT:
                raise Violation(f"{self.name}: {what} failed with {error.name}")
            await self._coordinators.wait(kind, key, error)
        raise GaveUp(what)

    @property
    def may_end_empty(self) -> bool:
        """Whether a transaction without records can be aborted, which transaction.version 2 allows."""
        return self._raises_epochs

    async def initialize(self, timeout_ms: int) -> None:
        """Take over the id, or with an epoch already continue with the next one (KIP-360)."""
        asked_at = 0.0
        given = self.identity

        def ask() -> tuple[int, int, Any]:
            nonlocal asked_at
            if asked_at:  # what was asked before may arrive later
                self.transactions.takeovers.append(
                    (self.transactional_id, f"{self.name}, late", self.client.now())
                )
            asked_at = self.client.now()
            return INIT_PRODUCER_ID, 5, InitProducerIdRequest(self.transactional_id, timeout_ms, *given)

        if given[0] < 0:
            self.transactions.takeovers.append((self.transactional_id, self.name, self.client.now()))
        answer = await self._repeat("init", ask, lambda each: int(each.error_code))
        self.timeout_ms = timeout_ms
        self._continue_as((answer.producer_id, answer.producer_epoch), asked_at, takes_over=given[0] < 0)
        self.history.count("transactional ids initialized")

    async def abort(self, timeout_ms: int) -> None:
        """After an error in a transaction. Before transaction.version 2 its batches may still arrive, and the next epoch tells them
        from those of the next transaction (KIP-360); with version 2 the end raises the epoch."""
        transaction = self._transaction
        assert transaction is not None
        if transaction.outcome == OPEN and (self._raises_epochs or self._added):
            await self.end(transaction, commit=False)
        if not self._raises_epochs or transaction.ended_at == math.inf:
            await self.initialize(timeout_ms)

    def _note_fence(self, what: str, error: ErrorCode) -> None:
        """Not of InitProducerId: a coordinator that was loaded anew does not know the epoch that it repeats."""
        if what != "init":
            self.transactions.fences.append(
                Fence(
                    self.name,
                    self.transactional_id,
                    self.identity,
                    f"{what} {error.name}",
                    self._initialized_at,
                    self._began_at + self.timeout_ms / 1000,
                    self.client.now(),
                )
            )

    def _continue_as(self, identity: tuple[int, int], asked_at: float, *, takes_over: bool) -> None:
        self.identity = identity
        self._initialized_at = asked_at
        self._began_at = math.inf
        self._sequences.clear()
        self.transactions.initializations.append(
            Initialization(
                self.name, self.transactional_id, identity, asked_at, self.client.now(), takes_over=takes_over
            )
        )

    def begin(self) -> Transaction:
        self._added.clear()
        self._transaction = self.transactions.begin(
            self.name, self.transactional_id, self.identity, self.client.now()
        )
        return self._transaction

    async def send(self, transaction: Transaction, partition: Partition, values: list[bytes]) -> None:
        """One batch, to its acknowledgement."""
        await self._prepare(transaction, partition, values)
        sequence = self._sequences.get(partition, 0)
        await self._produce(self._request(partition, values, sequence), partition)
        self._added.add(partition)
        self._sequences[partition] = sequence + len(values)
        self.history.count("transactional batches")

    async def send_two(self, transaction: Transaction, partition: Partition, values: list[bytes]) -> None:
        """Two batches, of which the second is sent before the first is acknowledged; both again if one fails."""
        first, second = values[:1], values[1:]
        await self._prepare(transaction, partition, values)
        sequence = self._sequences.get(partition, 0)
        requests = [
            self._request(partition, first, sequence),
            self._request(partition, second, sequence + len(first)),
        ]
        address, _ = self.client.leader(*partition)
        if address is not None:
            try:
                await self.client.ask_all(address, PRODUCE, self._produce_version, requests)
            except NoResponse:
                pass
        for request in requests:
            await self._produce(request, partition)  # mostly a duplicate
        self._added.add(partition)
        self._sequences[partition] = sequence + len(values)
        self.history.count("pipelined transactional batches")

    async def send_late(self, transaction: Transaction, partition: Partition, values: list[bytes]) -> None:
        """One batch that is on its way still when the producer gives it up: the transaction can only be aborted."""
        await self._prepare(transaction, partition, values)
        request = self._request(partition, values, self._sequences.get(partition, 0))
        self.late.take(PRODUCE, self._produce_version, request, partition)

    async def _prepare(self, transaction: Transaction, partition: Partition, values: list[bytes]) -> None:
        self._began_at = min(self._began_at, self.client.now())
        for value in values:
            transaction.sends(partition, value)
        if not self._raises_epochs and partition not in self._added:
            await self._add(partition)

    @property
    def _produce_version(self) -> int:
        return 13 if self._raises_epochs else 11

    def _request(self, partition: Partition, values: list[bytes], sequence: int) -> ProduceRequest:
        topic = self.history.topic(partition[0])
        assert topic is not None
        now_ms = self.client.runtime.time_ms()
        data = build_batch(
            [Record(index, now_ms, None, value) for index, value in enumerate(values)],
            producer_id=self.identity[0],
            producer_epoch=self.identity[1],
            base_sequence=sequence,
            transactional=True,
        )
        return ProduceRequest(
            self.transactional_id,
            -1,
            2000,
            [TopicProduceData(topic.name, partition[0], [PartitionProduceData(partition[1], data)])],
        )

    async def _add(self, partition: Partition) -> None:
        topic = self.history.topic(partition[0])
        assert topic is not None
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.identity[0],
            v3_and_below_producer_epoch=self.identity[1],
            v3_and_below_topics=[AddPartitionsToTxnTopic(topic.name, [partition[1]])],
        )
        await self._repeat(
            "add partitions",
            lambda: (ADD_PARTITIONS, 3, request),
            lambda each: int(
                each.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            ),
        )
        self._added.add(partition)

    async def _produce(self, request: ProduceRequest, partition: Partition) -> None:
        client = self.client
        give_up_at = client.now() + OPERATION_S
        if client.random.random() < 0.1:
            self.late.take(PRODUCE, self._produce_version, request, partition)
        while client.now() < give_up_at:
            address, _ = client.leader(*partition)
            if address is not None:
                try:
                    answer = await client.ask(address, PRODUCE, self._produce_version, request)
                except NoResponse:
                    pass
                else:
                    found = answer.responses[0].partition_responses[0]
                    error = E(found.error_code)
                    if error in (E.NONE, E.DUPLICATE_SEQUENCE_NUMBER):
                        return
                    self.history.count(f"transactional produce {error.name}")
                    if error in NEVER_PRODUCED:
                        raise Violation(f"{self.name}: Produce failed with {error.name}")
                    if error in ABORTABLE or error is E.INVALID_PRODUCER_EPOCH:
                        raise Abortable(error.name)
                    if error in FENCED:
                        self._note_fence("produce", error)
                        raise Fenced(error.name)
                    if error not in PRODUCE_RETRIABLE and error is not E.CONCURRENT_TRANSACTIONS:
                        raise Violation(
                            f"{self.name}: Produce failed with {error.name} {found.error_message}"
                        )
            await client.pause()
            await client.refresh()
        raise Abortable("Produce takes too long")

    async def commit_offset(
        self, transaction: Transaction, group: str, partition: Partition, before: int, after: int
    ) -> None:
        """Move the group from one position to another in the transaction."""
        transaction.consumed[group, partition] = before, after
        self._began_at = min(self._began_at, self.client.now())
        if not self._raises_epochs:
            add = AddOffsetsToTxnRequest(self.transactional_id, *self.identity, group)
            await self._repeat(
                "add offsets", lambda: (ADD_OFFSETS, 4, add), lambda each: int(each.error_code)
            )
        topic = self.history.topic(partition[0])
        assert topic is not None
        request = TxnOffsetCommitRequest(
            self.transactional_id,
            group,
            *self.identity,
            topics=[
                TxnOffsetCommitRequestTopic(
                    topic.name, [TxnOffsetCommitRequestPartition(partition[1], after, -1, "")]
                )
            ],
        )
        await self._repeat(
            "commit offsets",
            lambda: (TXN_OFFSET_COMMIT, 5 if self._raises_epochs else 4, request),
            lambda each: int(each.topics[0].partitions[0].error_code),
            kind=GROUP,
            key=group,
        )
        self.history.count("transactional offsets")

    async def end(self, transaction: Transaction, *, commit: bool) -> None:
        """EndTxn, to its answer."""
        attempts = 0
        asked_at = 0.0

        def ask() -> tuple[int, int, Any]:
            nonlocal attempts, asked_at
            attempts += 1
            asked_at = self.client.now()
            if commit and attempts == 1:
                transaction.requested_at = asked_at
                transaction.outcome = UNKNOWN
            version = 5 if self._raises_epochs else 4
            return END_TXN, version, EndTxnRequest(self.transactional_id, *self.identity, commit)

        try:
            answer = await self._repeat("end", ask, lambda each: int(each.error_code))
        except (Fenced, Abortable):
            if attempts == 1:  # an earlier attempt may have been successful
                transaction.outcome = ABORTED
            raise
        transaction.outcome = COMMITTED if commit else ABORTED
        transaction.ended_at = self.client.now()
        self._began_at = math.inf
        self.history.count(f"transactions {transaction.outcome}")
        if self._raises_epochs:
            self._continue_as((answer.producer_id, answer.producer_epoch), asked_at, takes_over=False)
