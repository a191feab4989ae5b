"""A log directory fails at the start or later; checkpoints are written by threads and never out of order."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.storage.disk.checkpoint_file import read_offsets
from barnabas.storage.errors import LogDirectoryError, StorageError
from barnabas.storage.log.log import Log
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.manager.checkpointer import CheckpointFile
from barnabas.storage.manager.directory import (
    LOG_START_OFFSET_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_OFFSET_FILE,
)
from barnabas.storage.manager.manager import LogManager, LogManagerEvents, LogManagerSettings
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.errors import ErrorCode
from compat_tests.virtual.runtime import VirtualRuntime

TOPIC_ID = bytes(range(1, 17))
CONFIG = LogConfig(segment_bytes=300, retention_ms=-1)


class World:
    def __init__(self, *dirs: str, disk: MemoryDisk | None = None, vital: str | None = None) -> None:
        self.disk = disk or MemoryDisk()
        self.runtime = VirtualRuntime()
        self.reported: list[str] = []
        self.manager = LogManager(self.disk, dirs, self.runtime, config=CONFIG, metadata_dir=vital)
        self.manager.subscribe(
            LogManagerEvents(
                directory_failed=self.reported.append,
                all_failed=lambda reason: self.reported.append(f"fatal: {reason}"),
            )
        )

    def fail(self, log_dir: str, code: int = errno.EIO, *operations: str) -> None:
        self.disk.fault = lambda operation, path: (
            code
            if (path + "/").startswith(log_dir + "/") and (not operations or operation in operations)
            else None
        )


def append_until_it_fails(workshop: Any, log: Log, *, flush: bool) -> None:
    for _ in range(3):  # the third needs a new segment
        log.append_as_leader(workshop.batch(size=100), 0)
        if flush:
            log.flush()


@pytest.mark.parametrize("operation", ["write", "sync", "open"])
def test_an_error_of_the_disk_takes_the_directory_offline_and_no_other(workshop: Any, operation: str) -> None:
    world = World("/a", "/b")
    world.manager.open()
    logs = [world.manager.create("t", TOPIC_ID, index, CONFIG) for index in range(4)]
    for log in logs:
        log.append_as_leader(workshop.batch(size=100), 0)
    broken = [log for log in logs if log.log_dir == "/b"]
    well = [log for log in logs if log.log_dir == "/a"]
    assert len(broken) == len(well) == 2
    world.fail("/b", errno.EIO, operation)
    with pytest.raises(StorageError) as caught:
        append_until_it_fails(workshop, broken[0], flush=operation == "sync")
    assert caught.value.error == ErrorCode.KAFKA_STORAGE_ERROR
    world.disk.fault = None
    for log in broken:
        assert log.offline
        with pytest.raises(StorageError) as caught:
            log.append_as_leader(workshop.batch(), 0)
        assert caught.value.error == ErrorCode.KAFKA_STORAGE_ERROR
        with pytest.raises(StorageError) as caught:
            log.read(0, 100)
        assert caught.value.error == ErrorCode.KAFKA_STORAGE_ERROR
    for log in well:
        log.append_as_leader(workshop.batch(), 0)
        assert log.read(0, 1000).size
    assert list(world.manager.directories.offline) == ["/b"]
    assert world.reported == []  # after the request has been answered
    world.runtime.run_until_idle()
    assert world.reported == ["/b"]
    assert {world.manager.create("n", TOPIC_ID, index, CONFIG).log_dir for index in range(4)} == {"/a"}
    world.manager.close()
    again = World("/a", "/b", disk=world.disk)
    again.manager.open()
    assert not again.manager.directories.offline
    assert len(again.manager.logs()) == 8
    assert again.manager.directories.id_of("/b")


def test_start_offsets_of_a_failed_directory_stay_in_its_checkpoint(workshop: Any) -> None:
    world = World("/a", "/b")
    world.manager.open()
    logs = [world.manager.create("t", TOPIC_ID, index, CONFIG) for index in range(2)]
    for log in logs:
        for _ in range(3):
            log.append_as_leader(workshop.batch(), 0)
        log.increment_log_start_offset(1)
    world.runtime.run_until_idle()
    for log in logs:
        log.increment_log_start_offset(2)
    world.manager.directory_failed("/b", "broken")  # before the new offsets are written
    world.runtime.run_until_idle()
    found = {
        log_dir: sorted(read_offsets(world.disk, f"{log_dir}/{LOG_START_OFFSET_FILE}").values())
        for log_dir in ("/a", "/b")
    }
    assert found == {"/a": [2], "/b": [1]}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE])
def test_a_disk_that_is_only_full_stays_online(workshop: Any, code: int) -> None:
    world = World("/a")
    world.manager.open()
    log = world.manager.create("t", TOPIC_ID, 0, CONFIG)
    log.append_as_leader(workshop.batch(), 0)
    world.fail("/a", code, "write", "open")
    for _ in range(3):
        with pytest.raises(StorageError) as caught:
            log.append_as_leader(workshop.batch(), 0)
        assert caught.value.error == ErrorCode.KAFKA_STORAGE_ERROR
    world.runtime.advance(120)  # checkpoints fail too
    assert not world.manager.directories.offline
    world.disk.fault = None
    assert log.append_as_leader(workshop.batch(), 0).base_offset == 1
    assert len(workshop.content(log)) == 2


def test_the_last_directory_and_the_vital_one_are_fatal() -> None:
    world = World("/a", "/b", vital="/a")
    world.manager.open()
    world.manager.directory_failed("/a", "broken")
    world.runtime.run_until_idle()
    assert world.reported[0] == "/a"
    assert "metadata" in world.reported[1]
    assert "broken" in world.reported[1]
    world = World("/a", "/b")
    world.manager.open()
    world.manager.directory_failed("/a", "first")
    world.manager.directory_failed("/b", "second")
    world.manager.directory_failed("/b", "again")
    world.runtime.run_until_idle()
    assert world.reported.count("/b") == 1
    assert any(each.startswith("fatal: every log directory has failed") for each in world.reported)


@pytest.mark.parametrize("operations", [(), ("write",), ("read",)])
def test_a_start_continues_without_a_failed_directory(workshop: Any, operations: tuple[str, ...]) -> None:
    world = World("/a", "/b")
    world.manager.open()
    for index in range(4):
        world.manager.create("t", TOPIC_ID, index, CONFIG).append_as_leader(workshop.batch(), 0)
    world.manager.close()
    world = World("/a", "/b", disk=world.disk)
    world.fail("/b", errno.EIO, *operations)
    world.manager.open()
    if operations == ("write",):
        assert not world.manager.directories.offline  # nothing had to be written
        return
    assert list(world.manager.directories.offline) == ["/b"]
    assert {log.log_dir for log in world.manager.logs()} == {"/a"}
    world.manager.close()
    world.disk.fault = None
    world = World("/a", "/b", disk=world.disk)
    world.manager.open()
    assert len(world.manager.logs()) == 4


def test_no_start_without_any_directory_or_without_the_vital_one() -> None:
    for dirs, vital in ((("/b",), None), (("/a", "/b"), "/b")):
        world = World(*dirs, vital=vital)
        world.fail("/b")
        with pytest.raises(LogDirectoryError, match="/b"):
            world.manager.open()
        assert not world.disk.locks


def test_the_checkpoints_are_written_at_their_intervals(workshop: Any) -> None:
    world = World("/a", "/b")
    world.manager = LogManager(
        world.disk,
        ["/a", "/b"],
        world.runtime,
        config=CONFIG,
        settings=LogManagerSettings(
            log_initial_task_delay_ms=30_000,
            log_flush_offset_checkpoint_interval_ms=40_000,
            log_flush_start_offset_checkpoint_interval_ms=50_000,
            replica_high_watermark_checkpoint_interval_ms=5_000,
        ),
    )
    world.manager.open()
    logs = [world.manager.create("t", TOPIC_ID, index, CONFIG) for index in range(3)]
    for log in logs:
        for _ in range(3):
            log.append_as_leader(workshop.batch(size=100), 0)

    def written(name: str) -> dict[tuple[str, int], int]:
        return read_offsets(world.disk, f"/a/{name}") | read_offsets(world.disk, f"/b/{name}")

    world.runtime.advance(4.9)
    assert written(REPLICATION_OFFSET_FILE) == {}
    world.runtime.advance(0.2)
    assert written(REPLICATION_OFFSET_FILE) == {("t", index): 3 for index in range(3)}
    logs[0].append_as_leader(workshop.batch(), 0)
    world.runtime.advance(5)
    assert written(REPLICATION_OFFSET_FILE)["t", 0] == 4
    assert written(RECOVERY_POINT_FILE) == {}
    world.runtime.advance(20)
    assert written(RECOVERY_POINT_FILE) == {("t", index): 2 for index in range(3)}
    logs[1].increment_log_start_offset(1)  # written soon, not at the interval
    world.runtime.run_until_idle()
    assert written(LOG_START_OFFSET_FILE) == {("t", 1): 1}
    world.manager.delete("t", 1)  # and forgotten soon, so that a new one of that name does not find it
    world.runtime.run_until_idle()
    assert written(LOG_START_OFFSET_FILE) == {}
    assert ("t", 1) not in written(RECOVERY_POINT_FILE)


class _Threads(VirtualRuntime):
    """Work of threads waits until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Callable[[], None]] = []

    def run_in_thread(self, work: Any, done: Any, *, remote: bool = False, background: bool = False) -> None:
        self.waiting.append(lambda: super(_Threads, self).run_in_thread(work, done))

    def go(self) -> None:
        waiting, self.waiting = self.waiting, []
        for begin in waiting:
            begin()
        self.run_until_idle()


