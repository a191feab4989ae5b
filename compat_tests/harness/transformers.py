"""Members of a group that consume, transform and produce in transactions, of three client libraries, each in a thread of its own.

A `Transformer` copies the records of a topic to the same partitions of another one: each batch of records, with the offsets behind
it, in a transaction. It aborts every third one and reads that batch again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeVar

import aiokafka
import confluent_kafka
import kafka
import kafka.errors
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from compat_tests.harness.clients import PLAIN, Sample
from compat_tests.harness.committed import NOT_YET, committed
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import UniqueName
from compat_tests.harness.members import SESSION_TIMEOUT_MS, Member
from compat_tests.harness.transactional_clients import (
    CALL_S,
    READ_COMMITTED,
    READERS,
    Value,
    read_with_confluent,
)

BATCH = 5
TRANSACTION_TIMEOUT_MS = 30_000
FETCH_WAIT_MS = 20  # a consumer that goes back to an offset waits for the fetch at the end that it has sent
Offsets = Mapping[int, int]  # by partition
Result = TypeVar("Result")


class Transformer(Member):
    """See the module. `assigned` is what it has of the source."""

    def __init__(self, bootstrap: str, group: str, source: str, target: str, transactional_id: str) -> None:
        self.source = source
        self.target = target
        self.transactional_id = transactional_id
        self.transactions = 0
        self.aborted = 0
        super().__init__(bootstrap, group, [source])

    def _next_aborts(self) -> bool:
        """Whether to abort the transaction that has been filled."""
        self.transactions += 1
        self.aborted += self.transactions % 3 == 0
        return self.transactions % 3 == 0


class KafkaPythonTransformer(Transformer):
    """kafka-python."""

    library = "kafka-python"

    def _poll_until_stopped(self) -> None:
        consumer = kafka.KafkaConsumer(
            self.source,
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level=READ_COMMITTED,
            max_poll_records=BATCH,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=200,
            fetch_max_wait_ms=FETCH_WAIT_MS,
        )
        consumer.partitions_for_topic(self.source)  # see KafkaPythonMember
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.bootstrap,
            transactional_id=self.transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        )
        producer.init_transactions()
        while not self._stop.is_set():
            polled = consumer.poll(timeout_ms=200)
            self._see(frozenset((one.topic, one.partition) for one in consumer.assignment()))
            if polled:
                self._transform(consumer, producer, polled)
        producer.close()
        consumer.close()

    def _transform(
        self,
        consumer: kafka.KafkaConsumer,
        producer: kafka.KafkaProducer,
        polled: Mapping[kafka.TopicPartition, list[kafka.consumer.fetcher.ConsumerRecord]],
    ) -> None:
        producer.begin_transaction()
        try:
            for partition, records in polled.items():
                for record in records:
                    producer.send(self.target, record.value, partition=partition.partition)
            offsets = {
                partition: kafka.OffsetAndMetadata(records[-1].offset + 1, "", -1)
                for partition, records in polled.items()
            }
            producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
            if not self._next_aborts():
                producer.commit_transaction()
                return
        except kafka.errors.KafkaError as error:
            if isinstance(error, kafka.errors.ProducerFencedError):
                raise
            # another member has the partitions
        producer.abort_transaction()
        for partition in consumer.assignment():
            offset = consumer.committed(partition)
            if offset is None:
                consumer.seek_to_beginning(partition)
            else:
                consumer.seek(partition, offset)


class ConfluentTransformer(Transformer):
    """confluent-kafka."""

    library = "confluent-kafka"

    def _poll_until_stopped(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": READ_COMMITTED,
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": 200,
                "fetch.wait.max.ms": FETCH_WAIT_MS,
                "partition.assignment.strategy": "range,roundrobin",
            }
        )
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": self.transactional_id,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": 0,
            }
        )
        producer.init_transactions(CALL_S)
        batch: list[confluent_kafka.Message] = []

        def changed(add: bool) -> Callable[..., None]:
            def callback(
                _: confluent_kafka.Consumer, partitions: list[confluent_kafka.TopicPartition]
            ) -> None:
                batch.clear()  # its partitions may be another member's next
                found = frozenset((one.topic, one.partition) for one in partitions)
                self._see(found if add else self.assigned - found)

            return callback

        consumer.subscribe(
            [self.source], on_assign=changed(True), on_revoke=changed(False), on_lost=changed(False)
        )
        while not self._stop.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                batch.append(message)
            if batch and (message is None or len(batch) == BATCH):
                self._transform(consumer, producer, batch)
                batch.clear()
        consumer.close()
        producer.close()

    def _transform(
        self,
        consumer: confluent_kafka.Consumer,
        producer: confluent_kafka.Producer,
        batch: list[confluent_kafka.Message],
    ) -> None:
        offsets: dict[int, int] = {}
        producer.begin_transaction()
        for message in batch:
            partition = message.partition() or 0
            producer.produce(self.target, message.value(), partition=partition)
            offsets[partition] = (message.offset() or 0) + 1
        ends = [confluent_kafka.TopicPartition(self.source, *each) for each in offsets.items()]
        try:
            metadata = consumer.consumer_group_metadata()
            _until_answered(lambda: producer.send_offsets_to_transaction(ends, metadata, CALL_S))
            if not self._next_aborts():
                _until_answered(lambda: producer.commit_transaction(CALL_S))
                return
        except KafkaException as error:  # another member has the partitions
            if not error.args[0].txn_requires_abort():
                raise
        _until_answered(lambda: producer.abort_transaction(CALL_S))
        assigned = [confluent_kafka.TopicPartition(*each) for each in self.assigned]
        for each in _until_answered(lambda: consumer.committed(assigned, CALL_S)):
            if each.offset < 0:
                each.offset = confluent_kafka.OFFSET_BEGINNING
            consumer.seek(each)


def _until_answered(call: Callable[[], Result]) -> Result:
    """Repeat what may be repeated, such as while the coordinator moves."""
    while True:
        try:
            return call()
        except KafkaException as error:
            reason = error.args[0]
            if reason.txn_requires_abort() or not (reason.retriable() or reason.code() in NOT_YET):
                raise


class AioKafkaTransformer(Transformer):
    """aiokafka. It commits offsets without its generation and fetches them without require_stable, so that the end of its
    assignment has to wait until its offsets are the group's."""

    library = "aiokafka"

    def _poll_until_stopped(self) -> None:
        asyncio.run(self._poll())

    async def _poll(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level=READ_COMMITTED,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=200,
            fetch_max_wait_ms=FETCH_WAIT_MS,
        )
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            transactional_id=self.transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        )
        transaction = asyncio.Lock()
        consumer.subscribe([self.source], listener=_EndsAssignment(transaction))
        await consumer.start()
        await producer.start()
        try:
            while not self._stop.is_set():
                polled = await consumer.getmany(timeout_ms=100, max_records=BATCH)
                self._see(frozenset((one.topic, one.partition) for one in consumer.assignment()))
                if polled:
                    async with transaction:
                        await self._transform(consumer, producer, polled)
        finally:
            await producer.stop()
            await consumer.stop()

    async def _transform(
        self,
        consumer: aiokafka.AIOKafkaConsumer,
        producer: aiokafka.AIOKafkaProducer,
        polled: Mapping[aiokafka.TopicPartition, list[aiokafka.ConsumerRecord[bytes, bytes]]],
    ) -> None:
        await producer.begin_transaction()
        for partition, records in polled.items():
            for record in records:
                await producer.send(self.target, record.value, partition=partition.partition)
        offsets = {partition: records[-1].offset + 1 for partition, records in polled.items()}
        await producer.send_offsets_to_transaction(offsets, self.group)
        if self._next_aborts():
            await producer.abort_transaction()
            for partition, records in polled.items():
                consumer.seek(partition, records[0].offset)
            return
        await producer.commit_transaction()
        await asyncio.to_thread(
            self._await_committed, {partition.partition: offset for partition, offset in offsets.items()}
        )

    def _await_committed(self, offsets: Offsets) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        wanted = offsets.items()
        eventually(lambda: wanted <= {(each.partition, each.offset) for each in committed(admin, self.group)})


