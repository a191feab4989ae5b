"""Simulated transactional producers, transformers and read_committed consumers; what they do and see goes into a
TransactionHistory (compat_tests/harness/transaction_history.py).

A holder uses a transactional id until it is fenced, crashes or gives up; then another one with a new name follows it. It
speaks the protocol of transaction.version 0 and 1 or that of 2, as Kafka's Java client does, and reacts to errors as
that one does.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from barnabas.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from barnabas.wire.messages.describe_groups import DescribeGroupsRequest
from barnabas.wire.messages.end_txn import EndTxnRequest
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from barnabas.wire.record_batch import read_header, verify_crc
from barnabas.wire.records import Record, build_batch, iterate_records
from compat_tests.harness.transaction_history import (
    ABORTED,
    COMMITTED,
    UNKNOWN,
    Fence,
    GroupOffset,
    Initialization,
    Reader,
    StableOffset,
    Transaction,
    TransactionHistory,
)
from compat_tests.simulation.consumers import STALE
from compat_tests.simulation.history import History, Partition, Violation, name
from compat_tests.simulation.late_requests import LateRequests
from compat_tests.simulation.producers import RETRIABLE as PRODUCE_RETRIABLE
from compat_tests.simulation.wire_client import Address, Client, NoResponse

PRODUCE, FETCH, OFFSET_FETCH, FIND_COORDINATOR, DESCRIBE_GROUPS = 0, 1, 9, 10, 15
INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 22, 24, 25, 26, 28
GROUP, TRANSACTION = 0, 1  # key types of FindCoordinator
OPERATION_S = 12.0  # after so long a holder gives up
TIMEOUTS_MS = (1_500, 4_000, 60_000)
E = ErrorCode

COORDINATOR_MOVED = frozenset({E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE})
# What a coordinator may answer that a client repeats its request after. Not every client repeats after others, so that the
# errors of brokers among each other must not reach it (KAFKA-14417, KAFKA-16386).
WAIT = COORDINATOR_MOVED | {
    E.COORDINATOR_LOAD_IN_PROGRESS,
    E.CONCURRENT_TRANSACTIONS,
    E.UNKNOWN_TOPIC_OR_PARTITION,
    E.UNSTABLE_OFFSET_COMMIT,
}
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


@dataclasses.dataclass(slots=True)
class Committed:
    """An answer to a read_committed fetch: records, and where to go on."""

    values: list[tuple[int, bytes]]
    position: int


def committed_records(data: PartitionData, position: int) -> Committed:
    """What a consumer delivers of an answer: it leaves out control batches and, by the list of aborted transactions,
    what was aborted."""
    aborted = sorted(data.aborted_transactions or [], key=lambda each: each.first_offset)
    skipped: set[int] = set()
    found = Committed([], position)
    records = b"" if data.records is None else bytes(data.records)  # type: ignore[call-overload]  # decoded bytes
    offset = 0
    while offset + 61 <= len(records):
        header = read_header(records, offset)
        if header.size > len(records) - offset:
            break
        verify_crc(records, offset, header)
        while aborted and aborted[0].first_offset <= header.last_offset:
            skipped.add(aborted.pop(0).producer_id)
        if header.is_control:
            skipped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in skipped):
            found.values += [
                (record.offset, bytes(record.value or b""))
                for record in iterate_records(records[offset : offset + header.size])
                if record.offset >= position
            ]
        found.position = max(found.position, header.next_offset)
        offset += header.size
    return found


class CommittedReader:
    """Fetches with read_committed, and notes each last stable offset."""

    def __init__(self, client: Client, history: History, transactions: TransactionHistory) -> None:
        self.client = client
        self.history = history
        self.transactions = transactions

    async def read(self, partition: Partition, position: int) -> Committed | None:
        """One fetch of the leader; None when it has failed."""
        client = self.client
        address, epoch = client.leader(*partition)
        if address is None:
            await client.pause()
            await client.refresh()
            return None
        bytes_max = client.random.choice((150, 1000, 1 << 20))
        wanted = FetchPartition(partition[1], epoch, position, partition_max_bytes=bytes_max)
        request = FetchRequest(
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=1,
            topics=[FetchTopic("", partition[0], [wanted])],
        )
        asked_at = client.now()
        try:
            answer = await client.ask(address, FETCH, 17, request)
        except NoResponse:
            await client.pause()
            await client.refresh()
            return None
        if answer.error_code or not answer.responses:
            await client.pause()
            return None
        data = answer.responses[0].partitions[0]
        error = E(data.error_code)
        if error in STALE:
            self.history.count(f"fetch {error.name}")
            await client.pause()
            await client.refresh()
            return None
        if error is not E.NONE:
            raise Violation(
                f"{client.name}: a fetch of {name(partition)} from {position} failed with {error.name}"
            )
        self.transactions.stable_offsets.append(
            StableOffset(
                partition, epoch, data.last_stable_offset, data.high_watermark, asked_at, client.now()
            )
        )
        found = committed_records(data, position)
        if found.position > max(position, data.last_stable_offset):
            raise Violation(
                f"{client.name}: {name(partition)} returned offsets up to {found.position}, its last stable offset is "
                f"{data.last_stable_offset}"
            )
        return found


class ReadingConsumer:
    """Reads all partitions from their beginning."""

    def __init__(
        self,
        client: Client,
        history: History,
        transactions: TransactionHistory,
        partitions: list[Partition],
        should_continue: Callable[[], bool],
    ) -> None:
        self._client = client
        self._partitions = partitions
        self._should_continue = should_continue
        self._source = CommittedReader(client, history, transactions)
        self.reader: Reader = transactions.reader(client.name)

    async def run(self) -> None:
        while self._should_continue():
            await self.poll(self._client.random.choice(self._partitions))
            await self._client.pause(0.02)

    async def poll(self, partition: Partition) -> None:
        position = self.reader.position.get(partition, 0)
        found = await self._source.read(partition, position)
        if found is not None:
            self.reader.read(partition, found.position, found.values, self._client.now())

    async def read_to(self, ends: Callable[[Partition], int]) -> None:
        """Reads until each partition's end."""
        for partition in self._partitions:
            while self.reader.position.get(partition, 0) < ends(partition):
                await self.poll(partition)


