"""The journal of a single node: what was acknowledged is there after any crash, what is damaged is noticed."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from barnabas.controller.errors import MetadataError
from barnabas.controller.local_log import JOURNAL, SNAPSHOT, LocalMetadataLog
from barnabas.storage.disk import RealDisk
from barnabas.storage.runtime import Timer
from hypothesis import given, settings
from hypothesis import strategies as st


class InlineRuntime:
    """Does thread work when told to, so that a test owns the order of events."""

    def __init__(self) -> None:
        self.random = random.Random(1)
        self.threads: list[Callable[[], None]] = []

    def run_in_thread(self, work: Callable[[], object], done: Callable[..., object]) -> None:
        def run() -> None:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - as a thread would
                done(None, error)
            else:
                done(result, None)

        self.threads.append(run)

    def settle(self) -> None:
        while self.threads:
            self.threads.pop(0)()

    def random_bytes(self, count: int) -> bytes:
        return self.random.randbytes(count)

    def time_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        return 0.0

    def call_soon(self, callback: Callable[[], object]) -> None:
        raise NotImplementedError

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        raise NotImplementedError

    def listen(self, *arguments: object) -> None:  # type: ignore[override]
        raise NotImplementedError


class Opened:
    """A log in a directory, and all it has applied; a snapshot is simply everything."""

    def __init__(self, directory: Path, **options: int) -> None:
        self.runtime = InlineRuntime()
        self.applied: list[bytes] = []
        self.log = LocalMetadataLog(RealDisk(), str(directory), self.runtime, **options)
        self.offset = self.log.open(self.applied.extend, lambda: list(self.applied))
        self.log.serve()

    def propose(self, *records: bytes) -> list[Exception | None]:
        outcome: list[Exception | None] = []
        self.log.propose(records, outcome.append)
        return outcome


GROUPS = st.lists(st.lists(st.binary(max_size=30), max_size=4), max_size=12)


def _write(directory: Path, groups: Sequence[Sequence[bytes]], **options: int) -> list[int]:
    """Commit the groups one by one; the journal's size after each, beginning with none."""
    opened = Opened(directory, **options)
    sizes = [(directory / JOURNAL).stat().st_size]
    for group in groups:
        outcome = opened.propose(*group)
        opened.runtime.settle()
        assert outcome == [None]
        sizes.append((directory / JOURNAL).stat().st_size)
    return sizes


@settings(max_examples=60, deadline=None)
@given(groups=GROUPS, together=st.booleans(), journal_bytes_min=st.sampled_from([1, 100, 1 << 20]))
def test_a_restart_applies_the_same_records(
    tmp_path_factory: pytest.TempPathFactory,
    groups: list[list[bytes]],
    together: bool,
    journal_bytes_min: int,
) -> None:
    directory = tmp_path_factory.mktemp("log")
    opened = Opened(directory, journal_bytes_min=journal_bytes_min)
    outcomes = []
    for group in groups:
        outcomes.append(opened.propose(*group))
        if not together:
            opened.runtime.settle()
    opened.runtime.settle()
    expected = [record for group in groups for record in group]
    assert opened.applied == expected
    assert outcomes == [[None]] * len(groups)
    again = Opened(directory)
    assert again.applied == expected
    assert again.offset == len(expected) - 1


