"""Checkpoints: committed to a consumer group of a real node, and compared with logs."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.extension import host_of
from barnabas.broker.tests.coordinator_world import World
from barnabas.nats.cluster.positions import Position, Positions
from barnabas.nats.jetstream.checkpoint import Checkpoint, Checkpoints
from barnabas.runtime.procedures import Call, Procedure
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.records import Record, build_batch
from barnabas.wire.uuids import uuid_to_string
from compat_tests.harness.eventually import eventually
from compat_tests.harness.threaded_node import ThreadedNode

CREATE_TOPICS = 19


def run(node: ThreadedNode, work: Coroutine[Any, Any, None]) -> None:
    ended: list[Exception | None] = []
    node.runtime.loop.call_soon_threadsafe(Procedure(work, ended.append).start)
    eventually(lambda: ended)
    assert ended == [None]


def create(node: ThreadedNode) -> bytes:
    topic = CreatableTopic(name="t", num_partitions=3, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
    (answer,) = node.client().ask(CREATE_TOPICS, 7, request).topics
    assert not answer.error_code
    return bytes(answer.topic_id)


@pytest.mark.sockets
def test_committed_checkpoints_are_fetched_and_other_metadata_is_ignored(tmp_path: Path) -> None:
    node = ThreadedNode(tmp_path, {"offsets.topic.num.partitions": "1"})
    try:
        topic_id = create(node)
        positions = Positions(host_of(node.node.services, MemoryDisk(), "/"))
        checkpoints = Checkpoints(node.runtime, positions, "t", topic_id)
        first, second = Checkpoint(0, "S", 0, 0, 3, 0), Checkpoint(7, "S", 1 << 60, 17, 2, 5)
        found: list[dict[int, Checkpoint]] = []

        async def work() -> None:
            found.append(await checkpoints.fetch(range(3)))
            await checkpoints.commit({0: first, 1: second})
            found.append(await checkpoints.fetch(range(3)))

        run(node, work())
        assert found[0] == {}
        assert found[1] == {0: first, 1: second}

        other_id = uuid_to_string(b"an earlier topic")
        own_id = uuid_to_string(topic_id)

        async def with_rubbish() -> None:
            for text in ("", f"S 9 9 3 {other_id}", f"S x 9 3 {own_id}", f"S 9 9 {own_id}", "é é é é é"):
                spoiled = {1: Position(9, -1, text)}

                def spoil(done: Any, spoiled: dict[int, Position] = spoiled) -> None:
                    positions.commit(checkpoints.group, topic_id, spoiled, lambda error: done(error, None))

                assert not await Call[int](spoil)
                found.append(await checkpoints.fetch(range(3)))

        run(node, with_rubbish())
        assert found[2:] == [{0: first}] * 5
    finally:
        node.stop()


def test_a_checkpoint_is_valid_while_the_log_has_its_records() -> None:
    world = World([1, 2])
    partition = world.partition()

    def append(count: int) -> None:
        for _ in range(count):
            partition.append(build_batch([Record(0, 1, b"k", b"v", [])]))

    append(10)
    epoch = partition.leader_epoch
    checkpoint = Checkpoint(8, "S", 100, 17, 1, epoch)
    assert checkpoint.is_of(partition, "S")
    assert not checkpoint.is_of(partition, "S2")
    assert not Checkpoint(11, "S", 100, 17, 1, epoch).is_of(partition, "S")
    world.change(0, leader=2)
    partition.log.truncate_to(5)  # the end of the log is lost
    world.change(0, leader=1)
    append(10)  # another leader has written since
    assert partition.log.log_end_offset > 8
    assert not checkpoint.is_of(partition, "S")
    assert Checkpoint(5, "S", 60, 17, 1, epoch).is_of(partition, "S")
    assert Checkpoint(8, "S", 60, 17, 1).is_of(partition, "S"), "nothing speaks against it"