class _EndsAssignment(aiokafka.ConsumerRebalanceListener):
    def __init__(self, transaction: asyncio.Lock) -> None:
        self._transaction = transaction

    async def on_partitions_revoked(self, revoked: set[aiokafka.TopicPartition]) -> None:
        async with self._transaction:
            """It has ended."""

    async def on_partitions_assigned(self, assigned: set[aiokafka.TopicPartition]) -> None:
        """Positions are those that are committed."""


TRANSFORMERS: tuple[type[Transformer], ...] = (
    KafkaPythonTransformer,
    AioKafkaTransformer,
    ConfluentTransformer,
)


PARTITIONS = 4
COUNT = 40  # records that `fill` writes into each partition


class Pipeline:
    """Two topics of PARTITIONS partitions and a group of transformers between them."""

    def __init__(self, bootstrap: str, unique: UniqueName, source: str, target: str) -> None:
        self.bootstrap = bootstrap
        self.source, self.target = source, target
        self.group = unique("group")
        self.sent: list[Value] = []
        self.members: list[Transformer] = []
        self._unique = unique
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def fill(self, text: str) -> None:
        for partition in range(PARTITIONS):
            values = [f"{text}-{partition}-{number}" for number in range(COUNT)]
            samples = [Sample(None, value.encode()) for value in values]
            PLAIN.produce(self.bootstrap, self.source, samples, partition=partition)
            self.sent += [(partition, value) for value in values]

    def start(self, library: type[Transformer]) -> Transformer:
        name = self._unique("transformer")
        self.members.append(library(self.bootstrap, self.group, self.source, self.target, name))
        return self.members[-1]

    def abandon(self) -> None:
        """End the members, without waiting."""
        for member in self.members:
            member.abandon()

    def await_read(self, count: int) -> None:
        """Wait until that many records are committed in the target."""

        def check() -> bool:
            for member in self.members:
                if member.failure is not None:
                    raise member.failure
            return len(self.read()) >= count

        eventually(check)

    def read(self, isolation_level: str = READ_COMMITTED) -> list[Value]:
        return read_with_confluent(self.bootstrap, self.target, PARTITIONS, isolation_level)

    def check(self) -> None:
        """Wait until every record is copied, once and in order, and the offsets are those of the ends."""
        self.await_read(len(self.sent))
        for read in READERS:
            found = read(self.bootstrap, self.target, PARTITIONS, READ_COMMITTED)
            for partition in range(PARTITIONS):
                mine = [value for where, value in found if where == partition]
                assert mine == [value for where, value in self.sent if where == partition]
        ends = {partition: len(self.sent) // PARTITIONS for partition in range(PARTITIONS)}
        eventually(lambda: self.offsets() == ends)

    def offsets(self) -> dict[int, int]:
        return {each.partition: each.offset for each in committed(self._admin, self.group)}
