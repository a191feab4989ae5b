"""Simulated transactional producers, transformers and visitors: holders of transactional ids, one after the other (holders.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compat_tests.harness.transaction_history import Transaction, TransactionHistory
from compat_tests.simulation.committed_readers import CommittedReader, OffsetObserver
from compat_tests.simulation.history import History, Partition
from compat_tests.simulation.holders import Abortable, Fenced, GaveUp, Holder
from compat_tests.simulation.late_requests import LateRequests
from compat_tests.simulation.wire_client import Client

TIMEOUTS_MS = (1_500, 4_000, 60_000)
PAUSES_S = (0.0, 0.02, 0.2)  # between transactions: Kafka's clients begin the next one at once


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
        self.unfinished = {transactional_id}  # ids whose transactions may be open

    async def run(self) -> None:
        while self.should_continue():
            holder = self._next_holder()
            try:
                await self._work(holder)
            except (Fenced, Abortable) as error:
                self.history.count(f"holders that end: {type(error).__name__}")
                await self.client.pause(self.client.random.choice((0.1, 1.0, 4.0)))
            except GaveUp:
                self.history.count("holders that give up")

    def _next_holder(self) -> Holder:
        return self.holder(self.transactional_id)

    def holder(self, transactional_id: str) -> Holder:
        """A new one of an id."""
        self._holders += 1
        return Holder(
            self.client,
            self.history,
            self.transactions,
            transactional_id,
            f"{self.client.name}/{self._holders}",
            self.late,
            raises_epochs=self._raises_epochs(),
        )

    async def _work(self, holder: Holder) -> None:
        timeout_ms = self.client.random.choice(TIMEOUTS_MS)
        await holder.initialize(timeout_ms)
        while self.should_continue():
            await self._transact_or_abort(holder, timeout_ms)

    async def _transact_or_abort(self, holder: Holder, timeout_ms: int) -> None:
        try:
            await self._transact(holder)
        except Abortable:
            self.history.count("abortable errors")
            await holder.abort(timeout_ms)
        await self.client.pause(self.client.random.choice(PAUSES_S))

    async def _transact(self, holder: Holder) -> None:
        """One transaction."""
        chance = self.client.random
        transaction = holder.begin()
        if holder.may_end_empty and chance.random() < 0.05:
            await holder.end(transaction, commit=False)
            return
        for _ in range(chance.randint(1, 4)):
            partition = chance.choice(self.partitions)
            if chance.random() < 0.3:
                await holder.send_two(transaction, partition, self._values(chance.randint(2, 4)))
            else:
                await holder.send(transaction, partition, self._values(chance.randint(1, 3)))
            await self._rest()
        if chance.random() < 0.1:
            await self._send_late(holder, transaction)
        await holder.end(transaction, commit=chance.random() < 0.7)

    async def _send_late(self, holder: Holder, transaction: Transaction) -> None:
        """The producer gives up a batch that may arrive later: the transaction can only be aborted."""
        chance = self.client.random
        unwritten = [each for each in self.partitions if each not in transaction.sent]
        await holder.send_late(transaction, chance.choice(unwritten or self.partitions), self._values(1))
        await self.client.pause(chance.choice((0.0, 0.002, 0.01, 0.05)))
        raise Abortable("a batch may arrive late")

    async def _rest(self) -> None:
        """A crash or a long pause in the middle of a transaction, but seldom."""
        luck = self.client.random.random()
        if luck < 0.02:
            raise GaveUp("crashed")
        if luck < 0.05:
            self.history.count("producers that pause")
            await self.client.pause(6.0)
        elif luck < 0.15:
            await self.client.pause(0.3)

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


class Visitor(TransactionalProducer):
    """Short-lived producers, each with a transactional id of its own: their producer ids are new to the partitions and to the
    coordinators."""

    def _next_holder(self) -> Holder:
        transactional_id = f"{self.transactional_id}-{self._holders}"
        self.unfinished.add(transactional_id)
        return self.holder(transactional_id)

    async def _work(self, holder: Holder) -> None:
        timeout_ms = self.client.random.choice(TIMEOUTS_MS)
        await holder.initialize(timeout_ms)
        for _ in range(self.client.random.randint(0, 2)):
            await self._transact_or_abort(holder, timeout_ms)
        self.unfinished.discard(holder.transactional_id)
        self.history.count("visitors")
