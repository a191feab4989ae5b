"""A log moves to another directory while it is appended to, and whatever interrupts it leaves a whole log."""

from __future__ import annotations

import errno
import random
from typing import Any

import pytest

from barnabas.storage.errors import StorageError
from barnabas.storage.log.log import Log
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.log.tests.test_transactions import consume, marker
from barnabas.storage.manager.manager import LogManager
from barnabas.storage.tests.workshop import verified
from barnabas.testing.memory_disk import MemoryDisk, ProcessKilled
from barnabas.wire.errors import ErrorCode
from compat_tests.virtual.runtime import VirtualRuntime

TOPIC_ID = bytes(range(1, 17))
CONFIG = LogConfig(segment_bytes=300, file_delete_delay_ms=1000, index_interval_bytes=1, retention_ms=-1)


class World:
    """Two directories on one disk and one log, in /a to begin with."""

    def __init__(self, workshop: Any, disk: MemoryDisk | None = None) -> None:
        self.workshop = workshop
        self.disk = disk or MemoryDisk()
        self.runtime = VirtualRuntime()
        self.manager = LogManager(self.disk, ["/a", "/b"], self.runtime, config=CONFIG)
        self.manager.open()
        found = self.manager.get("t", 0)
        if found is None:
            found = self.manager.create("t", TOPIC_ID, 0, CONFIG)
        self.first = found

    @property
    def log(self) -> Log:
        found = self.manager.get("t", 0)
        assert found is not None
        return found

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            self.log.append_as_leader(self.workshop.batch(size=40), 3)

    def run(self, seconds: float = 0.01) -> None:
        self.runtime.advance(seconds)

    def content(self) -> list[bytes]:
        found: list[bytes] = self.workshop.content(self.log)
        return found

    def directories(self) -> list[tuple[str, str]]:
        """(log directory, what stands behind the partition's name)."""
        return [
            (log_dir, name.removeprefix("t-0")[:1] + name.rpartition("-")[2])
            for log_dir in ("/a", "/b")
            for name in self.disk.list(log_dir)
            if name.startswith("t-0")
        ]


class AllTiered:
    """The reads of a log of which everything is in the object store."""

    tiered_offset = 10_000
    is_over_quota = False

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} is not looked at")


@pytest.fixture
def world(workshop: Any) -> World:
    return World(workshop)


def test_a_log_moves_while_it_is_appended_to(world: World) -> None:
    world.append(20)
    before = world.content()
    (region,) = world.first.read(0, 200).regions
    read = region.read()
    world.manager.moves.limit(3000.0)
    world.manager.moves.begin("t", 0, "/b")
    assert world.directories() == [("/a", "0"), ("/b", ".future")]
    for _ in range(100):
        world.run(0.05)
        world.append()
        if world.log is not world.first:
            break
    log = world.log
    assert (log.log_dir, log.directory) == ("/b", "/b/t-0")
    assert world.content()[:20] == before
    world.append(5)
    assert log.log_end_offset == len(world.content())
    assert log.epochs.latest_epoch == 3
    assert world.manager.moves.get("t", 0) is None
    world.run(2)
    assert world.directories() == [("/b", "0")]
    assert region.read() == read
    content = world.content()
    world.manager.close()
    again = World(world.workshop, world.disk)
    assert again.log.log_dir == "/b"
    assert again.content() == content


def test_what_is_cut_back_meanwhile_is_not_moved(make_workshop: Any) -> None:
    """A follower cuts its log back and gets other records of the same size in the same places, at any step."""
    for steps in range(0, 200, 10):
        world = World(make_workshop())
        world.append(20)
        world.manager.moves.limit(3000.0)
        world.manager.moves.begin("t", 0, "/b")
        for _ in range(steps):
            world.runtime.advance(0.005)
        if world.log is not world.first:
            break
        world.log.truncate_to(9)
        for index in range(11):
            world.log.append_as_leader(world.workshop.batch(size=40, key=b"n", timestamp=index), 4)
        expected = world.content()
        world.run(60)
        assert world.log.log_dir == "/b"
        assert world.content() == expected
        world.manager.close()
        assert World(world.workshop, world.disk).content() == expected


def test_the_progress_of_the_copy_is_reported(world: World) -> None:
    world.append(20)
    world.manager.moves.limit(1000.0)
    world.manager.moves.begin("t", 0, "/b")
    seen = []
    for _ in range(200):
        move = world.manager.moves.get("t", 0)
        if move is None:
            break
        seen.append((move.size, move.end_offset))
        world.run(0.1)
    assert world.log.log_dir == "/b"
    assert seen == sorted(seen)
    assert seen[0] == (0, 0)
    assert len(set(seen)) > 5
    total = world.log.size
    assert world.runtime.monotonic() >= (total - 600) / 1000  # throttled; the rest goes at the end


