"""A whole node and transactional producers of both versions, whose batches come late or twice: none of them opens a transaction
that nothing ends, and readers get what was committed."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.tests.leader import TOPIC_ID, Leader
from barnabas.broker.tests.reply import Reply
from barnabas.storage.log.log import Log
from barnabas.storage.segment.transaction_marker import find_marker
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from barnabas.wire.messages.end_txn import EndTxnRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.record_batch import iterate_whole_headers
from barnabas.wire.records import Record, build_batch, iterate_records

PRODUCE, FIND_COORDINATOR, INIT_PRODUCER_ID, ADD_PARTITIONS, END_TXN = 0, 10, 22, 24, 26
PARTITIONS = 3
TIMEOUT_MS = 10_000
TRIES_MAX = 100
AGAIN = frozenset(
    {
        E.CONCURRENT_TRANSACTIONS,
        E.COORDINATOR_LOAD_IN_PROGRESS,
        E.COORDINATOR_NOT_AVAILABLE,
        E.NOT_COORDINATOR,
        E.NOT_ENOUGH_REPLICAS,
    }
)


class World:
    """A node with topic t. `committed`: the values by partition. They are numbers, in the order of the appends."""

    def __init__(self) -> None:
        self.leader = Leader("/d", MemoryDisk(), transaction_state_log_num_partitions="2")
        self.leader.create(replicas=[1], partitions=PARTITIONS)
        self.committed: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.sent: list[tuple[int, int, bytes]] = []  # (version, partition, batch) of produces
        self._values = 0

    def ask(self, key: int, version: int, request: Any) -> Any:
        reply: Reply = self.leader.ask(key, version, request)
        for _ in range(100):
            if reply.done:
                return reply.answer
            self.leader.runtime.advance(0.01)
        raise AssertionError("it is not answered")

    def until_known(self, ask: Callable[[], Any], error_of: Callable[[Any], int]) -> Any:
        """The answer, once it is not to be asked again."""
        for _ in range(TRIES_MAX):
            answer = ask()
            if E.of(error_of(answer)) not in AGAIN:
                return answer
            self.leader.runtime.advance(0.1)
        raise AssertionError("it has to be asked again for ever")

    def new_value(self) -> bytes:
        self._values += 1
        return b"%d" % self._values

    def produce(self, version: int, name: str, partition: int, batch: bytes) -> E:
        data = PartitionProduceData(partition, memoryview(bytearray(batch)))
        request = ProduceRequest(name, -1, 30_000, [TopicProduceData("t", TOPIC_ID, [data])])
        answer = self.ask(PRODUCE, version, request)
        return E.of(answer.responses[0].partition_responses[0].error_code)

    def log(self, partition: int) -> Log:
        return self.leader.partition(partition).log


class Producer:
    """One transactional id. After an error it has to begin again (`init`)."""

    def __init__(self, world: World, name: str, *, version_2: bool) -> None:
        self._world = world
        self._name = name
        self._produce_version, self._end_version = (12, 5) if version_2 else (11, 4)
        self._version_2 = version_2
        find = FindCoordinatorRequest(key_type=1, coordinator_keys=[name])
        world.until_known(
            lambda: world.ask(FIND_COORDINATOR, 4, find), lambda answer: answer.coordinators[0].error_code
        )
        self.init()

    def init(self) -> None:
        """A new epoch, which fences the former holder of the id; an open transaction is aborted."""
        request = InitProducerIdRequest(transactional_id=self._name, transaction_timeout_ms=TIMEOUT_MS)
        answer = self._world.until_known(
            lambda: self._world.ask(INIT_PRODUCER_ID, 5, request), lambda answer: answer.error_code
        )
        assert answer.error_code == E.NONE
        self._id, self._epoch = answer.producer_id, answer.producer_epoch
        self._sequences = [0] * PARTITIONS
        self._is_broken = False
        self._begin()

    def _begin(self) -> None:
        self._added: set[int] = set()
        self._values: list[tuple[int, bytes]] = []

    def batch(self, partition: int, value: bytes) -> bytes:
        return build_batch(
            [Record(0, self._world.leader.runtime.time_ms(), None, value)],
            producer_id=self._id,
            producer_epoch=self._epoch,
            base_sequence=self._sequences[partition],
            transactional=True,
        )

    def send(self, partition: int) -> None:
        if self._is_broken or not self._add(partition):
            return
        world, value = self._world, self._world.new_value()
        batch = self.batch(partition, value)
        world.sent.append((self._produce_version, partition, batch))
        error = world.until_known(
            lambda: world.produce(self._produce_version, self._name, partition, batch), lambda answer: answer
        )
        if error:
            self._is_broken = True
        else:
            self._sequences[partition] += 1
            self._values.append((partition, value))

    def send_late(self, partition: int) -> None:
        """The batch is on its way; the producer gives up and begins again before it arrives."""
        if self._is_broken or not self._add(partition):
            return
        self._world.sent.append((self._produce_version, partition, self.batch(partition, b"late")))
        self.end(commit=False)
        self.init()

    def _add(self, partition: int) -> bool:
        if self._version_2 or partition in self._added:
            return True
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._name,
            v3_and_below_producer_id=self._id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic("t", [partition])],
        )

        def error_of(answer: Any) -> int:
            code: int = answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            return code

        answer = self._world.until_known(lambda: self._world.ask(ADD_PARTITIONS, 3, request), error_of)
        self._is_broken = bool(error_of(answer))
        if not self._is_broken:
            self._added.add(partition)
        return not self._is_broken

    def end(self, *, commit: bool) -> None:
        if self._is_broken or not (self._values or self._added):
            return
        request = EndTxnRequest(self._name, self._id, self._epoch, commit)
        answer = self._world.until_known(
            lambda: self._world.ask(END_TXN, self._end_version, request), lambda answer: answer.error_code
        )
        if answer.error_code:
            self._is_broken = True
            return
        if commit:
            for partition, value in self._values:
                self._world.committed[partition].append(value)
        if self._version_2:
            self._id, self._epoch = answer.producer_id, answer.producer_epoch
            self._sequences = [0] * PARTITIONS
        self._begin()


def committed_values(log: Log) -> list[bytes]:
    """As a read_committed consumer gets them."""
    stable_offset = log.last_stable_offset
    if not stable_offset:
        return []
    result = log.read(0, 1 << 20, end_offset=stable_offset)
    ahead = [(first, producer_id) for producer_id, first in log.aborted_within(0, result)]
    heapq.heapify(ahead)
    aborted: set[int] = set()
    values: list[bytes] = []
    data = b"".join(region.read() for region in result.regions)
    for at, header in iterate_whole_headers(data):
        while ahead and ahead[0][0] <= header.last_offset:
            aborted.add(heapq.heappop(ahead)[1])
        batch = data[at : at + header.size]
        if header.is_control:
            marker = find_marker(batch)
            if marker is not None and not marker.commit:
                aborted.discard(header.producer_id)
        elif header.producer_id not in aborted:
            values += [record.value or b"" for record in iterate_records(batch)]
    return values


producers = st.integers(0, 2)
partitions = st.integers(0, PARTITIONS - 1)
steps = st.one_of(
    st.tuples(st.just("send"), producers, partitions),
    st.tuples(st.just("send"), producers, partitions),
    st.tuples(st.just("send late"), producers, partitions),
    st.tuples(st.just("commit"), producers, st.just(0)),
    st.tuples(st.just("abort"), producers, st.just(0)),
    st.tuples(st.just("init"), producers, st.just(0)),
    st.tuples(st.just("again"), st.integers(0, 20), st.just(0)),
    st.tuples(st.just("again"), st.integers(0, 20), st.just(0)),
    st.tuples(st.just("wait"), st.integers(1, 25), st.just(0)),
)


@given(st.lists(steps, min_size=5, max_size=30))
def test_late_batches_and_repeated_ones(script: list[tuple[str, int, int]]) -> None:
    world = World()
    known = [Producer(world, f"id-{number}", version_2=number != 1) for number in range(3)]
    for step, subject, partition in script:
        if step == "send":
            known[subject].send(partition)
        elif step == "send late":
            known[subject].send_late(partition)
        elif step in ("commit", "abort"):
            known[subject].end(commit=step == "commit")
        elif step == "init":
            known[subject].init()
        elif step == "again" and world.sent:
            version, partition, batch = world.sent[-1 - subject % len(world.sent)]
            for name in ("id-0", "id-1", "id-2"):  # of which two do not have the producer id
                world.produce(version, name, partition, batch)
        elif step == "wait":
            world.leader.runtime.advance(subject)
    for producer in known:
        producer.init()
    world.leader.runtime.advance(1)
    for partition in range(PARTITIONS):
        log = world.log(partition)
        assert log.last_stable_offset == log.log_end_offset, "a transaction hangs"
        assert committed_values(log) == sorted(world.committed[partition], key=int)
