"""Transactional producers and consumers of three Python libraries behind one interface, so that one test fits them all.

java_transactions.py has the same for the Java client.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors
from confluent_kafka import KafkaError, KafkaException

Result = TypeVar("Result")
Value = tuple[int, str]
"""Partition and value of a record."""

READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"
CALL_S = 60.0


class Fenced(Exception):
    """The producer may not go on: another one has its transactional id, or its transaction took too long."""


class AlreadyEnded(Exception):
    """The coordinator has aborted the transaction: since transaction.version 2 a commit that comes too late counts as the
    repetition of another end."""


class TransactionalProducer(ABC):
    """One producer with a transactional id. Every method may raise Fenced."""

    @abstractmethod
    def initialize(self) -> None:
        """Take over the transactional id."""

    @abstractmethod
    def begin(self) -> None:
        """Begin a transaction."""

    @abstractmethod
    def send(self, topic: str, values: Sequence[Value]) -> None:
        """Send records and wait for their acknowledgements."""

    @abstractmethod
    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        """Commit an offset of a group in the transaction."""

    @abstractmethod
    def commit(self) -> None:
        """Commit the transaction."""

    @abstractmethod
    def abort(self) -> None:
        """Abort the transaction."""

    @abstractmethod
    def close(self) -> None:
        """Free what the producer holds; an open transaction stays open."""


class KafkaPythonProducer(TransactionalProducer):
    """kafka-python."""

    def __init__(self, bootstrap: str, transactional_id: str, *, timeout_ms: int = 60_000) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            max_block_ms=int(CALL_S * 1000),
        )

    def initialize(self) -> None:
        with _fences(kafka.errors.KafkaError):
            self._producer.init_transactions()

    def begin(self) -> None:
        with _fences(kafka.errors.KafkaError):
            self._producer.begin_transaction()

    def send(self, topic: str, values: Sequence[Value]) -> None:
        with _fences(kafka.errors.KafkaError):
            sent = [
                self._producer.send(topic, value.encode(), partition=partition) for partition, value in values
            ]
            for each in sent:
                each.get(CALL_S)

    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        with _fences(kafka.errors.KafkaError):
            self._producer.send_offsets_to_transaction(
                {kafka.TopicPartition(topic, partition): kafka.OffsetAndMetadata(offset, "", -1)}, group
            )

    def commit(self) -> None:
        with _fences(kafka.errors.KafkaError):
            self._producer.commit_transaction()

    def abort(self) -> None:
        with _fences(kafka.errors.KafkaError):
            self._producer.abort_transaction()

    def close(self) -> None:
        with contextlib.suppress(kafka.errors.KafkaError):
            self._producer.close(timeout=0)


class AioKafkaProducer(TransactionalProducer):
    """aiokafka, with an event loop in a thread of its own."""

    def __init__(
        self,
        bootstrap: str,
        transactional_id: str,
        *,
        timeout_ms: int = 60_000,
        call_s: float = CALL_S,
        request_timeout_ms: int = 40_000,
    ) -> None:
        self._call_s = call_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="aiokafka-producer")
        self._thread.start()

        async def make() -> aiokafka.AIOKafkaProducer:
            return aiokafka.AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                request_timeout_ms=request_timeout_ms,
            )

        self._producer = self._run(make())

    def initialize(self) -> None:
        try:
            self._run(self._producer.start())
        except AssertionError as error:
            # Of aiokafka itself: Metadata has no brokers while all are fenced, as after all have died.
            raise aiokafka.errors.NodeNotReadyError(str(error)) from error

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, values: Sequence[Value]) -> None:
        async def send_all() -> None:
            sent = [
                await self._producer.send(topic, value.encode(), partition=part) for part, value in values
            ]
            await asyncio.gather(*sent)

        self._run(send_all())

    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        offsets = {aiokafka.TopicPartition(topic, partition): offset}
        self._run(self._producer.send_offsets_to_transaction(offsets, group))

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        async def close() -> None:
            if self._producer._sender.sender_task is not None:  # not stop(): it aborts the open transaction
                self._producer._sender.sender_task.cancel()
            await self._producer.client.close()
            self._producer._closed = True

        self._run(close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_S)
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        with _fences(aiokafka.errors.KafkaError):
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(self._call_s)
        raise AssertionError


_TIMEOUTS = ("message.timeout.ms", "socket.timeout.ms")


class ConfluentProducer(TransactionalProducer):
    """confluent-kafka."""

    def __init__(
        self, bootstrap: str, transactional_id: str, *, timeout_ms: int = 60_000, call_s: float = CALL_S
    ) -> None:
        self._call_s = call_s
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "linger.ms": 0,
                "log_level": 0,
                **(
                    {}
                    if call_s == CALL_S
                    else {name: min(timeout_ms, int(call_s * 1000)) for name in _TIMEOUTS}
                ),
            }
        )

    def initialize(self) -> None:
        with _fences(KafkaException):
            self._producer.init_transactions(self._call_s)

    def begin(self) -> None:
        with _fences(KafkaException):
            self._producer.begin_transaction()

    def send(self, topic: str, values: Sequence[Value]) -> None:
        errors: list[KafkaError] = []

        def delivered(error: KafkaError | None, _message: confluent_kafka.Message) -> None:
            if error is not None:
                errors.append(error)

        with _fences(KafkaException):
            for partition, value in values:
                self._producer.produce(topic, value.encode(), partition=partition, on_delivery=delivered)
            # Not flush, which calls back for records while a fatal error is set as the exception (docs/clients.md)
            deadline = time.monotonic() + self._call_s
            while (left := len(self._producer)) and time.monotonic() < deadline:
                self._producer.poll(0.1)
            if left:
                raise TimeoutError(f"{left} records are not acknowledged within {self._call_s:g} s")
            if errors:
                raise KafkaException(errors[0])

    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        # its ConsumerGroupMetadata is made by consumers only
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": "127.0.0.1:9", "group.id": group, "log_level": 0}
        )
        metadata = consumer.consumer_group_metadata()
        consumer.close()
        with _fences(KafkaException):
            self._producer.send_offsets_to_transaction(
                [confluent_kafka.TopicPartition(topic, partition, offset)], metadata, self._call_s
            )

    def commit(self) -> None:
        with _fences(KafkaException):
            self._producer.commit_transaction(self._call_s)

    def abort(self) -> None:
        with _fences(KafkaException):
            self._producer.abort_transaction(self._call_s)

    def close(self) -> None:
        self._producer.purge()
        with contextlib.suppress(KafkaException):  # it is fenced
            self._producer.close(0)  # type: ignore[call-arg]  # its stub lacks the timeout


_FENCED_CODES = (
    KafkaError._FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
)
_FENCED_ERRORS = (
    kafka.errors.ProducerFencedError,
    kafka.errors.InvalidProducerEpochError,
    aiokafka.errors.ProducerFenced,
    aiokafka.errors.InvalidProducerEpoch,
)


@contextlib.contextmanager
def _fences(errors: type[Exception]) -> Iterator[None]:
    """Raise Fenced where a library's error, or its cause, says so."""
    try:
        yield
    except errors as error:
        if _says_fenced(error):
            raise Fenced(str(error)) from error
        raise


