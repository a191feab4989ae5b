"""Positions of groups, at this broker and at another one, and what Kafka's clients make of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.structs import OffsetAndMetadata
from msgspec.structs import replace

from barnabas.broker.extension import host_of
from barnabas.controller.metadata.decision import Decision
from barnabas.controller.metadata.image import PartitionState, partition_record
from barnabas.nats.cluster import positions as positions_module
from barnabas.nats.cluster.positions import Position, Positions
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.metadata_records import BrokerEndpoint, RegisterBrokerRecord, TopicRecord
from compat_tests.harness.eventually import eventually
from compat_tests.harness.threaded_node import ThreadedNode

pytestmark = pytest.mark.sockets

CREATE_TOPICS = 19
OFFSETS_TOPIC_ID = b"offsets-elsewhere"[:16]


class Asker:
    """Asks from a node's loop, and waits for the answer."""

    def __init__(self, node: ThreadedNode) -> None:
        self.node = node
        self.positions = Positions(host_of(node.node.services, MemoryDisk(), "/"))
        self._is_stopped = False

    def _wait(self, start: Callable[[Callable[..., Any]], object]) -> Any:
        found: list[Any] = []
        self.node.runtime.loop.call_soon_threadsafe(lambda: start(lambda *answer: found.append(answer)))
        eventually(lambda: found)
        return found[0]

    def fetch(self, group: str, topic_id: bytes, *partitions: int) -> tuple[ErrorCode, dict[int, Position]]:
        answer: tuple[ErrorCode, dict[int, Position]] = self._wait(
            lambda done: self.positions.fetch(group, topic_id, partitions, done)
        )
        return answer

    def commit(self, group: str, topic_id: bytes, positions: dict[int, Position]) -> ErrorCode:
        (error,) = self._wait(lambda done: self.positions.commit(group, topic_id, positions, done))
        assert isinstance(error, ErrorCode)
        return error

    def create(self, topic: str, partitions: int) -> bytes:
        created = CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1)
        request = CreateTopicsRequest(topics=[created], timeout_ms=10_000)
        (answer,) = self.node.client().ask(CREATE_TOPICS, 7, request).topics
        assert not answer.error_code
        return bytes(answer.topic_id)

    def stop(self) -> None:
        if self._is_stopped:
            return
        self._is_stopped = True
        self.node.runtime.loop.call_soon_threadsafe(self.positions.close)
        self.node.stop()


@pytest.fixture
def make_asker(tmp_path: Path) -> Iterator[Callable[..., Asker]]:
    made: list[Asker] = []

    def make(name: str = "node", **properties: str) -> Asker:
        settings = {
            "offsets.topic.num.partitions": "1",
            **{key.replace("_", "."): value for key, value in properties.items()},
        }
        made.append(Asker(ThreadedNode(tmp_path / name, settings)))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def test_kafka_clients_see_the_positions_and_may_move_them(make_asker: Callable[..., Asker]) -> None:
    asker = make_asker()
    topic_id = asker.create("orders", 3)
    assert asker.fetch("nats-orders", topic_id, 0, 1) == (ErrorCode.NONE, {})
    positions = {0: Position(17, 0, "kv-revision=3"), 2: Position(5)}
    assert asker.commit("nats-orders", topic_id, positions) == ErrorCode.NONE
    assert asker.fetch("nats-orders", topic_id, 0, 1, 2) == (ErrorCode.NONE, positions)

    bootstrap = f"127.0.0.1:{asker.node.port}"
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    offsets = admin.list_group_offsets(["nats-orders"])["nats-orders"]
    assert {key.partition: value.offset for key, value in offsets.items()} == {0: 17, 2: 5}
    admin.alter_group_offsets("nats-orders", {TopicPartition("orders", 0): OffsetAndMetadata(9, "", -1)})
    admin.close()
    error, found = asker.fetch("nats-orders", topic_id, 0)
    assert not error
    assert found[0].offset == 9


def test_a_group_with_members_keeps_its_positions(make_asker: Callable[..., Asker]) -> None:
    asker = make_asker(group_initial_rebalance_delay_ms="0")
    topic_id = asker.create("orders", 1)
    consumer = KafkaConsumer(
        "orders", bootstrap_servers=f"127.0.0.1:{asker.node.port}", group_id="taken", enable_auto_commit=False
    )

    def is_assigned() -> bool:
        consumer.poll(2000)  # less may end between SyncGroup and its answer, which kafka-python then forgets
        return bool(consumer.assignment())

    eventually(is_assigned)
    assert asker.commit("taken", topic_id, {0: Position(1)}) == ErrorCode.UNKNOWN_MEMBER_ID
    consumer.close()
    assert asker.commit("taken", topic_id, {0: Position(1)}) == ErrorCode.NONE


def test_unknown_partitions_and_topics_have_errors(make_asker: Callable[..., Asker]) -> None:
    asker = make_asker()
    topic_id = asker.create("orders", 1)
    assert asker.commit("g", topic_id, {7: Position(1)}) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert asker.commit("g", b"another-topic-id", {0: Position(1)}) == ErrorCode.UNKNOWN_TOPIC_ID
    assert asker.fetch("g", b"another-topic-id", 0) == (ErrorCode.UNKNOWN_TOPIC_ID, {})


def test_the_coordinator_may_be_another_broker(
    make_asker: Callable[..., Asker], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_asker("other")
    topic_id = other.create("orders", 1)
    assert other.fetch("g", topic_id, 0) == (ErrorCode.NONE, {})  # which creates __consumer_offsets
    terms = replace(positions_module._TERMS, request_timeout_s=3.0, connection_timeout_s=3.0)
    monkeypatch.setattr(positions_module, "_TERMS", terms)
    asker = make_asker("this")
    _believe(asker, other.node.port)
    assert asker.fetch("g", topic_id, 0) == (ErrorCode.NONE, {})
    assert asker.commit("g", topic_id, {0: Position(3)}) == ErrorCode.NONE
    assert asker.fetch("g", topic_id, 0) == (ErrorCode.NONE, {0: Position(3)})
    assert other.fetch("g", topic_id, 0) == (ErrorCode.NONE, {0: Position(3)})
    other.stop()
    error, _ = asker.fetch("g", topic_id, 0)
    assert error in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE)


def _believe(asker: Asker, port: int) -> None:
    """Another node is registered as broker 2, which leads __consumer_offsets."""
    directory = b"d".ljust(16)
    state = PartitionState(
        replicas=[2], isr=[2], leader=2, leader_epoch=1, partition_epoch=1, directories=[directory]
    )
    records = [
        RegisterBrokerRecord(
            broker_id=2,
            broker_epoch=102,
            end_points=[BrokerEndpoint(name="PLAINTEXT", host="127.0.0.1", port=port)],
            fenced=False,
            log_dirs=[directory],
        ),
        TopicRecord(name="__consumer_offsets", topic_id=OFFSETS_TOPIC_ID),
        partition_record(OFFSETS_TOPIC_ID, 0, state),
    ]
    controller = asker.node.node.services.controller
    done: list[Any] = []
    asker.node.runtime.loop.call_soon_threadsafe(
        lambda: controller.run(lambda _: Decision(list(records), None), done.append)
    )
    eventually(lambda: done)
