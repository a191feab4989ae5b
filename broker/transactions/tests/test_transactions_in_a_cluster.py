"""Transactions over three whole nodes on a virtual network: questions and markers go from broker to broker, coordinators die."""

from __future__ import annotations

import random
from typing import Any

import pytest

from barnabas.broker.tests.reply import Reply, send
from barnabas.broker.tests.virtual_cluster import NODE_IDS, VirtualCluster
from barnabas.broker.transactions.state import IDLE
from barnabas.broker.transactions.transaction import TopicPartition, Transaction
from barnabas.storage.segment.transaction_marker import read_marker
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.end_txn import EndTxnRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.record_batch import read_header

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

    def markers(self, node_id: int) -> dict[TopicPartition, list[tuple[int, int, bool]]]:
        """All markers of a node's replicas: producer id, epoch, commit."""
        found: dict[TopicPartition, list[tuple[int, int, bool]]] = {}
        for each in PARTITIONS:
            partition = self.nodes[node_id].services.partitions.get(*each)
            assert partition is not None
            read = partition.log.read(0, 1 << 22)
            data = b"".join(region.read() for region in read.regions)
            found[each] = []
            while data:
                size = 12 + int.from_bytes(data[8:12], "big")
                header, marker = read_header(data), read_marker(data[:size])
                assert marker is not None
                found[each].append((header.producer_id, header.producer_epoch, marker.commit))
                data = data[size:]
        return found


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


# -- faults

RETRIED = (
    E.NOT_COORDINATOR,
    E.COORDINATOR_NOT_AVAILABLE,
    E.COORDINATOR_LOAD_IN_PROGRESS,
    E.CONCURRENT_TRANSACTIONS,
)
ANSWER_S = 8  # for which a producer waits for an answer


class FaultyProducer:
    """A transactional producer that repeats its requests as clients do. `acknowledged`: of each end that was answered: producer
    id, the markers' epoch, commit, partitions."""

    def __init__(self, cluster: TransactionalCluster, name: str, seed: int) -> None:
        self.cluster = cluster
        self.name = name
        self.random = random.Random(seed)
        self.bumps = self.random.random() < 0.5
        self.producer = -1, -1
        self.wanted: list[TopicPartition] = []  # to be added next
        self.added: set[TopicPartition] = set()
        self.commit = True
        self.acknowledged: list[tuple[int, int, bool, set[TopicPartition]]] = []
        self.request = self.init
        self.reply: Reply | None = None
        self.until = 0.0  # waits for an answer, or before it asks again

    def step(self) -> None:
        reply, now = self.reply, self.cluster.now
        if reply is not None and reply.answer is not None:
            self.reply = None
            self.answered(reply.answer)
        elif now >= self.until:
            if reply is not None:  # what has become of the request is not known
                self.request = self.init
            self.ask()

    def ask(self) -> None:
        key, version, request = self.request()
        self.reply, self.until = Reply(), self.cluster.now + ANSWER_S
        asked = self.cluster.nodes[self.random.choice(NODE_IDS)]
        node_id = asked.services.transactions.topic.node_of(self.name)
        if node_id in NODE_IDS:  # whether it can be reached or not: clients have networks of their own
            send(self.cluster.nodes[node_id].services, key, version, request, self.reply)

    def init(self) -> tuple[int, int, Any]:
        return 22, 5, InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=20_000)

    def add(self) -> tuple[int, int, Any]:
        partitions = [index for _, index in self.wanted]
        topics = [AddPartitionsToTxnTopic("t", partitions)]
        if not self.bumps:
            return 24, 3, AddPartitionsToTxnRequest([], self.name, *self.producer, topics)
        transaction = AddPartitionsToTxnTransaction(self.name, *self.producer, False, topics)
        return 24, 5, AddPartitionsToTxnRequest([transaction])

    def end(self) -> tuple[int, int, Any]:
        return 26, 5 if self.bumps else 4, EndTxnRequest(self.name, *self.producer, self.commit)

    def answered(self, answer: Any) -> None:
        error = E(_error_of(answer))
        self.until = self.cluster.now + self.random.uniform(0, 0.3)
        if error in RETRIED:
            return
        if error:
            self.request = self.init
        elif self.request == self.init:
            self.producer = answer.producer_id, answer.producer_epoch
            self.begin()
        elif self.request == self.add:
            self.added.update(self.wanted)
            if self.random.random() < 0.5:
                self.request, self.commit = self.end, self.random.random() < 0.7
            else:
                self.wanted = self.random.sample(PARTITIONS, 2)
        else:
            producer_id, epoch = self.producer
            ended = producer_id, epoch + self.bumps, self.commit, self.added
            self.acknowledged.append(ended)
            if self.bumps:
                self.producer = answer.producer_id, answer.producer_epoch
            self.begin()

    def begin(self) -> None:
        self.request, self.added = self.add, set()
        self.wanted = self.random.sample(PARTITIONS, 3)


def _error_of(answer: Any) -> int:
    topics = getattr(answer, "results_by_topic_v3_and_below", [])
    for each in getattr(answer, "results_by_transaction", []):
        topics = each.topic_results
    codes = [each.partition_error_code for topic in topics for each in topic.results_by_partition]
    return max(codes, default=0) or int(answer.error_code)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_all_that_was_answered_is_in_the_partitions_after_faults(seed: int) -> None:
    cluster = TransactionalCluster()
    cluster.coordinator("p-0", 1)
    cluster.advance(5)
    chance = random.Random(seed)
    producers = [FaultyProducer(cluster, f"p-{number}", 100 * seed + number) for number in range(6)]
    faults_end = cluster.now + 40
    heals_at = next_fault = cluster.now + 2
    while cluster.now < faults_end:
        for each in producers:
            each.step()
        if cluster.now >= next_fault:
            node_id = chance.choice(NODE_IDS)
            heals_at = cluster.now + chance.choice([0.5, 3, 12])
            if chance.random() < 0.5:
                cluster.runtimes[node_id].hold_until(heals_at)
            else:
                for other in NODE_IDS:
                    cluster.network.block(f"n{node_id}", f"n{other}")
                    cluster.network.block(f"n{other}", f"n{node_id}")
            next_fault = heals_at + chance.uniform(0.5, 6)
        if cluster.now >= heals_at:
            cluster.network.unblock_all()
        cluster.advance(0.05)
    cluster.network.unblock_all()
    cluster.advance(60)  # transactions that are left open time out
    for each in producers:
        node_id = cluster.coordinator(each.name, 1)
        state = cluster.transaction(node_id, each.name).state
        assert state in IDLE, (each.name, state)
    markers = [cluster.markers(node_id) for node_id in NODE_IDS]
    assert markers[0] == markers[1] == markers[2]
    for each in producers:
        for producer_id, epoch, commit, partitions in each.acknowledged:
            for partition in partitions:
                assert (producer_id, epoch, commit) in markers[0][partition]
    bumping = {each.acknowledged[0][0] for each in producers if each.bumps and each.acknowledged}
    decided: dict[tuple[int, int], bool] = {}
    for found in markers[0].values():
        for producer_id, epoch, commit in found:
            if producer_id in bumping:
                assert decided.setdefault((producer_id, epoch), commit) == commit
    assert sum(len(each.acknowledged) for each in producers) > 10
