"""The log cleaner over whole logs: what it chooses, what readers see, what a crash, a stop or a full disk leaves."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.storage.compaction.cleaner import CleanerSettings, LogCleaner
from barnabas.storage.log.log import Log
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.manager.directory import CLEANER_OFFSET_FILE
from barnabas.storage.manager.manager import LogManager
from barnabas.storage.tests.workshop import max_timestamp_offset, offset_for_timestamp, read_batches
from barnabas.testing.memory_disk import MemoryDisk, ProcessKilled
from barnabas.wire import records as wire_records
from barnabas.wire.compression import Codec
from barnabas.wire.record_batch import iterate_headers, read_header
from barnabas.wire.records import Record, build_batch, iterate_records
from compat_tests.virtual.runtime import VirtualRuntime

BACKOFF_S = 15
COMPACT = frozenset({"compact"})
SETTINGS: dict[str, Any] = {"cleanup_policy": COMPACT, "segment_bytes": 2000, "index_interval_bytes": 200}


class CleanerWorld:
    """A log manager with its cleaner on a memory disk, under a virtual clock."""

    def __init__(
        self,
        disk: MemoryDisk | None = None,
        start_ms: int = 1_700_000_000_000,
        directories: tuple[str, ...] = ("/data",),
        **cleaner: Any,
    ) -> None:
        self.disk = disk or MemoryDisk()
        self.directories = directories
        self.runtime = VirtualRuntime(start_ms=start_ms)
        self.manager = LogManager(self.disk, directories, self.runtime)
        self.manager.open()
        for log in self.manager.logs():
            log.end_replication()
        self.cleaner = LogCleaner(self.manager, self.disk, self.runtime, CleanerSettings(**cleaner))

    def create(self, topic: str = "t", **configs: Any) -> Log:
        return self.manager.create(topic, b"i" * 16, 0, LogConfig(**{**SETTINGS, **configs}))

    def configure(self, log: Log, **configs: Any) -> None:
        log.update_config(LogConfig(**{**SETTINGS, **configs}))

    def fill(
        self,
        log: Log,
        keys: int = 5,
        rounds: int = 20,
        size: int = 50,
        codec: Codec = Codec.NONE,
        **batch: Any,
    ) -> None:
        """`rounds` batches with each key once, rolled behind the last."""
        now = self.runtime.time_ms()
        for number in range(rounds):
            records = [Record(i, now, b"k%d" % i, b"%d," % number * (size // 3)) for i in range(keys)]
            log.append_as_leader(build_batch(records, codec=codec, **batch), 0)
        log.roll()
        self.runtime.run_until_idle()

    def checkpoint(self, log_dir: str = "/data") -> str:
        return self.disk.read_file(f"{log_dir}/{CLEANER_OFFSET_FILE}").decode()

    def start_cleaner(self) -> None:
        self.cleaner.start()
        self.runtime.advance(BACKOFF_S)

    def close(self) -> None:
        self.cleaner.stop()
        self.manager.close()

    def reopen(self, **configs: Any) -> tuple[CleanerWorld, Log]:
        """As after the process has ended, cleanly or not."""
        self.disk.revive()
        world = CleanerWorld(self.disk, self.runtime.time_ms(), self.directories)
        log = world.manager.get("t", 0)
        assert log is not None
        world.configure(log, **configs)
        return world, log


def records(log: Log) -> list[Record]:
    return [
        record
        for raw in read_batches(log, 700)
        if not read_header(raw).is_control
        for record in iterate_records(raw)
    ]


def state(log: Log) -> dict[bytes | None, bytes | None]:
    """What a reader who starts at the beginning believes in the end."""
    return {record.key: record.value for record in records(log)}


def names(world: CleanerWorld, log: Log) -> list[str]:
    return world.disk.list(log.directory)


# --- a cleaning


def test_nothing_is_cleaned_by_a_clock_that_differs_from_the_others() -> None:
    """Tombstones would go before every consumer has seen them."""
    world = CleanerWorld()
    log = world.create(min_compaction_lag_ms=86_400_000)
    world.fill(log)
    before = records(log)
    for node_id in (2, 3):
        world.manager.wall_clock.heard(node_id, world.runtime.time_ms())
    world.runtime.wall_offset_ms = 400 * 86_400_000
    world.start_cleaner()
    world.runtime.advance(4 * BACKOFF_S)
    assert records(log) == before
    for node_id in (2, 3):
        world.manager.wall_clock.heard(node_id, world.runtime.time_ms())
    world.runtime.advance(2 * BACKOFF_S)
    assert len(records(log)) == 5


@pytest.mark.parametrize("codec", Codec)
def test_cleaning_a_dirty_log_advances_the_checkpoint(codec: Codec) -> None:
    world = CleanerWorld()
    log = world.create()
    world.fill(log, codec=codec)
    log.append_as_leader(build_batch([Record(0, 0, b"k0", b"active")]), 0)
    before, size, end = state(log), log.size, log.log_end_offset
    world.start_cleaner()
    assert [record.offset for record in records(log)] == [95, 96, 97, 98, 99, 100]
    assert state(log) == before
    assert log.size < size
    assert log.log_end_offset == end
    assert world.checkpoint() == "0\n1\nt 0 100\n"
    world.runtime.advance(120)
    assert {name.partition(".")[2] for name in names(world, log)} <= {
        "log",
        "index",
        "timeindex",
        "snapshot",
        "metadata",
        "",
    }


def test_offsets_that_are_gone_give_the_next_batch() -> None:
    world = CleanerWorld()
    log = world.create()
    world.fill(log)
    world.start_cleaner()
    for offset in range(96):
        assert read_header(next(read_batches(log, 700, offset))).base_offset == 95
        assert log.read(offset, 10_000, end_offset=95).size == 0
    assert offset_for_timestamp(log, 0).offset == 95
    assert max_timestamp_offset(log).offset == 95
    assert [header.base_offset for header in log.segments.headers(3)] == [95]
    reopened, log = world.reopen()
    assert read_header(next(read_batches(log, 700, 3))).base_offset == 95
    assert log.log_end_offset == 100
    assert reopened.manager.get("t", 0) is log


def test_regions_that_wait_to_be_sent_still_hold_the_old_bytes() -> None:
    world = CleanerWorld()
    log = world.create(file_delete_delay_ms=0)
    world.fill(log)
    result = log.read(0, 1000)
    before = result.regions[0].read()
    world.start_cleaner()
    world.runtime.advance(1)
    assert len(records(log)) == 5
    assert result.regions[0].read() == before
    assert read_header(before).base_offset == 0


def test_a_known_producer_keeps_its_last_sequence() -> None:
    world = CleanerWorld()
    log = world.create()

    def send(sequence: int, key: bytes) -> Any:
        batch = build_batch(
            [Record(0, world.runtime.time_ms(), key, b"v")],
            producer_id=7,
            producer_epoch=0,
            base_sequence=sequence,
        )
        return log.append_as_leader(batch, 0)

    send(0, b"a")
    send(1, b"a")
    world.fill(log, keys=1)
    log.append_as_leader(build_batch([Record(0, 0, b"a", b"from another")]), 0)
    log.roll()
    world.start_cleaner()
    left = [(read_header(raw).base_offset, read_header(raw).record_count) for raw in read_batches(log, 700)]
    assert left == [(1, 0), (21, 1), (22, 1)]
    world.close()
    _, log = world.reopen()
    assert send(1, b"a").duplicate
    assert not send(2, b"a").duplicate


def test_a_map_that_is_full_makes_for_several_cleanings() -> None:
    world = CleanerWorld(dedupe_buffer_size=208 * 40)
    log = world.create(segment_bytes=10_000, min_cleanable_dirty_ratio=0.0)
    world.fill(log, keys=100, rounds=5)
    before = state(log)
    world.start_cleaner()
    assert state(log) == before
    assert len(records(log)) == 100
    assert world.checkpoint() == "0\n1\nt 0 500\n"


def test_a_cleaned_segment_is_as_old_as_its_records() -> None:
    world = CleanerWorld()
    log = world.create(cleanup_policy=frozenset({"compact", "delete"}), retention_ms=3_600_000)
    began = world.runtime.time_ms()
    world.fill(log, codec=Codec.ZSTD)
    world.runtime.advance(1800)
    world.start_cleaner()
    assert [segment.max_timestamp for segment in log.segments if segment.size] == [began]
    assert len(records(log)) == 5
    world.runtime.advance(2400)
    assert not records(log)


def test_a_cleaned_segment_without_timestamps_is_as_old_as_the_last_it_was_made_of() -> None:
    world = CleanerWorld()
    log = world.create()
    for number in range(40):
        log.append_as_leader(build_batch([Record(0, -1, b"k", b"%d" % number * 100)]), 0)
    log.roll()
    world.runtime.run_until_idle()
    sealed = log.segments[:-1]
    for number, segment in enumerate(sealed):
        world.disk.set_modified_ms(segment.path, 1000 + number)
    world.start_cleaner()
    assert world.disk.modified_ms(log.segments[-2].path) == 1000 + len(sealed) - 1
    assert log.segments[-2].max_timestamp == -1


# --- the choice


def dirty_after(world: CleanerWorld, log: Log) -> int:
    """Where the log is dirty from, when the cleaner has looked once."""
    world.start_cleaner()
    try:
        lines = world.checkpoint().splitlines()[2:]
    except FileNotFoundError:
        return 0
    return max((int(line.split()[2]) for line in lines if line.startswith(log.topic)), default=0)


def test_logs_that_are_not_compacted_are_left_alone() -> None:
    world = CleanerWorld()
    log = world.create(cleanup_policy=frozenset({"delete"}))
    world.fill(log)
    assert dirty_after(world, log) == 0
    assert len(records(log)) == 100


def test_the_active_segment_is_never_cleaned() -> None:
    world = CleanerWorld()
    log = world.create(segment_bytes=1 << 20)
    world.fill(log)
    world.fill(log)
    active = log.append_as_leader(build_batch([Record(0, 0, b"k0", b"1")]), 0).base_offset
    log.append_as_leader(build_batch([Record(0, 0, b"k0", b"2")]), 0)
    assert dirty_after(world, log) == active
    assert [record.offset for record in records(log)][-2:] == [active, active + 1]


def test_a_ratio_that_is_not_exceeded_waits() -> None:
    world = CleanerWorld()
    log = world.create(min_cleanable_dirty_ratio=0.5)
    world.fill(log, keys=20, rounds=1)
    assert dirty_after(world, log) == 20
    clean_bytes = log.size
    world.fill(log, keys=1, rounds=1, size=clean_bytes // 2)
    world.runtime.advance(BACKOFF_S)
    assert world.checkpoint() == "0\n1\nt 0 20\n"
    world.configure(log, min_cleanable_dirty_ratio=0.1)
    world.runtime.advance(BACKOFF_S)
    assert world.checkpoint() == "0\n1\nt 0 21\n"


def test_the_dirtiest_comes_first() -> None:
    world = CleanerWorld(io_max_bytes_per_second=100.0)
    first, second = world.create("first"), world.create("second")
    for log in (first, second):
        world.fill(log, keys=20, rounds=1)
    world.fill(second, keys=1, rounds=1)
    world.disk.write_file(f"/data/{CLEANER_OFFSET_FILE}", b"0\n2\nfirst 0 20\nsecond 0 20\n")
    world.fill(first, keys=20, rounds=10)
    for log in (first, second):
        world.configure(log, min_cleanable_dirty_ratio=0.01)
    world.start_cleaner()
    assert (first.cleaning, second.cleaning) == (True, False)


def test_the_lag_settings() -> None:
    world = CleanerWorld()
    young = world.create("young", min_compaction_lag_ms=60_000)
    overdue = world.create("overdue", min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=60_000)
    for log in (young, overdue):
        world.fill(log)
    assert dirty_after(world, young) == dirty_after(world, overdue) == 0
    world.runtime.advance(30)
    world.fill(young)
    end = young.log_end_offset
    world.runtime.advance(30)
    assert len(records(overdue)) == 5
    assert world.checkpoint().splitlines()[2:] == ["young 0 100", "overdue 0 100"]
    world.runtime.advance(60)
    assert f"young 0 {end}" in world.checkpoint()


def test_a_checkpoint_that_can_not_be_right_is_put_right() -> None:
    for wrong in ("0\n1\nt 0 5000\n", "0\n1\nt 0 3\n", "nonsense"):
        world = CleanerWorld()
        log = world.create(min_cleanable_dirty_ratio=0.0)
        world.fill(log)
        log.increment_log_start_offset(50)
        world.runtime.run_until_idle()
        world.disk.write_file(f"/data/{CLEANER_OFFSET_FILE}", wrong.encode())
        world.start_cleaner()
        assert world.checkpoint() == "0\n1\nt 0 100\n"
        assert len(records(log)) == 5


# --- pace, and settings that change


def test_no_more_bytes_are_moved_than_the_settings_allow() -> None:
    world = CleanerWorld(io_max_bytes_per_second=1000.0)
    log = world.create()
    world.fill(log)
    size = log.size
    world.start_cleaner()
    began = world.runtime.monotonic()
    while log.cleaning:
        world.runtime.advance(0.5)
    taken = world.runtime.monotonic() - began
    assert 2 * size / 1000 - 3 < taken < 2.2 * size / 1000 + 1  # read twice, little is written
    assert len(records(log)) == 5


def test_settings_take_effect_while_it_runs() -> None:
    world = CleanerWorld(io_max_bytes_per_second=1.0, backoff_ms=3_600_000)
    log = world.create()
    world.fill(log)
    world.start_cleaner()
    assert not log.cleaning
    world.cleaner.reconfigure(CleanerSettings(io_max_bytes_per_second=1.0, backoff_ms=1000))
    world.runtime.advance(1)
    assert log.cleaning
    world.cleaner.reconfigure(CleanerSettings(backoff_ms=1000))
    world.runtime.advance(3600)
    assert len(records(log)) == 5


def test_no_threads_means_no_cleaning() -> None:
    world = CleanerWorld(threads=0)
    log = world.create()
    world.fill(log)
    assert dirty_after(world, log) == 0
    world.cleaner.reconfigure(CleanerSettings())
    world.runtime.advance(BACKOFF_S)
    assert len(records(log)) == 5


# --- what happens to the log meanwhile

SLOW: dict[str, Any] = {"io_max_bytes_per_second": 2000.0}


def cleaning(world: CleanerWorld, log: Log) -> CleanerWorld:
    """Half-way through a cleaning."""
    world.fill(log)
    world.start_cleaner()
    world.runtime.advance(4)
    assert log.cleaning
    return world


def test_a_log_deleted_meanwhile() -> None:
    world = CleanerWorld(**SLOW)
    cleaning(world, world.create())
    world.manager.delete("t", 0)
    log = world.create()
    log.append_as_leader(build_batch([Record(0, 0, b"new", b"")]), 0)
    world.runtime.advance(100)
    assert [record.key for record in records(log)] == [b"new"]
    assert all(name.endswith(("metadata", ".log", "checkpoint")) for name in names(world, log))


def test_a_deleted_log_is_removed_from_the_checkpoint() -> None:
    world = CleanerWorld()
    log = world.create()
    world.fill(log)
    world.start_cleaner()
    assert world.checkpoint() == "0\n1\nt 0 100\n"
    world.manager.delete("t", 0)
    world.runtime.run_until_idle()
    assert world.checkpoint() == "0\n0\n"


def test_a_checkpoint_moves_with_the_log() -> None:
    world = CleanerWorld(directories=("/data", "/more"))
    log = world.create()
    world.fill(log)
    world.start_cleaner()
    assert world.checkpoint("/data") == "0\n1\nt 0 100\n"
    log.close()
    for name in names(world, log):
        world.disk.make_directory("/more/t-0", parents=True)
        world.disk.write_file(f"/more/t-0/{name}", world.disk.read_file(f"{log.directory}/{name}"))
    world.manager.replace(log, world.manager.open_again(log, "/more"))
    world.runtime.run_until_idle()
    assert world.checkpoint("/data") == "0\n0\n"
    assert world.checkpoint("/more") == "0\n1\nt 0 100\n"


@pytest.mark.parametrize("rate", [300.0, 1000.0, 2000.0, 5000.0, 1e9])
@pytest.mark.parametrize("wait", [0, 1, 4, 9])
def test_a_log_that_moves_and_is_cleaned_at_once(rate: float, wait: int) -> None:
    world = CleanerWorld(directories=("/data", "/more"), **SLOW)
    log = world.create()
    world.fill(log)
    log.append_as_leader(build_batch([Record(0, 0, b"active", b"")]), 0)
    before = state(log)
    world.start_cleaner()
    world.runtime.advance(wait)
    world.manager.moves.limit(rate)
    world.manager.moves.begin("t", 0, "/more")
    world.runtime.advance(200)
    moved = world.manager.get("t", 0)
    assert moved is not None
    assert moved.log_dir == "/more"
    assert state(moved) == before
    assert len(records(moved)) == 6
    world.close()
    _, reopened = world.reopen()
    assert state(reopened) == before


@pytest.mark.parametrize("wait", [0, 2, 4, 6, 8, 10, 12, 14])
def test_a_log_cut_back_meanwhile(wait: int) -> None:
    world = CleanerWorld(**SLOW)
    log = world.create()
    world.fill(log)
    world.start_cleaner()
    world.runtime.advance(wait)
    log.truncate_to(40)
    expected = state(log)
    world.runtime.advance(100)
    assert log.log_end_offset == 40
    assert state(log) == expected
    world.runtime.advance(60)
    assert not [name for name in names(world, log) if name.endswith((".cleaned", ".swap"))]
    world.close()
    _, log = world.reopen()
    assert state(log) == expected


def test_a_checkpoint_goes_back_with_the_log() -> None:
    world = CleanerWorld()
    log = world.create()
    world.fill(log)
    world.fill(log)
    world.start_cleaner()
    assert world.checkpoint() == "0\n1\nt 0 200\n"
    log.truncate_to(150)
    world.runtime.run_until_idle()
    assert world.checkpoint() == "0\n1\nt 0 150\n"
    world.fill(log)
    world.runtime.advance(BACKOFF_S)
    assert len(records(log)) == 5


def test_records_deleted_meanwhile_stay_deleted() -> None:
    world = CleanerWorld(**SLOW)
    log = world.create()
    cleaning(world, log)
    log.increment_log_start_offset(97)
    world.runtime.advance(200)
    assert log.log_start_offset == 97
    assert {record.offset for record in records(log)} == {95, 96, 97, 98, 99}  # their batch is whole
    assert not [name for name in names(world, log) if name.endswith((".cleaned", ".swap"))]


def test_a_topic_that_is_compacted_no_more() -> None:
    world = CleanerWorld(**SLOW)
    log = world.create()
    cleaning(world, log)
    world.configure(log, cleanup_policy=frozenset({"delete"}))
    world.runtime.advance(100)
    assert not log.cleaning
    assert len(records(log)) > 5
    assert not [name for name in names(world, log) if name.endswith(".cleaned")]


@pytest.mark.parametrize("wait", range(0, 22, 3))
def test_a_stop_meanwhile(wait: int) -> None:
    world = CleanerWorld(**SLOW)
    log = world.create()
    world.fill(log)
    before = state(log)
    world.start_cleaner()
    world.runtime.advance(wait)
    world.close()
    assert not [name for name in names(world, log) if name.endswith((".cleaned", ".swap"))]
    world, log = world.reopen()
    assert state(log) == before
    world.start_cleaner()
    assert len(records(log)) == 5


# --- what goes wrong


def test_a_corrupt_log_is_left_alone_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    world = CleanerWorld()
    bad, good = world.create("bad"), world.create("good")
    for log in (bad, good):
        world.fill(log)
    world.disk.files[bad.segments[1].path].data[100] ^= 1
    world.start_cleaner()
    world.runtime.advance(100)
    assert len(records(good)) == 5
    assert caplog.text.count("bad-0 can't be cleaned") == 1
    assert world.checkpoint() == "0\n1\ngood 0 100\n"
    assert not [name for name in names(world, bad) if name.endswith(".cleaned")]


def test_a_failed_rename_to_the_final_name_is_repeated_by_the_next_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = CleanerWorld()
    log = world.create()
    world.fill(log)
    other = world.create("other")
    world.fill(other)
    before = state(log)
    world.disk.fault = lambda operation, path: (
        errno.ENOSPC
        if operation == "rename" and "t-0" in path and not log.segments[0].has_final_name
        else None
    )
    world.start_cleaner()
    world.disk.fault = None
    assert not log.segments[0].has_final_name
    world.fill(log)
    world.runtime.advance(3 * BACKOFF_S)
    assert state(log) == before
    assert not log.cleaning
    assert "other 0 100" in world.checkpoint(), "the cleaner goes on with other logs"
    assert caplog.text.count("t-0: cleaning is delayed") == 1
    world.close()
    world, log = world.reopen()
    assert all(segment.has_final_name for segment in log.segments)
    assert state(log) == before
    world.start_cleaner()
    assert len(records(log)) == len(before)


def test_a_full_disk_puts_it_off() -> None:
    world = CleanerWorld()
    log = world.create()
    world.fill(log)
    before = state(log)
    world.disk.fault = lambda operation, path: (
        errno.ENOSPC if operation == "write" and path.endswith(".cleaned") else None
    )
    world.start_cleaner()
    assert not [name for name in names(world, log) if name.endswith((".cleaned", ".swap"))]
    assert len(records(log)) > 5
    log.append_as_leader(build_batch([Record(0, 0, b"k0", b"goes on")]), 0)
    world.disk.fault = None
    world.runtime.advance(BACKOFF_S)
    assert len(records(log)) == 6
    assert state(log) == {**before, b"k0": b"goes on"}


@pytest.mark.parametrize("operation", ["write", "sync", "rename", "read"])
def test_a_failing_disk_takes_its_directory_offline_and_no_other(operation: str) -> None:
    world = CleanerWorld(directories=("/data", "/more"))
    first, second = world.create("first"), world.create("second")
    for log in (first, second):
        world.fill(log)
    assert {first.log_dir, second.log_dir} == {"/data", "/more"}
    before = state(first)

    def fault(called: str, path: str) -> int | None:
        return errno.EIO if called == operation and path.startswith(first.directory) else None

    world.disk.fault = fault
    world.start_cleaner()
    world.runtime.advance(BACKOFF_S)
    assert first.failure is not None
    assert second.failure is None
    assert len(records(second)) == 5
    world.disk.fault = None
    world.manager.close()
    reopened = CleanerWorld(world.disk, directories=world.directories)
    found = reopened.manager.get("first", 0)
    assert found is not None
    assert state(found) == before


# --- crashes


def crash_house(disk: MemoryDisk) -> tuple[CleanerWorld, Log]:
    """Ready to be cleaned: two groups of segments, tombstones, an empty batch."""
    world = CleanerWorld(disk)
    log = world.create(segment_bytes=1200)
    world.fill(log, rounds=6)
    world.fill(log, keys=2, rounds=2, size=400)
    log.append_as_leader(build_batch([Record(0, world.runtime.time_ms(), b"k3", None)]), 0)
    log.append_as_leader(
        build_batch([Record(0, 0, b"gone", b"x")], producer_id=4, producer_epoch=0, base_sequence=0), 0
    )
    log.append_as_leader(build_batch([Record(0, 0, b"gone", b"y")]), 0)
    log.roll()
    world.runtime.run_until_idle()
    return world, log


def clean_until_killed(world: CleanerWorld, kill_after: int) -> bool:
    world.disk.kill_after = kill_after
    try:
        world.start_cleaner()
    except ProcessKilled:
        return True
    finally:
        survived = world.disk.kill_after is not None and world.disk.kill_after >= 0
        world.disk.revive()
    return not survived


def check_after_crash(disk: MemoryDisk, before: list[bytes], after: list[bytes]) -> None:
    """Each batch is the old or the new one, the state is the same, another start changes nothing, and the next
    cleaning brings everything to where it would have been."""
    end = read_header(before[-1]).next_offset
    world, log = CleanerWorld(disk), None
    log = world.manager.get("t", 0)
    assert log is not None
    world.configure(log, segment_bytes=1200)
    assert log.log_end_offset == end
    found = list(read_batches(log, 700))
    assert set(found) <= {*before, *after}
    assert dict_of(found) == dict_of(before)
    files = {path: bytes(content.data) for path, content in disk.files.items() if path.endswith(".log")}
    again, log = world.reopen(segment_bytes=1200)
    assert {p: bytes(c.data) for p, c in disk.files.items() if p.endswith(".log")} == files
    assert list(read_batches(log, 700)) == found
    again.start_cleaner()
    left = [
        [(r.offset, r.key, r.value) for raw in some for r in iterate_records(raw)]
        for some in (read_batches(log, 700), after)
    ]
    assert left[0] == left[1]


def dict_of(found: list[bytes]) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for raw in found for record in iterate_records(raw)}


def whole_run() -> tuple[list[bytes], list[bytes], int]:
    world, log = crash_house(MemoryDisk())
    before = list(read_batches(log, 700))
    world.disk.kill_after = 1_000_000
    world.start_cleaner()
    assert world.disk.kill_after is not None
    changes = 1_000_000 - world.disk.kill_after
    assert len(log.segments) > 2  # more than one group
    return before, list(read_batches(log, 700)), changes


@pytest.mark.slow
def test_a_process_killed_at_any_step_leaves_the_old_or_the_new() -> None:
    before, after, changes = whole_run()
    for kill_after in range(changes):
        world, _ = crash_house(MemoryDisk())
        world.disk.torn_bytes = kill_after % 7 * 10
        assert clean_until_killed(world, kill_after)
        check_after_crash(world.disk, before, after)


@pytest.mark.slow
@given(kill_after=st.integers(0, 90), data=st.data())
def test_a_power_failure_at_any_step_leaves_the_old_or_the_new(kill_after: int, data: st.DataObject) -> None:
    before, after, _ = whole_run()
    world, _ = crash_house(MemoryDisk())
    world.manager.checkpoint()
    for directory in ("/data/t-0", "/data"):
        world.disk.sync_directory(directory)
    clean_until_killed(world, kill_after)
    choose: Callable[[int], int] = lambda most: data.draw(st.integers(0, most))  # noqa: E731
    check_after_crash(world.disk.crash(choose), before, after)
    assert [header for _, header in iterate_headers(b"".join(before))]


def test_a_batch_that_unpacks_beyond_its_bound_leaves_its_log_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that can't be read; it came while the topic was not compacted."""
    monkeypatch.setattr(wire_records, "_UNPACKED_ALWAYS_ALLOWED", 1 << 20)
    world = CleanerWorld()
    log = world.create(cleanup_policy=frozenset({"delete"}))
    bomb = build_batch([Record(0, world.runtime.time_ms(), b"k", bytes(2 << 20))], codec=Codec.ZSTD)
    log.append_as_leader(bomb, 0)
    world.configure(log)
    world.fill(log)
    world.start_cleaner()
    assert "can't be cleaned" in caplog.text
    assert "more than the limit" in caplog.text
    end = log.log_end_offset
    world.fill(log)
    assert log.log_end_offset > end
    assert log.read(0, 1 << 20).size > len(bomb)
    world.close()
