"""Share partitions over three whole nodes on a virtual network: leaders and coordinators on different brokers, which die."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.broker.requests.context import RawResponse
from barnabas.broker.share_coordinator.persister import Persister, StateSummary
from barnabas.broker.share_coordinator.state import SharePartitionKey
from barnabas.broker.tests.reply import Reply, as_received, send
from barnabas.broker.tests.virtual_cluster import NODE_IDS, VirtualCluster
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages import share_acknowledge as acknowledging
from barnabas.wire.messages import share_fetch as fetching
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.records import Record, build_batch
from barnabas.wire.registry import request_type, response_type

PARTITIONS = 6
RECORDS = 4
GROUP = "group:with:colons"
ACCEPT = 1


class ShareCluster(VirtualCluster):
    """With a topic of six partitions on all nodes, four records in each, and a share group that begins at 0."""

    def __init__(self, *settings: str) -> None:
        super().__init__(
            "share.coordinator.state.topic.num.partitions=3",
            "share.coordinator.state.topic.replication.factor=3",
            "share.coordinator.state.topic.min.isr=2",
            "min.insync.replicas=2",
            *settings,
        )
        self.advance(10)
        self.dead: set[int] = set()
        topic = CreatableTopic(name="t", num_partitions=PARTITIONS, replication_factor=3)
        (created,) = self.ask(1, 19, 7, CreateTopicsRequest(topics=[topic], timeout_ms=10_000)).topics
        self.topic_id = bytes(created.topic_id)
        self.advance(2)
        time_ms = self.runtimes[1].time_ms()
        batch = build_batch([Record(index, time_ms, None, b"x") for index in range(RECORDS)])
        for index in range(PARTITIONS):
            data = [TopicProduceData("t", partition_data=[PartitionProduceData(index, batch)])]
            answer = self.ask(self.leader(index), 0, 9, ProduceRequest(None, -1, 10_000, data))
            assert answer.responses[0].partition_responses[0].error_code == E.NONE
            self.initialize(index)

    def key(self, index: int) -> SharePartitionKey:
        return SharePartitionKey(GROUP, self.topic_id, index)

    def alive(self) -> int:
        return next(each for each in NODE_IDS if each not in self.dead)

    def kill(self, node_id: int) -> None:
        self.dead.add(node_id)
        self.runtimes[node_id].end()

    def leader(self, index: int) -> int:
        def state() -> Any:
            return self.nodes[self.alive()].services.controller.image.topics["t"].partitions[index]

        self.run_until(lambda: state().leader >= 0 and state().leader not in self.dead)
        return int(state().leader)

    def coordinator(self, index: int) -> int:
        """As a node knows it that is alive."""
        find = FindCoordinatorRequest(key_type=2, coordinator_keys=[self.key(index).text])
        found: list[int] = []

        def is_found() -> bool:
            (answer,) = self.ask(self.alive(), 10, 6, find).coordinators
            found[:] = [answer.node_id]
            return answer.error_code == E.NONE and answer.node_id not in self.dead

        self.until(is_found)
        return found[0]

    def until(self, reached: Callable[[], bool]) -> None:
        for _ in range(200):
            if reached():
                return
            self.advance(0.5)
        pytest.fail("it did not come to be")

    def persister(self, node_id: int) -> Persister:
        return self.nodes[node_id].services.share_partitions.persister

    def initialize(self, index: int) -> None:
        """From a broker that need not be the coordinator."""
        answers: list[E] = []
        self.persister(index % 3 + 1).initialize(self.key(index), 0, 0, answers.append)
        self.run_until(lambda: answers)
        assert answers == [E.NONE]

    def summary(self, index: int) -> StateSummary:
        answers: list[StateSummary | E] = []
        self.persister(self.alive()).read_summary(
            self.key(index), lambda found, error: answers.append(error if found is None else found)
        )
        self.run_until(lambda: answers)
        assert isinstance(answers[0], StateSummary), answers
        return answers[0]

    def fetch(self, index: int, member: str) -> list[tuple[int, int, int]]:
        """What a member acquires with a new session, once there is something."""
        found: list[tuple[int, int, int]] = []

        def is_acquired() -> bool:
            request = fetching.ShareFetchRequest(
                GROUP,
                member,
                0,
                100,
                1,
                1 << 20,
                500,
                500,
                topics=[fetching.FetchTopic(self.topic_id, [fetching.FetchPartition(index)])],
            )
            answer = self.ask(self.leader(index), 78, 2, request)
            found[:] = [
                (each.first_offset, each.last_offset, each.delivery_count)
                for topic in answer.responses
                for partition in topic.partitions
                for each in partition.acquired_records
            ]
            return bool(found)

        self.until(is_acquired)
        return found

    def acknowledge(self, index: int, member: str, first: int, last: int, epoch: int = 1) -> E:
        batches = [acknowledging.AcknowledgementBatch(first, last, [ACCEPT])]
        topics = [
            acknowledging.AcknowledgeTopic(
                self.topic_id, [acknowledging.AcknowledgePartition(index, batches)]
            )
        ]
        request = acknowledging.ShareAcknowledgeRequest(GROUP, member, epoch, False, topics)
        answer = self.ask(self.leader(index), 79, 2, request)
        return E(answer.responses[0].partitions[0].error_code if answer.responses else answer.error_code)


@pytest.fixture
def cluster() -> ShareCluster:
    return ShareCluster()


def test_leaders_reach_coordinators_on_other_brokers(cluster: ShareCluster) -> None:
    pairs = [(cluster.leader(index), cluster.coordinator(index)) for index in range(PARTITIONS)]
    assert any(leader != coordinator for leader, coordinator in pairs)
    for index in range(PARTITIONS):
        assert cluster.fetch(index, "m") == [(0, 3, 1)]
        assert cluster.acknowledge(index, "m", 0, 2) == E.NONE
        assert cluster.acknowledge(index, "m", 3, 3, 2) == E.NONE
        assert (cluster.summary(index).start_offset, cluster.summary(index).delivery_complete_count) == (3, 1)
    answers: list[E] = []
    cluster.persister(1).delete(cluster.key(0), answers.append)
    cluster.run_until(lambda: answers)
    assert answers == [E.NONE]
    assert cluster.summary(0).start_offset == -1


def test_an_acknowledgement_waits_for_the_next_coordinator(cluster: ShareCluster) -> None:
    index = next(each for each in range(PARTITIONS) if cluster.leader(each) != cluster.coordinator(each))
    cluster.fetch(index, "m")
    cluster.kill(cluster.coordinator(index))
    error = cluster.acknowledge(index, "m", 0, 3)
    epoch = 2
    while error == E.COORDINATOR_NOT_AVAILABLE:
        error = cluster.acknowledge(index, "m", 0, 3, epoch)
        epoch += 1
    assert error == E.NONE
    cluster.acknowledge(index, "m", 0, 3, epoch)
    led = cluster.nodes[cluster.leader(index)].services.share_partitions.find(*cluster.key(index))
    assert led is not None
    assert led.state is not None
    assert led.state.start_offset == RECORDS


def test_the_next_leader_hands_out_what_was_not_acknowledged(cluster: ShareCluster) -> None:
    index = 0
    cluster.fetch(index, "m")
    assert cluster.acknowledge(index, "m", 1, 2) == E.NONE
    former = cluster.leader(index)
    cluster.kill(former)
    assert cluster.fetch(index, "n") == [(0, 0, 1), (3, 3, 1)]
    assert cluster.acknowledge(index, "n", 0, 0) == E.NONE
    assert cluster.acknowledge(index, "n", 3, 3, 2) == E.NONE
    led = cluster.nodes[cluster.leader(index)].services.share_partitions.find(*cluster.key(index))
    assert led is not None
    assert led.state is not None
    assert led.state.start_offset == RECORDS


@pytest.mark.slow
def test_a_leader_that_does_not_know_of_the_next_one_can_write_nothing(cluster: ShareCluster) -> None:
    index = 0
    former = cluster.leader(index)
    cluster.fetch(index, "m")
    others = [each for each in NODE_IDS if each != former]
    for each in others:
        cluster.network.block(f"n{former}", f"n{each}")
        cluster.network.block(f"n{each}", f"n{former}")
    cluster.dead.add(former)
    assert cluster.fetch(index, "n") == [(0, 3, 1)]
    reply = Reply()
    batches = [acknowledging.AcknowledgementBatch(0, 3, [ACCEPT])]
    topics = [
        acknowledging.AcknowledgeTopic(cluster.topic_id, [acknowledging.AcknowledgePartition(index, batches)])
    ]
    request = acknowledging.ShareAcknowledgeRequest(GROUP, "m", 1, False, topics)
    send(cluster.nodes[former].services, 79, 2, request, reply)
    assert cluster.acknowledge(index, "n", 0, 3) == E.NONE
    cluster.advance(60)
    if reply.done:
        assert reply.answer.responses[0].partitions[0].error_code != E.NONE


DELIVERIES_MAX = 10
STANDSTILL_S = 30.0


class Consumers:
    """Two members that accept what they get. `accepted`: what was answered, by partition; `delivered`: how often each record was."""

    def __init__(self, cluster: ShareCluster, seed: int) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.accepted: set[tuple[int, int]] = set()
        self.delivered: Counter[tuple[int, int]] = Counter()

    def attempt(self, index: int, key: int, request: Any) -> Any:
        """The answer of the partition's leader, None if there is none in time. Nodes may stand still."""
        asking = self.random.choice(NODE_IDS)
        topic = self.cluster.nodes[asking].services.controller.image.topics["t"]
        leader = topic.partitions[index].leader
        if leader not in NODE_IDS or self.cluster.runtimes[leader].held_until > self.cluster.now:
            self.cluster.advance(1)
            return None
        reply = Reply()
        received = as_received(request_type(key), 2, request)
        send(self.cluster.nodes[leader].services, key, 2, received, reply)
        for _ in range(20):
            if reply.done:
                break
            self.cluster.advance(0.5)
        else:
            if reply.disconnected is not None:
                reply.disconnected()
        if isinstance(reply.answer, RawResponse):
            return response_type(key).decode(2, reply.answer.body)[0]
        return reply.answer

    def step(self) -> None:
        """One of the members fetches from one of the partitions, and accepts what it gets."""
        index = self.random.randrange(PARTITIONS)
        member = self.random.choice(("m", "n"))
        topics = [fetching.FetchTopic(self.cluster.topic_id, [fetching.FetchPartition(index)])]
        fetch = fetching.ShareFetchRequest(GROUP, member, 0, 100, 1, 1 << 20, 500, 500, topics=topics)
        fetch.max_records = self.random.randint(1, RECORDS)
        fetch.share_acquire_mode = self.random.randint(0, 1)
        answer = self.attempt(index, 78, fetch)
        epoch = 0
        for topic in () if answer is None else answer.responses:
            for acquired in topic.partitions[0].acquired_records:
                offsets = [
                    (index, offset) for offset in range(acquired.first_offset, acquired.last_offset + 1)
                ]
                assert self.accepted.isdisjoint(offsets), "what was accepted is not delivered again"
                self.delivered.update(offsets)
                epoch += 1
                self.accept(index, member, acquired, epoch)

    def accept(self, index: int, member: str, acquired: Any, epoch: int) -> None:
        batch = acknowledging.AcknowledgementBatch(acquired.first_offset, acquired.last_offset, [ACCEPT])
        topics = [
            acknowledging.AcknowledgeTopic(
                self.cluster.topic_id, [acknowledging.AcknowledgePartition(index, [batch])]
            )
        ]
        request = acknowledging.ShareAcknowledgeRequest(GROUP, member, epoch, False, topics)
        answer = self.attempt(index, 79, request)
        if answer is not None and answer.responses and not answer.responses[0].partitions[0].error_code:
            first, last = acquired.first_offset, acquired.last_offset
            self.accepted.update((index, offset) for offset in range(first, last + 1))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_every_record_is_accepted_while_brokers_stand_still(seed: int) -> None:
    cluster = ShareCluster(
        "group.share.min.record.lock.duration.ms=1000",
        "group.share.record.lock.duration.ms=5000",
        f"group.share.delivery.count.limit={DELIVERIES_MAX}",
    )
    consumers = Consumers(cluster, seed)
    for _ in range(12):
        node_id = consumers.random.choice(NODE_IDS)
        cluster.runtimes[node_id].hold_until(cluster.now + consumers.random.uniform(1, STANDSTILL_S))
        for _ in range(consumers.random.randint(1, 3)):
            consumers.step()
    cluster.advance(2 * STANDSTILL_S)

    def is_over() -> bool:
        """Every record was accepted, also by acknowledgements without an answer, or delivered too often."""
        consumers.step()
        for index in range(PARTITIONS):
            partitions = cluster.nodes[cluster.leader(index)].services.share_partitions
            led = partitions.find(*cluster.key(index))
            if led is None or led.state is None or led.state.start_offset < RECORDS:
                return False
        return True

    cluster.until(is_over)
    assert len(consumers.accepted) > RECORDS
