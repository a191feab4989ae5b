"""What retention takes and what it leaves: by time, by size, by start offset, next to the rules written out plainly."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from barnabas.storage.errors import OffsetOutOfRange
from barnabas.storage.log.log import Log
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.manager.directory import LOG_START_OFFSET_FILE
from barnabas.storage.manager.manager import LogManager, LogManagerEvents, LogManagerSettings
from barnabas.storage.manager.retention import SEGMENTS_PER_STEP, RetentionPass, enforce_retention
from barnabas.storage.wall_clock import WallClock
from barnabas.testing.memory_disk import MemoryDisk
from compat_tests.virtual.runtime import VirtualRuntime

HOUR = 3_600_000
TOPIC_ID = bytes(range(1, 17))


def look(workshop: Any, *logs: Log, is_led: bool = True) -> None:
    ended: list[bool] = []
    RetentionPass(
        workshop.runtime,
        workshop.disk,
        WallClock(workshop.runtime),
        logs,
        lambda: ended.append(True),
        lambda _: is_led,
    )
    for _ in range(1000):
        if ended:
            return
        workshop.runtime.advance(0)
    raise AssertionError("the pass never ends")


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def fill(workshop: Any, log: Log, *ages_ms: int) -> None:
    """One batch of one record a segment, so old each; -1: without a timestamp."""
    for age in ages_ms:
        if log.segments[-1].size:
            log.roll()
        timestamp = -1 if age == -1 else workshop.runtime.time_ms() - age
        log.append_as_leader(workshop.batch(timestamp=timestamp), 0)


def test_retention_removes_the_segments_before_the_first_young_one(workshop: Any) -> None:
    log = workshop.log(retention_ms=HOUR)
    fill(workshop, log, 2 * HOUR, HOUR + 1, HOUR, 3 * HOUR, 0)
    look(workshop, log)
    assert bases(log) == [2, 3, 4]
    assert log.log_start_offset == 2
    with pytest.raises(OffsetOutOfRange):
        log.read(1, 1000)
    workshop.runtime.advance(0.002)
    look(workshop, log)
    assert bases(log) == [4]


def test_a_follower_removes_what_lies_below_its_start_and_nothing_else(workshop: Any) -> None:
    log = workshop.log(retention_ms=HOUR, retention_bytes=0)
    fill(workshop, log, 4 * HOUR, 3 * HOUR, 2 * HOUR, 0)
    look(workshop, log, is_led=False)
    assert bases(log) == [0, 1, 2, 3]
    log.increment_log_start_offset(2)  # as the leader's answer to a fetch says
    look(workshop, log, is_led=False)
    assert bases(log) == [2, 3]
    look(workshop, log)
    assert log.size == 0


def test_an_expired_active_segment_gives_way_to_an_empty_one(workshop: Any) -> None:
    log = workshop.log(retention_ms=HOUR)
    fill(workshop, log, 3 * HOUR, 2 * HOUR)
    look(workshop, log)
    assert (bases(log), log.log_start_offset, log.log_end_offset, log.size) == ([2], 2, 2, 0)
    workshop.runtime.advance(10 * HOUR / 1000)
    look(workshop, log)  # an empty segment stays
    assert bases(log) == [2]
    workshop.runtime.advance(100)
    assert [name for name in workshop.disk.list("/logs/t-0") if not name.startswith("0" * 19 + "2")] == [
        name for name in workshop.disk.list("/logs/t-0") if not name[0].isdigit()
    ]


def test_a_topic_deleted_between_two_steps_takes_no_directory_offline(workshop: Any) -> None:
    runtime = VirtualRuntime()
    config = LogConfig(segment_bytes=300, retention_ms=1000)
    manager = LogManager(workshop.disk, ["/logs"], runtime, config=config)
    manager.open()
    log = manager.create("many", TOPIC_ID, 0, config)
    for _ in range(SEGMENTS_PER_STEP + 10):
        log.append_as_leader(workshop.batch(size=150), 0)
    runtime.run_until_idle()
    steps = enforce_retention(log, workshop.disk, runtime.time_ms() + HOUR)
    assert next(steps) == SEGMENTS_PER_STEP
    manager.delete("many", 0)
    assert list(steps) == []
    log.io_failed(FileNotFoundError(errno.ENOENT, "whatever else was about to look at it"))
    assert manager.directories.offline == {}


def test_a_timestamp_in_the_future_keeps_its_segment(workshop: Any) -> None:
    log = workshop.log(retention_ms=HOUR, message_timestamp_after_max_ms=1 << 60)
    fill(workshop, log, -5 * HOUR, 2 * HOUR, 0)
    look(workshop, log)
    assert bases(log) == [0, 1, 2]


def test_records_without_a_timestamp_count_with_the_files_time(workshop: Any) -> None:
    log = workshop.log(retention_ms=HOUR)
    fill(workshop, log, -1, -1, 0)
    workshop.disk.set_modified_ms(log.segments[0].path, workshop.runtime.time_ms() - 2 * HOUR)
    workshop.disk.set_modified_ms(log.segments[1].path, workshop.runtime.time_ms() - HOUR)
    look(workshop, log)
    assert bases(log) == [1, 2]


@pytest.mark.parametrize(
    ("percent", "kept"), [(-1, 5), (0, 0), (99, 1), (100, 1), (150, 2), (250, 3), (500, 5), (501, 5)]
)
def test_at_least_retention_bytes_remain(workshop: Any, percent: int, kept: int) -> None:
    """`percent` of a segment's size."""
    log = workshop.log(retention_ms=-1)
    fill(workshop, log, *(0 for _ in range(5)))
    size = log.size // 5
    log.update_config(LogConfig(retention_bytes=percent * size // 100, retention_ms=-1))
    look(workshop, log)
    assert log.size == kept * size
    assert log.log_start_offset == 5 - kept


@pytest.mark.parametrize(
    ("limit", "kept"), [(-1, 5), (0, 0), (1, 1), (3, 1), (4, 2), (6, 2), (7, 3), (15, 5), (16, 5)]
)
def test_at_least_retention_messages_remain(workshop: Any, limit: int, kept: int) -> None:
    log = workshop.log(retention_ms=-1)
    for number in range(5):
        if number:
            log.roll()
        log.append_as_leader(workshop.batch(3), 0)
    log.update_config(LogConfig(retention_messages=limit, retention_ms=-1))
    look(workshop, log)
    assert log.log_start_offset == 15 - 3 * kept
    assert sum(segment.size > 0 for segment in log.segments) == kept


def test_messages_that_are_not_committed_stay(workshop: Any) -> None:
    log = workshop.log(retention_ms=-1, retention_messages=0)
    log.replicate()
    fill(workshop, log, 0, 0, 0, 0)
    log.set_high_watermark(2)
    look(workshop, log)
    assert bases(log) == [2, 3]


def test_compacted_alone_keeps_everything_but_what_lies_below_the_start(workshop: Any) -> None:
    log = workshop.log(
        retention_ms=1,
        retention_bytes=0,
        retention_messages=0,
        cleanup_policy=frozenset({"compact"}),
        file_delete_delay_ms=0,
    )
    fill(workshop, log, 5 * HOUR, 4 * HOUR, 3 * HOUR)
    look(workshop, log)
    assert bases(log) == [0, 1, 2]
    log.log_start_offset = 2
    look(workshop, log)
    assert bases(log) == [2]
    log.update_config(LogConfig(cleanup_policy=frozenset({"compact", "delete"}), retention_ms=1))
    look(workshop, log)
    assert bases(log) == [3]


def test_settings_change_while_running(workshop: Any) -> None:
    log = workshop.log(retention_ms=-1)
    fill(workshop, log, 5 * HOUR, 0)
    look(workshop, log)
    assert len(bases(log)) == 2
    log.update_config(LogConfig(retention_ms=HOUR))
    look(workshop, log)
    assert bases(log) == [1]


def test_after_a_restart_timestamps_are_read_from_the_files(workshop: Any) -> None:
    log = workshop.log(retention_ms=HOUR)
    fill(workshop, log, 3 * HOUR, 2 * HOUR, 0)
    log.close()
    again = workshop.log(retention_ms=HOUR)
    assert not again.segments[0].knows_timestamps
    look(workshop, again)
    assert bases(again) == [2]


def test_a_log_being_cleaned_is_passed_over(workshop: Any) -> None:
    log = workshop.log(retention_ms=HOUR)
    fill(workshop, log, 3 * HOUR, 0)
    log.cleaning = True
    look(workshop, log)
    assert len(bases(log)) == 2


def test_files_are_renamed_at_once_and_removed_after_the_delay(workshop: Any) -> None:
    log = workshop.log(retention_ms=HOUR, file_delete_delay_ms=5000)
    fill(workshop, log, 3 * HOUR, 0)
    (region,) = log.read(0, 1000).regions
    before = region.read()
    look(workshop, log)
    names = workshop.disk.list("/logs/t-0")
    assert f"{0:020d}.log.deleted" in names
    assert f"{0:020d}.log" not in names
    workshop.runtime.advance(4.9)
    assert f"{0:020d}.log.deleted" in workshop.disk.list("/logs/t-0")
    workshop.runtime.advance(0.1)
    assert not [name for name in workshop.disk.list("/logs/t-0") if name.startswith("0" * 20)]
    assert region.read() == before  # still to be sent


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5)), min_size=1, max_size=8),
    st.integers(-1, 4),
    st.integers(-1, 1500),
    st.integers(-1, 20),
    st.integers(0, 8),
    st.sampled_from([("delete",), ("compact",), ("compact", "delete")]),
)
def test_against_kafkas_rules_written_out(
    make_workshop: Callable[[], Any],
    segments: list[tuple[int, int]],
    retention_hours: int,
    retention_bytes: int,
    retention_messages: int,
    start: int,
    policy: tuple[str, ...],
) -> None:
    workshop = make_workshop()
    log = workshop.log()
    for age_hours, count in segments:
        if log.segments[-1].size:
            log.roll()
        timestamp = workshop.runtime.time_ms() - age_hours * HOUR - 10
        log.append_as_leader(workshop.batch(count, timestamp=timestamp - count), 0)
    log.log_start_offset = min(start, log.log_end_offset)
    # the model: (base, end, size, newest)
    model = [
        (segment.base_offset, end, segment.size, segment.max_timestamp)
        for segment, end in zip(log.segments, [*bases(log)[1:], log.log_end_offset], strict=True)
    ]
    end_offset, now = log.log_end_offset, workshop.runtime.time_ms()
    while len(model) > 1 and model[0][1] <= log.log_start_offset:
        model.pop(0)
    if "delete" in policy:
        if retention_bytes >= 0:
            while model and sum(size for _, _, size, _ in model) - model[0][2] >= retention_bytes:
                model.pop(0)
        if retention_messages >= 0:
            while model and end_offset - model[0][1] >= retention_messages:
                model.pop(0)
        if retention_hours >= 0:
            while model and now - model[0][3] > retention_hours * HOUR:
                model.pop(0)
    log.update_config(
        LogConfig(
            cleanup_policy=frozenset(policy),
            retention_bytes=retention_bytes,
            retention_messages=retention_messages,
            retention_ms=retention_hours * HOUR if retention_hours >= 0 else -1,
        )
    )
    look(workshop, log)
    expected = [base for base, _, _, _ in model] or [end_offset]
    assert bases(log) == expected
    assert log.log_start_offset == max(min(start, end_offset), expected[0])


