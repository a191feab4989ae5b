"""After a crash, what lies below the recovery point is not read again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from barnabas.storage.disk.disk import File
from barnabas.storage.log.log import Log
from barnabas.storage.tests.workshop import max_timestamp_offset, offset_for_timestamp
from barnabas.testing.memory_disk import MemoryDisk, MemoryFile
from barnabas.wire.record_batch import HEADER_SIZE

SETTINGS = {"index_interval_bytes": 500}


class _CountedFile:
    """A file that notes what is read of it."""

    def __init__(self, file: MemoryFile, path: str, reads: list[tuple[str, int, int]]) -> None:
        self._file, self._path, self._reads = file, path, reads

    def pread(self, count: int, position: int) -> bytes:
        data = self._file.pread(count, position)
        self._reads.append((self._path, position, len(data)))
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class CountingDisk:
    """Another disk, and every read of its files as (path, position, bytes)."""

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk
        self.reads: list[tuple[str, int, int]] = []

    def open(self, path: str, *, create: bool = False, writable: bool = False) -> File:
        file: Any = _CountedFile(self._disk.open(path, create=create, writable=writable), path, self.reads)
        return file  # type: ignore[no-any-return]

    def read_file(self, path: str) -> bytes:
        data = self._disk.read_file(path)
        self.reads.append((path, 0, len(data)))
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def read_of(self, suffix: str) -> list[tuple[int, int]]:
        return [(position, count) for path, position, count in self.reads if path.endswith(suffix)]


def _fill(workshop: Any, log: Log, sizes: Sequence[int]) -> None:
    for number, size in enumerate(sizes):
        log.append_as_leader(workshop.batch(2, size=size, timestamp=workshop.now + 3 * number), number // 40)


def _reopened(workshop: Any, recovery_point: int) -> tuple[Log, CountingDisk]:
    counting = CountingDisk(workshop.disk)
    workshop.disk, original = counting, workshop.disk
    try:
        return workshop.log(clean=False, recovery_point=recovery_point, **SETTINGS), counting
    finally:
        workshop.disk = original


def test_recovery_reads_only_past_the_recovery_point(workshop: Any) -> None:
    log = workshop.log(**SETTINGS)
    _fill(workshop, log, [100] * 400)
    log.close()
    log = workshop.log(**SETTINGS)
    point, size = log.log_end_offset, log.size
    _fill(workshop, log, [100] * 10)
    before = workshop.content(log)
    again, disk = _reopened(workshop, point)
    batch = len(before[0])
    read = disk.read_of(".log")
    assert workshop.content(again) == before
    assert min(position for position, _ in read) >= size - SETTINGS["index_interval_bytes"] - 2 * batch
    whole = [(position, position + count) for position, count in read if count > HEADER_SIZE]
    assert any(start <= size and end == log.size for start, end in whole), (
        "every batch of which it is not known that it was synced is checked"
    )


def test_an_empty_log_is_not_read_at_all(workshop: Any) -> None:
    workshop.log().close()
    _, disk = _reopened(workshop, 0)
    assert disk.reads == []


_DAMAGE: dict[str, Callable[[bytearray], None]] = {
    "gone": bytearray.clear,
    "zeros in it": lambda data: data.__setitem__(slice(48, 96), bytes(48)),
    "zeros at its end": lambda data: data.__setitem__(slice(len(data) - 48, None), bytes(48)),
    "short": lambda data: data.__delitem__(slice(len(data) // 2 // 24 * 24, None)),
    "odd": lambda data: data.extend(b"abc"),
}


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", _DAMAGE)
def test_an_index_that_a_power_failure_has_damaged_is_no_guide(
    workshop: Any, suffix: str, damage: str
) -> None:
    log = workshop.log(**SETTINGS)
    _fill(workshop, log, [100] * 100)
    log.close()
    path = log.segments[0].path.replace(".log", suffix)
    content = workshop.content(log)
    _DAMAGE[damage](workshop.disk.files[path].data)
    again, _ = _reopened(workshop, log.log_end_offset)
    assert workshop.content(again) == content
    times = [offset_for_timestamp(again, workshop.now + 3 * number) for number in range(0, 100, 7)]
    assert [time.offset for time in times if time is not None] == list(range(0, 200, 14))
    again.close()
    _assert_indexes_hold(again)


@given(
    sizes=st.lists(st.integers(1, 900), min_size=1, max_size=60),
    share=st.floats(0, 1),
    lost=st.integers(0, 3000),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_from_any_recovery_point_the_same_log_is_found(
    make_workshop: Callable[[], Any], sizes: list[int], share: float, lost: int
) -> None:
    """Against recovery from the beginning; `lost` bytes at the end are gone, down to the recovery point."""
    workshop = make_workshop()
    log = workshop.log(**SETTINGS)
    kept = round(len(sizes) * share)
    _fill(workshop, log, sizes[:kept])
    log.close()
    log = workshop.log(**SETTINGS)
    point, synced = log.log_end_offset, log.size
    for number, size in enumerate(sizes[kept:], kept):
        log.append_as_leader(workshop.batch(2, size=size, timestamp=workshop.now + 3 * number), number // 10)
    path = log.segments[0].path
    data = workshop.disk.files[path].data
    del data[max(synced, len(data) - lost) :]
    fresh = make_workshop()
    for name, content in workshop.disk.files.items():
        fresh.disk.write_file(name, bytes(content.data))
    again, _ = _reopened(workshop, point)
    expected = fresh.log(clean=False, recovery_point=0, **SETTINGS)
    assert workshop.content(again) == fresh.content(expected)
    assert again.log_end_offset == expected.log_end_offset
    assert max_timestamp_offset(again) == max_timestamp_offset(expected)
    for leader_epoch in range(7):
        assert again.epoch_end_offset(leader_epoch) == expected.epoch_end_offset(leader_epoch)
    for each in (again, expected):
        for number in range(len(sizes), len(sizes) + 5):
            each.append_as_leader(workshop.batch(2, size=700, timestamp=workshop.now + 3 * number), 9)
        each.close()
        _assert_indexes_hold(each)
    assert workshop.content(again) == fresh.content(expected)


def _assert_indexes_hold(log: Log) -> None:
    """Every entry is true of the batches that are there."""
    (segment,) = log.segments
    ends = {position: header.last_offset for position, header in segment.headers(0)}
    offsets = segment.offset_index.entries()
    assert offsets == sorted(set(offsets))
    assert all(ends[position] == relative for relative, position in offsets)
    so_far: dict[int, int] = {}
    largest = -1
    for _, header in segment.headers(0):
        if header.max_timestamp > largest:
            largest = header.max_timestamp
            so_far[header.last_offset] = largest
    times = segment.time_index.entries()
    assert times == sorted(set(times))
    assert all(so_far[relative] == timestamp for timestamp, relative in times)
