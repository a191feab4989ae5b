"""What the broker makes of log directories that crashes, full disks and bad sectors leave behind."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.coordinator.compacted_records import CompactedRecords
from barnabas.broker.coordinator.log import CoordinatorLog
from barnabas.broker.node import Node
from barnabas.broker.partitions.partition_manager import PartitionManager
from barnabas.broker.tests.partition_managers import make_partition_manager
from barnabas.controller.metadata.image import MetadataDelta, MetadataImage, PartitionState, partition_record
from barnabas.runtime.asyncio_runtime import AsyncioRuntime
from barnabas.storage.errors import StorageError
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.manager.manager import LogManager
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.metadata_records import TopicRecord
from barnabas.wire.records import Record, build_batch
from compat_tests.virtual.runtime import VirtualRuntime

BATCH = build_batch([Record(offset=0, timestamp=1_700_000_000_000, key=b"k", value=b"v")])
CONFIG = LogConfig.from_properties({"message.timestamp.before.max.ms": str(1 << 60)})


def image_of(*names: str) -> MetadataImage:
    image, delta = MetadataImage(), MetadataDelta()
    state = PartitionState(replicas=[1], isr=[1], leader=1, leader_epoch=0, partition_epoch=0)
    for name in names:
        topic_id = name.encode().ljust(16)
        image.replay(TopicRecord(name=name, topic_id=topic_id), delta)
        image.replay(partition_record(topic_id, 0, state), delta)
    return image


def opened(disk: MemoryDisk, seed: int = 0) -> tuple[LogManager, PartitionManager]:
    manager = LogManager(disk, ["/logs"], VirtualRuntime(seed), config=CONFIG)
    manager.open()
    return manager, make_partition_manager(manager, VirtualRuntime())


def load(partitions: PartitionManager) -> tuple[list[bytes | None], Exception | None]:
    """The values in partition c-0 as a coordinator gets them, and what ended them."""
    runtime = VirtualRuntime()
    values: list[bytes | None] = []
    ended: list[Exception | None] = []
    replay = CompactedRecords("c-0", lambda _, value: values.append(value), every=True)
    CoordinatorLog("c", partitions, runtime).load(0, replay, ended.append)
    runtime.run_until_idle()
    (error,) = ended
    return values, error


@pytest.mark.parametrize("content", [b"", b"version: 0\n", None])
def test_a_log_without_a_topic_id_keeps_its_records(content: bytes | None) -> None:
    disk = MemoryDisk()
    manager, partitions = opened(disk)
    partitions.load(image_of("a"))
    partition = partitions.get("a", 0)
    assert partition is not None
    partition.log.update_config(CONFIG)
    partition.append(BATCH)
    manager.close()
    if content is None:
        disk.remove("/logs/a-0/partition.metadata")
    else:
        disk.write_file("/logs/a-0/partition.metadata", content)
    for _ in range(2):  # the second time it knows its id again
        manager, partitions = opened(disk)
        partitions.load(image_of("a"))
        partition = partitions.get("a", 0)
        assert partition is not None
        assert partition.log.log_end_offset == 1
        assert partition.log.topic_id == b"a".ljust(16)
        manager.close()


def test_a_log_that_cannot_be_created_is_retried_and_stops_no_other() -> None:
    disk = MemoryDisk()
    _, partitions = opened(disk)
    image = image_of("a", "b", "c")
    disk.fault = lambda _, path: errno.EMFILE if "/b-0" in path else None
    partitions.metadata_changed(image, {name.encode().ljust(16): {0} for name in "abc"}, set())
    assert {each.topic for each in partitions.all() if not each.log.offline} == {"a", "c"}
    unmade = partitions.get("b", 0)
    assert unmade is not None
    with pytest.raises(StorageError) as caught:
        unmade.append(BATCH)
    assert caught.value.error == ErrorCode.KAFKA_STORAGE_ERROR
    assert unmade.check_leader_epoch(-1) == ErrorCode.KAFKA_STORAGE_ERROR
    disk.fault = lambda operation, path: (
        errno.EMFILE if "/b-0" in path and (operation, path) != ("open", "/logs/b-0") else None
    )
    partitions.retry_unmade(image)  # leaves a directory that it cannot remove
    assert unmade.log.offline
    assert disk.exists("/logs/b-0")
    disk.fault = None
    partitions.retry_unmade(image)
    assert partitions.get("b", 0) is unmade
    assert not unmade.log.offline


@pytest.mark.sockets
def test_a_broker_starts_with_a_damaged_partition_of_consumer_offsets(tmp_path: Path) -> None:
    config = BrokerConfig.from_properties(
        {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(tmp_path),
            "offsets.topic.num.partitions": "2",
        }
    )
    runtime = AsyncioRuntime()
    node = Node(config, runtime)
    node.start()
    runtime.loop.call_soon(lambda: node.services.groups.topic.find("g", lambda _error, _node: runtime.stop()))
    runtime.run()
    partition = node.services.partitions.get("__consumer_offsets", 0)
    assert partition is not None
    partition.append(BATCH)
    node.stop()
    runtime.close()
    path = tmp_path / "__consumer_offsets-0" / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:61] + b"\xff" * (len(BATCH) - 61))
    runtime = AsyncioRuntime()
    node = Node(config, runtime)
    node.start()
    assert len(list(node.services.groups.shards.loaded())) == 1
    node.stop()
    runtime.close()


def test_loading_a_coordinator_log_whose_offsets_go_back_fails() -> None:
    disk = MemoryDisk()
    manager, partitions = opened(disk)
    partitions.load(image_of("c"))
    partition = partitions.get("c", 0)
    assert partition is not None
    partition.log.update_config(CONFIG)
    for _ in range(3):
        partition.append(BATCH)
    disk.files["/logs/c-0/00000000000000000000.log"].data[len(BATCH) : len(BATCH) + 8] = bytes(8)
    assert isinstance(load(partitions)[1], StorageError)
    manager.close()


def test_logs_of_unknown_topics_are_kept_aside() -> None:
    disk = MemoryDisk()
    manager, partitions = opened(disk)
    partitions.load(image_of())
    partitions.metadata_changed(image_of("a", "b"), {name.encode().ljust(16): {0} for name in "ab"}, set())
    for topic in "ab":
        partition = partitions.get(topic, 0)
        assert partition is not None
        partition.log.update_config(CONFIG)
        partition.append(BATCH)
    manager.close()
    manager, partitions = opened(disk, 1)
    image, delta = image_of("b"), MetadataDelta()
    image.replay(TopicRecord(name="a", topic_id=b"another".ljust(16)), delta)
    state = PartitionState(replicas=[1], isr=[1], leader=1, leader_epoch=0, partition_epoch=0)
    image.replay(partition_record(b"another".ljust(16), 0, state), delta)
    partitions.load(image)  # a is another topic of that name by now
    for topic, end_offset in (("a", 0), ("b", 1)):
        partition = partitions.get(topic, 0)
        assert partition is not None
        assert partition.log.log_end_offset == end_offset
    manager.close()
    manager, partitions = opened(disk, 2)
    partitions.load(image_of())
    assert manager.logs() == []
    manager.close()
    names = [name for name in disk.list("/logs") if name.endswith("-stray")]
    assert sorted(name.partition(".")[0] for name in names) == ["a-0", "a-0", "b-0"]
    assert all(len(name) == len("a-0.") + 32 + len("-stray") for name in names)
    assert sorted(disk.size(f"/logs/{name}/{0:020d}.log") for name in names) == [0, len(BATCH), len(BATCH)]


def test_a_coordinator_does_not_load_an_offline_log_as_an_empty_one() -> None:
    manager, partitions = opened(MemoryDisk())
    partitions.load(image_of())
    partitions.metadata_changed(image_of("c"), {b"c".ljust(16): {0}}, set())
    log = manager.get("c", 0)
    assert log is not None
    log.fail("broken")
    batches, error = load(partitions)
    assert (batches, str(error)) == ([], "broken")
