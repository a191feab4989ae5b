"""Transactions of a single node whose process is killed, or whose power fails, at any step: all or nothing, and what was answered
holds. Through a power failure with flush.messages=1 on all topics, __transaction_state included, as docs/transactions.md says."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.node import Node
from barnabas.broker.tests.reply import send
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.end_txn import EndTxnRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.record_batch import read_header
from barnabas.wire.records import Record, build_batch, iterate_records
from compat_tests.virtual.runtime import VirtualRuntime

PARTITIONS = 3
TRANSACTIONS = 4
TIMEOUT_MS = 10_000


class Interrupted(Exception):
    """The node is gone."""


class World:
    """A node with topic t, on a disk that keeps what was synced only."""

    def __init__(self, disk: MemoryDisk, *, is_flushed: bool) -> None:
        self.disk = disk
        self.turns: int | None = None  # that the node lives; None: for ever
        self.runtime = VirtualRuntime()
        settings = [
            "log.dirs=/data",
            "listeners=PLAINTEXT://127.0.0.1:0",
            "transaction.state.log.num.partitions=1",
            *(["log.flush.interval.messages=1"] if is_flushed else []),
        ]
        self.node = Node(BrokerConfig.load(None, {}, settings), self.runtime, disk)
        self.node.start()
        self.runtime.run_until_idle()

    def ask(self, key: int, version: int, request: Any) -> Any:
        reply = send(self.node.services, key, version, request)
        while not reply.done:
            if self.turns is not None:
                if not self.turns:
                    raise Interrupted
                self.turns -= 1
            if not self.runtime.step():
                self.runtime.advance(0.01)
        return reply.answer

    def create(self) -> None:
        topic = CreatableTopic(name="t", num_partitions=PARTITIONS, replication_factor=1)
        self.ask(19, 7, CreateTopicsRequest(topics=[topic], timeout_ms=1000))
        find = FindCoordinatorRequest(key_type=1, coordinator_keys=["id"])
        while self.ask(10, 6, find).coordinators[0].error_code:
            self.runtime.advance(0.1)

    def initialize(self) -> tuple[int, int]:
        request = InitProducerIdRequest(transactional_id="id", transaction_timeout_ms=TIMEOUT_MS)
        while True:
            answer = self.ask(22, 5, request)
            if not answer.error_code:
                return answer.producer_id, answer.producer_epoch
            self.runtime.advance(0.1)

    def produce(self, number: int, producer: tuple[int, int], index: int) -> None:
        """A record with the number of its transaction; the first one of this producer's epoch."""
        batch = build_batch(
            [Record(0, self.runtime.time_ms(), None, b"%d" % number)],
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=0,
            transactional=True,
        )
        data = PartitionProduceData(index=index, records=memoryview(bytearray(batch)))
        request = ProduceRequest("id", -1, 10_000, [TopicProduceData(name="t", partition_data=[data])])
        while error := self.ask(0, 12, request).responses[0].partition_responses[0].error_code:
            assert error == E.CONCURRENT_TRANSACTIONS, E(error)  # markers of the last one are being written
            self.runtime.advance(0.1)

    def end(self, producer: tuple[int, int], *, commit: bool) -> tuple[int, int]:
        while True:
            answer = self.ask(26, 5, EndTxnRequest("id", *producer, commit))
            if not answer.error_code:
                return answer.producer_id, answer.producer_epoch
            assert answer.error_code == E.CONCURRENT_TRANSACTIONS
            self.runtime.advance(0.1)

    def committed(self, index: int) -> list[int]:
        """The numbers of the transactions that a read_committed consumer of the partition sees."""
        partition = self.node.services.partitions.get("t", index)
        assert partition is not None
        log = partition.log
        assert partition.last_stable_offset == log.log_end_offset, "no transaction is open"
        data = b"".join(region.read() for region in log.read(0, 1 << 20).regions)
        waiting: dict[int, list[int]] = {}
        seen: list[int] = []
        while data:
            header = read_header(data)
            size = 12 + int.from_bytes(data[8:12], "big")
            (record,) = iterate_records(data[:size])
            if not header.is_control:
                waiting.setdefault(header.producer_id, []).append(int(record.value or b""))
            else:
                ended = waiting.pop(header.producer_id, [])
                seen += ended if record.key == b"\0\0\0\1" else []
            data = data[size:]
        return seen


def run_and_interrupt(world: World, commits: list[bool], turns: int) -> dict[int, bool]:
    """Which transactions were answered, and how they ended."""
    answered: dict[int, bool] = {}
    producer = world.initialize()
    world.turns = turns
    try:
        for number, commit in enumerate(commits):
            for index in range(PARTITIONS):
                world.produce(number, producer, index)
            producer = world.end(producer, commit=commit)
            answered[number] = commit
    except Interrupted:
        pass
    return answered


@pytest.mark.slow
@pytest.mark.parametrize("power_fails", [False, True], ids=["kill", "power failure"])
@settings(max_examples=40)
@given(
    st.lists(st.booleans(), min_size=TRANSACTIONS, max_size=TRANSACTIONS),
    st.integers(0, 140),  # 128 turns are enough for all of it
    st.randoms(use_true_random=False),
)
def test_transactions_are_atomic(power_fails: bool, commits: list[bool], turns: int, random: Random) -> None:
    world = World(MemoryDisk(), is_flushed=power_fails)
    world.create()
    answered = run_and_interrupt(world, commits, turns)
    disk = world.disk.crash(lambda most: random.randint(0, most)) if power_fails else world.disk.copy()

    after = World(disk, is_flushed=power_fails)
    after.runtime.advance(3 * TIMEOUT_MS / 1000)
    seen = [after.committed(index) for index in range(PARTITIONS)]
    assert seen.count(seen[0]) == PARTITIONS, seen
    assert [number for number in seen[0] if number in answered] == [
        number for number, commit in answered.items() if commit
    ]
    last = len(answered)
    assert set(seen[0]) - set(answered) <= ({last} if last < len(commits) and commits[last] else set())
    producer = after.initialize()  # and it goes on
    after.produce(99, producer, 0)
    after.end(producer, commit=True)
    after.runtime.advance(1)
    assert after.committed(0) == [*seen[0], 99]
