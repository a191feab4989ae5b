"""A sparse index against a list: whatever lies in memory or in the file, it answers the same."""

from __future__ import annotations

import contextlib
import errno
from bisect import bisect_right
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.storage.segment.index import OFFSET_ENTRY, TAIL_BYTES_MAX, TIME_ENTRY, SparseIndex
from barnabas.testing.memory_disk import MemoryDisk

_STEM = "/logs/t-0/00000000000000000000"
_IN_MEMORY = TAIL_BYTES_MAX // TIME_ENTRY.size


def _disk() -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_directory("/logs", parents=True)
    disk.make_directory("/logs/t-0")
    return disk


def _below(count: int) -> Callable[[int, int], bool]:
    return lambda _, second: second < count


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3 * _IN_MEMORY)),
        st.tuples(st.just("truncate"), st.integers(0, 5 * _IN_MEMORY)),
        st.tuples(st.just("save"), st.just(0)),
        st.tuples(st.just("reopen"), st.just(0)),
        st.tuples(st.just("clear"), st.just(0)),
    ),
    max_size=12,
)


@given(steps=_STEPS, wanted=st.lists(st.integers(-1, 20 * _IN_MEMORY), max_size=8))
def test_an_index_is_a_sorted_list(steps: list[tuple[str, int]], wanted: list[int]) -> None:
    disk = _disk()
    disk.write_file(_STEM + ".timeindex", b"left by another process")
    index = SparseIndex(disk, _STEM, ".timeindex", TIME_ENTRY, fresh=True)
    model: list[tuple[int, int]] = []
    for step, count in steps:
        if step == "append":
            for _ in range(count):
                entry = (model[-1][0] + 2 if model else 2, len(model))
                index.append(*entry)
                model.append(entry)
        elif step == "truncate":
            index.truncate(_below(count))
            del model[count:]
        elif step == "clear":
            index.clear()
            model.clear()
        else:
            index.save()
            assert index.is_well_formed()
            if step == "reopen":
                index = SparseIndex(disk, _STEM, ".timeindex", TIME_ENTRY, fresh=False)
        assert len(index) == len(model)
        assert index.last() == (model[-1] if model else None)
        for first in [*wanted, *(entry[0] for entry in model[:: _IN_MEMORY + 7])]:
            number = bisect_right(model, first, key=lambda entry: entry[0])
            assert index.floor(first) == (model[number - 1] if number else None)
    assert index.entries() == model


def test_what_it_holds_in_memory_is_bounded() -> None:
    disk = _disk()
    index = SparseIndex(disk, _STEM, ".index", OFFSET_ENTRY, fresh=True)
    for number in range(10_000):
        index.append(number, number)
        in_file = len(disk.files[index.path].data) if disk.exists(index.path) else 0
        assert (number + 1) * OFFSET_ENTRY.size - in_file <= TAIL_BYTES_MAX + OFFSET_ENTRY.size


def test_a_full_disk_keeps_the_entries_in_memory() -> None:
    disk = _disk()
    index = SparseIndex(disk, _STEM, ".index", OFFSET_ENTRY, fresh=True)
    disk.fault = lambda operation, _: errno.ENOSPC if operation == "write" else None
    for number in range(1000):
        index.append(number, 7 * number)
    assert index.floor(500) == (500, 3500)
    disk.fault = None
    for number in range(1000, 2000):
        index.append(number, 7 * number)
    index.save()
    assert index.entries() == [(number, 7 * number) for number in range(2000)]


@pytest.mark.parametrize("operation", ["write", "truncate", "sync"])
def test_entries_that_could_not_be_saved_are_saved_by_the_next_call(operation: str) -> None:
    disk = _disk()
    index = SparseIndex(disk, _STEM, ".index", OFFSET_ENTRY, fresh=True)
    for number in range(300):
        index.append(number, 7 * number)
    disk.fault = lambda failing, _: errno.EIO if failing == operation else None
    with contextlib.suppress(OSError):
        index.save(sync=True)
    assert index.floor(299) == (299, 2093)
    disk.fault = None
    index.save(sync=True)
    again = SparseIndex(disk, _STEM, ".index", OFFSET_ENTRY, fresh=False)
    assert again.entries() == [(number, 7 * number) for number in range(300)]
