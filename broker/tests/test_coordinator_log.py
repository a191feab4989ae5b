"""A coordinator's log over real partitions: loading off the requests' way, and appends that wait for the others."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from barnabas.broker.coordinator import compacted_records as last_records
from barnabas.broker.coordinator import loading as coordinator_loading
from barnabas.broker.coordinator.compacted_records import LastRecords
from barnabas.broker.coordinator.loading import Loading
from barnabas.broker.coordinator.log import CoordinatorLog
from barnabas.broker.partitions.partition import Partition
from barnabas.broker.partitions.partition_manager import PartitionManager
from barnabas.controller.metadata.image import MetadataDelta, MetadataImage, PartitionState, partition_record
from barnabas.storage.compaction.cleaner import CleanerSettings, LogCleaner
from barnabas.storage.errors import StorageError
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.manager.manager import LogManager
from barnabas.storage.memory_disk import MemoryDisk
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.metadata_records import TopicRecord
from barnabas.wire.record_batch import Record, build_batch
from compat_tests.virtual.runtime import VirtualRuntime

TOPIC = "__consumer_offsets"
TOPIC_ID = b"offsets".ljust(16)
CONFIG = {"message.timestamp.before.max.ms": str(1 << 60), "segment.bytes": "4096"}


def batch(number: int) -> bytes:
    value = b"%d" % number
    return build_batch([Record(offset=0, timestamp=1_700_000_000_000, key=value, value=value * 20)])


class ColdFile:
    """A file of which nothing is in memory until a thread has read it."""

    def __init__(self, file: Any, warm: set[str], path: str) -> None:
        self._file = file
        self._warm = warm
        self._path = path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def _check(self) -> None:
        if self._path not in self._warm:
            raise BlockingIOError

    def pread_now(self, count: int, position: int) -> bytes:
        self._check()
        data: bytes = self._file.pread(count, position)
        return data

    def pread_into_now(self, buffer: memoryview, position: int) -> int:
        self._check()
        count: int = self._file.pread_into_now(buffer, position)
        return count

    def pread(self, count: int, position: int) -> bytes:
        self._warm.add(self._path)
        data: bytes = self._file.pread(count, position)
        return data

    def load(self, position: int, count: int) -> None:
        self._warm.add(self._path)
        self._file.load(position, count)


class ColdDisk(MemoryDisk):
    """What is opened while `is_cold` is."""

    def __init__(self) -> None:
        super().__init__()
        self.is_cold = False
        self.warm: set[str] = set()

    def open(self, path: str, *, create: bool = False, writable: bool = False) -> Any:
        opened = super().open(path, create=create, writable=writable)
        return ColdFile(opened, self.warm, path) if self.is_cold and path.endswith(".log") else opened


class Ticking(VirtualRuntime):
    """Every look at the clock costs a millisecond, so that work in slices has to stop now and then."""

    looks = 0

    def monotonic(self) -> float:
        self.looks += 1
        return super().monotonic() + self.looks / 1000


class World:
    """Node 1 and the partitions it hosts, one or more replicas each."""

    def __init__(
        self, replicas: list[int], partitions: int = 2, runtime: VirtualRuntime | None = None
    ) -> None:
        self.runtime = runtime or VirtualRuntime()
        self.disk = ColdDisk()
        self.replicas = replicas
        self.count = partitions
        self.open()

    def open(self) -> None:
        self.storage_runtime = VirtualRuntime()
        self.manager = LogManager(
            self.disk, ["/logs"], self.storage_runtime, config=LogConfig.from_properties(CONFIG)
        )
        self.manager.open()
        self.partitions = PartitionManager(self.manager, 1, lambda _image, _topic: CONFIG, self.runtime)
        self.log = CoordinatorLog(TOPIC, self.partitions, self.runtime)
        self.image = MetadataImage()
        self.image.replay(TopicRecord(name=TOPIC, topic_id=TOPIC_ID), MetadataDelta())
        self.states = [
            PartitionState(
                replicas=self.replicas, isr=self.replicas, leader=1, leader_epoch=0, partition_epoch=0
            )
            for _ in range(self.count)
        ]
        for index in range(self.count):
            self.change(index)
        self.partitions.metadata_changed(self.image, {TOPIC_ID: set(range(self.count))}, set())

    def change(self, index: int, **fields: Any) -> None:
        old = self.states[index]
        values = {name: fields.get(name, getattr(old, name)) for name in ("replicas", "isr", "leader")}
        self.states[index] = PartitionState(
            **values,
            leader_epoch=old.leader_epoch + ("leader" in fields),
            partition_epoch=old.partition_epoch + 1,
        )
        self.image.replay(partition_record(TOPIC_ID, index, self.states[index]), MetadataDelta())
        if fields:
            self.partitions.metadata_changed(self.image, {TOPIC_ID: {index}}, set())

    def partition(self, index: int = 0) -> Partition:
        found = self.partitions.get(TOPIC, index)
        assert found is not None
        return found

    def append(self, number: int, index: int = 0) -> list[E]:
        answers: list[E] = []
        self.log.append(index, batch(number), answers.append)
        return answers

    def load(self, index: int = 0) -> tuple[list[bytes | None], list[Exception | None], Any]:
        keys: list[bytes | None] = []
        ended: list[Exception | None] = []
        replay = LastRecords("", lambda key, _: keys.append(key), every=True)
        loading = self.log.load(index, replay, ended.append)
        return keys, ended, loading


def test_all_of_several_segments_comes_in_order() -> None:
    world = World([1])
    for number in range(200):
        assert world.append(number) == [E.NONE]
    keys, ended, _ = world.load()
    assert ended == [None]
    assert keys == [b"%d" % number for number in range(200)]
    assert world.load(1)[:2] == ([], [None])


def test_what_is_not_in_memory_is_read_by_a_thread() -> None:
    world = World([1])
    for number in range(100):
        world.append(number)
    world.manager.close()
    world.disk.is_cold = True
    world.open()
    world.disk.warm.clear()
    keys, ended, _ = world.load()
    behind = world.load(1)[1]
    assert (keys, ended, behind) == ([], [], [])
    world.runtime.run_until_idle()
    assert keys == [b"%d" % number for number in range(100)]
    assert ended == behind == [None]
    world.manager.close()


def test_records_are_removed_while_a_thread_reads_them() -> None:
    world = World([1])
    for number in range(100):
        world.append(number)
    world.manager.close()
    world.disk.is_cold = True
    world.open()
    world.disk.warm.clear()
    keys, ended, loading = world.load()
    assert loading.for_a_thread is not None
    world.partition().log.increment_log_start_offset(40)
    world.runtime.run_until_idle()
    assert ended == [None]
    assert keys == [b"%d" % number for number in range(40, 100)]
    world.manager.close()


def test_requests_are_served_while_a_partition_is_loaded() -> None:
    runtime = Ticking()
    world = World([1], runtime=runtime)
    for number in range(50):
        world.append(number)
    runtime.run_until_idle()
    keys, ended, _ = world.load()
    turns: list[int] = []

    def request() -> None:
        turns.append(len(keys))
        if not ended:
            runtime.call_soon(request)

    request()
    runtime.run_until_idle()
    assert ended == [None]
    assert len(keys) == 50
    assert len(turns) > 10
    assert max(after - before for before, after in pairwise(turns)) < 10


@pytest.mark.parametrize("leader", [2, -1])
def test_a_partition_lost_while_it_is_loaded(leader: int) -> None:
    runtime = Ticking()
    world = World([1, 2], runtime=runtime)
    world.change(0, isr=[1])
    for number in range(50):
        assert world.append(number) == [E.NONE]
    keys, ended, _ = world.load()
    behind = world.load(1)[1]
    assert (ended, 0 < len(keys) < 50) == ([], True)
    world.change(0, leader=leader, isr=[2])
    runtime.run_until_idle()
    (error,) = ended
    assert isinstance(error, StorageError)
    assert error.error == E.NOT_LEADER_OR_FOLLOWER
    assert len(keys) < 50
    assert behind == [None]


def test_a_cancelled_one_is_heard_of_no_more_and_the_next_one_goes_on() -> None:
    runtime = Ticking()
    world = World([1], runtime=runtime)
    for number in range(50):
        world.append(number)
        world.append(number, 1)
    keys, ended, loading = world.load()
    behind_keys, behind, _ = world.load(1)
    loading.cancel()
    before = len(keys)
    runtime.run_until_idle()
    assert (len(keys), ended) == (before, [])
    assert (len(behind_keys), behind) == (50, [None])


def test_what_the_log_holds_is_loaded_before_it_is_committed() -> None:
    world = World([1, 2])
    answers = [world.append(number) for number in range(3)]
    keys, ended, _ = world.load()
    assert (len(keys), ended, answers) == (3, [None], [[], [], []])
    held: list[E] = []
    world.log.when_committed(0, held.append)
    later = world.append(3)
    world.partition().follower_fetched(2, 102, 2, 0)
    assert (held, answers) == ([], [[E.NONE], [E.NONE], []])
    world.partition().follower_fetched(2, 102, 3, 0)
    assert (held, answers[2], later) == ([E.NONE], [E.NONE], [])
    world.log.when_committed(9, held.append)
    assert held[1:] == [E.NOT_LEADER_OR_FOLLOWER]


def test_what_the_others_do_not_have_is_lost_with_the_leadership() -> None:
    world = World([1, 2])
    answer = world.append(0)
    held: list[E] = []
    world.log.when_committed(0, held.append)
    world.change(0, leader=2, isr=[2])
    assert answer == held == [E.NOT_LEADER_OR_FOLLOWER]
    assert world.append(1) == [E.NOT_LEADER_OR_FOLLOWER]


def test_an_append_needs_enough_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONFIG, "min.insync.replicas", "2")
    world = World([1, 2, 3])
    world.change(0, isr=[1])
    assert world.append(0) == [E.NOT_ENOUGH_REPLICAS]
    assert world.partition().log.log_end_offset == 0
    assert world.append(0, 9) == [E.NOT_LEADER_OR_FOLLOWER]


def test_a_log_is_cleaned_while_it_is_loaded_and_is_short_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(CONFIG, "cleanup.policy", "compact")
    monkeypatch.setattr(coordinator_loading, "READ_BYTES", 4096)
    monkeypatch.setattr(last_records, "STEP", 8)
    world = World([1])
    last: dict[bytes | None, bytes | None] = {}
    for number in range(900):
        key, value = b"%d" % (number % 7), b"%d" % number
        record = Record(0, 1_700_000_000_000, key, value * 20)
        world.log.append(0, build_batch([record]), lambda _: None)
        last[key] = value * 20
    world.storage_runtime.run_until_idle()
    cleaner = LogCleaner(world.manager, world.disk, world.runtime, CleanerSettings())
    cleaner.start()
    before = world.partition().log.size
    assert before > 100_000
    taken: dict[bytes | None, bytes | None] = {}
    replay = LastRecords("", taken.__setitem__)
    ended: list[Exception | None] = []
    loading = Loading(world.partition(), replay, ended.append)
    steps = loading.steps()
    while replay.next_offset < 300:
        next(steps)
    world.runtime.advance(60)
    assert world.partition().log.size < before / 10
    for _ in steps:
        """To the end."""
    loading.end()
    assert (taken, ended) == (last, [None])
    cleaner.stop()
    world.manager.close()
    world.open()
    records: list[bytes | None] = []
    world.log.load(0, LastRecords("", lambda key, _: records.append(key), every=True), ended.append)
    assert ended == [None, None]
    assert set(records) == set(last)
    assert len(records) < 100
