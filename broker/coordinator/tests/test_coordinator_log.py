"""A coordinator's log over real partitions: loading off the requests' way, and appends that wait for the others."""

from __future__ import annotations

from itertools import pairwise

import pytest

from barnabas.broker.coordinator import compacted_records as last_records
from barnabas.broker.coordinator import loading as coordinator_loading
from barnabas.broker.coordinator.compacted_records import CompactedRecords
from barnabas.broker.coordinator.loading import replay_partition
from barnabas.broker.tests.coordinator_world import CONFIG, Ticking, World
from barnabas.storage.compaction.cleaner import CleanerSettings, LogCleaner
from barnabas.storage.errors import StorageError
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.records import Record, build_batch


def test_records_of_several_segments_are_replayed_in_order() -> None:
    world = World([1])
    for number in range(200):
        assert world.append(number) == [E.NONE]
    keys, ended, _ = world.load()
    assert ended == [None]
    assert keys == [b"%d" % number for number in range(200)]
    assert world.load(1)[:2] == ([], [None])


def test_a_thread_reads_records_that_are_not_in_memory() -> None:
    world = World([1])
    for number in range(100):
        world.append(number)
    world.manager.close()
    world.disk.is_cold = True
    world.open()
    world.disk.warm.clear()
    keys, ended, _ = world.load()
    behind = world.load(1)[1]
    assert (keys, ended, behind) == ([], [], [])
    world.runtime.run_until_idle()
    assert keys == [b"%d" % number for number in range(100)]
    assert ended == behind == [None]
    world.manager.close()


def test_records_are_removed_while_a_thread_reads_them() -> None:
    world = World([1])
    for number in range(100):
        world.append(number)
    world.manager.close()
    world.disk.is_cold = True
    world.open()
    world.disk.warm.clear()
    keys, ended, _ = world.load()
    assert (keys, ended) == ([], []), "a thread reads"
    world.partition().log.increment_log_start_offset(40)
    world.runtime.run_until_idle()
    assert ended == [None]
    assert keys == [b"%d" % number for number in range(40, 100)]
    world.manager.close()


def test_requests_are_served_while_a_partition_is_loaded() -> None:
    runtime = Ticking()
    world = World([1], runtime=runtime)
    for number in range(50):
        world.append(number)
    runtime.run_until_idle()
    keys, ended, _ = world.load()
    turns: list[int] = []

    def request() -> None:
        turns.append(len(keys))
        if not ended:
            runtime.call_soon(request)

    request()
    runtime.run_until_idle()
    assert ended == [None]
    assert len(keys) == 50
    assert len(turns) > 10
    assert max(after - before for before, after in pairwise(turns)) < 10


@pytest.mark.parametrize("leader", [2, -1])
def test_a_partition_lost_while_it_is_loaded(leader: int) -> None:
    runtime = Ticking()
    world = World([1, 2], runtime=runtime)
    world.change(0, isr=[1])
    for number in range(50):
        assert world.append(number) == [E.NONE]
    keys, ended, _ = world.load()
    behind = world.load(1)[1]
    assert (ended, 0 < len(keys) < 50) == ([], True)
    world.change(0, leader=leader, isr=[2])
    runtime.run_until_idle()
    (error,) = ended
    assert isinstance(error, StorageError)
    assert error.error == E.NOT_LEADER_OR_FOLLOWER
    assert len(keys) < 50
    assert behind == [None]


def test_after_a_cancelled_loading_the_next_one_begins() -> None:
    runtime = Ticking()
    world = World([1], runtime=runtime)
    for number in range(50):
        world.append(number)
        world.append(number, 1)
    keys, ended, loading = world.load()
    behind_keys, behind, _ = world.load(1)
    loading.cancel()
    before = len(keys)
    runtime.run_until_idle()
    assert (len(keys), ended) == (before, [])
    assert (len(behind_keys), behind) == (50, [None])


def test_uncommitted_records_are_loaded() -> None:
    world = World([1, 2])
    answers = [world.append(number) for number in range(3)]
    keys, ended, _ = world.load()
    assert (len(keys), ended, answers) == (3, [None], [[], [], []])
    held: list[E] = []
    world.log.when_committed(0, held.append)
    later = world.append(3)
    world.partition().follower_fetched(2, 102, 2, 0)
    assert (held, answers) == ([], [[E.NONE], [E.NONE], []])
    world.partition().follower_fetched(2, 102, 3, 0)
    assert (held, answers[2], later) == ([E.NONE], [E.NONE], [])
    world.log.when_committed(9, held.append)
    assert held[1:] == [E.NOT_LEADER_OR_FOLLOWER]


def test_appends_that_followers_lack_fail_with_the_leadership() -> None:
    world = World([1, 2])
    answer = world.append(0)
    held: list[E] = []
    world.log.when_committed(0, held.append)
    world.change(0, leader=2, isr=[2])
    assert answer == held == [E.NOT_LEADER_OR_FOLLOWER]
    assert world.append(1) == [E.NOT_LEADER_OR_FOLLOWER]


def test_an_append_needs_enough_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONFIG, "min.insync.replicas", "2")
    world = World([1, 2, 3])
    world.change(0, isr=[1])
    assert world.append(0) == [E.NOT_ENOUGH_REPLICAS]
    assert world.partition().log.log_end_offset == 0
    assert world.append(0, 9) == [E.NOT_LEADER_OR_FOLLOWER]


def test_a_log_is_cleaned_while_it_is_loaded_and_is_short_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(CONFIG, "cleanup.policy", "compact")
    monkeypatch.setattr(coordinator_loading, "READ_BYTES", 4096)
    monkeypatch.setattr(last_records, "STEP", 8)
    world = World([1])
    last: dict[bytes | None, bytes | None] = {}
    for number in range(900):
        key, value = b"%d" % (number % 7), b"%d" % number
        record = Record(0, 1_700_000_000_000, key, value * 20)
        world.log.append(0, build_batch([record]), lambda _: None)
        last[key] = value * 20
    world.storage_runtime.run_until_idle()
    cleaner = LogCleaner(world.manager, world.disk, world.runtime, CleanerSettings())
    cleaner.start()
    before = world.partition().log.size
    assert before > 100_000
    taken: dict[bytes | None, bytes | None] = {}
    replay = CompactedRecords("", taken.__setitem__)
    steps = replay_partition(world.partition(), replay, lambda: False)
    while replay.next_offset < 300:
        next(steps)
    world.runtime.advance(60)
    assert world.partition().log.size < before / 10
    assert not any(steps), "nothing was left to a thread"
    assert taken == last
    cleaner.stop()
    world.manager.close()
    world.open()
    records: list[bytes | None] = []
    ended: list[Exception | None] = []
    world.log.load(0, CompactedRecords("", lambda key, _: records.append(key), every=True), ended.append)
    assert ended == [None]
    assert set(records) == set(last)
    assert len(records) < 100
