"""Directories that are left out of log.dirs, replaced, and back: what is made, and which of two copies counts."""

from __future__ import annotations

import logging

import pytest

from barnabas.broker.tests.partition_managers import make_partition_manager
from barnabas.controller.metadata.image import MetadataDelta, MetadataImage, PartitionState, partition_record
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.manager.manager import LogManager
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.messages.metadata_records import TopicRecord
from barnabas.wire.records import Record, build_batch
from barnabas.wire.uuids import uuid_from_string
from compat_tests.virtual.runtime import VirtualRuntime

TOPIC_ID = b"t".ljust(16)
CONFIG = LogConfig.from_properties({"message.timestamp.before.max.ms": str(1 << 60)})


def batch(value: bytes) -> bytes:
    return build_batch([Record(offset=0, timestamp=1_700_000_000_000, key=None, value=value)])


def image_of(*directories: bytes) -> MetadataImage:
    """The topic "t" with a partition in each of the directories with these ids."""
    image, delta = MetadataImage(), MetadataDelta()
    image.replay(TopicRecord(name="t", topic_id=TOPIC_ID), delta)
    for index, directory in enumerate(directories):
        state = PartitionState(
            replicas=[1], isr=[1], leader=1, leader_epoch=0, partition_epoch=0, directories=[directory]
        )
        image.replay(partition_record(TOPIC_ID, index, state), delta)
    return image


class Start:
    """The logs of a broker, opened. `seed` is of the ids that it makes."""

    def __init__(self, disk: MemoryDisk, *dirs: str, seed: int = 0) -> None:
        self.manager = LogManager(disk, dirs, VirtualRuntime(seed), config=CONFIG)
        self.manager.open()
        self.partitions = make_partition_manager(self.manager, VirtualRuntime())

    def id_of(self, log_dir: str) -> bytes:
        return uuid_from_string(self.manager.directories.id_of(log_dir))

    def end_offset(self) -> int:
        partition = self.partitions.get("t", 0)
        assert partition is not None
        return partition.log.log_end_offset


def write(disk: MemoryDisk, log_dir: str, *values: bytes) -> None:
    """Make t-0 in a directory, with a record of each value."""
    start = Start(disk, log_dir)
    log = start.manager.create("t", TOPIC_ID, 0, CONFIG)
    for value in values:
        log.append_as_leader(batch(value), 0)
    start.manager.close()


def two_directories() -> tuple[MemoryDisk, dict[str, bytes]]:
    disk = MemoryDisk()
    start = Start(disk, "/q", "/r")
    ids = {path: start.id_of(path) for path in ("/q", "/r")}
    start.manager.close()
    return disk, ids


def strays(disk: MemoryDisk) -> list[str]:
    return [path for path in ("/q", "/r") for name in disk.list(path) if name.endswith("-stray")]


def test_no_empty_log_replaces_one_in_a_missing_directory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk, ids = two_directories()
    other = b"another directory"[:16]
    start = Start(disk, "/q")
    with caplog.at_level(logging.WARNING):
        start.partitions.load(image_of(ids["/r"], ids["/q"], ids["/r"], other, bytes(16)))
    assert {log.partition for log in start.manager.logs()} == {1, 4}
    assert [each.log.offline for each in start.partitions.all()] == [True, False, True, True, False]
    start.partitions.retry_unmade(image_of(ids["/r"]))
    assert len(start.manager.logs()) == 2
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert lines[0].startswith("2 partitions have no leader, their log directory ")
    assert lines[0].endswith(" is not in log.dirs: t-0, t-2")
    assert lines[1].startswith("1 partition has no leader, its log directory ")


@pytest.mark.parametrize(
    ("named", "end_offset", "aside"),
    [("/q", 3, "/r"), ("/r", 1, "/q"), (None, 3, "/r")],
)
def test_of_two_logs_that_differ_the_one_in_the_directory_of_the_metadata_is_served(
    caplog: pytest.LogCaptureFixture, named: str | None, end_offset: int, aside: str
) -> None:
    disk, ids = two_directories()
    write(disk, "/q", b"a", b"b", b"c")
    write(disk, "/r", b"x")
    start = Start(disk, "/q", "/r", seed=1)
    start.partitions.load(image_of(ids[named] if named else b"another directory"[:16]))
    assert start.end_offset() == end_offset
    assert strays(disk) == [aside]
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    used = "/r" if aside == "/q" else "/q"
    assert record.getMessage().startswith(
        f"t-0 lies in two directories; {used}/t-0 (end {end_offset}) is used, "
        f"{aside}/t-0 (end {4 - end_offset}) is set aside as t-0."
    )
    assert record.getMessage().endswith("-stray. Its records are not served.")
    start.manager.close()
    again = Start(disk, "/q", "/r", seed=2)
    again.partitions.load(image_of(ids[used]))
    assert again.end_offset() == end_offset


@pytest.mark.parametrize("beginning", [(), (b"a",), (b"a", b"b", b"c")])
def test_of_two_logs_one_a_prefix_of_the_other_the_longer_is_served(
    caplog: pytest.LogCaptureFixture, beginning: tuple[bytes, ...]
) -> None:
    """So a power failure leaves a move whose last step was not on the disk: nothing may be lost, even where the
    metadata names the directory that was left."""
    disk, ids = two_directories()
    write(disk, "/q", *beginning)
    write(disk, "/r", b"a", b"b", b"c", b"d")
    start = Start(disk, "/q", "/r", seed=1)
    start.partitions.load(image_of(ids["/q"]))
    assert start.end_offset() == 4
    assert strays(disk) == ["/q"]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "not served" not in record.getMessage()