class OffsetObserver:
    """Asks for stable committed offsets of a group."""

    def __init__(
        self,
        client: Client,
        history: History,
        transactions: TransactionHistory,
        group: str,
        partitions: list[Partition],
        should_continue: Callable[[], bool],
    ) -> None:
        self._client = client
        self._history = history
        self._transactions = transactions
        self._group = group
        self._partitions = partitions
        self._should_continue = should_continue
        self._coordinators = Coordinators(client, history, should_continue)

    async def run(self) -> None:
        while self._should_continue():
            await self.ask(self._client.random.choice(self._partitions))
            await self._client.pause(0.2)

    async def ask(self, partition: Partition) -> int | None:
        """The committed offset, -1 for none; None when there is no answer now."""
        client = self._client
        asked_at = client.now()
        request = OffsetFetchRequest(
            groups=[
                OffsetFetchRequestGroup(
                    self._group, None, -1, [OffsetFetchRequestTopics("", partition[0], [partition[1]])]
                )
            ],
            require_stable=True,
        )
        answer = await self._coordinators.ask(GROUP, self._group, OFFSET_FETCH, 10, request)
        if answer is None:
            return None
        group = answer.groups[0]
        error = E(group.error_code or group.topics[0].partitions[0].error_code)
        if error is not E.NONE:
            self._history.count(f"offset fetch {error.name}")
            if error not in WAIT:
                raise Violation(f"{client.name}: OffsetFetch failed with {error.name}")
            await self._coordinators.wait(GROUP, self._group, error)
            return None
        offset: int = group.topics[0].partitions[0].committed_offset
        self._transactions.group_offsets.append(
            GroupOffset(self._group, partition, offset, asked_at, client.now())
        )
        if offset >= 0:
            await self._check_group()
        return offset

    async def _check_group(self) -> None:
        """A group that has an offset exists."""
        request = DescribeGroupsRequest([self._group])
        answer = await self._coordinators.ask(GROUP, self._group, DESCRIBE_GROUPS, 5, request)
        if answer is None:
            return
        group = answer.groups[0]
        error = E(group.error_code)
        if error is E.NONE and group.group_state == "Dead":
            raise Violation(f"{self._client.name}: group {self._group} does not exist and has an offset")
        if error is not E.NONE:
            await self._coordinators.wait(GROUP, self._group, error)


