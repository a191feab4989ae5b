"""The window of message ids, read from a real log: after a restart, after a change of the leader, from a cold disk."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.partitions.partition import Partition
from barnabas.broker.tests.coordinator_world import Ticking, World
from barnabas.broker.tests.replicas import Replicas
from barnabas.nats.ingress.dedup import DedupWindow, kept_id
from barnabas.nats.ingress.dedup_rebuild import DedupRebuild
from barnabas.runtime.slices import StepQueue
from barnabas.storage.log.verification import VERIFICATION_OFF
from barnabas.wire.compression import Codec
from barnabas.wire.records import Record, build_batch
from compat_tests.virtual.runtime import VirtualRuntime

WINDOW_MS = 60_000


def batch(ids: list[bytes | None], timestamp: int, codec: Codec = Codec.NONE, **options: Any) -> bytes:
    records = []
    for number, identity in enumerate(ids):
        headers: list[tuple[str, bytes | None]] = [("nats.subject", b"a.b")]
        if identity is not None:
            headers.append(("Nats-Msg-Id", identity))
        records.append(Record(number, timestamp, b"k", b"v" * 50, headers))
    return build_batch(records, codec=codec, **options)


def begin(runtime: VirtualRuntime, rebuild: DedupRebuild) -> None:
    StepQueue(runtime).add(rebuild.steps(), lambda _result, _error: None)


def rebuilt(runtime: VirtualRuntime, partition: Partition, window: DedupWindow) -> list[Exception | None]:
    results: list[Exception | None] = []
    begin(runtime, DedupRebuild(runtime, partition, window, results.append))
    assert results == []
    runtime.run_until_idle()
    return results


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_ids_in_the_log_are_in_the_window(codec: Codec) -> None:
    world = World([1])
    partition = world.partition()
    now_ms = world.runtime.time_ms()
    partition.append(batch([b"old"], now_ms - WINDOW_MS, codec))
    partition.append(batch([b"a", None, b"b"], now_ms - WINDOW_MS + 1, codec))
    partition.append(batch([None, None], now_ms, codec))
    partition.append(batch([b"  c", b"a"], now_ms, codec))
    window = DedupWindow(WINDOW_MS)
    assert rebuilt(world.runtime, partition, window) == [None]
    assert [window.find(each, now_ms) for each in (b"old", b"a", b"b", b"c", b"d")] == [None, 1, 3, 6, None]
    assert window.last_id(partition.log.log_end_offset) == b"a"
    assert window.find(b"b", now_ms + 1) is None  # its time goes on
    assert window.find(b"c", now_ms + WINDOW_MS - 1) == 6


def test_an_empty_log_and_a_window_of_zero() -> None:
    world = World([1])
    partition = world.partition()
    window = DedupWindow(WINDOW_MS)
    assert rebuilt(world.runtime, partition, window) == [None]
    assert len(window) == 0
    partition.append(batch([b"a", b"b"], world.runtime.time_ms()))
    window = DedupWindow(0)
    assert rebuilt(world.runtime, partition, window) == [None]
    assert (len(window), window.last_id(2)) == (0, b"b")


def test_the_last_id_is_found_though_it_is_older_than_the_window() -> None:
    world = World([1])
    partition = world.partition()
    partition.append(batch([b"a"], world.runtime.time_ms() - 10 * WINDOW_MS))
    window = DedupWindow(WINDOW_MS)
    assert rebuilt(world.runtime, partition, window) == [None]
    assert (len(window), window.last_id(1)) == (0, b"a")


def test_ids_of_transactions_are_ignored() -> None:
    world = World([1])
    partition = world.partition()
    now_ms = world.runtime.time_ms()
    partition.append(
        batch([b"a"], now_ms, transactional=True, producer_id=1, producer_epoch=0, base_sequence=0),
        verification=VERIFICATION_OFF,
    )
    window = DedupWindow(WINDOW_MS)
    assert rebuilt(world.runtime, partition, window) == [None]
    assert window.find(b"a", now_ms) is None


def test_reading_leaves_the_loop_to_others() -> None:
    world = World([1], runtime=Ticking())
    partition = world.partition()
    now_ms = world.runtime.time_ms()
    for number in range(100):
        partition.append(batch([b"%d-%d" % (number, each) for each in range(20)], now_ms))
    turns: list[int] = []
    results: list[Exception | None] = []
    window = DedupWindow(WINDOW_MS)
    begin(world.runtime, DedupRebuild(world.runtime, partition, window, results.append))

    def turn() -> None:
        if not results:
            turns.append(len(window))
            world.runtime.call_soon(turn)

    turn()
    world.runtime.run_until_idle()
    assert results == [None]
    assert len(window) == 2000
    steps = [after - before for before, after in zip([0, *turns], turns, strict=False)]
    assert max(steps) <= 128
    assert len(turns) > 20


def test_a_cold_log_is_read_by_a_thread() -> None:
    world = World([1])
    now_ms = world.runtime.time_ms()
    for number in range(40):
        world.partition().append(batch([b"%d-%d" % (number, each) for each in range(5)], now_ms))
    world.manager.close()
    world.disk.is_cold = True
    world.open()
    window = DedupWindow(WINDOW_MS)
    assert rebuilt(world.runtime, world.partition(), window) == [None]
    assert window.find(b"39-4", now_ms) == 199
    assert len(window) == 200
    assert world.disk.warm


def test_partitions_are_read_one_after_the_other() -> None:
    world = World([1], partitions=4)
    now_ms = world.runtime.time_ms()
    for index in range(4):
        world.partition(index).append(batch([b"%d" % index], now_ms))
    queue = StepQueue(world.runtime)
    ended: list[tuple[int, list[int]]] = []
    windows = [DedupWindow(WINDOW_MS) for _ in range(4)]

    def done(index: int, _error: Exception | None) -> None:
        ended.append((index, [len(window) for window in windows]))

    rebuilds = [
        DedupRebuild(world.runtime, world.partition(index), window, partial(done, index))
        for index, window in enumerate(windows)
    ]
    for rebuild in rebuilds:
        queue.add(rebuild.steps(), lambda _result, _error: None)
    rebuilds[0].cancel()  # the first of the queue
    rebuilds[2].cancel()
    world.runtime.run_until_idle()
    assert ended == [(1, [0, 1, 0, 0]), (3, [0, 1, 0, 1])]


def test_a_cancelled_rebuild_does_not_call_back() -> None:
    world = World([1])
    world.partition().append(batch([b"a"], world.runtime.time_ms()))
    results: list[Exception | None] = []
    rebuild = DedupRebuild(world.runtime, world.partition(), DedupWindow(WINDOW_MS), results.append)
    begin(world.runtime, rebuild)
    rebuild.cancel()
    world.runtime.run_until_idle()
    assert results == []


def test_a_leadership_that_ends_during_the_rebuild_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    world = World([1, 2])
    world.partition().append(batch([b"a"], world.runtime.time_ms()))
    results: list[Exception | None] = []
    begin(
        world.runtime, DedupRebuild(world.runtime, world.partition(), DedupWindow(WINDOW_MS), results.append)
    )
    world.change(0, leader=2)
    world.runtime.run_until_idle()
    assert len(results) == 1
    assert "not led here" in str(results[0])
    assert "known in part" in caplog.text


def test_replicated_ids_are_in_the_window_of_the_next_leader() -> None:
    replicas = Replicas(leader=1)
    now_ms = replicas.alive[1].runtime.time_ms()
    replicas.alive[1].partition.append(batch([b"a", b"b"], now_ms))
    replicas.run(2)
    replicas.elect(2)
    replicas.run(1)
    successor = replicas.alive[2]
    window = DedupWindow(WINDOW_MS)
    results: list[Exception | None] = []
    begin(successor.runtime, DedupRebuild(successor.runtime, successor.partition, window, results.append))
    replicas.run(1)
    assert results == [None]
    assert [window.find(each, now_ms + 4_000) for each in (b"a", b"b", b"c")] == [0, 1, None]


_LOGS = st.lists(
    st.tuples(
        st.lists(
            st.one_of(st.none(), st.sampled_from([b"a", b"b", b"c", b"", b"x" * 70])), min_size=1, max_size=6
        ),
        st.integers(-2 * WINDOW_MS, 30_000),
    ),
    max_size=8,
)


@given(_LOGS)
def test_any_log(contents: list[tuple[list[bytes | None], int]]) -> None:
    world = World([1])
    partition = world.partition()
    now_ms = world.runtime.time_ms()
    expected: dict[bytes, int] = {}
    for ids, age in contents:
        result = partition.append(batch(ids, now_ms + age))
        for place, identity in enumerate(ids):
            if identity and age > -WINDOW_MS:
                expected.setdefault(identity, result.base_offset + place)
    window = DedupWindow(WINDOW_MS)
    assert rebuilt(world.runtime, partition, window) == [None]
    found = {each: window.find(kept_id(each), now_ms) for each in (b"a", b"b", b"c", b"x" * 70)}
    assert {each: offset for each, offset in found.items() if offset is not None} == expected
    last = contents[-1][0][-1] if contents else None
    assert window.last_id(partition.log.log_end_offset) == kept_id(last or b"")