class _Listener:
    def __init__(self) -> None:
        self.moved: list[tuple[str, int, int]] = []

    def __call__(self, log: Log) -> None:
        self.moved.append((log.topic, log.partition, log.log_start_offset))


def test_retention_runs_at_intervals_and_reports_start_offsets(workshop: Any) -> None:
    disk = MemoryDisk()
    logs = LogManager(
        disk,
        ["/data"],
        workshop.runtime,
        settings=LogManagerSettings(log_initial_task_delay_ms=1000, log_retention_check_interval_ms=60_000),
    )
    listener = _Listener()
    logs.subscribe(LogManagerEvents(start_offset_changed=listener))
    logs.open()
    log = logs.create("t", TOPIC_ID, 0, LogConfig(retention_ms=HOUR))
    fill(workshop, log, 2 * HOUR, 0)
    workshop.runtime.advance(0.9)
    assert len(bases(log)) == 2
    workshop.runtime.advance(0.1)
    assert bases(log) == [1]
    assert listener.moved == [("t", 0, 1)]
    fill(workshop, log, 2 * HOUR, 0)
    workshop.runtime.advance(59)
    assert bases(log) == [1, 2, 3]
    workshop.runtime.advance(HOUR / 1000)
    workshop.runtime.advance(60)
    assert bases(log) == [4]
    assert (
        disk.read_file(f"/data/{LOG_START_OFFSET_FILE}") == b"0\n1\nt 0 4\n"
    )  # removed names could come back
    log.append_as_leader(workshop.batch(), 0)
    log.flush()
    logs.checkpoint()
    assert disk.read_file(f"/data/{LOG_START_OFFSET_FILE}") == b"0\n0\n"  # the first segment's name says it
    logs.close()