def test_one_version_of_a_checkpoint_is_written_at_a_time_and_the_last_one_stays() -> None:
    disk, runtime = MemoryDisk(), _Threads()
    disk.make_directory("/a")
    failures: list[OSError] = []
    file = CheckpointFile(disk, runtime, "/a/c", failures.append)
    for version in range(1, 6):
        file.write({("t", 0): version})
    assert len(runtime.waiting) == 1
    runtime.go()
    assert read_offsets(disk, "/a/c") == {("t", 0): 1}
    while runtime.waiting:
        runtime.go()
    assert read_offsets(disk, "/a/c") == {("t", 0): 5}  # those in between were never written
    file.write({("t", 0): 5})
    assert not runtime.waiting
    file.write({("t", 0): 6})
    file.write_now({("t", 0): 7})  # the broker stops while a thread is at it
    runtime.go()
    assert read_offsets(disk, "/a/c") == {("t", 0): 7}
    while runtime.waiting:
        runtime.go()
    disk.fault = lambda operation, _: errno.EIO if operation == "write" else None
    file.write({("t", 0): 8})
    runtime.go()
    assert [failure.errno for failure in failures] == [errno.EIO]
    disk.fault = None
    file.write({("t", 0): 9})
    while runtime.waiting:
        runtime.go()
    assert read_offsets(disk, "/a/c") == {("t", 0): 9}


