"""Transactional load on a cluster during faults, judged by TransactionHistory.

`TransactionalWork(cluster)` writes with transactional producers of two libraries, copies the input topic with its group's offsets
in the transactions, and reads with read_committed. `verify()` ends the clients, takes over what they have left open, and checks
all invariants that need no producer ids: clients do not tell theirs.
"""

from __future__ import annotations

import contextlib
import random
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaConnectionError

from barnabas.wire.messages.describe_transactions import DescribeTransactionsRequest, TransactionState
from compat_tests.conform.client import Connection
from compat_tests.harness import raw
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.cluster_work import create_topic
from compat_tests.harness.eventually import eventually
from compat_tests.harness.raw import RawConnection
from compat_tests.harness.transaction_history import (
    ABORT,
    ABORTED,
    COMMIT,
    COMMITTED,
    UNKNOWN,
    GroupOffset,
    LogBatch,
    Transaction,
    TransactionHistory,
)
from compat_tests.harness.transaction_state_log import check_markers, check_sequence, decode
from compat_tests.harness.transactional_clients import (
    AioKafkaProducer,
    ConfluentProducer,
    TransactionalProducer,
)

PARTITIONS = 2
INPUT, OUTPUT, GROUP = "input", "output", "copies"
STATE_TOPIC = "__transaction_state"  # of as many partitions
TIMEOUT_MS = 6_000
PAUSE_S = TIMEOUT_MS / 1000 + 2
UNKNOWN_IDENTITY = -1, -1
Partition = tuple[str, int]
Make = Callable[[], TransactionalProducer]
# Their own timeouts are short: with the usual ones of 40 and 60 s a client waits so long for a broker that stands still, and again
# for the next one, while the test waits for all of them.
_aiokafka = partial(AioKafkaProducer, call_s=20, request_timeout_ms=8_000)
# Copiers use aiokafka: librdkafka's send_offsets_to_transaction (2.16) waits without end, beyond its own timeout too, for the
# coordinator of the group that it knows, when that one has died. kafka-python 3.0.12 waits for its own timeout of a minute when a coordinator dies, also with Apache Kafka.
MAKERS: dict[str, Callable[..., TransactionalProducer]] = {
    "aiokafka": _aiokafka,
    "confluent-kafka": partial(ConfluentProducer, call_s=10),
}
FETCH_BYTES = 1 << 20
PACE_S = 0.1  # between two transactions of a worker


class _Worker:
    """A thread that transacts until `finish`, with one producer after the other."""

    def __init__(self, name: str, make: Make, history: TransactionHistory, lock: threading.Lock) -> None:
        self.name = name
        self.committed = 0
        self.failure: BaseException | None = None
        self.errors: list[str] = []
        self._make = make
        self._history = history
        self._lock = lock
        self._numbers = 0
        self._pauses = threading.Event()
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"worker {name}")

    def start(self) -> None:
        self._thread.start()

    def pause(self) -> None:
        """Stand still in the middle of the next transaction, for longer than it may take."""
        self._pauses.set()

    def stop(self) -> None:
        self._stops.set()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    def is_running(self) -> bool:
        return self._thread.is_alive()

    def take_over(self) -> None:
        """End what has been left open."""

        def succeeds() -> bool:
            producer = self._make()
            try:
                producer.initialize()
            except Exception as error:  # noqa: BLE001 - each library has its own errors, and tries are repeated
                self.errors.append(repr(error))
                return False
            finally:
                self._close(producer)
            return True

        eventually(succeeds, 120, message=lambda: self.errors[-3:])

    def _run(self) -> None:
        try:
            while not self._stops.is_set():
                producer = self._make()
                try:
                    producer.initialize()
                    while not self._stops.wait(PACE_S):
                        self._transact(producer)
                except AssertionError:
                    raise
                except Exception as error:  # noqa: BLE001 - each library has its own errors; another producer follows
                    self.errors.append(repr(error))
                finally:
                    self._close(producer)
        except BaseException as failure:  # noqa: BLE001 - raised by the test's own thread
            self.failure = failure

    @staticmethod
    def _close(producer: TransactionalProducer) -> None:
        with contextlib.suppress(Exception):
            producer.close()

    def _transact(self, producer: TransactionalProducer) -> None:
        """One transaction."""
        transaction = self._begin()
        producer.begin()
        for _ in range(random.randint(1, 3)):
            self._send(producer, transaction, INPUT, random.randint(1, 3))
        if self._pauses.is_set():
            self._pauses.clear()
            self._stops.wait(PAUSE_S)  # the pause is what is tested
        self._end(producer, transaction, commit=random.random() < 0.8)

    def _begin(self) -> Transaction:
        with self._lock:
            return self._history.begin(self.name, self.name, UNKNOWN_IDENTITY, time.monotonic())

    def _send(
        self, producer: TransactionalProducer, transaction: Transaction, topic: str, count: int
    ) -> None:
        partition = random.randrange(PARTITIONS)
        values = []
        for _ in range(count):
            self._numbers += 1
            values.append(f"{self.name}-{self._numbers}")
            transaction.sends((topic, partition), values[-1].encode())
        producer.send(topic, [(partition, value) for value in values])

    def _end(self, producer: TransactionalProducer, transaction: Transaction, *, commit: bool) -> None:
        if not commit:
            producer.abort()
            transaction.outcome = ABORTED
            return
        transaction.requested_at = time.monotonic()
        transaction.outcome = UNKNOWN
        producer.commit()
        transaction.ended_at = time.monotonic()
        transaction.outcome = COMMITTED
        self.committed += 1