def test_a_power_failure_that_reorders_names_takes_no_offsets_back(workshop: Any) -> None:
    """All records are removed, so a new segment begins at the end. Its name must be on the disk before the others' are gone."""
    workshop.disk.ordered_names = False
    workshop.runtime = VirtualRuntime()  # threads take their time
    log = workshop.log()
    log.append_as_leader(workshop.batch(3), 0)
    log.flush()
    log.increment_log_start_offset(3)
    for seed in range(50):
        random = Random(seed)
        disk = workshop.disk.crash(lambda n, random=random: random.randint(0, n))
        assert any(name.endswith(".log") for name in disk.list(log.directory)), "a log that would begin at 0"
    workshop.runtime.run_until_idle()
    assert "00000000000000000000.log" not in workshop.disk.list(log.directory)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE])
def test_segments_go_from_a_disk_that_cannot_sync_names(workshop: Any, code: int) -> None:
    """Only their going makes room, or frees descriptors."""
    workshop.runtime = VirtualRuntime()
    log = workshop.log(retention_ms=HOUR)
    fill(workshop, log, 2 * HOUR, 2 * HOUR, 0)
    workshop.runtime.run_until_idle()
    if code == errno.ENOSPC:
        log.epochs.assign_unsaved(1, log.log_end_offset)  # to be written along with the names
    log.flusher.names_changed()
    workshop.disk.fault = lambda _, path: code if "leader-epoch" in path else None
    assert log.remove_segments_below(2)
    workshop.runtime.run_until_idle()
    assert bases(log) == [2]
    found = [name for name in workshop.disk.list(log.directory) if name.endswith(".log")]
    assert found == ["00000000000000000002.log"]


def test_the_start_is_kept_when_the_removed_segments_cannot_come_back(workshop: Any) -> None:
    workshop.runtime = VirtualRuntime()
    log = workshop.log()
    log.append_as_leader(workshop.batch(3), 0)
    kept: list[list[str]] = []
    log.when_start_kept(lambda: kept.append(workshop.disk.list(log.directory)))
    assert len(kept) == 1, "nothing has been removed"
    log.increment_log_start_offset(3)
    assert not log.is_start_kept
    for _ in range(2):
        log.when_start_kept(lambda: kept.append(workshop.disk.list(log.directory)))
    workshop.runtime.run_until_idle()
    assert log.is_start_kept
    assert len(kept) == 3
    assert all("00000000000000000000.log" not in names for names in kept[1:])
