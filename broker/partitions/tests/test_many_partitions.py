"""Topics of many partitions come and go over several turns of the loop, and are answered when they are through."""

from __future__ import annotations

import gc
import logging
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.node import Node
from barnabas.controller.metadata.decision import Decision
from barnabas.controller.metadata.image import PartitionState
from barnabas.controller.metadata.records import encode_record
from barnabas.controller.operations.configs import ConfigChange, ResourceChange, alter_configs
from barnabas.controller.operations.topics import NewTopic, create_topics, delete_topics
from barnabas.runtime.slices import WorkQueue
from barnabas.wire.messages.metadata_records import PartitionChangeRecord, PartitionRecord
from compat_tests.virtual.runtime import VirtualRuntime

BROKER_RESOURCE, SET = 4, 0
BYTES_PER_PARTITION_MAX = 4096


class TickingRuntime(VirtualRuntime):
    """Looking at the clock takes a millisecond, so a slice of work is a step or two."""

    def monotonic(self) -> float:
        self.world.now += 0.001
        return self.world.now


class Bench:
    def __init__(self, directory: Path) -> None:
        self.runtime = TickingRuntime()
        settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(directory)}
        self.config = BrokerConfig.from_properties(settings)
        self.node = Node(self.config, self.runtime)
        self.node.start()
        self.controller = self.node.services.controller
        self.partitions = self.node.services.partitions
        self.answers: list[str] = []

    def create(self, name: str, count: int) -> None:
        topic = NewTopic(name, count, 1)
        self.controller.run(
            lambda image: create_topics(image, [topic], self.config, lambda _: self.runtime.random_bytes(16)),
            lambda results: self.answers.append(f"{name} {results[0].error.name}"),
        )

    def delete(self, name: str) -> None:
        self.controller.run(
            lambda image: delete_topics(image, [(name, bytes(16))]),
            lambda results: self.answers.append(f"-{name} {results[0].error.name}"),
        )

    def turns_until(self, answers: int) -> int:
        """Turns of the loop until so many changes have been answered."""
        turns = 0
        while len(self.answers) < answers:
            assert self.runtime.step(), f"nothing left to do, only {self.answers} are answered"
            turns += 1
        return turns

    def count(self, name: str) -> int:
        return sum(self.partitions.get(name, index) is not None for index in range(100))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.node.stop()


def test_creating_a_large_topic_takes_several_turns_and_is_answered_at_the_end(bench: Bench) -> None:
    bench.create("large", 50)
    seen = set()
    while not bench.answers:
        assert bench.runtime.step()
        seen.add(bench.count("large"))
    assert bench.answers == ["large NONE"]
    assert bench.count("large") == 50
    assert len(seen) > 10, "others got their turns meanwhile"


def test_changes_are_answered_in_their_order(bench: Bench) -> None:
    bench.create("large", 20)
    bench.create("small", 1)
    bench.delete("small")
    bench.create("small", 2)
    bench.turns_until(4)
    assert bench.answers == ["large NONE", "small NONE", "-small NONE", "small NONE"]
    assert (bench.count("large"), bench.count("small")) == (20, 2)


@pytest.mark.parametrize("turns", range(0, 40, 3))
def test_a_topic_deleted_while_it_is_created_leaves_nothing(bench: Bench, turns: int, tmp_path: Path) -> None:
    bench.create("large", 20)
    for _ in range(turns):
        bench.runtime.step()
    bench.delete("large")
    bench.create("large", 3)
    bench.turns_until(3)
    assert bench.answers == ["large NONE", "-large NONE", "large NONE"]
    assert bench.count("large") == 3
    bench.runtime.run_until_idle()
    bench.runtime.advance(120)  # file.delete.delay.ms
    assert sorted(path.name for path in tmp_path.glob("large-*")) == ["large-0", "large-1", "large-2"]
    topic_id = bench.controller.image.topics["large"].topic_id
    assert all(bench.partitions.by_id(topic_id, index) is not None for index in range(3))


def test_an_internal_topic_is_open_in_the_turn_of_its_creation(bench: Bench) -> None:
    bench.create("__consumer_offsets", 50)
    bench.delete("__consumer_offsets")
    bench.create("__consumer_offsets", 50)
    bench.turns_until(3)
    bench.runtime.run_until_idle()
    assert bench.count("__consumer_offsets") == 50
    logs = bench.node.services.log_manager
    assert all(logs.get("__consumer_offsets", index) is not None for index in range(50))


def test_topics_share_equal_settings_and_follow_the_brokers(bench: Bench) -> None:
    bench.create("a", 2)
    bench.create("b", 2)
    bench.turns_until(2)

    def logs() -> list[object]:
        found = [bench.partitions.get(name, index) for name in "ab" for index in range(2)]
        return [partition.log.config for partition in found if partition is not None]

    assert len({id(config) for config in logs()}) == 1
    change = ResourceChange(BROKER_RESOURCE, "", [ConfigChange("log.retention.ms", SET, "12345")])
    done: list[object] = []
    bench.controller.run(lambda image: alter_configs(image, [change], bench.config, False), done.append)
    bench.runtime.run_until_idle()
    assert done
    assert [config.retention_ms for config in logs()] == [12345] * 4  # type: ignore[attr-defined]
    assert len({id(config) for config in logs()}) == 1