def test_the_start_offset_and_the_config_go_along(world: World) -> None:
    world.append(20)
    world.log.increment_log_start_offset(7)
    world.log.update_config(LogConfig(segment_bytes=300, retention_bytes=12345))
    world.manager.moves.begin("t", 0, "/b")
    world.run()
    assert world.log.log_dir == "/b"
    assert (world.log.log_start_offset, world.log.config.retention_bytes) == (7, 12345)
    world.run(1)
    again = World(world.workshop, world.disk.crash(lambda n: n))
    assert again.log.log_start_offset == 7


def test_segments_that_retention_removes_meanwhile_are_not_moved(world: World) -> None:
    world.append(30)
    world.manager.moves.limit(3000.0)
    world.manager.moves.begin("t", 0, "/b")
    world.run(0.5)
    assert world.log is world.first
    world.log.increment_log_start_offset(20)
    for _ in range(100):
        world.run(0.1)
    assert world.log.log_dir == "/b"
    assert world.content()
    assert world.log.log_start_offset == 20
    names = [name for name in world.disk.list("/b/t-0") if name.endswith(".log")]
    assert len(names) == len(world.log.segments)


def test_what_is_refused(world: World) -> None:
    def refusal(topic: str, directory: str) -> ErrorCode:
        with pytest.raises(StorageError) as caught:
            world.manager.moves.begin(topic, 0, directory)
        return caught.value.error

    assert refusal("t", "/c") == ErrorCode.LOG_DIR_NOT_FOUND
    assert refusal("unknown", "/b") == ErrorCode.REPLICA_NOT_AVAILABLE
    assert refusal("x" * 240, "/b") == ErrorCode.INVALID_TOPIC_EXCEPTION
    world.manager.moves.begin("t", 0, "/a")  # it is there
    assert world.manager.moves.get("t", 0) is None
    world.manager.directory_failed("/b", "broken")
    assert refusal("t", "/b") == ErrorCode.KAFKA_STORAGE_ERROR


def test_asking_for_where_it_is_ends_the_move(world: World) -> None:
    world.append(10)
    world.manager.moves.begin("t", 0, "/b")
    world.manager.moves.begin("t", 0, "/a")
    world.run(5)
    assert world.log is world.first
    assert world.directories() == [("/a", "0")]


