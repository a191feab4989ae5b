"""The journal of a single node: acknowledged changes survive any crash, and damage is detected."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.controller.metadata.errors import MetadataError
from barnabas.controller.metadata.local_journal import JOURNAL, SNAPSHOT
from barnabas.controller.metadata.local_log import LocalMetadataLog
from barnabas.testing.memory_disk import MemoryDisk
from compat_tests.virtual.runtime import VirtualRuntime

DIRECTORY = "/metadata"
JOURNAL_PATH, SNAPSHOT_PATH = f"{DIRECTORY}/{JOURNAL}", f"{DIRECTORY}/{SNAPSHOT}"
ENOUGH = 1 << 20

Group = list[bytes]
Outcome = list[Exception | None]


class Opened:
    """A log, and all it has applied; a snapshot is simply everything."""

    def __init__(self, disk: MemoryDisk, journal_bytes_min: int = ENOUGH) -> None:
        self.runtime = VirtualRuntime()
        self.applied: list[bytes] = []
        self.log = LocalMetadataLog(disk, DIRECTORY, self.runtime, journal_bytes_min=journal_bytes_min)
        self.offset = self.log.open(
            self.applied.extend, lambda: list(self.applied), lambda _records, _offset: None
        )
        self.log.serve()

    def propose(self, *records: bytes) -> Outcome:
        outcome: Outcome = []
        self.log.propose(records, outcome.append)
        return outcome

    def settle(self) -> None:
        self.runtime.run_until_idle()


def flat(groups: Sequence[Group]) -> list[bytes]:
    return [record for group in groups for record in group]


def write(disk: MemoryDisk, groups: Sequence[Group], journal_bytes_min: int = ENOUGH) -> list[int]:
    """Commit the groups one by one; the journal's size after each, beginning with none."""
    opened = Opened(disk, journal_bytes_min)
    sizes = [disk.size(JOURNAL_PATH)]
    for group in groups:
        outcome = opened.propose(*group)
        opened.settle()
        assert outcome == [None]
        sizes.append(disk.size(JOURNAL_PATH))
    return sizes


def records(max_groups: int, min_groups: int = 0) -> st.SearchStrategy[list[Group]]:
    return st.lists(
        st.lists(st.binary(max_size=20), min_size=1, max_size=3), min_size=min_groups, max_size=max_groups
    )


@given(groups=records(12), together=st.booleans(), journal_bytes_min=st.sampled_from([1, 100, ENOUGH]))
def test_a_restart_applies_the_same_records(
    groups: list[Group], together: bool, journal_bytes_min: int
) -> None:
    disk = MemoryDisk()
    opened = Opened(disk, journal_bytes_min)
    outcomes = []
    for group in groups:
        outcomes.append(opened.propose(*group))
        if not together:
            opened.settle()
    opened.settle()
    assert opened.applied == flat(groups)
    assert outcomes == [[None]] * len(groups)
    again = Opened(disk)
    assert again.applied == flat(groups)
    assert again.offset == len(flat(groups)) - 1


@pytest.mark.slow
@settings(max_examples=30)
@given(groups=records(5, 1))
def test_a_journal_torn_anywhere_keeps_every_whole_group(groups: list[Group]) -> None:
    disk = MemoryDisk()
    ends = write(disk, groups)
    content = disk.read_file(JOURNAL_PATH)
    for cut in range(ends[0], len(content) + 1):
        disk.write_file(JOURNAL_PATH, content[:cut])
        whole = sum(end <= cut for end in ends) - 1
        opened = Opened(disk)
        assert opened.applied == flat(groups[:whole])
        outcome = opened.propose(b"next")
        opened.settle()
        assert outcome == [None]
        assert Opened(disk).applied == [*flat(groups[:whole]), b"next"]


@given(groups=records(8, 1), data=st.data())
def test_a_power_failure_at_any_time_keeps_what_was_acknowledged(
    groups: list[Group], data: st.DataObject
) -> None:
    disk = MemoryDisk()
    opened = Opened(disk, data.draw(st.sampled_from([1, 150, ENOUGH])))
    crashed: list[tuple[MemoryDisk, list[bytes]]] = []

    def fault(operation: str, path: str) -> None:
        if data.draw(st.integers(0, 3)) == 0:
            kept = data.draw(st.integers(0, 100))
            crashed.append((disk.crash(lambda count: min(kept, count)), list(opened.applied)))

    disk.fault = fault
    for group in groups:
        opened.propose(*group)
        if data.draw(st.booleans()):
            opened.settle()
    opened.settle()
    for survivor, acknowledged in crashed:
        found = Opened(survivor).applied
        assert found[: len(acknowledged)] == acknowledged
        assert found == flat(groups)[: len(found)]


@given(groups=records(6, 2), data=st.data())
def test_damage_in_the_middle_stops_the_start(groups: list[Group], data: st.DataObject) -> None:
    disk = MemoryDisk()
    ends = write(disk, groups)
    content = bytearray(disk.read_file(JOURNAL_PATH))
    position = data.draw(st.integers(0, ends[-2] - 1))
    content[position] ^= data.draw(st.integers(1, 255))
    disk.write_file(JOURNAL_PATH, content)
    with pytest.raises(MetadataError) as raised:
        Opened(disk)
    message = str(raised.value)
    assert JOURNAL_PATH in message
    if position >= ends[0]:
        damaged = max(end for end in ends if end <= position)
        assert f"damaged at byte {damaged}:" in message
        assert "Restore the file from a backup" in message
    assert disk.read_file(JOURNAL_PATH) == bytes(content), "nothing was changed"


