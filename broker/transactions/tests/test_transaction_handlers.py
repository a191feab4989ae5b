"""The APIs of transactional producers over a whole node: real controller, partitions and files, a clock that the test moves.

Every request and response passes through its wire form. What the answers should be was asked of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.tests.one_node import OneNode
from barnabas.broker.transactions.state import TransactionState
from barnabas.broker.transactions.transaction import Transaction
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from barnabas.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from barnabas.wire.messages.end_txn import EndTxnRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from barnabas.wire.record_batch import read_header


class ProducerNode(OneNode):
    """A node with topic t of two partitions."""

    def __init__(self, directory: Path) -> None:
        super().__init__(
            f"log.dirs={directory}",
            "transaction.state.log.num.partitions=3",
            "offsets.topic.num.partitions=5",
        )
        self.create("t", 2)

    def find(self, *keys: str) -> None:
        request = FindCoordinatorRequest(key_type=1, coordinator_keys=list(keys))
        assert [each.error_code for each in self.ask(request, 6).coordinators] == [E.NONE] * len(keys)

    def initialize(self, version: int = 5, **fields: Any) -> tuple[E, int, int]:
        fields = {"transactional_id": "id", "transaction_timeout_ms": 60_000, **fields}
        answer = self.ask(InitProducerIdRequest(**fields), version)
        return E(answer.error_code), answer.producer_id, answer.producer_epoch

    def add(
        self, version: int, producer_id: int, epoch: int, topics: dict[str, list[int]], name: str = "id"
    ) -> dict[tuple[str, int], E]:
        """As a client does it."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(*each) for each in topics.items()],
        )
        return _errors(self.ask(request, version).results_by_topic_v3_and_below)

    def verify(
        self, version: int, *asked: tuple[str, int, int, bool, dict[str, list[int]]]
    ) -> dict[str, dict[tuple[str, int], E]]:
        """As a broker does it: transactional id, producer id, epoch, verify only, partitions."""
        transactions = [
            AddPartitionsToTxnTransaction(
                name,
                producer_id,
                epoch,
                verify_only,
                [AddPartitionsToTxnTopic(*each) for each in topics.items()],
            )
            for name, producer_id, epoch, verify_only, topics in asked
        ]
        answer = self.ask(AddPartitionsToTxnRequest(transactions=transactions), version)
        assert answer.error_code == E.NONE
        return {each.transactional_id: _errors(each.topic_results) for each in answer.results_by_transaction}

    def end(
        self, version: int, producer_id: int, epoch: int, *, commit: bool = True, name: str = "id"
    ) -> tuple[E, int, int]:
        answer = self.ask(EndTxnRequest(name, producer_id, epoch, commit), version)
        return E(answer.error_code), answer.producer_id, answer.producer_epoch

    def state(self, name: str = "id") -> TransactionState:
        found = self.node.services.transactions.describe(name)
        assert isinstance(found, Transaction)
        return found.state

    def batches(self, topic: str, index: int) -> list[Any]:
        """The headers of the partition's batches."""
        partition = self.node.services.partitions.get(topic, index)
        assert partition is not None
        found = partition.log.read(0, 1 << 20)
        data = b"".join(region.read() for region in found.regions)
        headers = []
        while data:
            headers.append(read_header(data))
            data = data[12 + int.from_bytes(data[8:12], "big") :]
        return headers


def _errors(topics: list[Any]) -> dict[tuple[str, int], E]:
    return {
        (topic.name, each.partition_index): E(each.partition_error_code)
        for topic in topics
        for each in topic.results_by_partition
    }


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ProducerNode]:
    one = ProducerNode(tmp_path)
    yield one
    one.node.stop()


@pytest.mark.parametrize("version", range(1, 7))
def test_the_first_look_up_creates_the_topic_of_the_coordinator(node: ProducerNode, version: int) -> None:
    if version < 4:
        answer = node.ask(FindCoordinatorRequest(key="id", key_type=1), version)
        assert (answer.error_code, answer.node_id, answer.error_message) == (E.NONE, 1, "NONE")
    else:
        request = FindCoordinatorRequest(key_type=1, coordinator_keys=["id", "other"])
        found = node.ask(request, version).coordinators
        assert [(each.key, each.error_code, each.node_id) for each in found] == [
            ("id", E.NONE, 1),
            ("other", E.NONE, 1),
        ]
    image = node.node.services.controller.image
    assert len(image.topics["__transaction_state"].partitions) == 3
    assert image.topic_configs("__transaction_state") == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "1",
        "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    }


