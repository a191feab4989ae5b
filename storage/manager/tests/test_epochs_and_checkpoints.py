"""Leader epochs and checkpoint files."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.storage.disk.checkpoint_file import (
    CheckpointError,
    format_checkpoint,
    parse_checkpoint,
    read_offsets,
    write_offsets,
)
from barnabas.testing.memory_disk import MemoryDisk


def test_the_file_is_kafkas(workshop: Any) -> None:
    log = workshop.log()
    log.assign_epoch_start_offset(0)
    log.append_as_leader(workshop.batch(3), 0)
    log.append_as_leader(workshop.batch(2), 4)
    assert workshop.disk.read_file("/logs/t-0/leader-epoch-checkpoint") == b"0\n2\n0 0\n4 3\n"


def test_end_offsets(workshop: Any) -> None:
    log = workshop.log()
    assert log.epoch_end_offset(0) == (-1, -1)
    for epoch, count in ((2, 3), (2, 1), (5, 2), (6, 1)):
        log.append_as_leader(workshop.batch(count), epoch)
    answers = {epoch: log.epoch_end_offset(epoch) for epoch in range(-1, 8)}
    assert answers == {
        -1: (-1, -1),
        0: (0, 0),
        1: (1, 0),
        2: (2, 4),
        3: (2, 4),
        4: (2, 4),
        5: (5, 6),
        6: (6, 7),
        7: (-1, -1),
    }
    assert [log.epochs.epoch_for_offset(offset) for offset in (0, 3, 4, 5, 6)] == [2, 2, 5, 5, 6]


def test_a_lost_file_is_found_again_in_the_batches(workshop: Any) -> None:
    log = workshop.log()
    for epoch in (1, 1, 3):
        log.append_as_leader(workshop.batch(2), epoch)
    workshop.disk.remove("/logs/t-0/leader-epoch-checkpoint")
    log = workshop.log(clean=False)
    assert log.epoch_end_offset(1) == (1, 4)
    assert workshop.disk.read_file("/logs/t-0/leader-epoch-checkpoint") == b"0\n2\n1 0\n3 4\n"


def test_epochs_follow_the_logs_ends(workshop: Any) -> None:
    log = workshop.log()
    for epoch in (1, 2, 3):
        log.append_as_leader(workshop.batch(2), epoch)
    log.increment_log_start_offset(3)
    assert log.epoch_end_offset(1) == (1, 3)
    assert log.epochs.epoch_for_offset(3) == 2
    log.truncate_to(4)
    assert log.epochs.latest_epoch == 2
    assert log.epoch_end_offset(2) == (2, 4)


def test_an_epoch_without_records_is_replaced_by_the_next(workshop: Any) -> None:
    log = workshop.log()
    for epoch in (0, 1, 2):
        log.assign_epoch_start_offset(epoch)
    assert log.epochs.unsaved
    log.save_epochs()
    assert workshop.disk.read_file("/logs/t-0/leader-epoch-checkpoint") == b"0\n1\n2 0\n"


def test_an_epoch_is_saved_before_its_records_are_synced(workshop: Any) -> None:
    log = workshop.log()
    log.assign_epoch_start_offset(3)
    log.append_as_leader(workshop.batch(1), 3)
    log.flush()
    assert workshop.disk.read_file("/logs/t-0/leader-epoch-checkpoint") == b"0\n1\n3 0\n"


@given(
    st.dictionaries(
        st.tuples(st.from_regex(r"[a-z._-]{1,9}", fullmatch=True), st.integers(0, 99)), st.integers(0)
    )
)
def test_offsets_round_trip(offsets: dict[tuple[str, int], int]) -> None:
    disk = MemoryDisk()
    disk.make_directory("/d")
    write_offsets(disk, "/d/checkpoint", offsets)
    assert read_offsets(disk, "/d/checkpoint") == offsets
    assert read_offsets(disk, "/d/absent") == {}


def test_the_format() -> None:
    assert format_checkpoint([("a", 0, 7), ("b", 1, 8)]) == b"0\n2\na 0 7\nb 1 8\n"


@pytest.mark.parametrize(
    "content", [b"0\n", b"1\n0\n", b"0\n2\na 0 1\n", b"x\ny\n", b"\xff\xfe", b"0\n1\na b c\n"]
)
def test_damage_is_reported(content: bytes) -> None:
    disk = MemoryDisk()
    disk.make_directory("/d")
    disk.write_file("/d/c", content)
    with pytest.raises(CheckpointError):
        read_offsets(disk, "/d/c")
    if content != b"0\n1\na b c\n":
        with pytest.raises(CheckpointError):
            parse_checkpoint(content)


def test_an_empty_checkpoint_file_of_kafka_has_no_offsets() -> None:
    disk = MemoryDisk()
    disk.make_directory("/d")
    disk.write_file("/d/c", b"")
    assert read_offsets(disk, "/d/c") == {}
