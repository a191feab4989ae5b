"""flush.messages: nothing is acknowledged or shown before it is synced, and one sync serves all that wait for it."""

from __future__ import annotations

import errno
import random
from typing import Any

import pytest

from barnabas.storage.errors import StorageError
from barnabas.storage.log.log import Log
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.manager.manager import LogManager, LogManagerEvents
from barnabas.testing.memory_disk import MemoryDisk
from compat_tests.virtual.runtime import VirtualRuntime


class SlowThreads(VirtualRuntime):
    """Work of threads begins when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[tuple[Any, Any]] = []

    def run_in_thread(self, work: Any, done: Any, *, remote: bool = False, background: bool = False) -> None:
        self.waiting.append((work, done))

    def go(self) -> int:
        """Let what waits now run to its end; how much that was."""
        waiting, self.waiting = self.waiting, []
        for work, done in waiting:
            super().run_in_thread(work, done)
        self.run_until_idle()
        return len(waiting)


class World:
    def __init__(self, **settings: Any) -> None:
        self.disk = MemoryDisk()
        self.disk.make_directory("/logs/t-0", parents=True)
        self.runtime = SlowThreads()
        self.log = Log.open(self.disk, self.runtime, "/logs", "t", 0, b"i" * 16, LogConfig(**settings))
        self.acknowledged: list[tuple[int, str | None]] = []

    def append(self, batch: bytes) -> bool:
        """Append, and note the acknowledgement when it comes; whether it had to wait."""
        result = self.log.append_as_leader(batch, 0)
        offset = result.last_offset + 1
        if result.awaits_sync:
            self.log.flusher.when_synced(offset, lambda failure: self.acknowledged.append((offset, failure)))
        else:
            self.acknowledged.append((offset, None))
        return result.awaits_sync


def test_all_that_come_during_a_sync_share_the_next(workshop: Any) -> None:
    world = World(flush_messages=1)
    assert world.append(workshop.batch(2))
    for _ in range(10):
        assert world.append(workshop.batch())
    assert (world.acknowledged, world.log.high_watermark, world.log.flusher.recovery_point) == ([], 0, 0)
    assert world.runtime.go() == 1
    assert (world.acknowledged, world.log.high_watermark) == ([(2, None)], 2)
    assert world.runtime.go() == 1
    assert len(world.acknowledged) == 11
    assert world.log.high_watermark == world.log.flusher.recovery_point == world.log.log_end_offset == 12
    assert world.runtime.go() == 0


@pytest.mark.parametrize("seed", range(30))
def test_what_is_acknowledged_survives_a_power_failure(workshop: Any, seed: int) -> None:
    world = World(flush_messages=1, segment_bytes=400)
    chance = random.Random(seed)
    for _ in range(12):
        world.append(workshop.batch(chance.randrange(1, 4), size=30))
        if chance.random() < 0.4:
            world.runtime.go()
    acknowledged = max((offset for offset, _ in world.acknowledged), default=0)
    disk = world.disk.crash(lambda n: chance.randint(0, n))
    again = Log.open(disk, world.runtime, "/logs", "t", 0, b"i" * 16, world.log.config, clean=False)
    assert again.log_end_offset >= acknowledged


def test_only_every_nth_record_waits(workshop: Any) -> None:
    world = World(flush_messages=3)
    waited = [world.append(workshop.batch()) for _ in range(4)]
    assert waited == [False, False, True, False]
    assert [offset for offset, _ in world.acknowledged] == [1, 2, 4]
    assert world.log.high_watermark == 2
    world.runtime.go()
    assert [offset for offset, _ in world.acknowledged] == [1, 2, 4, 3]
    assert world.log.high_watermark == 4


def test_a_duplicate_waits_for_the_sync_of_the_first(workshop: Any) -> None:
    world = World(flush_messages=1)
    batch = workshop.batch(producer_id=5, producer_epoch=0, base_sequence=0)
    assert world.append(batch)
    assert world.append(batch)
    assert world.acknowledged == []
    world.runtime.go()
    world.runtime.go()
    assert world.acknowledged == [(1, None)] * 2
    assert not world.append(batch)


def test_a_failed_sync_acknowledges_nothing(workshop: Any) -> None:
    world = World(flush_messages=1)
    world.append(workshop.batch())
    world.append(workshop.batch())
    world.disk.fault = lambda operation, _: errno.EIO if operation == "sync" else None
    world.runtime.go()
    assert [failure is None for _, failure in world.acknowledged] == [False, False]
    assert world.log.failure is not None
    assert world.log.high_watermark == 0
    late: list[str | None] = []
    world.log.flusher.when_synced(1, late.append)
    assert late == [world.log.failure]


def test_a_blocking_flush_acknowledges_what_waits(workshop: Any) -> None:
    world = World(flush_messages=1)
    world.append(workshop.batch())
    world.log.flush()
    assert world.acknowledged == [(1, None)]
    assert world.log.high_watermark == 1
    world.runtime.go()
    assert world.acknowledged == [(1, None)]


@pytest.mark.parametrize("settings", [{}, {"flush_ms": 50}])
def test_without_flush_messages_nothing_waits(workshop: Any, settings: dict[str, int]) -> None:
    world = World(**settings)
    assert not world.append(workshop.batch())
    assert world.log.high_watermark == 1
    world.runtime.advance(0.05)
    world.runtime.go()
    assert world.log.flusher.recovery_point == (1 if settings else 0)


def test_the_high_watermark_does_not_go_back_when_a_rolled_segment_is_synced_first(workshop: Any) -> None:
    world = World(flush_messages=10, segment_bytes=600)
    for _ in range(9):
        assert not world.append(workshop.batch(size=20))
    assert world.append(workshop.batch(size=20))
    assert len(world.log.segments) == 2
    assert world.log.high_watermark == 9
    waiting, world.runtime.waiting = world.runtime.waiting, []
    seen = []
    for work, done in waiting:  # the rolled segment's comes first
        VirtualRuntime.run_in_thread(world.runtime, work, done)
        world.runtime.run_until_idle()
        seen.append(world.log.high_watermark)
    assert seen == [9, 10]


def test_a_topic_deleted_in_the_middle_of_a_sync_harms_no_other(workshop: Any) -> None:
    runtime = SlowThreads()
    manager = LogManager(MemoryDisk(), ["/a"], runtime)
    fatal: list[str] = []
    manager.subscribe(LogManagerEvents(all_failed=fatal.append))
    manager.open()
    log = manager.create("t", b"i" * 16, 0, LogConfig(flush_messages=1))
    reported: list[str | None] = []
    for offset in (1, 2):  # the second waits for the next sync
        assert log.append_as_leader(workshop.batch(), 0).awaits_sync
        log.flusher.when_synced(offset, reported.append)
    manager.delete("t", 0)
    while runtime.go():
        pass
    assert (manager.directories.offline, fatal) == ({}, [])
    assert len(reported) == 2
    assert reported[1] is not None


def test_a_rolled_segment_leaves_nothing_in_the_directory_of_the_next_topic_of_its_name(
    workshop: Any,
) -> None:
    disk, runtime = MemoryDisk(), SlowThreads()
    manager = LogManager(disk, ["/a"], runtime)
    manager.open()
    config = LogConfig(segment_bytes=300)
    old = manager.create("t", b"i" * 16, 0, config)
    for sequence in range(2):
        batch = workshop.batch(size=150, producer_id=7, producer_epoch=0, base_sequence=sequence)
        old.append_as_leader(batch, 0)
    assert len(old.segments) == 2
    manager.delete("t", 0)
    new = manager.create("t", b"j" * 16, 0, config)
    before = disk.list(new.directory)
    while runtime.go():
        pass
    assert disk.list(new.directory) == before


@pytest.mark.parametrize("rolls", [False, True])
@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_a_lack_of_descriptors_delays_a_sync_and_nothing_else(workshop: Any, code: int, rolls: bool) -> None:
    world = World(flush_messages=1)
    world.append(workshop.batch())
    if rolls:
        world.log.roll()
    world.disk.fault = lambda operation, _: code if operation == "open" else None
    for _ in range(3):
        world.runtime.go()
        world.runtime.advance(1)
    assert world.acknowledged == []
    assert world.log.high_watermark == 0
    with pytest.raises(StorageError):
        world.log.flush()
    world.disk.fault = None
    world.append(workshop.batch())
    world.runtime.advance(1)
    while world.runtime.go():
        pass
    assert world.acknowledged == [(1, None), (2, None)]
    assert world.log.flusher.recovery_point == 2
    assert world.log.failure is None