class _Copier(_Worker):
    """Copies one partition of the input; the group's offset moves in the same transaction."""

    def __init__(
        self,
        name: str,
        make: Make,
        history: TransactionHistory,
        lock: threading.Lock,
        bootstrap: str,
        partition: int,
    ) -> None:
        super().__init__(name, make, history, lock)
        self._bootstrap = bootstrap
        self._partition = partition

    def _transact(self, producer: TransactionalProducer) -> None:
        consumer = committed_consumer(self._bootstrap, GROUP)
        try:
            self._copy(producer, consumer)
        finally:
            consumer.close()

    def _copy(self, producer: TransactionalProducer, consumer: KafkaConsumer) -> None:
        """Copy until an abort, after which the input is read again from the committed offset on."""
        source = TopicPartition(INPUT, self._partition)
        position = consumer.committed(source) or 0
        consumer.assign([source])
        consumer.seek(source, position)
        while not self._stops.is_set():
            records = consumer.poll(300, max_records=50).get(source, [])
            if not records:
                continue
            after = records[-1].offset + 1
            transaction = self._begin()
            transaction.consumed[GROUP, (INPUT, self._partition)] = position, after
            producer.begin()
            self._send(producer, transaction, OUTPUT, len(records))
            producer.send_offset(GROUP, INPUT, self._partition, after)
            if self._pauses.is_set():
                self._pauses.clear()
                self._stops.wait(PAUSE_S)  # the pause is what is tested
            self._end(producer, transaction, commit=random.random() < 0.85)
            if transaction.outcome == ABORTED:
                return
            position = after


