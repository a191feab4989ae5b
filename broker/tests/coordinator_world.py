"""A coordinator's log over real partitions, on a disk that may be cold."""

from __future__ import annotations

from typing import Any

from barnabas.broker.coordinator.compacted_records import CompactedRecords
from barnabas.broker.coordinator.log import CoordinatorLog
from barnabas.broker.partitions.partition import Partition
from barnabas.broker.tests.partition_managers import make_partition_manager
from barnabas.controller.metadata.image import MetadataDelta, MetadataImage, PartitionState, partition_record
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.manager.manager import LogManager
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.metadata_records import TopicRecord
from barnabas.wire.records import Record, build_batch
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
        self.partitions = make_partition_manager(self.manager, self.runtime, CONFIG)
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
        replay = CompactedRecords("", lambda key, _: keys.append(key), every=True)
        loading = self.log.load(index, replay, ended.append)
        return keys, ended, loading