class Coordinators:
    """The coordinators of ids and groups that a client knows."""

    def __init__(self, client: Client, history: History, should_continue: Callable[[], bool]) -> None:
        self._client = client
        self._history = history
        self._should_continue = should_continue
        self._known: dict[tuple[int, str], Address] = {}

    async def ask(self, kind: int, key: str, api: int, version: int, request: Any) -> Any:
        """The coordinator's answer, None without one."""
        address = self._known.get((kind, key)) or await self._find(kind, key)
        if address is None:
            return None
        try:
            return await self._client.ask(address, api, version, request)
        except NoResponse:
            self._known.pop((kind, key), None)
            await self._client.pause()
            return None

    async def wait(self, kind: int, key: str, error: ErrorCode) -> None:
        """After an error that asks for a repetition."""
        if error in COORDINATOR_MOVED:
            self._known.pop((kind, key), None)
        await self._client.pause()

    async def _find(self, kind: int, key: str) -> Address | None:
        client = self._client
        try:
            answer = await client.ask(
                client.any_address(), FIND_COORDINATOR, 6, FindCoordinatorRequest("", kind, [key])
            )
        except NoResponse:
            await client.refresh()
            await client.pause()
            return None
        found = answer.coordinators[0]
        if found.error_code:
            if E(found.error_code) not in WAIT:
                raise Violation(f"{client.name}: FindCoordinator failed with {E(found.error_code).name}")
            await client.pause(0.1)
            return None
        self._known[kind, key] = found.host, found.port
        return found.host, found.port


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
        self.is_sure = True  # that nothing of a former transaction may arrive late
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
        self.is_sure = True

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
        return self.transactions.begin(self.name, self.transactional_id, self.identity, self.client.now())

    async def send(self, transaction: Transaction, partition: Partition, values: list[bytes]) -> None:
        """One batch, to its acknowledgement."""
        await self._prepare(transaction, partition, values)
        sequence = self._sequences.get(partition, 0)
        self.is_sure = False
        await self._produce(self._request(partition, values, sequence), partition)
        self.is_sure = True
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
        self.is_sure = False
        address, _ = self.client.leader(*partition)
        if address is not None:
            try:
                await self.client.ask_all(address, PRODUCE, self._produce_version, requests)
            except NoResponse:
                pass
        for request in requests:
            await self._produce(request, partition)  # mostly a duplicate
        self.is_sure = True
        self._added.add(partition)
        self._sequences[partition] = sequence + len(values)
        self.history.count("pipelined transactional batches")

    async def send_late(self, transaction: Transaction, partition: Partition, values: list[bytes]) -> None:
        """One batch that is on its way still when the producer gives it up: the transaction can only be aborted."""
        await self._prepare(transaction, partition, values)
        self.is_sure = False
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