class TransactionalWork:
    """See the module."""

    def __init__(
        self, cluster: Cluster, makers: dict[str, Callable[..., TransactionalProducer]] | None = None
    ):
        self.cluster = cluster
        self.history = TransactionHistory()
        self._lock = threading.Lock()
        for topic in (INPUT, OUTPUT):
            create_topic(cluster, topic, PARTITIONS, configs={"min.insync.replicas": "2"})
        bootstrap = cluster.bootstrap

        def maker(new: Callable[..., TransactionalProducer], name: str) -> Make:
            return lambda: new(bootstrap, name, timeout_ms=TIMEOUT_MS)

        shared = self.history, self._lock
        self.workers: list[_Worker] = [
            _Worker(f"feed-{library}", maker(new, f"feed-{library}"), *shared)
            for library, new in MAKERS.items()
        ]
        self.workers += [
            _Copier(
                f"copy-{index}",
                maker(_aiokafka, f"copy-{index}"),
                *shared,
                bootstrap,
                index,
            )
            for index in range(PARTITIONS)
        ]
        self._reader = _Reader(cluster.bootstrap, self.history)
        cluster.on_close.append(self._abandon)
        for worker in self.workers:
            worker.start()
        self._reader.start()

    def _abandon(self) -> None:
        """Stop all clients: those of a test that has failed would disturb the tests behind it."""
        self._reader.stop()
        for worker in self.workers:
            worker.stop()
        deadline = time.monotonic() + 10
        for worker in self.workers:
            worker.join(max(0.0, deadline - time.monotonic()))

    def await_progress(self, count: int = 3, timeout: float = 300) -> float:
        """Wait until every worker has committed `count` more transactions; return the seconds that took."""
        workers = self.workers
        before = [worker.committed for worker in workers]
        started = time.monotonic()

        def all_did() -> bool:
            for worker in self.workers:
                if worker.failure is not None:
                    raise worker.failure
            return all(worker.committed >= count + was for worker, was in zip(workers, before, strict=True))

        def state() -> object:
            progress = [
                (worker.name, worker.committed - was, worker.errors[-3:])
                for worker, was in zip(workers, before, strict=True)
            ]
            logs = "\n".join(
                f"--- {node}: {one.log_text()[-2500:]}" for node, one in self.cluster.nodes.items()
            )
            states = "\n".join(map(str, self._states()))
            return f"{progress}\n{states}\n{self.cluster.metadata()}\n{logs}"

        eventually(all_did, timeout, message=state)
        return time.monotonic() - started

    def _states(self) -> list[TransactionState]:
        """What the brokers say of the ids that they coordinate."""
        found: list[TransactionState] = []
        for node in self.cluster.live:
            host, _, port = self.cluster.addresses[node].rpartition(":")
            connection = Connection(host, int(port))
            request = DescribeTransactionsRequest([worker.name for worker in self.workers])
            states = connection.ask(request, 0).transaction_states
            found += [each for each in states if not each.error_code]
            connection.close()
        return found

    def verify(self) -> int:
        """End all clients and check everything; the number of committed transactions."""
        for worker in self.workers:
            worker.stop()
        for worker in self.workers:
            worker.join(120)
            assert not worker.is_running(), f"{worker.name} does not end: {worker.errors[-3:]}"
            if worker.failure is not None:
                raise worker.failure
        self.cluster.wait_until_whole()
        for worker in self.workers:
            worker.take_over()
        partitions = [(topic, index) for topic in (INPUT, OUTPUT) for index in range(PARTITIONS)]
        logs = {partition: self._log(partition) for partition in partitions}
        self._reader.read_to({where: log[-1].last_offset + 1 for where, log in logs.items() if log})
        self._ask_for_offsets()
        self.history.check(logs, [])
        self._check_coordinators(logs)
        return sum(worker.committed for worker in self.workers)

    def _check_coordinators(self, logs: dict[Partition, list[LogBatch]]) -> None:
        """What the coordinators know is what a replay of their logs gives, and each end has its markers."""
        records = [
            decode(key, value)
            for index in range(PARTITIONS)
            for batches in self._fetch((STATE_TOPIC, index))
            for key, value in keyed_records(batches)
        ]
        check_sequence(records)
        check_markers(records, logs)
        last = {record.transactional_id: record for record in records}
        known = self._states()
        assert last.keys() == {each.transactional_id for each in known}
        for each in known:
            told = (
                each.transaction_state,
                (each.producer_id, each.producer_epoch),
                each.transaction_timeout_ms,
                each.transaction_start_time_ms,
                frozenset((topic.topic, index) for topic in each.topics for index in topic.partitions),
            )
            record = last[each.transactional_id]
            identity = record.producer_id, record.epoch
            logged = record.state, identity, record.timeout_ms, record.start_ms, record.partitions
            assert told == logged, each.transactional_id

    def _ask_for_offsets(self) -> None:
        consumer = committed_consumer(self.cluster.bootstrap, GROUP)
        for index in range(PARTITIONS):
            asked_at = time.monotonic()
            offset = consumer.committed(TopicPartition(INPUT, index))
            self.history.group_offsets.append(
                GroupOffset(
                    GROUP, (INPUT, index), -1 if offset is None else offset, asked_at, time.monotonic()
                )
            )
        consumer.close()

    def _log(self, partition: Partition) -> list[LogBatch]:
        """All batches of a partition."""
        return [batch for batches in self._fetch(partition) for batch in log_batches(batches, 0)]

    def _fetch(self, partition: Partition) -> Iterator[bytes]:
        """The whole batches of a partition, as its leader answers them to read_uncommitted fetches."""
        leader = self.cluster.leader(*partition)
        with RawConnection(self.cluster.addresses[leader]) as connection:
            offset = 0
            while True:
                error, end, records = raw.fetch(
                    connection, partition[0], offset, partition[1], max_bytes=FETCH_BYTES, max_wait_ms=0
                )
                assert error == 0, (partition, error)
                if offset >= end:
                    return
                batches = log_batches(records, offset)
                assert batches, f"{partition} does not continue at {offset}"
                yield records
                offset = batches[-1].last_offset + 1