@pytest.mark.parametrize("version", range(6))
def test_init_producer_id_gives_the_next_epoch(node: ProducerNode, version: int) -> None:
    assert node.initialize(version) == (E.NOT_COORDINATOR, -1, -1)
    node.find("id")
    assert node.initialize(version) == (E.NONE, 0, 0)
    assert node.initialize(version) == (E.NONE, 0, 1)
    assert node.initialize(version, transactional_id="other") == (E.NONE, 1, 0)
    assert node.initialize(version, transactional_id="") == (E.INVALID_REQUEST, -1, -1)
    for timeout_ms in (-1, 0, 900_001):
        answer = node.initialize(version, transaction_timeout_ms=timeout_ms)
        assert answer == (E.INVALID_TRANSACTION_TIMEOUT, -1, -1)
    if version >= 3:
        assert node.initialize(version, producer_id=0, producer_epoch=1) == (E.NONE, 0, 2)
        fenced = E.PRODUCER_FENCED if version >= 4 else E.INVALID_PRODUCER_EPOCH
        assert node.initialize(version, producer_id=0, producer_epoch=0) == (fenced, -1, -1)
        assert node.initialize(version, producer_id=0) == (E.INVALID_REQUEST, -1, -1)


@pytest.mark.parametrize("version", range(4))
def test_a_client_adds_partitions(node: ProducerNode, version: int) -> None:
    node.find("id")
    assert node.add(version, 0, 0, {"t": [0]}) == {("t", 0): E.INVALID_PRODUCER_ID_MAPPING}
    node.initialize()
    assert node.add(version, 0, 0, {"t": [0, 1]}) == {("t", 0): E.NONE, ("t", 1): E.NONE}
    assert node.state() == TransactionState.ONGOING
    assert node.add(version, 9, 0, {"t": [0]}) == {("t", 0): E.INVALID_PRODUCER_ID_MAPPING}
    fenced = E.PRODUCER_FENCED if version >= 2 else E.INVALID_PRODUCER_EPOCH
    assert node.add(version, 0, 1, {"t": [0]}) == {("t", 0): fenced}
    assert node.add(version, 0, 0, {"t": [0, 2], "u": [0]}) == {
        ("t", 0): E.OPERATION_NOT_ATTEMPTED,
        ("t", 2): E.UNKNOWN_TOPIC_OR_PARTITION,
        ("u", 0): E.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert node.add(version, 0, 0, {"__transaction_state": [0], "t": [1]}) == {
        ("__transaction_state", 0): E.TOPIC_AUTHORIZATION_FAILED,
        ("t", 1): E.OPERATION_NOT_ATTEMPTED,
    }
    assert node.add(version, 0, 0, {"t": [0]}, name="") == {("t", 0): E.INVALID_REQUEST}


@pytest.mark.parametrize("version", [4, 5])
def test_a_broker_verifies_and_adds_partitions_of_several_transactions(
    node: ProducerNode, version: int
) -> None:
    node.find("id", "other")
    node.initialize()
    node.initialize(transactional_id="other")
    node.add(3, 0, 0, {"t": [0]})
    assert node.verify(
        version,
        ("id", 0, 0, True, {"t": [0, 1]}),
        ("other", 1, 0, False, {"t": [1], "__transaction_state": [0]}),
        ("unknown", 1, 0, True, {"t": [1]}),
        ("", 1, 0, True, {"t": [1]}),
    ) == {
        "id": {("t", 0): E.NONE, ("t", 1): E.TRANSACTION_ABORTABLE},
        "other": {("t", 1): E.NONE, ("__transaction_state", 0): E.NONE},
        "unknown": {("t", 1): E.INVALID_PRODUCER_ID_MAPPING},
        "": {("t", 1): E.INVALID_REQUEST},
    }
    assert node.verify(
        version, ("id", 0, 1, True, {"t": [0]}), ("other", 1, 0, False, {"t": [1], "u": [0]})
    ) == {
        "id": {("t", 0): E.PRODUCER_FENCED},
        "other": {("t", 1): E.OPERATION_NOT_ATTEMPTED, ("u", 0): E.UNKNOWN_TOPIC_OR_PARTITION},
    }
    assert node.verify(version) == {}


@pytest.mark.parametrize("version", range(5))
def test_offsets_are_added_as_the_partition_of_the_group(node: ProducerNode, version: int) -> None:
    node.find("id")
    _, producer_id, _ = node.initialize()
    request = AddOffsetsToTxnRequest("id", producer_id, 0, "g")
    assert node.ask(request, version).error_code == E.NONE
    found = node.node.services.transactions.describe("id")
    assert isinstance(found, Transaction)
    assert found.data.partitions == {("__consumer_offsets", 103 % 5)}  # the hash of "g"
    request = AddOffsetsToTxnRequest("id", producer_id, 4, "g")
    fenced = E.PRODUCER_FENCED if version >= 2 else E.INVALID_PRODUCER_EPOCH
    assert node.ask(request, version).error_code == fenced
    request = AddOffsetsToTxnRequest("", producer_id, 4, "g")
    assert node.ask(request, version).error_code == E.INVALID_REQUEST


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("commit", [True, False])
def test_the_end_is_written_to_all_partitions(node: ProducerNode, version: int, commit: bool) -> None:
    node.find("id")
    node.initialize()
    node.add(3, 0, 0, {"t": [0, 1]})
    request = AddOffsetsToTxnRequest("id", 0, 0, "g")
    assert node.ask(request, 3).error_code == E.NONE
    epoch = 1 if version >= 5 else 0
    expected = (0, epoch) if version >= 5 else (-1, -1)
    fenced = E.PRODUCER_FENCED if version >= 2 else E.INVALID_PRODUCER_EPOCH
    assert node.end(version, 0, 7, commit=commit) == (fenced, -1, -1)
    assert node.end(version, 0, 0, commit=commit) == (E.NONE, *expected)
    assert node.state() == (TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT)
    for index in (0, 1):
        (marker,) = node.batches("t", index)
        assert (marker.is_control, marker.producer_id, marker.producer_epoch) == (True, 0, epoch)
    assert node.end(version, 0, 0, commit=commit) == (E.NONE, *expected)  # a repetition
    assert node.end(version, 0, 0, commit=not commit)[0] == E.INVALID_TXN_STATE
    assert len(node.batches("t", 0)) == 1
    assert node.end(version, 0, 0, name="") == (E.INVALID_REQUEST, -1, -1)
    assert node.end(version, 0, 0, name="unknown") == (E.INVALID_PRODUCER_ID_MAPPING, -1, -1)


def test_a_marker_of_a_higher_epoch_in_one_partition_does_not_keep_the_others_open(
    node: ProducerNode,
) -> None:
    node.find("id")
    node.initialize()
    node.add(3, 0, 0, {"t": [0, 1]})
    marker = WritableTxnMarker(0, 5, False, [WritableTxnMarkerTopic("t", [0])], 0)
    node.ask(WriteTxnMarkersRequest([marker]), 1)
    assert node.end(3, 0, 0) == (E.NONE, -1, -1)
    assert node.state() == TransactionState.COMPLETE_COMMIT
    assert [each.producer_epoch for each in node.batches("t", 0)] == [5]
    assert [each.producer_epoch for each in node.batches("t", 1)] == [0]


def test_a_second_producer_aborts_the_transaction_of_the_first(node: ProducerNode) -> None:
    node.find("id")
    node.initialize()
    node.add(3, 0, 0, {"t": [0]})
    assert node.initialize() == (E.CONCURRENT_TRANSACTIONS, -1, -1)
    assert node.state() == TransactionState.COMPLETE_ABORT
    assert node.initialize() == (E.NONE, 0, 2)
    assert node.end(3, 0, 0)[0] == E.PRODUCER_FENCED
    (marker,) = node.batches("t", 0)
    assert marker.producer_epoch == 1


def test_transactions_survive_a_restart(node: ProducerNode) -> None:
    node.find("id")
    node.initialize()
    node.add(3, 0, 0, {"t": [0]})
    node.restart()
    assert node.verify(5, ("id", 0, 0, True, {"t": [0, 1]})) == {
        "id": {("t", 0): E.NONE, ("t", 1): E.TRANSACTION_ABORTABLE}
    }
    assert node.end(3, 0, 0) == (E.NONE, -1, -1)
    assert node.state() == TransactionState.COMPLETE_COMMIT
    node.restart()
    assert node.state() == TransactionState.COMPLETE_COMMIT
    assert node.end(3, 0, 0) == (E.NONE, -1, -1)
    assert node.initialize() == (E.NONE, 0, 1)


def test_a_transaction_that_takes_too_long_is_aborted(node: ProducerNode) -> None:
    node.find("id")
    node.initialize(transaction_timeout_ms=30_000)
    node.add(3, 0, 0, {"t": [0]})
    node.runtime.advance(29)
    assert node.state() == TransactionState.ONGOING
    node.runtime.advance(12)
    assert node.state() == TransactionState.COMPLETE_ABORT
    assert node.end(3, 0, 0)[0] == E.PRODUCER_FENCED
    (marker,) = node.batches("t", 0)
    assert marker.producer_epoch == 1


def test_a_topic_that_is_named_twice_is_answered_twice(node: ProducerNode) -> None:
    node.find("id")
    node.initialize()
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="id",
        v3_and_below_topics=[AddPartitionsToTxnTopic("t", [0, 0]), AddPartitionsToTxnTopic("t", [1])],
    )
    answered = node.ask(request, 3).results_by_topic_v3_and_below
    assert [(each.name, len(each.results_by_partition)) for each in answered] == [("t", 2), ("t", 1)]
    assert set(_errors(answered).values()) == {E.NONE}


def test_a_request_with_very_many_partitions_of_no_topic(node: ProducerNode) -> None:
    node.find("id")
    node.initialize()
    topics = {"t": [0, 1], "unknown": list(range(100_000))}
    errors = node.add(3, 0, 0, topics)
    assert errors["t", 1] == E.OPERATION_NOT_ATTEMPTED
    assert errors["unknown", 99_999] == E.UNKNOWN_TOPIC_OR_PARTITION
    assert node.state() == TransactionState.EMPTY