def test_after_a_restart_topics_inherit_what_was_set_on_the_brokers(bench: Bench, tmp_path: Path) -> None:
    bench.create("a", 1)
    change = ResourceChange(BROKER_RESOURCE, "", [ConfigChange("log.retention.ms", SET, "12345")])
    bench.controller.run(lambda image: alter_configs(image, [change], bench.config, False), lambda _: None)
    bench.runtime.run_until_idle()
    bench.node.stop()
    again = Bench(tmp_path)
    partition = again.partitions.get("a", 0)
    assert partition is not None
    assert partition.log.config.retention_ms == 12345
    again.node.stop()


class CountingPartitions(dict[int, PartitionState]):
    """Partitions of a topic; counts how many are looked at."""

    looks = 0

    def __getitem__(self, index: int) -> PartitionState:
        self.looks += 1
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[int]:
        self.looks += len(self)
        return super().__iter__()


def test_a_change_of_one_partition_touches_no_other(bench: Bench) -> None:
    bench.create("large", 50)
    bench.turns_until(1)
    topic = bench.controller.image.topics["large"]
    counting = topic.partitions = CountingPartitions(topic.partitions)
    change = PartitionChangeRecord(topic_id=topic.topic_id, partition_id=7, isr=[1], leader=1)
    done: list[object] = []
    bench.controller.run(lambda _: Decision([change], None), done.append)
    while not done:
        assert bench.runtime.step()
    partition = bench.partitions.get("large", 7)
    assert partition is not None
    assert partition.state is dict.__getitem__(counting, 7)
    assert partition.leader_epoch == 1
    assert counting.looks < 5


def test_a_piece_of_work_that_fails_stops_no_other() -> None:
    runtime = TickingRuntime()
    queue = WorkQueue(runtime, logging.getLogger("barnabas.partitions"))
    log: list[str] = []

    def piece(name: str, steps: int) -> Iterator[None]:
        for step in range(steps):
            if name == "bad" and step == 2:
                raise ValueError("bad")
            log.append(f"{name}{step}")
            yield

    queue.add(piece("first", 5))
    queue.add(piece("bad", 5))
    queue.when_done(lambda: log.append("asked"))
    queue.add(piece("last", 2))
    runtime.run_until_idle()
    assert log == [
        "first0",
        "first1",
        "first2",
        "first3",
        "first4",
        "bad0",
        "bad1",
        "asked",
        "last0",
        "last1",
    ]
    queue.when_done(lambda: log.append("at once"))
    assert log[-1] == "at once"


@pytest.mark.slow
def test_what_an_idle_partition_holds_in_memory(tmp_path: Path) -> None:
    """Log, partition and both images of the metadata, without what the allocator adds."""
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}
    config = BrokerConfig.from_properties(settings)
    topic = NewTopic("large", 1000, 1)
    for restart in (False, True):
        runtime = VirtualRuntime()
        node = Node(config, runtime)
        if restart:
            tracemalloc.start()
            before, _ = tracemalloc.get_traced_memory()
        node.start()
        if not restart:
            tracemalloc.start()
            before, _ = tracemalloc.get_traced_memory()
            node.services.controller.run(
                lambda image: create_topics(image, [topic], config, lambda _: bytes(range(16))),
                lambda _: None,
            )
            runtime.run_until_idle()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert node.services.partitions.get("large", 999) is not None
        node.stop()
        assert (after - before) / 1000 < BYTES_PER_PARTITION_MAX


def test_a_snapshot_without_a_topic_ends_its_creation(bench: Bench) -> None:
    controller = bench.controller
    without = [encode_record(record) for record in controller.image.records()]
    bench.create("large", 20)
    while bench.count("large") < 5:  # committed, and the logs are being created
        assert bench.runtime.step()
    controller._replace(without, controller.image.offset + 100)  # as Raft does for a node that is far behind
    bench.runtime.advance(1)
    assert "large" not in controller.image.topics
    assert bench.count("large") == 0


def test_partitions_that_are_being_opened_take_the_roles_of_a_snapshot(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TickingRuntime, "monotonic", VirtualRuntime.monotonic)
    manager = bench.node.services.log_manager
    create = manager.create

    def slow(*args: Any) -> Any:  # a log takes 3 ms, a role takes nothing
        bench.runtime.world.now += 0.003
        return create(*args)

    monkeypatch.setattr(manager, "create", slow)
    controller = bench.controller
    bench.create("large", 20)
    while bench.count("large") < 5:
        assert bench.runtime.step()
    later = [
        msgspec.structs.replace(record, leader=2, leader_epoch=3, partition_epoch=9, replicas=[1, 2], isr=[2])
        if isinstance(record, PartitionRecord)
        else record
        for record in controller.image.records()
    ]
    controller._replace([encode_record(record) for record in later], controller.image.offset + 100)
    bench.runtime.advance(60)
    assert bench.count("large") == 20
    wrong = [
        (each.partition, each.leader_id, each.leader_epoch, each.is_leader)
        for each in bench.partitions.of_topic("large").values()
        if each.leader_epoch != 3 or each.is_leader
    ]
    assert not wrong, wrong
