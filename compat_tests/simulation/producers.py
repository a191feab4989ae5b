"""A simulated producer, as real ones behave: one batch at a time for a partition, tried again until acknowledged.

An idempotent one sends a batch again under its sequence number for ever; what comes of it when a try before had
been appended is the broker's to see. The others give up after `DELIVERY_S`, and may leave a batch twice.
"""

from __future__ import annotations

from collections.abc import Callable

from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.record_batch import Record, build_batch

from compat_tests.simulation.history import Batch, History, Partition, Violation, name
from compat_tests.simulation.wire_client import Client, Gone

PRODUCE, PRODUCE_VERSION = 0, 13
INIT_PRODUCER_ID, INIT_PRODUCER_ID_VERSION = 22, 5
DELIVERY_S = 6.0

# Kafka's retriable errors, as far as a produce can meet them.
RETRIABLE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
# What a producer gets whose records have been forgotten.
FORGOTTEN = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
)


class Producer:
    """`run` until `goes_on` says no; then it finishes what it has begun."""

    def __init__(
        self,
        client: Client,
        history: History,
        *,
        acks: int,
        is_idempotent: bool,
        pace_s: float,
        goes_on: Callable[[], bool],
    ) -> None:
        self._client = client
        self._history = history
        self._acks = acks
        self._is_idempotent = is_idempotent
        self._pace_s = pace_s
        self._goes_on = goes_on
        self._producer_id, self._epoch = -1, -1
        self._sequences: dict[Partition, int] = {}
        self._numbers: dict[Partition, int] = {}

    async def run(self) -> None:
        if self._is_idempotent and not await self._become_idempotent():
            return
        client = self._client
        while self._goes_on():
            topics = [
                topic for topic in self._history.topics.values() if topic.topic_id and not topic.is_deleted
            ]
            if topics:
                topic = client.random.choice(topics)
                await self.produce((topic.topic_id, client.random.randrange(topic.partitions)))
            await client.pause(self._pace_s)

    async def _become_idempotent(self) -> bool:
        while self._goes_on():
            try:
                answer = await self._client.ask(
                    self._client.anybody(),
                    INIT_PRODUCER_ID,
                    INIT_PRODUCER_ID_VERSION,
                    InitProducerIdRequest(None, 60_000),
                )
            except Gone:
                answer = None
            if answer is not None and not answer.error_code:
                self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
                self._history.got_producer_id(self._client.name, self._producer_id, self._epoch)
                return True
            await self._client.pause()
            await self._client.refresh()
        return False

    async def produce(self, partition: Partition) -> Batch:
        """One batch, to the end."""
        client, history = self._client, self._history
        number = self._numbers.get(partition, 0)
        self._numbers[partition] = number + 1
        count = client.random.randint(1, 4)
        values = [f"{client.name} {name(partition)} {number} {index}".encode() for index in range(count)]
        padding = bytes(client.random.choice((0, 10, 300)))
        now_ms = client.runtime.time_ms()
        records = [Record(index, now_ms, padding, value) for index, value in enumerate(values)]
        sequence = self._sequences.get(partition, 0)
        if self._is_idempotent:
            data = build_batch(
                records,
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                base_sequence=sequence,
            )
        else:
            data = build_batch(records)
        batch = Batch(client.name, number, partition, values, self._acks, self._is_idempotent, client.now())
        history.batches.append(batch)
        give_up_at = client.now() + DELIVERY_S
        while batch.outcome == "open":
            if (client.now() > give_up_at and not self._is_idempotent) or history.is_deleted(partition[0]):
                batch.outcome = "failed"
                break
            await self._attempt(batch, data)
        batch.ended_at = client.now()
        history.count(f"batches {batch.outcome}")
        if batch.outcome == "acked":
            self._sequences[partition] = sequence + count
        return batch

    async def _attempt(self, batch: Batch, data: bytes) -> None:
        client = self._client
        topic_id, index = batch.partition
        address, _ = client.leader(topic_id, index)
        if address is None:
            await client.pause()
            await client.refresh()
            return
        request = ProduceRequest(
            None,
            self._acks,
            1500,
            [TopicProduceData("", topic_id, [PartitionProduceData(index, data)])],
        )
        try:
            answer = await client.ask(address, PRODUCE, PRODUCE_VERSION, request, is_answered=self._acks != 0)
        except Gone:
            await client.pause()
            await client.refresh()
            return
        if self._acks == 0:
            batch.outcome = "sent"
            return
        found = answer.responses[0].partition_responses[0]
        error = ErrorCode(found.error_code)
        if error is ErrorCode.NONE or error is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            batch.outcome, batch.offset = "acked", found.base_offset
        elif error in RETRIABLE:
            self._history.count(f"produce {error.name}")
            await client.pause()
            await client.refresh()
        elif error in FORGOTTEN and not (self._history.is_safe(batch.partition) and self._acks == -1):
            batch.outcome = "failed"  # allowed where records may be lost; the producer begins anew
            self._producer_id = -1
            self._sequences.clear()
            await self._become_idempotent()
        else:
            raise Violation(
                f"{client.name} got {error.name} ({found.error_message}) for batch {batch.number} of {name(batch.partition)}"
            )
