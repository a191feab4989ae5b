"""Simulated read_committed consumers, and observers of the offsets that groups commit in transactions; what they see goes
into a TransactionHistory (compat_tests/harness/transaction_history.py)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.describe_groups import DescribeGroupsRequest
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from barnabas.wire.record_batch import read_header, verify_crc
from barnabas.wire.records import iterate_records
from compat_tests.harness.transaction_history import GroupOffset, Reader, StableOffset, TransactionHistory
from compat_tests.simulation.consumers import STALE
from compat_tests.simulation.coordinators import GROUP, WAIT, Coordinators
from compat_tests.simulation.history import History, Partition, Violation, name
from compat_tests.simulation.wire_client import Client, NoResponse

FETCH, OFFSET_FETCH, DESCRIBE_GROUPS = 1, 9, 15
E = ErrorCode


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