def test_a_log_that_cannot_be_written_keeps_its_start_offset(workshop: Any) -> None:
    world = World("/a")
    world.manager.open()
    failed, well = (world.manager.create("t", TOPIC_ID, index, CONFIG) for index in (0, 1))
    for log in (failed, well):
        log.append_as_leader(workshop.batch(4), 0)
        log.flush()
    failed.increment_log_start_offset(2)
    world.runtime.run_until_idle()
    failed.append_as_leader(workshop.batch(), 0)
    world.fail("/a/t-0", errno.ENOSPC, "sync")
    with pytest.raises(StorageError):
        failed.flush()
    world.disk.fault = None
    assert failed.failure is not None
    assert not failed.offline
    well.increment_log_start_offset(1)  # has the checkpoint written
    world.runtime.advance(120)
    again = World("/a", disk=world.disk.crash(lambda sectors: sectors))
    again.manager.open()
    starts = {log.partition: log.log_start_offset for log in again.manager.logs()}
    assert starts == {0: 2, 1: 1}


def test_the_end_of_a_log_that_has_no_role_yet_is_not_committed(workshop: Any) -> None:
    """A broker may wait long for the controllers, and fail again meanwhile: its checkpoint is no more than it was."""
    world = World("/a")
    world.manager.open()
    log = world.manager.create("t", TOPIC_ID, 0, CONFIG)
    log.replicate()
    for _ in range(3):
        log.append_as_leader(workshop.batch(size=100), 0)
    log.set_high_watermark(2)
    world.runtime.advance(6)
    found: Log | None = log
    for _ in range(3):  # starts that end before the log has its role
        disk = world.disk.crash(lambda count: count)
        world = World("/a", disk=disk)
        world.manager.open()
        found = world.manager.get("t", 0)
        assert found is not None
        assert (found.high_watermark, found.log_end_offset) == (2, 3)
        world.runtime.advance(6)
        assert read_offsets(disk, f"/a/{REPLICATION_OFFSET_FILE}")["t", 0] == 2
    assert found is not None
    found.end_replication()
    assert found.high_watermark == 3
