"""Many logs that are written to share few open files, without effect on their content."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from barnabas.storage.disk.disk import RealDisk
from barnabas.storage.disk.open_files import OpenFiles
from barnabas.storage.log.log import Log
from barnabas.storage.log.log_config import LogConfig

LIMIT = 8


class _Holder:
    def __init__(self) -> None:
        self.size = 0
        self.released = 0

    def release(self) -> None:
        self.released += 1


def test_the_longest_open_lets_go_first() -> None:
    files = OpenFiles(2)
    first, second, third = _Holder(), _Holder(), _Holder()
    for holder in (first, second, third):
        files.add(holder)
    assert (first.released, second.released, third.released) == (1, 0, 0)
    assert len(files) == 2


def test_one_that_has_grown_is_spared() -> None:
    files = OpenFiles(2)
    busy, idle, other = _Holder(), _Holder(), _Holder()
    files.add(busy)
    files.add(idle)
    busy.size = 100
    files.add(other)
    assert (busy.released, idle.released, other.released) == (0, 1, 0)


def test_when_all_have_grown_one_closes_all_the_same() -> None:
    files = OpenFiles(100)
    holders = [_Holder() for _ in range(150)]
    for holder in holders:
        files.add(holder)
        holder.size += 1
    assert len(files) == 100
    assert sum(holder.released for holder in holders) == 50


def test_a_segment_that_has_closed_its_file_does_not_count() -> None:
    files = OpenFiles(2)
    first, second, third = _Holder(), _Holder(), _Holder()
    files.add(first)
    files.add(second)
    files.discard(second)
    files.add(third)
    assert (first.released, second.released) == (0, 0)


def _descriptors_into(folder: Path) -> int:
    """Descriptors of this process that lead to files in `folder`."""
    count = 0
    for entry in os.scandir("/proc/self/fd"):
        try:
            count += os.readlink(entry.path).startswith(str(folder))
        except FileNotFoundError:  # the listing's own
            pass
    return count


def test_logs_share_the_files_that_are_open(tmp_path: Path, make_workshop: Callable[[], Any]) -> None:
    """Appends, reads, rolls and flushes in any order over five times as many logs as may keep a file open."""
    workshop = make_workshop()
    disk = RealDisk()
    disk.open_files.limit = LIMIT
    rng = random.Random(7)
    logs = []
    for partition in range(5 * LIMIT):
        (tmp_path / f"t-{partition}").mkdir()
        config = LogConfig(segment_bytes=700)
        logs.append(Log.open(disk, workshop.runtime, str(tmp_path), "t", partition, b"i" * 16, config))
    assert _descriptors_into(tmp_path) == 0
    expected: list[list[bytes]] = [[] for _ in logs]
    for number in range(1500):
        partition = rng.randrange(len(logs))
        batch = workshop.batch(1, size=rng.randrange(1, 200))
        logs[partition].append_as_leader(batch, 0)
        expected[partition].append(batch[61:])
        if number % 10 == 0:
            rng.choice(logs).flush()
            assert _descriptors_into(tmp_path) <= LIMIT
    for log, batches in zip(logs, expected, strict=True):
        assert [batch[61:] for batch in workshop.content(log)] == batches
        assert _descriptors_into(tmp_path) <= LIMIT
    for log in logs:
        log.close()
    assert _descriptors_into(tmp_path) == 0
    for partition, batches in enumerate(expected):
        reopened = Log.open(disk, workshop.runtime, str(tmp_path), "t", partition, b"i" * 16, LogConfig())
        assert [batch[61:] for batch in workshop.content(reopened)] == batches
