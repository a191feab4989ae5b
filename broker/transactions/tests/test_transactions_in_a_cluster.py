"""Transactions over three whole nodes on a virtual network: questions and markers go from broker to broker, coordinators die."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.broker.tests.reply import Reply, send
from barnabas.broker.tests.virtual_cluster import NODE_IDS, VirtualCluster
from barnabas.broker.transactions.transaction import TopicPartition, Transaction
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.end_txn import EndTxnRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest

PARTITIONS = [("t", index) for index in range(6)]


class TransactionalCluster(VirtualCluster):
    """With topic t on all nodes."""

    def __init__(self) -> None:
        super().__init__(
            "transaction.state.log.num.partitions=3",
            "transaction.state.log.replication.factor=3",
            "transaction.state.log.min.isr=2",
        )
        self.advance(10)
        topic = CreatableTopic(name="t", num_partitions=len(PARTITIONS), replication_factor=3)
        self.ask(1, 19, 7, CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        self.advance(2)

    def ask(self, node_id: int, key: int, version: int, request: Any) -> Any:
        """The response, at the moment at which it is there."""
        reply = Reply()
        send(self.nodes[node_id].services, key, version, request, reply)
        self.run_until(lambda: reply.done)
        assert reply.answer is not None
        return reply.answer

    def coordinator(self, name: str, asked: int) -> int:
        """The node id, as that node knows it."""
        request = FindCoordinatorRequest(key_type=1, coordinator_keys=[name])
        found: list[int] = []

        def find() -> bool:
            (answer,) = self.ask(asked, 10, 4, request).coordinators
            found[:] = [answer.node_id]
            return bool(answer.error_code == E.NONE)

        while not find():
            self.advance(0.5)
        return found[0]

    def ongoing(self, name: str) -> int:
        """Open a transaction in all partitions; its coordinator."""
        node_id = self.coordinator(name, 1)
        init = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
        answer = self.ask(node_id, 22, 5, init)
        while answer.error_code == E.COORDINATOR_LOAD_IN_PROGRESS:  # no producer ids so far
            self.advance(0.1)
            answer = self.ask(node_id, 22, 5, init)
        assert (answer.error_code, answer.producer_epoch) == (E.NONE, 0)
        added = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=answer.producer_id,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=[AddPartitionsToTxnTopic("t", list(range(len(PARTITIONS))))],
        )
        (topic,) = self.ask(node_id, 24, 3, added).results_by_topic_v3_and_below
        assert {each.partition_error_code for each in topic.results_by_partition} == {E.NONE}
        return node_id

    def transaction(self, node_id: int, name: str) -> Transaction:
        found = self.nodes[node_id].services.transactions.describe(name)
        assert isinstance(found, Transaction), found
        return found

    def ends_of_log(self, node_id: int) -> list[int]:
        partitions = self.nodes[node_id].services.partitions
        found = [partitions.get(*each) for each in PARTITIONS]
        return [each.log.log_end_offset for each in found if each is not None]


@pytest.fixture
def cluster() -> TransactionalCluster:
    return TransactionalCluster()


def test_leaders_everywhere_get_their_markers(cluster: TransactionalCluster) -> None:
    for number in range(4):
        name = f"id-{number}"
        node_id = cluster.ongoing(name)
        producer_id = cluster.transaction(node_id, name).data.producer_id
        assert cluster.ask(node_id, 26, 3, EndTxnRequest(name, producer_id, 0, True)).error_code == E.NONE
        cluster.advance(2)
        assert cluster.transaction(node_id, name).state.label == "CompleteCommit"
        for each in NODE_IDS:
            assert cluster.ends_of_log(each) == [number + 1] * len(PARTITIONS)
    assert len({cluster.coordinator(f"id-{number}", 1) for number in range(4)}) > 1


def test_every_broker_can_verify_partitions(cluster: TransactionalCluster) -> None:
    node_id = cluster.ongoing("id")
    producer_id = cluster.transaction(node_id, "id").data.producer_id
    for asking in NODE_IDS:
        answers: list[dict[TopicPartition, E]] = []
        cluster.nodes[asking].services.add_partitions_to_txn.verify(
            "id", producer_id, 0, [("t", 0), ("u", 0)], add=False, done=answers.append
        )
        cluster.advance(1)
        assert answers == [{("t", 0): E.OPERATION_NOT_ATTEMPTED, ("u", 0): E.UNKNOWN_TOPIC_OR_PARTITION}]
        answers.clear()
        cluster.nodes[asking].services.add_partitions_to_txn.verify(
            "id", producer_id, 0, [("t", 0), ("t", 5)], add=False, done=answers.append
        )
        cluster.advance(1)
        assert answers == [{("t", 0): E.NONE, ("t", 5): E.NONE}]


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_outlives_its_coordinator(cluster: TransactionalCluster, commit: bool) -> None:
    """It dies at the moment of the answer, before any marker."""
    former = cluster.ongoing("id")
    producer_id = cluster.transaction(former, "id").data.producer_id
    ended = cluster.ask(former, 26, 3, EndTxnRequest("id", producer_id, 0, commit))
    assert ended.error_code == E.NONE
    cluster.runtimes[former].end()
    others = [each for each in NODE_IDS if each != former]
    assert [cluster.ends_of_log(each) for each in others] == [[0] * len(PARTITIONS)] * 2
    cluster.advance(40)
    node_id = cluster.coordinator("id", others[0])
    assert node_id != former
    assert cluster.transaction(node_id, "id").state.label == ("CompleteCommit" if commit else "CompleteAbort")
    assert [cluster.ends_of_log(each) for each in others] == [[1] * len(PARTITIONS)] * 2


def test_markers_follow_a_partition_to_its_next_leader(cluster: TransactionalCluster) -> None:
    node_id = cluster.ongoing("id")
    producer_id = cluster.transaction(node_id, "id").data.producer_id
    dead = next(each for each in NODE_IDS if each != node_id)
    cluster.runtimes[dead].end(power_fails=True)  # the others notice later
    ended = cluster.ask(node_id, 26, 3, EndTxnRequest("id", producer_id, 0, True))
    assert ended.error_code == E.NONE
    cluster.advance(30)
    assert cluster.transaction(node_id, "id").state.label == "CompleteCommit"
