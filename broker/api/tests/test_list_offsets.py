"""A thread looks for times, and the partition changes meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from barnabas.broker.api.list_offsets import EARLIEST_LOCAL, EARLIEST_PENDING_UPLOAD, _find
from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.node import Node
from barnabas.broker.requests.context import RawResponse
from barnabas.broker.services import LOOKUPS_AT_ONCE
from barnabas.broker.tests.reply import Reply, send
from barnabas.storage.log import timestamps
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.records import Record, build_batch, record_heads
from barnabas.wire.registry import response_type
from compat_tests.virtual.runtime import VirtualRuntime

if TYPE_CHECKING:
    from barnabas.storage.log.segments import RemoteReads

LIST_OFFSETS, CREATE_TOPICS = 2, 19
MAX_TIMESTAMP = -3


class World:
    """A node with a topic of one partition."""

    def __init__(self, directory: Path) -> None:
        self.runtime = VirtualRuntime()
        config = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(directory)}
        self.node = Node(BrokerConfig.from_properties(config), self.runtime)
        self.node.start()
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        send(self.node.services, CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic], timeout_ms=1000))
        self.runtime.run_until_idle()
        self._asked: list[Reply] = []
        partition = self.node.services.partitions.get("t", 0)
        assert partition is not None
        self.partition = partition

    def look_up(self, timestamp: int) -> None:
        wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[wanted])])
        self._asked.append(send(self.node.services, LIST_OFFSETS, 7, request))

    def found(self) -> list[int]:
        """The offset in each answer so far."""
        answers = [self._decoded(reply.answer) for reply in self._asked if reply.done]
        return [one.topics[0].partitions[0].offset for one in answers]

    def _decoded(self, answer: Any) -> Any:
        if not isinstance(answer, RawResponse):
            return answer
        return response_type(LIST_OFFSETS).decode(7, answer.body)[0]  # it has taken several turns


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.node.stop()


def test_a_few_requests_at_a_time_unpack_a_batch(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """And each unpacks it once."""
    open_now = 0
    opened: list[int] = []

    def counted(header: Any, data: Any) -> Iterator[Any]:
        nonlocal open_now
        open_now += 1
        opened.append(open_now)
        try:
            yield from record_heads(header, data)
        finally:
            open_now -= 1

    monkeypatch.setattr(timestamps, "record_heads", counted)
    ticks = 0

    def monotonic() -> float:
        nonlocal ticks
        ticks += 1
        return world.runtime.world.now + ticks / 1000

    monkeypatch.setattr(world.runtime, "monotonic", monotonic)
    times = [*range(1000, 6000), 9000]
    world.partition.append(build_batch([Record(at, time, None, b"v") for at, time in enumerate(times)]))
    for _ in range(10):
        world.look_up(8000)
    world.runtime.run_until_idle()
    assert world.found() == [5000] * 10
    assert len(opened) == 10
    assert max(opened) <= LOOKUPS_AT_ONCE


def test_a_segment_that_goes_while_a_thread_looks(world: World) -> None:
    """Its file is not there any more when the thread opens it; what is there is searched again."""
    log = world.partition.log
    for number, time in enumerate((1000, 9000, 3000, 5000)):
        world.partition.append(build_batch([Record(0, time, None, b"v")]))
        if number < 3:
            log.roll()
    world.look_up(2000)
    world.runtime.step()
    log.increment_log_start_offset(2)
    log.remove_segments_below(2)
    world.runtime.run_until_idle()
    assert world.found() == [2]


@pytest.mark.parametrize(("timestamp", "expected"), [(2000, 2), (MAX_TIMESTAMP, -1)])
def test_records_deleted_while_a_thread_looks_are_not_named(
    world: World, timestamp: int, expected: int
) -> None:
    for time in (1000, 9000, 3000, 5000):
        world.partition.append(build_batch([Record(0, time, None, b"v")]))
    world.look_up(timestamp)
    assert world.found() == []
    world.partition.log.increment_log_start_offset(2)
    world.runtime.run_until_idle()
    assert world.found() == [expected]


def test_the_local_start_of_an_empty_log_has_the_leaders_epoch(world: World) -> None:
    assert _find(world.partition, EARLIEST_LOCAL, 0, {}) == (-1, 0, world.partition.leader_epoch)


def test_nothing_is_pending_where_all_is_tiered(world: World) -> None:
    log = world.partition.log
    world.partition.append(build_batch([Record(at, 0, None, b"v") for at in range(3)]))
    log.remote = cast("RemoteReads", SimpleNamespace(tiered_offset=1))
    assert _find(world.partition, EARLIEST_PENDING_UPLOAD, 3, {})[1] == 2
    log.remote = cast("RemoteReads", SimpleNamespace(tiered_offset=2))
    assert _find(world.partition, EARLIEST_PENDING_UPLOAD, 3, {}) == (-1, -1, -1)
    log.remote = None


def test_nothing_is_pending_before_it_is_known_what_is_tiered(world: World) -> None:
    """The log begins before its first segment, and its leader has not claimed the manifest yet (KIP-1023)."""
    log = world.partition.log
    world.partition.append(build_batch([Record(at, 0, None, b"v") for at in range(3)]))
    log.roll()
    log.segments.remove_below(3)
    log.remote = cast("RemoteReads", SimpleNamespace(tiered_offset=-1))
    assert log.local_log_start_offset > log.log_start_offset
    assert _find(world.partition, EARLIEST_PENDING_UPLOAD, 3, {}) == (-1, -1, -1)
    log.remote = None
