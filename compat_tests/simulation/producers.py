"""A simulated producer that behaves as real ones: it retries what is not acknowledged, in order.

An idempotent producer has up to five batches in flight, as many as a broker remembers; the others have one. An
idempotent producer retries a batch under its sequence number for ever; the broker detects that an earlier attempt was
appended. The others give up after `DELIVERY_S`, and may append a batch twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from barnabas.wire.records import Record, build_batch
from compat_tests.simulation.history import Batch, History, Partition, Violation, name
from compat_tests.simulation.wire_client import Client, NoResponse

PRODUCE, PRODUCE_VERSION = 0, 13
INIT_PRODUCER_ID, INIT_PRODUCER_ID_VERSION = 22, 5
DELIVERY_S = 6.0
IN_FLIGHT_MAX = 5

# Kafka's retriable errors of Produce.
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
# Errors of a producer whose state the broker has forgotten.
FORGOTTEN = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
)


class Producer:
    """Runs until `should_continue` returns false, then finishes its open batches."""

    def __init__(
        self,
        client: Client,
        history: History,
        *,
        acks: int,
        is_idempotent: bool,
        pace_s: float,
        should_continue: Callable[[], bool],
    ) -> None:
        self._client = client
        self._history = history
        self._acks = acks
        self._is_idempotent = is_idempotent
        self._pace_s = pace_s
        self._should_continue = should_continue
        self._producer_id, self._epoch = -1, -1
        self._sequences: dict[Partition, int] = {}
        self._numbers: dict[Partition, int] = {}

    async def run(self) -> None:
        if self._is_idempotent and not await self._become_idempotent():
            return
        client = self._client
        while self._should_continue():
            topics = [
                topic for topic in self._history.topics.values() if topic.topic_id and not topic.is_deleted
            ]
            if topics:
                topic = client.random.choice(topics)
                partition = topic.topic_id, client.random.randrange(topic.partitions)
                together = client.random.choice((1, 1, 1, 2, IN_FLIGHT_MAX)) if self._is_idempotent else 1
                await self.produce_some(partition, together)
            await client.pause(self._pace_s)

    async def _become_idempotent(self) -> bool:
        while self._should_continue():
            try:
                answer = await self._client.ask(
                    self._client.any_address(),
                    INIT_PRODUCER_ID,
                    INIT_PRODUCER_ID_VERSION,
                    InitProducerIdRequest(None, 60_000),
                )
            except NoResponse:
                answer = None
            if answer is not None and not answer.error_code:
                self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
                self._history.got_producer_id(self._client.name, self._producer_id, self._epoch)
                return True
            await self._client.pause()
            await self._client.refresh()
        return False

    async def produce(self, partition: Partition) -> Batch:
        """Produces one batch, to its final outcome."""
        (batch,) = await self.produce_some(partition, 1)
        return batch

    async def produce_some(self, partition: Partition, count: int) -> list[Batch]:
        """Produces several batches, all in flight at once."""
        client, history = self._client, self._history
        pending = [self._build(partition) for _ in range(count)]
        batches = [batch for batch, _ in pending]
        history.batches += batches
        if count > 1:
            history.count("batches in flight together", count)
        give_up_at = client.now() + DELIVERY_S
        while pending:
            is_late = client.now() > give_up_at and not self._is_idempotent
            if is_late or history.is_deleted(partition[0]):
                self._end([batch for batch, _ in pending], "failed")
                break
            await self._attempt(partition, pending)
            pending = [(batch, data) for batch, data in pending if batch.outcome == "open"]
        return batches

    def _build(self, partition: Partition) -> tuple[Batch, bytes]:
        """The next batch for this partition, with its sequence."""
        client, history = self._client, self._history
        number = self._numbers.get(partition, 0)
        self._numbers[partition] = number + 1
        count = client.random.randint(1, 4)
        values = [f"{client.name} {name(partition)} {number} {index}".encode() for index in range(count)]
        padding = bytes(client.random.choice((0, 10, 300)))
        is_keyed = history.is_compacted(partition)
        keys = [b"%d" % client.random.randrange(8) if is_keyed else padding for _ in values]
        now_ms = client.runtime.time_ms()
        records = [
            Record(index, now_ms, key, value)
            for index, (key, value) in enumerate(zip(keys, values, strict=True))
        ]
        batch = Batch(client.name, number, partition, values, self._acks, self._is_idempotent, client.now())
        batch.keys = keys
        if not self._is_idempotent:
            return batch, build_batch(records)
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = sequence + count
        data = build_batch(
            records, producer_id=self._producer_id, producer_epoch=self._epoch, base_sequence=sequence
        )
        return batch, data

    def _end(self, batches: list[Batch], outcome: str, offset: int = -1) -> None:
        for batch in batches:
            batch.outcome, batch.offset, batch.ended_at = outcome, offset, self._client.now()
            self._history.count(f"batches {outcome}")

    async def _attempt(self, partition: Partition, pending: list[tuple[Batch, bytes]]) -> None:
        """Sends all of the batches, in order."""
        client = self._client
        topic_id, index = partition
        address, _ = client.leader(topic_id, index)
        if address is None:
            await client.pause()
            await client.refresh()
            return
        requests = [
            ProduceRequest(
                None,
                self._acks,
                1500,
                [TopicProduceData("", topic_id, [PartitionProduceData(index, data)])],
            )
            for _, data in pending
        ]
        for batch, _ in pending:
            batch.attempts += 1
        try:
            if self._acks == 0:
                await client.ask(address, PRODUCE, PRODUCE_VERSION, requests[0], is_answered=False)
                self._end([pending[0][0]], "sent")
                return
            answers = await client.ask_all(address, PRODUCE, PRODUCE_VERSION, requests)
        except NoResponse:
            answers = []
        for (batch, _), answer in zip(pending, answers, strict=False):
            if answer is not None and batch.outcome == "open":
                await self._answered(batch, answer, [each for each, _ in pending])
        if any(batch.outcome == "open" for batch, _ in pending):
            await client.pause()
            await client.refresh()

    async def _answered(self, batch: Batch, answer: ProduceResponse, together: list[Batch]) -> None:
        found = answer.responses[0].partition_responses[0]
        error = ErrorCode(found.error_code)
        is_behind = any(each.outcome == "open" for each in together[: together.index(batch)])
        if error is ErrorCode.NONE or error is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            self._end([batch], "acked", found.base_offset)
        elif error in RETRIABLE or (is_behind and error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
            self._history.count(f"produce {error.name}")
        elif error in FORGOTTEN and (
            not self._history.is_safe(batch.partition) or _is_too_old(batch, error, found.error_message)
        ):
            # Allowed where records may be lost: the producer starts over, and its batches may be in the log or not.
            self._history.count("producers that start over")
            self._end([each for each in together if each.outcome == "open"], "failed")
            self._producer_id = -1
            self._sequences.clear()
            await self._become_idempotent()
        else:
            raise Violation(
                f"{self._client.name} got {error.name} ({found.error_message}) for batch {batch.number} of "
                f"{name(batch.partition)}"
            )


def _is_too_old(batch: Batch, error: ErrorCode, message: str | None) -> bool:
    """Whether the broker no longer knows that it has a batch that was sent before: a snapshot of producers, which a
    broker loads after a start or a truncation, holds the last batch of each, as Kafka's does."""
    numbers = re.search(r"(\d+) \(incoming seq. number\), (\d+) \(current end", message or "")
    return (
        error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        and batch.attempts > 1
        and numbers is not None
        and int(numbers[1]) < int(numbers[2])
    )