@settings(max_examples=25, deadline=None)
@given(
    groups=st.lists(st.lists(st.binary(max_size=20), min_size=1, max_size=3), min_size=1, max_size=5),
    data=st.data(),
)
def test_a_journal_torn_anywhere_keeps_every_whole_group(
    tmp_path_factory: pytest.TempPathFactory, groups: list[list[bytes]], data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("log")
    ends = _write(directory, groups)
    content = (directory / JOURNAL).read_bytes()
    for cut in range(ends[0], len(content) + 1):
        (directory / JOURNAL).write_bytes(content[:cut])
        whole = sum(end <= cut for end in ends) - 1
        opened = Opened(directory)
        assert opened.applied == [record for group in groups[:whole] for record in group]
        # ... and it goes on from there.
        assert not opened.propose(b"next")
        opened.runtime.settle()
        assert Opened(directory).applied == [*opened.applied]


@settings(max_examples=60, deadline=None)
@given(
    groups=st.lists(st.lists(st.binary(max_size=20), min_size=1, max_size=3), min_size=2, max_size=6),
    data=st.data(),
)
def test_damage_in_the_middle_stops_the_start(
    tmp_path_factory: pytest.TempPathFactory, groups: list[list[bytes]], data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("log")
    ends = _write(directory, groups)
    content = bytearray((directory / JOURNAL).read_bytes())
    position = data.draw(st.integers(0, ends[-2] - 1))
    content[position] ^= data.draw(st.integers(1, 255))
    (directory / JOURNAL).write_bytes(content)
    with pytest.raises(MetadataError) as raised:
        Opened(directory)
    message = str(raised.value)
    assert str(directory / JOURNAL) in message
    if position >= ends[0]:
        damaged = max(end for end in ends if end <= position)
        assert f"damaged at byte {damaged}:" in message
        assert "Restore the file from a backup" in message
    assert (directory / JOURNAL).read_bytes() == bytes(content), "nothing was changed"


def test_a_garbled_last_group_is_cut_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ends = _write(tmp_path, [[b"one"], [b"two"]])
    content = bytearray((tmp_path / JOURNAL).read_bytes())
    content[-1] ^= 1
    (tmp_path / JOURNAL).write_bytes(content)
    assert Opened(tmp_path).applied == [b"one"]
    assert f"cutting them off at {ends[1]}" in caplog.text
    assert (tmp_path / JOURNAL).stat().st_size == ends[1]


def test_a_crash_between_snapshot_and_new_journal_applies_nothing_twice(tmp_path: Path) -> None:
    _write(tmp_path, [[b"one"], [b"two"]])
    old = (tmp_path / JOURNAL).read_bytes()
    _write(tmp_path, [[b"three"]], journal_bytes_min=1)
    assert (tmp_path / SNAPSHOT).exists()
    (tmp_path / JOURNAL).write_bytes(old)
    reopened = Opened(tmp_path)
    assert reopened.applied == [b"one", b"two", b"three"]
    assert reopened.offset == 2


def test_the_journal_stays_bounded(tmp_path: Path) -> None:
    sizes = _write(tmp_path, [[b"x" * 100]] * 200, journal_bytes_min=1000)
    assert max(sizes) < 1000 + 4 * 25_000
    assert sum(after < before for before, after in zip(sizes, sizes[1:], strict=False)) >= 3


@pytest.mark.parametrize("damage", [0, 10, -1])
def test_a_damaged_snapshot_stops_the_start(tmp_path: Path, damage: int) -> None:
    _write(tmp_path, [[b"one"], [b"two"]], journal_bytes_min=1)
    content = bytearray((tmp_path / SNAPSHOT).read_bytes())
    content[damage] ^= 0x40
    (tmp_path / SNAPSHOT).write_bytes(content)
    with pytest.raises(MetadataError, match="metadata.snapshot is damaged"):
        Opened(tmp_path)


def test_a_lost_journal_or_snapshot_stops_the_start(tmp_path: Path) -> None:
    _write(tmp_path, [[b"one"], [b"two"]], journal_bytes_min=1)
    journal = (tmp_path / JOURNAL).read_bytes()
    (tmp_path / JOURNAL).unlink()
    with pytest.raises(MetadataError, match="metadata.journal is missing"):
        Opened(tmp_path)
    (tmp_path / JOURNAL).write_bytes(journal)
    (tmp_path / SNAPSHOT).unlink()
    with pytest.raises(MetadataError, match="metadata.snapshot is missing"):
        Opened(tmp_path)


class FullDisk(RealDisk):
    """Refuses to let files grow while `full`; fails to sync while `dying`."""

    def __init__(self) -> None:
        self.full = False
        self.dying = False

    def open(self, path: str, *, create: bool = False, writable: bool = False) -> object:  # type: ignore[override]
        disk, file = self, super().open(path, create=create, writable=writable)

        class Wrapped:
            def __getattr__(self, name: str) -> object:
                return getattr(file, name)

            def pwrite(self, data: bytes, position: int) -> int:
                if disk.full:
                    file.pwrite(data[: len(data) // 2], position)
                    raise OSError(28, "No space left on device")
                return file.pwrite(data, position)

            def sync(self) -> None:
                if disk.dying:
                    raise OSError(5, "Input/output error")
                file.sync()

        return Wrapped()


def test_a_full_disk_refuses_and_recovers(tmp_path: Path) -> None:
    disk, runtime, applied = FullDisk(), InlineRuntime(), list[bytes]()
    log = LocalMetadataLog(disk, str(tmp_path), runtime)
    log.open(applied.extend, lambda: applied)
    log.serve()
    outcomes: list[list[Exception | None]] = [[], [], []]
    log.propose([b"one"], outcomes[0].append)
    runtime.settle()
    disk.full = True
    log.propose([b"two"], outcomes[1].append)
    runtime.settle()
    disk.full = False
    log.propose([b"three"], outcomes[2].append)
    runtime.settle()
    assert outcomes[0] == outcomes[2] == [None]
    assert isinstance(outcomes[1][0], OSError)
    assert len(outcomes[1]) == 1
    assert applied == [b"one", b"three"]
    assert Opened(tmp_path).applied == applied


def test_nothing_is_accepted_after_a_failed_sync(tmp_path: Path) -> None:
    disk, runtime, applied = FullDisk(), InlineRuntime(), list[bytes]()
    log = LocalMetadataLog(disk, str(tmp_path), runtime)
    log.open(applied.extend, lambda: applied)
    log.serve()
    outcomes: list[list[Exception | None]] = [[], [], []]
    disk.dying = True
    log.propose([b"one"], outcomes[0].append)
    log.propose([b"waits"], outcomes[1].append)
    runtime.settle()
    disk.dying = False
    log.propose([b"two"], outcomes[2].append)
    runtime.settle()
    assert [len(outcome) for outcome in outcomes] == [1, 1, 1]
    assert all(isinstance(outcome[0], OSError) for outcome in outcomes)
    assert applied == []


def test_proposals_during_a_write_are_written_together(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    order: list[str] = []
    for name in ("a", "b", "c"):
        opened.log.propose([name.encode()], lambda error, name=name: order.append(name))  # type: ignore[misc]
    assert len(opened.runtime.threads) == 1
    with contextlib.suppress(IndexError):
        opened.runtime.threads.pop(0)()
    assert order == ["a"]
    assert len(opened.runtime.threads) == 1
    opened.runtime.settle()
    assert order == ["a", "b", "c"]