def _says_fenced(error: BaseException | None) -> bool:
    if error is None or isinstance(error, _FENCED_ERRORS):
        return error is not None
    first = error.args[0] if error.args else None
    if isinstance(first, KafkaError):
        return first.code() in _FENCED_CODES
    return _says_fenced(first if isinstance(first, BaseException) else error.__cause__)


# -- consumers


def read_with_kafka_python(bootstrap: str, topic: str, partitions: int, isolation_level: str) -> list[Value]:
    """All records from the beginning to the end that the isolation level has."""
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation_level)
    wanted = [kafka.TopicPartition(topic, number) for number in range(partitions)]
    consumer.assign(wanted)
    consumer.seek_to_beginning()
    ends = consumer.end_offsets(wanted)
    found: list[Value] = []
    while any(consumer.position(each) < ends[each] for each in wanted):
        for records in consumer.poll(200).values():
            found += [(record.partition, (record.value or b"").decode()) for record in records]
    consumer.close()
    return found


def read_with_aiokafka(bootstrap: str, topic: str, partitions: int, isolation_level: str) -> list[Value]:
    """As read_with_kafka_python."""

    async def read() -> list[Value]:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation_level)
        await consumer.start()
        wanted = [aiokafka.TopicPartition(topic, number) for number in range(partitions)]
        consumer.assign(wanted)
        await consumer.seek_to_beginning()
        ends = await consumer.end_offsets(wanted)
        found: list[Value] = []
        for partition in wanted:
            while await consumer.position(partition) < ends[partition]:
                for records in (await consumer.getmany(partition, timeout_ms=200)).values():
                    found += [(record.partition, (record.value or b"").decode()) for record in records]
        await consumer.stop()
        return found

    return asyncio.run(asyncio.wait_for(read(), CALL_S))


def read_with_confluent(bootstrap: str, topic: str, partitions: int, isolation_level: str) -> list[Value]:
    """As read_with_kafka_python."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",  # from 0: librdkafka takes half a second to ask for the beginning
            "isolation.level": isolation_level,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(partitions)])
    found: list[Value] = []
    ended: set[int | None] = set()
    while len(ended) < partitions:
        message = consumer.poll(CALL_S)
        assert message is not None, f"no end of {topic} within {CALL_S} s"
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended.add(message.partition())
        else:
            found.append((message.partition() or 0, bytes(message.value() or b"").decode()))
    consumer.close()
    return found


Read = Callable[[str, str, int, str], list[Value]]
READERS: tuple[Read, ...] = (read_with_kafka_python, read_with_aiokafka, read_with_confluent)
PRODUCERS: dict[str, type[KafkaPythonProducer] | type[AioKafkaProducer] | type[ConfluentProducer]] = {
    "kafka-python": KafkaPythonProducer,
    "aiokafka": AioKafkaProducer,
    "confluent-kafka": ConfluentProducer,
}
