"""Snapshots of the producers: when they are written, which is used, and what opening a log reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from barnabas.storage.log.log import Log
from barnabas.storage.log.producer_snapshot import CorruptSnapshot, decode_snapshot, encode_snapshot
from barnabas.storage.log.producers import ProducerEntry
from barnabas.storage.segment.transaction_marker import build_marker
from barnabas.storage.tests.workshop import verified

DIRECTORY = "/logs/t-0"
SMALL = {"segment_bytes": 1000, "index_interval_bytes": 200}


def snapshots(workshop: Any) -> list[int]:
    return [int(name[:20]) for name in workshop.disk.list(DIRECTORY) if name.endswith(".snapshot")]


def snapshot_file(workshop: Any, offset: int) -> Any:
    return workshop.disk.files[f"{DIRECTORY}/{offset:020d}.snapshot"]


def fill(workshop: Any, log: Log, batches: int, start: int = 0, producers: int = 3) -> None:
    """Batches of several producers, every tenth without a producer, each tenth transaction aborted."""
    for number in range(start, start + batches):
        producer = number % producers
        log.append_as_leader(
            workshop.batch(2, producer_id=producer, producer_epoch=0, base_sequence=number // producers * 2),
            0,
        )


def state(log: Log) -> dict[int, tuple[int, ...]]:
    return {
        key: (entry.producer_epoch, entry.last_sequence, entry.last_offset, entry.last_timestamp)
        for key, entry in log.producers.active.items()
    }


def test_one_at_each_roll_and_one_at_a_clean_close(workshop: Any) -> None:
    log = workshop.log(**SMALL)
    assert snapshots(workshop) == []
    fill(workshop, log, 25)
    bases = [segment.base_offset for segment in log.segments]
    assert snapshots(workshop) == bases[1:]
    known = state(log)
    log.close()
    assert snapshots(workshop) == [*bases[1:], log.log_end_offset]
    for offset in bases[1:]:
        entries = decode_snapshot(bytes(snapshot_file(workshop, offset).data))
        assert max(entry.last_offset for entry in entries) == offset - 1
    reopened = workshop.log(**SMALL)
    assert state(reopened) == known
    fill(workshop, reopened, 30, 25)
    reopened.close()
    workshop.log(**SMALL)
    assert log.log_end_offset not in snapshots(workshop), (
        "what belongs to no segment goes, but for the newest"
    )


def test_they_go_with_their_segments(workshop: Any) -> None:
    log = workshop.log(**SMALL, file_delete_delay_ms=0)
    fill(workshop, log, 30)
    log.increment_log_start_offset(log.log_end_offset - 1)
    assert snapshots(workshop) == [log.segments[0].base_offset]
    fill(workshop, log, 30, 30)
    offset = log.segments[1].base_offset + 2
    log.truncate_to(offset)
    assert max(snapshots(workshop)) <= offset


def test_an_empty_log_has_none(workshop: Any) -> None:
    workshop.log().close()
    workshop.log(clean=False).close()
    assert snapshots(workshop) == []


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", ["empty", "short", "bit", "version"])
def test_a_damaged_one_gives_way_to_an_older_one(workshop: Any, damage: str, clean: bool) -> None:
    log = workshop.log(**SMALL)
    fill(workshop, log, 30)
    log.close()
    known = state(log)
    for offset in snapshots(workshop)[-2:]:
        data = snapshot_file(workshop, offset).data
        if damage == "empty":
            data.clear()
        elif damage == "short":
            del data[-1]
        elif damage == "bit":
            data[-1] ^= 1
        else:
            data[1] = 2
    reopened = workshop.log(clean=clean, recovery_point=log.log_end_offset, **SMALL)
    assert state(reopened) == known


def test_without_any_the_log_is_read(workshop: Any) -> None:
    log = workshop.log(**SMALL)
    fill(workshop, log, 30)
    log.close()
    for offset in snapshots(workshop):
        workshop.disk.remove(f"{DIRECTORY}/{offset:020d}.snapshot")
    assert state(workshop.log(**SMALL)) == state(log)


@pytest.mark.parametrize("clean", [True, False])
def test_opening_reads_no_more_than_the_tail(workshop: Any, clean: bool) -> None:
    settings = {"segment_bytes": 200_000, "index_interval_bytes": 1000}
    log = workshop.log(**settings)
    fill(workshop, log, 3000)
    log.close()
    assert len(log.segments) > 1
    known = state(log)
    read: list[str] = []
    original = workshop.disk.check

    def note(operation: str, path: str) -> None:
        if operation == "read":
            read.append(path)
        original(operation, path)

    workshop.disk.check = note
    reopened = workshop.log(clean=clean, recovery_point=log.log_end_offset, **settings)
    assert state(reopened) == known
    of_logs = [path for path in read if path.endswith(".log")]
    assert 0 < len(of_logs) < 10
    assert (
        len({path for path in of_logs if not path.endswith(f"{log.segments[-1].base_offset:020d}.log")}) <= 1
    )


def test_recovery_twice_changes_nothing(workshop: Any) -> None:
    log = workshop.log(**SMALL)
    fill(workshop, log, 20)
    batch = workshop.batch(1, producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
    log.append_as_leader(batch, 0, verification=verified(log, batch))
    abort = build_marker(9, 0, commit=False, coordinator_epoch=0, timestamp=workshop.now)
    log.append_as_leader(abort, 0, from_client=False)
    fill(workshop, log, 20, 20)
    for recovery_point in (0, log.segments[2].base_offset, log.log_end_offset):
        found = []
        for _ in range(2):
            again = workshop.log(clean=False, recovery_point=recovery_point, **SMALL)
            files = {
                name: bytes(file.data)
                for name, file in workshop.disk.files.items()
                if name.startswith(DIRECTORY) and not name.endswith(".deleted")
            }
            found.append((files, state(again), again.producers.collect_aborted(0, again.log_end_offset)))
        assert found[0] == found[1]
        assert state(again) == state(log)
        assert again.producers.collect_aborted(0, again.log_end_offset) == log.producers.collect_aborted(
            0, log.log_end_offset
        )


entries = st.builds(
    ProducerEntry,
    producer_id=st.integers(0, 2**63 - 1),
    producer_epoch=st.integers(0, 2**15 - 1),
    last_timestamp=st.integers(-1, 2**62),
    coordinator_epoch=st.integers(-1, 2**31 - 1),
    current_transaction_first_offset=st.integers(-1, 2**63 - 1),
)


@given(st.lists(entries, max_size=5))
def test_snapshots_round_trip(listed: list[ProducerEntry]) -> None:
    assert decode_snapshot(encode_snapshot(listed)) == listed


@given(st.binary(max_size=120))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bytes_from_outside_are_refused(content: bytes) -> None:
    with pytest.raises(CorruptSnapshot):
        decode_snapshot(content)


def test_a_new_epoch_forgets_the_batches_of_the_last(make_workshop: Callable[[], Any]) -> None:
    """A marker that raises the epoch leaves a producer without a batch, also in the snapshot."""
    workshop = make_workshop()
    log = workshop.log()
    fill(workshop, log, 1, producers=1)
    bump = build_marker(0, 1, commit=True, coordinator_epoch=0, timestamp=workshop.now)
    log.append_as_leader(bump, 0, from_client=False)
    log.close()
    (entry,) = workshop.log().producers.active.values()
    assert (entry.producer_epoch, entry.last_sequence, entry.last_offset) == (1, -1, -1)


def emptied(workshop: Any) -> tuple[dict[int, tuple[int, ...]], int]:
    """A log whose records have all been removed, and that knows its producers; ended by a crash. (They, its end)."""
    log = workshop.log(**SMALL, file_delete_delay_ms=0)
    fill(workshop, log, 30)
    log.roll()
    known = state(log)
    log.increment_log_start_offset(log.log_end_offset)
    log.remove_segments_below(log.log_end_offset)
    assert [segment.base_offset for segment in log.segments] == [log.log_end_offset]
    return known, log.log_end_offset


def test_the_snapshot_of_the_logs_start_is_used_whatever_has_been_synced(workshop: Any) -> None:
    known, end = emptied(workshop)
    reopened = workshop.log(clean=False, recovery_point=0, start=end, **SMALL)
    assert state(reopened) == known


@pytest.mark.parametrize("clean", [True, False])
def test_a_snapshot_of_removed_batches_is_not_used(workshop: Any, clean: bool) -> None:
    known, end = emptied(workshop)
    content = bytes(snapshot_file(workshop, end).data)
    workshop.disk.remove(f"{DIRECTORY}/{end:020d}.snapshot")
    workshop.disk.write_file(f"{DIRECTORY}/{end - 20:020d}.snapshot", content)
    reopened = workshop.log(clean=clean, recovery_point=end, start=end, **SMALL)
    assert known
    assert state(reopened) == {}
    assert snapshots(workshop) == []
