"""A log on a disk that is behind: which appends wait, for how much, and what an error does to them."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from barnabas.storage.disk.write_pressure import SLOW_WRITE_S, WritePressure
from barnabas.storage.errors import StorageError
from barnabas.storage.log.log import Log
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.log.pacing import BACKLOG_BYTES, LARGE_APPEND_BYTES
from barnabas.testing.memory_disk import MemoryDisk
from compat_tests.virtual.runtime import VirtualRuntime

LARGE = 1 << 20


class World:
    """A log whose large writes take `write_s`, and whose threads write back when the test runs them."""

    def __init__(self, **settings: Any) -> None:
        self.disk = MemoryDisk(power_failures=False)
        self.disk.make_directory("/logs/t-0", parents=True)
        self.disk.fault = self._fault
        self.runtime = VirtualRuntime()
        config = LogConfig(max_message_bytes=1 << 24, **settings)
        self.log = Log.open(self.disk, self.runtime, "/logs", "t", 0, b"i" * 16, config)
        self.write_s = SLOW_WRITE_S * 2
        self.sleeps = True
        self.write_back_s = 0.0
        self.write_back_error: int | None = None
        self.steps = 0
        self.acknowledged: list[str | None] = []

    def _fault(self, operation: str, path: str) -> int | None:
        if operation == "write" and path.endswith(".log"):
            self.runtime.world.now += self.write_s
            self.disk.waits_count += self.sleeps
        if operation == "write_back":
            self.steps += 1
            self.runtime.world.now += self.write_back_s
            return self.write_back_error
        return None

    def append(self, batch: bytes) -> bool:
        """Whether its acknowledgement had to wait."""
        result = self.log.append_as_leader(batch, 0)
        if result.awaits_write_back:
            self.log.when_written_back(self.acknowledged.append)
        return result.awaits_write_back

    def append_until_held_back(self, batch: bytes) -> int:
        for count in range(1, 1000):
            if self.append(batch):
                return count
        raise AssertionError("never held back")


@pytest.fixture
def large(workshop: Any) -> bytes:
    batch = workshop.batch(size=LARGE)
    assert isinstance(batch, bytes)
    return batch


def test_held_appends_are_readable_and_acknowledged_after_the_write_back(large: bytes) -> None:
    world = World()
    count = world.append_until_held_back(large)
    assert count == BACKLOG_BYTES // len(large) + 1
    assert (world.acknowledged, world.steps) == ([], 0)
    assert world.log.high_watermark == world.log.log_end_offset == count
    world.runtime.run_until_idle()
    assert (world.acknowledged, world.steps) == ([None], 1)


def test_all_that_come_during_a_step_share_the_next(large: bytes) -> None:
    world = World()
    world.append_until_held_back(large)
    for _ in range(5):
        assert world.append(large)
    world.runtime.run_until_idle()
    assert world.acknowledged == [None] * 6
    assert world.steps == 2
    assert not world.append(large)  # twice as much has gone as came


def test_a_quick_disk_holds_no_append_back(large: bytes) -> None:
    world = World()
    world.write_s = SLOW_WRITE_S / 2
    assert not any(world.append(large) for _ in range(50))


def test_one_slow_write_now_and_then_is_none(large: bytes) -> None:
    world = World()
    for _ in range(30):
        assert not world.append(large)
        world.runtime.advance(1.5)


def test_a_busy_processor_holds_no_append_back(large: bytes) -> None:
    world = World()
    world.sleeps = False  # the write took long, and ran or could have run all the time
    assert not any(world.append(large) for _ in range(50))


def test_small_appends_never_wait(large: bytes, workshop: Any) -> None:
    world = World()
    world.append_until_held_back(large)
    small = workshop.batch(size=LARGE_APPEND_BYTES // 2)
    assert not any(world.append(small) for _ in range(50))


def test_the_backlog_is_brought_down_behind_the_last_slow_write(large: bytes) -> None:
    world = World()
    world.append_until_held_back(large)
    for _ in range(20):
        world.append(large)
    world.write_s = 0.0
    world.runtime.run_until_idle()
    world.runtime.advance(10)
    waited = []
    for _ in range(40):
        waited.append(world.append(large))
        world.runtime.run_until_idle()
    assert waited == sorted(waited, reverse=True)
    assert not waited[-1]
    steps = world.steps
    assert not any(world.append(large) for _ in range(50))
    assert world.steps == steps


@pytest.mark.slow
def test_pressure_lasts_while_writing_back_is_slow(large: bytes) -> None:
    world = World()
    world.append_until_held_back(large)
    world.write_s = 0.0

    def waits_after_10_s_of_bulk() -> bool:
        for _ in range(100):
            for _ in range(3):
                world.append(large)
            world.runtime.advance(0.1)
        return any(world.append(large) for _ in range(50))

    world.write_back_s = SLOW_WRITE_S * 2
    assert waits_after_10_s_of_bulk()
    world.write_back_s = 0.0
    assert not waits_after_10_s_of_bulk()


def test_a_new_segment_begins_without_backlog(large: bytes) -> None:
    world = World()
    world.append_until_held_back(large)
    world.log.roll()
    assert not world.append(large)
    world.runtime.run_until_idle()
    assert world.append_until_held_back(large) == BACKLOG_BYTES // len(large)
    world.runtime.run_until_idle()
    assert world.acknowledged == [None] * 2


def test_a_log_that_is_cut_back_meanwhile(large: bytes) -> None:
    world = World()
    world.append_until_held_back(large)
    world.append(large)
    world.log.truncate_to(1)
    world.runtime.run_until_idle()
    assert world.acknowledged == [None] * 2
    world.append_until_held_back(large)
    world.runtime.run_until_idle()
    assert world.acknowledged == [None] * 3


def test_a_failed_write_back_is_a_failed_sync(large: bytes) -> None:
    world = World()
    world.append_until_held_back(large)
    world.write_back_error = errno.EIO
    world.runtime.run_until_idle()
    (failure,) = world.acknowledged
    assert failure is not None
    assert failure == world.log.failure
    with pytest.raises(StorageError):
        world.append(large)
    late: list[str | None] = []
    world.log.when_written_back(late.append)
    assert late == [failure]


def test_a_log_that_is_closed_meanwhile(large: bytes) -> None:
    world = World()
    world.append_until_held_back(large)
    world.log.release()
    world.write_back_error = errno.EIO
    world.runtime.run_until_idle()
    assert world.acknowledged == [None]  # it stands where its acknowledgement says
    assert world.log.failure is None


def test_directories_are_distinguished() -> None:
    pressure = WritePressure()
    pressure.slow("/a", 1.0, waited=False)
    assert [pressure.is_suspected(path, 1.1) for path in ("/a", "/b")] == [True, False]
    pressure.slow("/a", 1.1, waited=True)
    assert [pressure.is_on(path, 1.2) for path in ("/a", "/b")] == [True, False]
    assert not pressure.is_on("/a", 10.0)
    assert not pressure.is_suspected("/a", 10.0)