def test_a_garbled_last_group_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryDisk()
    ends = write(disk, [[b"one"], [b"two"]])
    content = bytearray(disk.read_file(JOURNAL_PATH))
    content[-1] ^= 1
    disk.write_file(JOURNAL_PATH, content)
    assert Opened(disk).applied == [b"one"]
    assert f"cutting them off at {ends[1]}" in caplog.text
    assert disk.size(JOURNAL_PATH) == ends[1]


def test_a_crash_between_snapshot_and_new_journal_applies_nothing_twice() -> None:
    disk = MemoryDisk()
    write(disk, [[b"one"], [b"two"]])
    old = disk.read_file(JOURNAL_PATH)
    write(disk, [[b"three"]], journal_bytes_min=1)
    assert disk.exists(SNAPSHOT_PATH)
    disk.write_file(JOURNAL_PATH, old)
    reopened = Opened(disk)
    assert reopened.applied == [b"one", b"two", b"three"]
    assert reopened.offset == 2


def test_the_journal_stays_bounded() -> None:
    disk = MemoryDisk()
    sizes = write(disk, [[b"x" * 100]] * 200, journal_bytes_min=1000)
    assert max(sizes) < 4 * disk.size(SNAPSHOT_PATH) + 1000
    assert sum(after < before for before, after in pairwise(sizes)) >= 3


@pytest.mark.parametrize("damage", [0, 10, -1])
def test_a_damaged_snapshot_stops_the_start(damage: int) -> None:
    disk = MemoryDisk()
    write(disk, [[b"one"], [b"two"]], journal_bytes_min=1)
    content = bytearray(disk.read_file(SNAPSHOT_PATH))
    content[damage] ^= 0x40
    disk.write_file(SNAPSHOT_PATH, content)
    with pytest.raises(MetadataError, match=f"{SNAPSHOT_PATH} is damaged"):
        Opened(disk)


def test_a_lost_journal_or_snapshot_stops_the_start() -> None:
    disk = MemoryDisk()
    write(disk, [[b"one"], [b"two"]], journal_bytes_min=1)
    journal = disk.read_file(JOURNAL_PATH)
    disk.remove(JOURNAL_PATH)
    with pytest.raises(MetadataError, match=f"{JOURNAL_PATH} is missing"):
        Opened(disk)
    disk.write_file(JOURNAL_PATH, journal)
    disk.remove(SNAPSHOT_PATH)
    with pytest.raises(MetadataError, match=f"{SNAPSHOT_PATH} is missing"):
        Opened(disk)


def test_a_full_disk_refuses_and_recovers() -> None:
    disk = MemoryDisk()
    opened = Opened(disk)
    first = opened.propose(b"one")
    opened.settle()
    disk.capacity = disk.size(JOURNAL_PATH) + 10  # takes a part of the next entry
    second = opened.propose(b"two")
    opened.settle()
    disk.capacity = None
    third = opened.propose(b"three")
    opened.settle()
    assert first == third == [None]
    assert [type(error) for error in second] == [OSError]
    assert opened.applied == [b"one", b"three"]
    assert Opened(disk).applied == opened.applied


def test_short_writes_are_completed() -> None:
    disk = MemoryDisk()
    disk.short_write = 3
    write(disk, [[b"one"], [b"two" * 50]])
    assert Opened(disk).applied == [b"one", b"two" * 50]


def test_nothing_is_accepted_after_a_failed_sync() -> None:
    disk = MemoryDisk()
    opened = Opened(disk)
    disk.fault = lambda operation, path: errno.EIO if operation == "sync" else None
    outcomes = [opened.propose(b"one"), opened.propose(b"waits")]
    opened.settle()
    disk.fault = None
    outcomes.append(opened.propose(b"two"))
    opened.settle()
    assert [[type(error) for error in outcome] for outcome in outcomes] == [[OSError]] * 3
    assert opened.applied == []


def test_proposals_during_a_write_are_written_together() -> None:
    disk = MemoryDisk()
    opened = Opened(disk)
    syncs: list[str] = []

    def fault(operation: str, path: str) -> None:
        if operation == "sync":
            syncs.append(path)

    disk.fault = fault
    outcomes = [opened.propose(name) for name in (b"a", b"b", b"c")]
    opened.settle()
    assert outcomes == [[None]] * 3
    assert opened.applied == [b"a", b"b", b"c"]
    assert len(syncs) == 2


def test_finishing_waits_for_the_write_in_flight_and_refuses_the_others() -> None:
    disk = MemoryDisk()
    opened = Opened(disk, journal_bytes_min=1)  # a snapshot follows each write
    written, waiting = opened.propose(b"one"), opened.propose(b"two")
    ends: list[bool] = []
    opened.log.finish(lambda: ends.append(opened.log.at_rest))
    late = opened.propose(b"three")
    assert not ends
    opened.settle()
    assert ends == [True]
    assert written == [None]
    assert [type(error) for error in waiting + late] == [MetadataError, MetadataError]
    opened.log.finish(lambda: ends.append(opened.log.at_rest))
    assert ends == [True, True]
    assert Opened(disk).applied == opened.applied == [b"one"]


def test_changes_acknowledged_after_a_failed_reopening_are_kept() -> None:
    disk = MemoryDisk()
    opened = Opened(disk, journal_bytes_min=100)
    disk.fault = lambda operation, path: (
        errno.EMFILE if operation == "open" and path == JOURNAL_PATH and disk.exists(SNAPSHOT_PATH) else None
    )
    assert opened.propose(b"a" * 100) == []
    opened.settle()
    outcome = opened.propose(b"b")
    opened.settle()
    assert len(outcome) == 1
    disk.fault = None
    again = Opened(disk)
    assert again.applied == [b"a" * 100] + ([b"b"] if outcome == [None] else [])