class TransactionalProducer:
    """The holders of one transactional id, one after the other. It runs until `should_continue` returns false."""

    def __init__(
        self,
        client: Client,
        history: History,
        transactions: TransactionHistory,
        transactional_id: str,
        partitions: list[Partition],
        raises_epochs: Callable[[], bool],
        should_continue: Callable[[], bool],
        late: LateRequests,
    ) -> None:
        self.client = client
        self.late = late
        self.history = history
        self.transactions = transactions
        self.transactional_id = transactional_id
        self.partitions = partitions
        self._raises_epochs = raises_epochs
        self.should_continue = should_continue
        self._holders = self._numbers = 0

    async def run(self) -> None:
        while self.should_continue():
            holder = self.holder()
            try:
                await self._work(holder)
            except (Fenced, Abortable) as error:
                self.history.count(f"holders that end: {type(error).__name__}")
                await self.client.pause(self.client.random.choice((0.1, 1.0, 4.0)))
            except GaveUp:
                self.history.count("holders that give up")

    def holder(self) -> Holder:
        """The next one."""
        self._holders += 1
        return Holder(
            self.client,
            self.history,
            self.transactions,
            self.transactional_id,
            f"{self.client.name}/{self._holders}",
            self.late,
            raises_epochs=self._raises_epochs(),
        )

    async def _work(self, holder: Holder) -> None:
        timeout_ms = self.client.random.choice(TIMEOUTS_MS)
        await holder.initialize(timeout_ms)
        while self.should_continue():
            try:
                await self._transact(holder)
            except Abortable:
                self.history.count("abortable errors")
                await holder.initialize(timeout_ms)  # which aborts, too
            await self.client.pause(self.client.random.choice((0.02, 0.2)))

    async def _transact(self, holder: Holder) -> None:
        """One transaction."""
        chance = self.client.random
        transaction = holder.begin()
        if holder.may_end_empty and chance.random() < 0.05:
            await holder.end(transaction, commit=False)
            return
        for _ in range(chance.randint(1, 4)):
            partition = chance.choice(self.partitions)
            if chance.random() < 0.2:
                await holder.send_two(transaction, partition, self._values(chance.randint(2, 4)))
            else:
                await holder.send(transaction, partition, self._values(chance.randint(1, 3)))
            await self._rest()
        if chance.random() < 0.08:
            await holder.send_late(transaction, chance.choice(self.partitions), self._values(1))
            await holder.end(transaction, commit=False)
            raise Abortable("a batch may arrive late")
        await holder.end(transaction, commit=chance.random() < 0.7)

    async def _rest(self) -> None:
        """A crash or a long pause in the middle of a transaction, but seldom."""
        luck = self.client.random.random()
        if luck < 0.02:
            raise GaveUp("crashed")
        if luck < 0.04:
            self.history.count("producers that pause")
            await self.client.pause(6.0)

    def _values(self, count: int) -> list[bytes]:
        self._numbers += count
        first = self._numbers - count
        return [f"{self.client.name}-{number}".encode() for number in range(first, first + count)]


class Transformer(TransactionalProducer):
    """Consumes, transforms and produces: the records of one input partition, and the group's offset in the same
    transaction. The output names its input."""

    def __init__(self, *arguments: Any, group: str, source: Partition) -> None:
        super().__init__(*arguments)
        self._group = group
        self._source = source
        self._reader = CommittedReader(self.client, self.history, self.transactions)
        self._offsets = OffsetObserver(
            self.client, self.history, self.transactions, group, [source], self.should_continue
        )

    async def _transact(self, holder: Holder) -> None:
        chance = self.client.random
        offset = await self._offsets.ask(self._source)
        if offset is None:
            return
        before = max(0, offset)
        found = await self._reader.read(self._source, before)
        if found is None or not found.values:
            if found is not None and found.position > before:
                await self._skip(holder, before, found.position)
            return
        transaction = holder.begin()
        values: dict[Partition, list[bytes]] = {}
        for _, value in found.values:
            self._numbers += 1
            output = b"%s from %s %d" % (value, self.client.name.encode(), self._numbers)
            values.setdefault(chance.choice(self.partitions), []).append(output)
        for partition, several in values.items():
            await holder.send(transaction, partition, several)
            await self._rest()
        await holder.commit_offset(transaction, self._group, self._source, before, found.position)
        await self._rest()
        await holder.end(transaction, commit=chance.random() < 0.8)

    async def _skip(self, holder: Holder, before: int, after: int) -> None:
        """There are only aborted records: one output says so."""
        transaction = holder.begin()
        self._numbers += 1
        output = f"{before} skipped by {self.client.name} {self._numbers}".encode()
        await holder.send(transaction, self.client.random.choice(self.partitions), [output])
        await holder.commit_offset(transaction, self._group, self._source, before, after)
        await holder.end(transaction, commit=True)
