"""A transactional producer that speaks frames, of the protocol before transaction.version 2: AddPartitionsToTxn is a request."""

from __future__ import annotations

import struct
from typing import Any

from crc32c import crc32c

from barnabas.testing import Broker
from barnabas.testing.external.raw_client import RawClient
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from barnabas.wire.messages.end_txn import EndTxnRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.records import Record, build_batch
from compat_tests.harness.eventually import eventually

PRODUCE, FIND_COORDINATOR, INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, END_TXN = 0, 10, 22, 24, 26
TRANSACTION = 1  # a key type of FindCoordinator
_AGAIN = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


class TransactionalClient:
    """Requests of one transactional id to its coordinator; batches go to the same node, or to that of `leader`."""

    def __init__(self, broker: Broker, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self._broker = broker
        self.transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._clients: dict[int, RawClient] = {}
        self._sequences: dict[tuple[str, int], int] = {}
        self.node = self._find()
        answer = self._again(INIT_PRODUCER_ID, 4, InitProducerIdRequest(transactional_id, timeout_ms))
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    def close(self) -> None:
        for client in self._clients.values():
            client.socket.close()

    def send(self, topic: str, value: bytes, partition: int = 0) -> int:
        """Add the partition and produce one record to it; the error."""
        error = self.add(topic, partition)
        return error or self.produce(topic, value, partition)

    def add(self, topic: str, partition: int = 0) -> int:
        request = AddPartitionsToTxnRequest(
            [],
            self.transactional_id,
            self.producer_id,
            self.epoch,
            [AddPartitionsToTxnTopic(topic, [partition])],
        )
        answer = self._ask(self.node, ADD_PARTITIONS_TO_TXN, 3, request)
        code: int = answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
        return code

    def produce(self, topic: str, value: bytes, partition: int = 0) -> int:
        sequence = self._sequences.get((topic, partition), 0)
        data = TopicProduceData(
            name=topic, partition_data=[PartitionProduceData(partition, self._batch(value, sequence))]
        )
        leader = self._broker.partition(topic, partition).leader
        answer = self._ask(leader, PRODUCE, 11, ProduceRequest(self.transactional_id, -1, 30_000, [data]))
        code: int = answer.responses[0].partition_responses[0].error_code
        if not code:
            self._sequences[topic, partition] = sequence + 1
        return code

    def end(self, *, commit: bool) -> int:
        request = EndTxnRequest(self.transactional_id, self.producer_id, self.epoch, commit)
        code: int = self._ask(self.node, END_TXN, 4, request).error_code
        return code

    def find_again(self) -> None:
        """The coordinator has moved."""
        self.node = self._find()

    def _batch(self, value: bytes, sequence: int) -> bytes:
        batch = bytearray(build_batch([Record(0, self._broker.clock.time_ms(), None, value)]))
        struct.pack_into(">h", batch, 21, 0x10)  # transactional
        struct.pack_into(">qhi", batch, 43, self.producer_id, self.epoch, sequence)
        struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
        return bytes(batch)

    def _find(self) -> int:
        any_node = next(node.node_id for node in self._broker.nodes if node.is_running)
        request = FindCoordinatorRequest(coordinator_keys=[self.transactional_id], key_type=TRANSACTION)
        found: list[Any] = []

        def is_found() -> bool:
            found[:] = self._ask(any_node, FIND_COORDINATOR, 4, request).coordinators
            return not found[0].error_code

        eventually(is_found)
        node: int = found[0].node_id
        return node

    def _again(self, key: int, version: int, request: Any) -> Any:
        answers: list[Any] = []

        def is_done() -> bool:
            answers[:] = [self._ask(self.node, key, version, request)]
            return answers[0].error_code not in _AGAIN

        eventually(is_done)
        assert not answers[0].error_code, answers
        return answers[0]

    def _ask(self, node: int, key: int, version: int, request: Any) -> Any:
        client = self._clients.get(node)
        if client is None:
            port = next(each.port for each in self._broker.nodes if each.node_id == node)
            client = self._clients[node] = RawClient(port)
        return client.ask(key, version, request)
