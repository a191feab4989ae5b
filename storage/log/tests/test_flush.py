"""What `flush` promises while a rolled segment's own sync still runs, and for the names of new files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def lose_everything_unsynced(unsynced_bytes: int) -> int:
    return 0


def test_a_flush_does_not_run_ahead_of_the_thread_that_syncs_a_rolled_segment(workshop: Any) -> None:
    log = workshop.log()
    waiting: list[Callable[[], object]] = []
    workshop.runtime.run_in_thread = lambda work, _done: waiting.append(work)
    sent = [workshop.batch(timestamp=workshop.now + index) for index in range(3)]
    log.append_as_leader(sent[0], 0)
    log.flush()
    log.append_as_leader(sent[1], 0)  # behind the recovery point, in the segment that is rolled next
    log.roll()
    assert waiting, "the rolled segment's sync waits for its thread"
    log.append_as_leader(sent[2], 0)
    log.flush()
    workshop.disk = workshop.disk.crash(lose_everything_unsynced)
    found = workshop.content(workshop.log(clean=False))
    assert [batch[16:] for batch in found] == [batch[16:] for batch in sent]


def test_a_flush_does_not_run_ahead_of_a_removed_segment_that_a_start_would_find(workshop: Any) -> None:
    """Torn by the power failure, it would be where the start ends the log."""
    log = workshop.log()
    waiting: list[Callable[[], object]] = []
    workshop.runtime.run_in_thread = lambda work, _done: waiting.append(work)
    sent = [workshop.batch(timestamp=workshop.now + index) for index in range(3)]
    for batch in sent[:2]:
        log.append_as_leader(batch, 0)
    log.roll()
    log.append_as_leader(sent[2], 0)
    log.increment_log_start_offset(2)
    assert waiting, "the removed segment keeps its name until a thread has synced the next one's"
    log.flush()
    workshop.disk = workshop.disk.crash(lambda unsynced: unsynced // 2)
    found = workshop.content(workshop.log(clean=False))
    assert found[-1][16:] == sent[2][16:]


def test_a_flush_syncs_the_names_of_new_files_once(workshop: Any) -> None:
    synced: list[str] = []
    workshop.disk.fault = lambda operation, path: synced.append(path) if operation == "sync" else None
    log = workshop.log()
    for rolled in (False, True):
        synced.clear()
        if rolled:
            log.roll()
        log.append_as_leader(workshop.batch(), 0)
        log.flush()
        assert {"/logs", "/logs/t-0"} <= set(synced)
        synced.clear()
        log.append_as_leader(workshop.batch(), 0)
        log.flush()
        assert synced == [log.segments[-1].path]


def test_flush_ms_makes_everything_durable_in_that_time(workshop: Any) -> None:
    """The names of the files too, and over several segments."""
    log = workshop.log(flush_ms=500, segment_bytes=250)
    for index in range(6):
        log.append_as_leader(workshop.batch(timestamp=workshop.now + index), 0)
    assert len(log.segments) > 1
    sent = workshop.content(log)
    workshop.runtime.advance(0.6)
    assert log.flusher.recovery_point == log.log_end_offset
    workshop.disk = workshop.disk.crash(lose_everything_unsynced)
    assert workshop.content(workshop.log(clean=False)) == sent


def test_segments_whose_syncs_end_in_another_order_are_all_behind_the_recovery_point(workshop: Any) -> None:
    log = workshop.log()
    waiting: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], object]]] = []
    workshop.runtime.run_in_thread = lambda work, done: waiting.append((work, done))
    for index in range(3):
        log.append_as_leader(workshop.batch(timestamp=workshop.now + index), 0)
        log.roll()
    first, second, third = waiting
    for work, done in (third, second):
        done(work(), None)
        assert log.flusher.recovery_point == 0
    work, done = first
    done(work(), None)
    assert log.flusher.recovery_point == log.log_end_offset
