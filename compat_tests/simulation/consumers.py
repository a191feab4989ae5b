"""A simulated consumer without a group: reads every partition from its first offset on, and records it in the
history.

It follows leaders by their epochs (KIP-320), fetches from its preferred read replica (KIP-392) if it has a rack, and
sends ListOffsets now and then.
"""

from __future__ import annotations

from collections.abc import Callable

from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.record_batch import read_header, verify_crc
from barnabas.wire.records import iterate_records
from compat_tests.simulation.history import History, Partition, Violation, name
from compat_tests.simulation.wire_client import Address, Client, NoResponse

FETCH, FETCH_VERSION = 1, 17
LIST_OFFSETS, LIST_OFFSETS_VERSION = 2, 8
LATEST, EARLIEST = -1, -2
STALE = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)


class Consumer:
    """Runs until `should_continue` returns false."""

    def __init__(
        self,
        client: Client,
        history: History,
        *,
        rack: str,
        should_continue: Callable[[], bool],
        max_wait_ms: int = 400,
    ) -> None:
        self._client = client
        self._history = history
        self._rack = rack
        self._should_continue = should_continue
        self._max_wait_ms = max_wait_ms
        self.positions: dict[Partition, int] = {}
        self._last_epochs: dict[Partition, int] = {}  # of the last batch read
        self._replicas: dict[Partition, int] = {}  # preferred read replicas
        self._lost: list[Partition] = []  # whose position is below their first record

    async def run(self) -> None:
        client = self._client
        while self._should_continue():
            if client.random.random() < 0.1:
                await client.refresh()
            await self.poll()
            if client.random.random() < 0.2:
                await self.ask_for_ends()
            await client.pause(0.02)

    def _partitions(self) -> list[Partition]:
        return [
            (topic.topic_id, index)
            for topic in self._history.topics.values()
            if topic.topic_id and not topic.is_deleted
            for index in range(topic.partitions)
        ]

    def _where(self, partition: Partition) -> Address | None:
        replica = self._replicas.get(partition)
        if replica is not None and replica in self._client.brokers:
            return self._client.brokers[replica]
        return self._client.leader(*partition)[0]

    async def poll(self) -> None:
        """Fetches from one broker the partitions that it leads."""
        client = self._client
        by_broker: dict[Address, list[Partition]] = {}
        for partition in self._partitions():
            address = self._where(partition)
            if address is not None:
                by_broker.setdefault(address, []).append(partition)
        if not by_broker:
            await client.pause()
            await client.refresh()
            return
        address = client.random.choice(list(by_broker))
        partitions = by_broker[address]
        topics: dict[bytes, list[FetchPartition]] = {}
        for partition in partitions:
            epoch = client.leader(*partition)[1]
            topics.setdefault(partition[0], []).append(
                FetchPartition(
                    partition[1],
                    epoch,
                    self.positions.get(partition, 0),
                    # A follower may be behind, and would answer that the logs diverge.
                    -1 if partition in self._replicas else self._last_epochs.get(partition, -1),
                    partition_max_bytes=client.random.choice((200, 5000, 1 << 20)),
                )
            )
        request = FetchRequest(
            max_wait_ms=self._max_wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            topics=[FetchTopic("", topic_id, parts) for topic_id, parts in topics.items()],
            rack_id=self._rack,
        )
        try:
            answer = await client.ask(address, FETCH, FETCH_VERSION, request)
        except NoResponse:
            for partition in partitions:
                self._replicas.pop(partition, None)
            await client.pause()
            await client.refresh()
            return
        stale = bool(answer.error_code)
        for topic in answer.responses:
            for data in topic.partitions:
                stale = self._take((topic.topic_id, data.partition_index), data) or stale
        lost, self._lost = self._lost, []
        for partition in lost:
            await self._go_to_start(partition)
        if stale:
            await client.pause()
            await client.refresh()

    def _take(self, partition: Partition, data: PartitionData) -> bool:
        """Whether the cached metadata is out of date."""
        error = ErrorCode(data.error_code)
        if error is not ErrorCode.NONE:
            is_leader = self._replicas.pop(partition, None) is None
            self._history.count(f"fetch {error.name}")
            if error is ErrorCode.OFFSET_OUT_OF_RANGE and not is_leader:
                return True  # a follower may be behind: the leader decides
            if error is ErrorCode.OFFSET_OUT_OF_RANGE:
                position = self.positions.get(partition, 0)
                if position < self._history.last_start(partition):
                    self._lost.append(partition)
                    return False
                if self._history.is_safe(partition) and not self._history.is_deleted(partition[0]):
                    raise Violation(
                        f"{self._client.name}: {name(partition)} has no offset {position}, "
                        f"the end of what it has read"
                    )
                self.positions[partition] = max(data.log_start_offset, 0)
                return True
            if error in STALE:
                return True
            raise Violation(f"{self._client.name}: a fetch of {name(partition)} failed with {error.name}")
        if data.preferred_read_replica >= 0:
            self._replicas[partition] = data.preferred_read_replica
            self._history.count("sent to a follower")
            return False
        if data.diverging_epoch.end_offset >= 0:
            self._diverges(partition, data)
            return False
        self._read(partition, data)
        return False

    def _diverges(self, partition: Partition, data: PartitionData) -> None:
        """The log does not have the epoch of the last batch read: records that were read are gone."""
        if self._history.is_safe(partition):
            raise Violation(
                f"{self._client.name}: {name(partition)} diverges at {data.diverging_epoch.end_offset}, "
                f"read up to {self.positions.get(partition, 0)}"
            )
        self.positions[partition] = min(self.positions.get(partition, 0), data.diverging_epoch.end_offset)

    def _read(self, partition: Partition, data: PartitionData) -> None:
        if not data.records:
            return
        records = bytes(data.records)  # type: ignore[call-overload]  # as decoded, they are bytes
        position = self.positions.get(partition, 0)
        is_compacted = self._history.is_compacted(partition)
        offset = 0
        while offset + 61 <= len(records):
            header = read_header(records, offset)
            if header.size > len(records) - offset:
                break  # a fetch may cut the last batch
            verify_crc(records, offset, header)
            if is_compacted:
                for record in iterate_records(records[offset : offset + header.size]):
                    self._history.saw_record(
                        self._client.name, partition, record.offset, bytes(record.value or b"")
                    )
            else:
                self._history.consumed(
                    self._client.name,
                    partition,
                    header.base_offset,
                    header.last_offset,
                    header.crc,
                    self._client.now(),
                )
            if header.next_offset > data.high_watermark:
                raise Violation(
                    f"{self._client.name}: {name(partition)} returned offsets up to {header.last_offset}, "
                    f"its high watermark is {data.high_watermark}"
                )
            if position < header.next_offset:
                if header.base_offset > position and self._history.is_safe(partition) and not is_compacted:
                    raise Violation(
                        f"{self._client.name}: {name(partition)} continues at {header.base_offset} after {position}"
                    )
                position = header.next_offset
                self._last_epochs[partition] = header.partition_leader_epoch
            offset += header.size
        self.positions[partition] = position

    async def _go_to_start(self, partition: Partition) -> None:
        """Continues at the first available record, as `auto.offset.reset=earliest` does."""
        client, history = self._client, self._history
        address, epoch = client.leader(*partition)
        topic = history.topic(partition[0])
        if address is None or topic is None:
            return
        wanted = ListOffsetsTopic(topic.name, [ListOffsetsPartition(partition[1], epoch, EARLIEST)])
        try:
            answer = await client.ask(
                address, LIST_OFFSETS, LIST_OFFSETS_VERSION, ListOffsetsRequest(-1, 0, [wanted])
            )
        except NoResponse:
            return
        found = answer.topics[0].partitions[0]
        if found.error_code != ErrorCode.NONE:
            return
        if found.offset > history.last_start(partition) and history.is_safe(partition):
            raise Violation(
                f"{client.name}: {name(partition)} begins at {found.offset}, which no admin requested"
            )
        history.count("consumers sent to the first record")
        if found.offset > self.positions.get(partition, 0):
            self.positions[partition] = found.offset
            self._last_epochs[partition] = (
                found.leader_epoch
            )  # as clients do; the records read before are gone

    async def ask_for_ends(self) -> None:
        """Sends ListOffsets: the end of a partition may not go back."""
        client, history = self._client, self._history
        partitions = self._partitions()
        if not partitions:
            return
        partition = client.random.choice(partitions)
        address, epoch = client.leader(*partition)
        topic = next(topic for topic in history.topics.values() if topic.topic_id == partition[0])
        if address is None or epoch < 0:
            return
        before = max(history.end_before(partition, epoch), history.end_answered(partition, client.now()))
        request = ListOffsetsRequest(
            -1,
            0,
            [ListOffsetsTopic(topic.name, [ListOffsetsPartition(partition[1], epoch, LATEST)])],
        )
        try:
            answer = await client.ask(address, LIST_OFFSETS, LIST_OFFSETS_VERSION, request)
        except NoResponse:
            return
        found = answer.topics[0].partitions[0]
        error = ErrorCode(found.error_code)
        if error is not ErrorCode.NONE:
            history.count(f"list offsets {error.name}")
            if error not in STALE:
                raise Violation(f"{client.name}: ListOffsets for {name(partition)} failed with {error.name}")
            return
        if found.offset < before and history.is_safe(partition) and not topic.is_deleted:
            raise Violation(
                f"{client.name}: {name(partition)} ends at {found.offset} in epoch {epoch}, and ended at {before} earlier"
            )
        history.saw_end(partition, epoch, found.offset, client.now())