def test_the_loop_has_little_to_sync_at_the_end(workshop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(workshop)
    world.first.update_config(LogConfig())
    world.append(50)
    assert world.first.flusher.recovery_point == 0
    left: list[int] = []
    close = Log.close

    def close_and_tell(log: Log) -> None:
        left.append(log.log_end_offset - log.flusher.recovery_point)
        close(log)

    monkeypatch.setattr(Log, "close", close_and_tell)
    world.manager.moves.begin("t", 0, "/b")
    world.run(1)
    assert world.log.log_dir == "/b"
    assert left == [0]


def test_a_source_that_can_not_be_opened_ends_the_move(world: World) -> None:
    world.append(20)
    world.run()
    before = world.content()
    world.manager.moves.begin("t", 0, "/b")
    world.disk.fault = lambda operation, path: (
        errno.EMFILE if operation == "open" and path.startswith("/a/t-0/") else None
    )
    world.run(1)
    world.disk.fault = None
    assert world.manager.moves.get("t", 0) is None
    assert world.log is world.first
    assert world.content() == before
    world.run(10)
    assert world.directories() == [("/a", "0")]


def test_deleting_a_log_deletes_the_copy_of_its_move(world: World) -> None:
    world.append(10)
    world.manager.moves.begin("t", 0, "/b")
    world.manager.delete("t", 0)
    world.run(5)
    assert world.directories() == []


@pytest.mark.parametrize("operation", ["write", "sync", "rename", "read"])
def test_a_log_stays_in_place_when_the_target_directory_fails(world: World, operation: str) -> None:
    world.append(20)
    content = world.content()
    world.manager.moves.begin("t", 0, "/b")
    world.disk.fault = lambda done, path: errno.ENOSPC if done == operation and "/b/" in path else None
    world.run(1)
    world.disk.fault = None
    assert world.manager.moves.get("t", 0) is None
    world.run(5)
    assert world.log.log_dir == "/a"
    assert world.content() == content
    world.append()


@pytest.mark.parametrize("failed", ["/a", "/b"])
def test_a_directory_that_fails_ends_the_move(world: World, failed: str) -> None:
    world.append(20)
    content = world.content()
    world.manager.moves.limit(1000.0)
    world.manager.moves.begin("t", 0, "/b")
    world.run(0.5)
    world.manager.directory_failed(failed, "broken")
    world.run(20)
    assert world.manager.moves.all() == []
    assert world.log is world.first
    assert world.log.offline == (failed == "/a")
    world.manager.close()
    again = World(world.workshop, world.disk)  # the directory is well again; what was half-done begins anew
    assert again.content() == content
    again.run(20)
    assert again.content() == content
    assert [where for where, kind in again.directories() if kind == "0"] == [again.log.log_dir]


def killed_world(workshop: Any, changes: int) -> tuple[World, int]:
    """A world in which the process dies after so many changes of the disk during a move; how many it made."""
    world = World(workshop)
    world.append(12)
    world.manager.moves.limit(3000.0)
    world.manager.moves.begin("t", 0, "/b")
    world.disk.kill_after = changes
    try:
        while world.log is world.first:
            world.run(0.05)
            world.append()
        world.run(2)
    except ProcessKilled:
        return world, changes
    made = changes - world.disk.kill_after
    world.disk.revive()
    return world, made


@pytest.mark.slow
def test_killed_at_any_step_the_log_is_whole_and_arrives(make_workshop: Any) -> None:
    """At every one of the last steps, and at some of those before."""
    _, total = killed_world(make_workshop(), 1 << 20)
    assert total > 100
    moved: set[str] = set()
    for changes in [*range(0, total - 60, 9), *range(total - 60, total)]:
        workshop = make_workshop()
        world, _ = killed_world(workshop, changes)
        acknowledged = (world.manager.get("t", 0) or world.first).log_end_offset
        world.disk.revive()
        again = World(workshop, world.disk)
        assert again.log.log_end_offset >= acknowledged, changes
        moved.add(again.log.log_dir)
        assert len(again.content()) == again.log.log_end_offset
        again.append(3)
        again.run(5)
        assert [where for where, kind in again.directories() if kind == "0"] == [again.log.log_dir]
        assert again.log.topic_id == TOPIC_ID
    assert moved == {"/a", "/b"}


@pytest.mark.parametrize("seed", range(40))
def test_what_was_synced_survives_a_power_failure_at_any_step(make_workshop: Any, seed: int) -> None:
    chance = random.Random(seed)
    workshop = make_workshop()
    world = World(workshop)
    world.append(12)
    world.log.flush()
    world.manager.moves.limit(3000.0)
    world.manager.moves.begin("t", 0, "/b")
    world.disk.kill_after = chance.randrange(200)
    synced = world.log.log_end_offset
    try:
        for _ in range(40):
            world.run(0.05)
            world.append()
            if chance.random() < 0.3:
                world.log.flush()
            synced = max(synced, world.log.flusher.recovery_point)
        world.run(2)
    except ProcessKilled:
        pass
    world.disk.revive()
    again = World(workshop, world.disk.crash(lambda n: chance.randint(0, n)))
    assert again.log.log_end_offset >= synced
    assert again.log.topic_id == TOPIC_ID
    assert len(again.content()) == again.log.log_end_offset
    again.append(2)
    again.run(5)
    assert len(again.content()) == again.log.log_end_offset


def test_what_a_moved_tiered_log_can_not_find_again_survives_a_power_failure(workshop: Any) -> None:
    """Its leader epochs, its producers and where its local part begins; the batches are in the object store."""
    world = World(workshop)
    for epoch in (1, 2, 3):
        for _ in range(8):
            world.log.append_as_leader(workshop.batch(size=40), epoch)
    log = world.log
    log.begin_tiering(AllTiered())
    log.flush()
    world.run(1)
    log.remove_segments_below(log.segments.active.base_offset)
    world.run(5)
    before = log.local_log_start_offset, log.epochs.entries
    assert [epoch for epoch, _ in before[1]] == [1, 2, 3]
    world.manager.moves.begin("t", 0, "/b")
    world.run(60)
    assert world.log.log_dir == "/b"
    again = World(workshop, world.disk.crash(lambda _unsynced: 0)).log
    assert (again.local_log_start_offset, again.epochs.entries) == before


def test_a_moved_log_keeps_aborted_transactions_whose_index_could_not_be_written(workshop: Any) -> None:
    world = World(workshop)
    log = world.log
    batch = workshop.batch(producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    log.append_as_leader(batch, 3, verification=verified(log, batch))
    log.append_as_leader(marker(1, commit=False), 3, from_client=False)
    world.disk.fault = lambda _operation, path: (
        errno.ENOSPC if path.startswith("/a/") and ".txnindex" in path else None
    )
    log.roll()
    world.run(1)  # the thread that seals the segment
    assert not log.offline
    world.disk.fault = None
    world.append(3)
    plain = [2, 3, 4]
    assert consume(log, 0, 1 << 20) == plain
    world.manager.moves.begin("t", 0, "/b")
    for _ in range(100):
        world.run(0.05)
        if world.log is not log:
            break
    assert world.log.log_dir == "/b"
    assert consume(world.log, 0, 1 << 20) == plain
