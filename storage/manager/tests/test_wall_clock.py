"""A wall clock that differs from most others' deletes nothing by age."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.manager.manager import LogManager, LogManagerSettings
from barnabas.storage.wall_clock import TOLERANCE_MS, WallClock
from barnabas.testing.memory_disk import MemoryDisk
from compat_tests.virtual.runtime import VirtualRuntime

DAY_MS = 86_400_000
AHEAD_MS = 400 * DAY_MS


def hears(clock: WallClock, runtime: VirtualRuntime, *ahead_ms: int) -> None:
    """Other nodes, 2, 3 and so on, tell that their clocks are so far ahead of this node's."""
    for node_id, ahead in enumerate(ahead_ms, 2):
        clock.heard(node_id, runtime.time_ms() + ahead)


@pytest.mark.parametrize(
    ("others", "is_trusted"),
    [
        ([0, 0], True),
        ([TOLERANCE_MS, -TOLERANCE_MS], True),
        ([0, AHEAD_MS], True),  # the other one is wrong
        ([0, -AHEAD_MS], True),
        ([-AHEAD_MS, -AHEAD_MS], False),
        ([AHEAD_MS, AHEAD_MS], False),
        ([AHEAD_MS, -AHEAD_MS], False),
        ([-AHEAD_MS], False),  # one of two is wrong
        ([0], True),
        ([0, -AHEAD_MS, -AHEAD_MS], False),
        ([0, 0, -AHEAD_MS, -AHEAD_MS], True),
    ],
)
def test_more_than_half_of_the_clocks_must_agree(others: list[int], is_trusted: bool) -> None:
    runtime = VirtualRuntime()
    clock = WallClock(runtime, is_alone=False)
    hears(clock, runtime, *others)
    assert clock.is_trusted == is_trusted
    assert clock.deletion_time_ms() == (runtime.time_ms() if is_trusted else None)


def test_a_single_node_trusts_its_clock_and_one_of_several_waits_for_another() -> None:
    runtime = VirtualRuntime()
    member = WallClock(runtime, is_alone=False)
    assert member.deletion_time_ms() is None
    hears(member, runtime, 1000)
    assert member.deletion_time_ms() == runtime.time_ms()
    assert WallClock(runtime).deletion_time_ms() == runtime.time_ms()


def test_a_clock_that_is_set_is_seen_without_a_word_of_others(caplog: pytest.LogCaptureFixture) -> None:
    """As a node that is cut off: what it last heard of the others counts."""
    runtime = VirtualRuntime()
    clock = WallClock(runtime, is_alone=False)
    hears(clock, runtime, 0, 0)
    runtime.advance(86_400)
    assert clock.is_trusted
    runtime.wall_offset_ms += AHEAD_MS
    assert [clock.deletion_time_ms() for _ in range(3)] == [None] * 3
    assert clock.ahead_ms == AHEAD_MS
    hears(clock, runtime, -AHEAD_MS, -AHEAD_MS)
    runtime.wall_offset_ms = 0
    assert clock.deletion_time_ms() is not None
    assert clock.ahead_ms == 0
    assert [record.levelname for record in caplog.records if record.name == "barnabas.storage"] == ["ERROR"]
    assert "node 2 is 34560000 s behind, node 3 is 34560000 s behind" in caplog.text


class Node:
    """A log manager that is one of several, and every check runs once a second."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.runtime = VirtualRuntime()
        settings = LogManagerSettings(
            log_initial_task_delay_ms=1000,
            log_retention_check_interval_ms=1000,
            producer_id_expiration_check_interval_ms=1000,
        )
        self.manager = LogManager(
            disk, ["/logs"], self.runtime, settings=settings, begins_cluster=False, cluster_id="c"
        )
        self.manager.open()


def test_neither_records_nor_producers_go_by_a_clock_far_ahead(workshop: Any) -> None:
    disk = MemoryDisk()
    node = Node(disk)
    hears(node.manager.wall_clock, node.runtime, 0, 0)
    config = LogConfig(retention_ms=7 * DAY_MS, retention_bytes=-1)
    log = node.manager.create("t", b"i" * 16, 0, config)
    for sequence in range(3):
        now = node.runtime.time_ms()
        batch = workshop.batch(timestamp=now, producer_id=7, producer_epoch=0, base_sequence=sequence)
        log.append_as_leader(batch, 0)
        log.roll()
    size = log.size
    node.runtime.wall_offset_ms += AHEAD_MS
    node.runtime.advance(5)
    assert (log.log_start_offset, log.size, list(log.producers.active)) == (0, size, [7])
    log.update_config(LogConfig(retention_ms=7 * DAY_MS, retention_bytes=size // 3))  # size needs no clock
    node.runtime.advance(2)
    assert (log.log_start_offset, list(log.producers.active)) == (2, [7])
    node.manager.close()

    again = Node(disk)
    again.runtime.wall_offset_ms = AHEAD_MS
    opened = again.manager.get("t", 0)
    assert opened is not None
    opened.end_replication()
    opened.update_config(config)
    assert list(opened.producers.active) == [7], "before another node has been heard nothing expires"
    again.runtime.advance(5)
    assert (opened.log_start_offset, list(opened.producers.active)) == (2, [7])
    hears(again.manager.wall_clock, again.runtime, 0, 0)  # the others say the same
    again.runtime.advance(5)
    assert (opened.log_start_offset, list(opened.producers.active)) == (3, [])
    again.manager.close()
