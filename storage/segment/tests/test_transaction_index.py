"""The search of a segment's aborted transactions: against all entries, and how much of them it reads on the loop."""

from __future__ import annotations

from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.storage.segment.transaction_index import (
    BLOCK,
    UNNOTED_MAX,
    AbortedTransaction,
    TransactionIndex,
)
from barnabas.testing.memory_disk import MemoryDisk, MemoryFile

ENTRY_BYTES = 34


def index_of(entries: list[AbortedTransaction], *, in_file: bool) -> TransactionIndex:
    disk = MemoryDisk()
    disk.make_directory("/t-0", parents=True)
    index = TransactionIndex(disk, "/t-0", 0, entries)
    if in_file:
        index.save()
        index.unload()
    return index


def history(steps: list[int]) -> list[AbortedTransaction]:
    """Each step is a batch of that producer's transaction, or, when that is open, the marker that aborts it."""
    opened: dict[int, int] = {}
    entries = []
    for offset, producer in enumerate(steps):
        first = opened.pop(producer, None)
        if first is None:
            opened[producer] = offset
        else:
            entries.append(
                AbortedTransaction(producer, first, offset, min(opened.values(), default=offset + 1))
            )
    return entries


def beside_a_long_one(count: int) -> list[AbortedTransaction]:
    """`count` short transactions that begin and end while one other is open, which is aborted in the end."""
    return history([0, *(1 + at // 2 for at in range(2 * count)), 0])


def searched(entries: list[AbortedTransaction], start: int, end: int) -> list[AbortedTransaction]:
    return [each for each in entries if each.first_offset < end and each.last_offset >= start]


@given(
    steps=st.lists(st.integers(0, 12), max_size=400),
    start=st.integers(0, 400),
    length=st.integers(1, 60),
    limit=st.one_of(st.none(), st.integers(1, 6)),
    in_file=st.booleans(),
    noted=st.sampled_from([0.0, 0.5, 1.0]),
    wait=st.booleans(),
)
def test_a_search_finds_what_a_look_at_every_entry_finds(
    steps: list[int],
    start: int,
    length: int,
    limit: int | None,
    in_file: bool,
    noted: float,
    wait: bool,
) -> None:
    entries = history(steps)
    first = round(len(entries) * noted)  # those of which offsets are noted, as far as they are whole blocks
    index = index_of(entries[:first], in_file=in_file)
    index.load()
    for entry in entries[first:]:
        index.append(entry)
    if in_file:
        index.save()
        index.unload()
    end = start + length
    found: list[AbortedTransaction] = []
    is_over = index.collect(start, end, found, limit, wait=wait)
    expected = searched(entries, start, end)
    assert found == expected[:limit]
    is_covered = any(each.last_stable_offset >= end for each in entries if each.last_offset >= start)
    assert is_over == (is_covered or len(found) == limit)


@pytest.mark.parametrize("in_file", [True, False])
def test_the_loop_reads_little_beside_a_long_transaction(
    in_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the last stable offset can't tell, a thread notes."""
    entries = beside_a_long_one(5 * UNNOTED_MAX)
    index = index_of(entries, in_file=in_file)
    with pytest.raises(BlockingIOError):
        index.collect(100, 120, [], wait=False)
    index.load()
    read = 0
    pread = MemoryFile.pread

    def counted(file: MemoryFile, count: int, position: int) -> bytes:
        nonlocal read
        read += count
        return pread(file, count, position)

    monkeypatch.setattr(MemoryFile, "pread", counted)
    found: list[AbortedTransaction] = []
    index.collect(100, 120, found, wait=False)
    assert found == searched(entries, 100, 120)
    assert (len(found), found[-1].producer_id) == (12, 0)
    if in_file:
        assert 0 < read < 4 * BLOCK * ENTRY_BYTES


@pytest.mark.slow
def test_what_is_noted_stays_while_entries_are_added() -> None:
    """The active segment grows; a thread is needed again once many have been added."""
    entries = beside_a_long_one(3 * UNNOTED_MAX)
    index = index_of(entries[:UNNOTED_MAX], in_file=False)
    index.load()

    def search(count: int) -> bool:
        """With the first `count` entries: whether the loop can do it."""
        found: list[AbortedTransaction] = []
        try:
            assert not index.collect(100, 120, found, wait=False)
        except BlockingIOError:
            return False
        assert found == searched(entries[:200], 100, 120)
        index.append(entries[count])
        return True

    added = list(takewhile(search, range(UNNOTED_MAX, len(entries))))
    assert UNNOTED_MAX - BLOCK < len(added) <= UNNOTED_MAX + 1


def test_a_search_that_ends_soon_needs_no_thread() -> None:
    entries = history([at // 2 for at in range(10 * UNNOTED_MAX)])
    index = index_of(entries, in_file=True)
    found: list[AbortedTransaction] = []
    assert index.collect(100, 120, found, wait=False)
    assert found == searched(entries, 100, 120)