class _Reader:
    """Reads all partitions with read_committed, in a thread until `read_to`."""

    def __init__(self, bootstrap: str, history: TransactionHistory) -> None:
        self._bootstrap = bootstrap
        self._reader = history.reader("reader")
        self._stops = threading.Event()
        self._ends: dict[Partition, int] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="committed reader")
        self._failure: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stops.set()

    def read_to(self, ends: dict[Partition, int]) -> None:
        """Wait until all is read up to these offsets, and end."""

        def is_there() -> bool:
            if self._failure is not None:
                raise self._failure
            return all(self._reader.position.get(where, 0) >= end for where, end in ends.items())

        eventually(is_there, 120, message=lambda: (ends, self._reader.position))
        self._stops.set()
        self._thread.join(60)

    def _run(self) -> None:
        try:
            self._read()
        except BaseException as failure:  # noqa: BLE001 - raised by the test's own thread
            self._failure = failure

    def _read(self) -> None:
        consumer = committed_consumer(self._bootstrap, None)
        partitions = [
            TopicPartition(topic, index) for topic in (INPUT, OUTPUT) for index in range(PARTITIONS)
        ]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        while not self._stops.is_set():
            try:
                polled = consumer.poll(200)
            except KafkaConnectionError:
                continue
            now = time.monotonic()
            for each in partitions:
                values = [(record.offset, record.value) for record in polled.get(each, ())]
                self._reader.read((each.topic, each.partition), consumer.position(each), values, now)
        consumer.close()


def committed_consumer(bootstrap: str, group: str | None) -> KafkaConsumer:
    """A consumer with read_committed. Not librdkafka's: it may deadlock when a leader dies (members.py)."""
    return KafkaConsumer(
        bootstrap_servers=bootstrap.split(","),
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        fetch_max_wait_ms=50,
        request_timeout_ms=10_000,
        metadata_max_age_ms=1_000,
    )


def log_batches(records: bytes, from_offset: int) -> Sequence[LogBatch]:
    """The whole batches of a fetch that end behind an offset."""
    found = []
    position = 0
    while position + 61 <= len(records):
        base_offset, length, _, _, _, attributes, delta = struct.unpack_from(">qiibIhi", records, position)
        end = position + 12 + length
        if end > len(records):
            break
        producer_id, epoch, sequence, count = struct.unpack_from(">qhii", records, position + 43)
        keyed = _records(records[position + 61 : end], count)
        marker = ""
        if attributes & 0x20:
            marker = COMMIT if struct.unpack_from(">h", keyed[0][0], 2)[0] == 1 else ABORT
        if base_offset + delta >= from_offset:
            found.append(
                LogBatch(
                    base_offset,
                    base_offset + delta,
                    (producer_id, epoch),
                    bool(attributes & 0x10),
                    marker,
                    () if marker else tuple(value for _, value in keyed),
                    sequence,
                )
            )
        position = end
    return found


def keyed_records(batches: bytes) -> Iterator[tuple[bytes, bytes | None]]:
    """Key and value of each record of the whole batches of a fetch, uncompressed; None for a tombstone."""
    position = 0
    while position + 61 <= len(batches):
        (length,) = struct.unpack_from(">i", batches, position + 8)
        end = position + 12 + length
        if end > len(batches):
            return
        (count,) = struct.unpack_from(">i", batches, position + 57)
        for key, value in _records(batches[position + 61 : end], count):
            yield key, value or None
        position = end


def _records(data: bytes, count: int) -> list[tuple[bytes, bytes]]:
    """Key and value of each record of an uncompressed batch."""
    found = []
    position = 0
    for _ in range(count):
        size, position = _varint(data, position)
        end = position + size
        position += 1  # attributes
        _, position = _varint(data, position)
        _, position = _varint(data, position)
        key_size, position = _varint(data, position)
        key = data[position : position + max(0, key_size)]
        position += max(0, key_size)
        value_size, position = _varint(data, position)
        found.append((key, data[position : position + max(0, value_size)]))
        position = end
    return found


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A zigzag varint and the position behind it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
