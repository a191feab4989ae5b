"""Where gaps begin and end: the heartbeat of a connection, the checkpoint, and causes that become one gap."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.nats.carrier import CarrierStats
from barnabas.nats.client.client import ClientListener
from barnabas.nats.client.errors import AUTHORIZATION, SERVER_GONE, SLOW_CONSUMER, Cause, NotConnected
from barnabas.nats.client.heartbeat import EVERY_S, EXPLAINS_WITHIN_S, STANDSTILL_S, Heartbeat
from barnabas.nats.client.protocol import ServerInfo
from barnabas.nats.ingress import gap_checkpoint as gap_checkpoint_module
from barnabas.nats.ingress.gap_checkpoint import GapCheckpoint, ReceivedUntil
from barnabas.nats.ingress.gap_tracker import CAUSE_CHARACTERS_MAX, GapLog, GapTracker, shown_time
from barnabas.nats.tests.client_world import ClientWorld, into
from barnabas.nats.tests.ingests import no_backfill
from barnabas.testing.memory_disk import MemoryDisk
from compat_tests.harness.eventually import eventually_async
from compat_tests.harness.nats_server import NatsServer
from compat_tests.virtual.runtime import VirtualRuntime

# -- the log of gaps


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1000

    def __call__(self) -> int:
        return self.now_ms


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("begin"), st.integers(0, 500)),
            st.tuples(st.just("end"), st.just(0)),
            st.tuples(st.just("search"), st.just(0)),
            st.tuples(st.just("found"), st.integers(0, 900)),
            st.tuples(st.just("wait"), st.integers(1, 300)),
        )
    )
)
def test_gaps_cover_what_was_missed(steps: list[tuple[str, int]]) -> None:
    clock, stats = Clock(), CarrierStats()
    gaps = GapLog("t", stats, clock, lambda: None)
    away: list[tuple[int, int | None]] = []  # from when to when, each cause and search for itself
    is_away, searches, began = False, 0, 0
    for what, number in steps:
        if what == "begin":
            gaps.begin(clock.now_ms - number, "cause")
            if is_away or (searches and away):
                away[-1] = min(away[-1][0], clock.now_ms - number), None
            else:
                away.append((clock.now_ms - number, None))
                began += 1
            is_away = True
        elif what == "end":
            gaps.end()
            if is_away:
                away[-1] = away[-1][0], clock.now_ms
            is_away = False
        elif what == "search" and is_away and not searches:
            gaps.search()
            searches = 1
        elif what == "found" and searches:
            searches = 0
            gaps.found(number)
            away[-1] = min(away[-1][0], number), away[-1][1]
        elif what == "wait":
            clock.now_ms += number
    kept = [(gap.begin_ms, gap.end_ms or None) for gap in stats.gaps]
    if searches and kept:  # told of when it is over
        assert kept[-1][1] is None
        kept[-1] = kept[-1][0], away[-1][1]
    assert kept == away
    assert stats.gap_count == began
    if not searches:
        assert stats.gap_ms == sum(end - begin for begin, end in away if end is not None)
        assert (gaps.open is None) == (not is_away)


def test_a_gap_under_search_ends_once() -> None:
    clock, stats = Clock(), CarrierStats()
    gaps = GapLog("orders", stats, clock, lambda: None)
    gaps.begin(900, "server gone")
    gaps.search()
    gaps.end()
    clock.now_ms = 5000
    gaps.end()
    gaps.found(800)
    assert [(gap.begin_ms, gap.end_ms) for gap in stats.gaps] == [(800, 1000)]


def test_a_gap_with_many_causes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    clock, stats = Clock(), CarrierStats()
    known: list[int] = []
    gaps = GapLog("orders", stats, clock, lambda: known.append(clock.now_ms))
    gaps.begin(900, "server gone")
    gaps.begin(950, "the binding is paused")
    for number in range(100):
        gaps.begin(940, f"cause {number}")
    clock.now_ms = 2000
    gaps.end()
    gaps.end()
    assert known == [2000]
    (gap,) = stats.gaps
    assert (gap.begin_ms, gap.end_ms) == (900, 2000)
    assert gap.cause.startswith("server gone; then the binding is paused; then cause 0")
    assert len(gap.cause) < CAUSE_CHARACTERS_MAX + 20
    assert len(caplog.messages) == 2
    assert "from 1970-01-01T00:00:00.900Z to 1970-01-01T00:00:02.000Z (1.100 s) may be missing" in caplog.text
    assert shown_time(0) == "1970-01-01T00:00:00.000Z"


def test_a_broker_that_stops_leaves_an_open_gap_open(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    gaps = GapLog("orders", CarrierStats(), clock, lambda: None)
    gaps.leave()
    assert not caplog.messages
    gaps = GapLog("orders", CarrierStats(), clock, lambda: None)
    gaps.begin(900, "server gone")
    gaps.leave()
    gaps.end()
    assert gaps.open is not None
    assert (
        "the broker stops while messages published from 1970-01-01T00:00:00.900Z on may be missing: server gone"
        in caplog.text
    )
    assert len(caplog.messages) == 2


# -- what the server has answered


class Answers:
    """A client as far as a heartbeat knows one; a test answers."""

    def __init__(self) -> None:
        self.listeners: list[ClientListener] = []
        self.is_connected = True
        self.asked: list[Callable[[NotConnected | None], object]] = []

    def flush(self, done: Callable[[NotConnected | None], object]) -> None:
        self.asked.append(done)


def beating(runtime: VirtualRuntime) -> tuple[Heartbeat, Answers]:
    client = Answers()
    heartbeat = Heartbeat(runtime, client)  # type: ignore[arg-type]
    heartbeat.start()
    return heartbeat, client


def test_an_answer_counts_from_its_request() -> None:
    runtime = VirtualRuntime()
    heartbeat, client = beating(runtime)
    told: list[int] = []
    heartbeat.on_beat.append(told.append)
    heartbeat.connected(ServerInfo())
    begun_ms = runtime.time_ms()
    assert heartbeat.until_ms == begun_ms
    runtime.advance(EVERY_S)
    runtime.advance(5 * EVERY_S)  # no further question while one is open
    (answer,) = client.asked
    assert heartbeat.until_ms == begun_ms
    answer(None)
    runtime.run_until_idle()
    assert told == [begun_ms + 1000] == [heartbeat.until_ms]
    runtime.advance(EVERY_S)
    client.asked[1](NotConnected("gone"))
    runtime.run_until_idle()
    assert told == [begun_ms + 1000]
    heartbeat.stop()
    runtime.advance(10)
    assert len(client.asked) == 2


def test_a_stalled_process_was_a_slow_consumer() -> None:
    runtime = VirtualRuntime()
    heartbeat, _ = beating(runtime)
    gone, refused = Cause(SERVER_GONE, "closed"), Cause(AUTHORIZATION)
    runtime.advance(2)
    assert heartbeat.explained(gone) == gone
    runtime.hold_until(runtime.monotonic() + STANDSTILL_S + 2)
    runtime.advance(STANDSTILL_S + 2)
    explained = heartbeat.explained(gone)
    assert explained.kind == SLOW_CONSUMER
    assert "stood still" in explained.detail
    assert heartbeat.explained(refused) == refused
    runtime.advance(EXPLAINS_WITHIN_S)
    assert heartbeat.explained(gone) == gone


def test_an_absence_lists_each_kind_of_cause_once() -> None:
    runtime = VirtualRuntime()
    heartbeat, client = beating(runtime)
    intake: Any = SimpleNamespace(heartbeat=heartbeat, client=client)
    stats = CarrierStats()
    gaps = GapLog("t", stats, runtime.time_ms, lambda: None)
    gap_tracker = GapTracker(
        runtime, intake, "t", gaps, no_backfill(runtime, gaps), lambda: True, lambda: True
    )
    gap_tracker.start(())
    heartbeat.connected(ServerInfo())
    gap_tracker.subscribed()
    heard_ms = heartbeat.until_ms
    runtime.advance(EVERY_S / 2)
    gap_tracker.disconnected(Cause(SERVER_GONE, "closed"))
    for detail in ("no connection", "nothing for 5 s"):
        gap_tracker.unreachable(Cause(SERVER_GONE, detail))
        gap_tracker.unreachable(Cause(AUTHORIZATION, "look at nats.user"))
    assert gap_tracker.connected()
    gap_tracker.subscribed()
    assert gaps.open is None
    (gap,) = stats.gaps
    assert (gap.begin_ms, gap.cause) == (
        heard_ms,
        "server gone: closed; then authorization: look at nats.user",
    )
    gap_tracker.unreachable(Cause(AUTHORIZATION))
    assert gaps.open is None
    gap_tracker.stop()
    heartbeat.stop()


def test_messages_that_wait_for_the_log_are_not_counted_as_stored() -> None:
    """A broker that ends loses it: its gap begins with what was in the log."""
    runtime = VirtualRuntime()
    heartbeat, client = beating(runtime)
    intake: Any = SimpleNamespace(heartbeat=heartbeat, client=client)
    stats = CarrierStats()
    gaps = GapLog("t", stats, runtime.time_ms, lambda: None)
    is_whole = True
    gap_tracker = GapTracker(
        runtime, intake, "t", gaps, no_backfill(runtime, gaps), lambda: True, lambda: is_whole
    )
    gap_tracker.start(())
    heartbeat.connected(ServerInfo())
    gap_tracker.subscribed()
    in_log_ms = gaps.until_ms
    assert in_log_ms
    is_whole = False
    runtime.advance(10)
    gap_tracker.disconnected(Cause(SERVER_GONE, "closed"))
    runtime.advance(1)
    gap_tracker.connected()
    gap_tracker.subscribed()
    assert stats.gaps[-1].end_ms == runtime.time_ms()
    assert gaps.until_ms == in_log_ms
    heartbeat.until_ms = runtime.time_ms()  # all has been heard, and still waits
    gap_tracker.ends("the binding is paused")  # which drops what waits
    assert gaps.open is not None
    assert gaps.open.begin_ms == in_log_ms
    is_whole = True
    gap_tracker.subscribed()
    assert gaps.until_ms == runtime.time_ms()
    gap_tracker.stop()
    heartbeat.stop()


def test_asking_the_server_calls_back_with_its_answer() -> None:
    runtime = VirtualRuntime()
    heartbeat, client = beating(runtime)
    heartbeat.connected(ServerInfo())
    told: list[int] = []
    runtime.advance(EVERY_S / 4)
    asked_ms = runtime.time_ms()
    heartbeat.ask(lambda: told.append(heartbeat.until_ms))
    runtime.advance(EVERY_S / 4)
    client.asked[0](None)
    runtime.run_until_idle()
    heartbeat.ask(lambda: told.append(heartbeat.until_ms))
    client.asked[1](NotConnected("gone"))
    runtime.run_until_idle()
    assert told == [asked_ms, asked_ms]
    heartbeat.stop()


@pytest.mark.sockets
def test_a_real_server_answers(world: ClientWorld, shared_nats_server: NatsServer) -> None:
    async def run() -> None:
        client, _ = world.client(shared_nats_server.url)
        heartbeat = Heartbeat(world.runtime, client)
        messages: list[tuple[bytes, bytes, bytes, bytes]] = []
        client.subscribe("beats.>", into(messages))
        await eventually_async(lambda: client.is_connected)
        first_ms = heartbeat.until_ms
        heartbeat.start()
        client.publish(b"beats.a", b"")
        await eventually_async(lambda: heartbeat.until_ms > first_ms)
        assert len(messages) == 1
        heartbeat.stop()

    world.run(run())


# -- what is written down


class World:
    def __init__(self) -> None:
        self.disk, self.runtime = MemoryDisk(), VirtualRuntime()
        self.disk.make_directory("/d")

    def gap_checkpoint(self) -> GapCheckpoint:
        return GapCheckpoint(self.disk, "/d/attendance", self.runtime)


TOPICS = {b"\1" * 16: 1_700_000_000_000, b"\2" * 16: 5}


@pytest.fixture
def a_boot(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def set_boot(boot: str) -> None:
        monkeypatch.setattr(gap_checkpoint_module, "_boot_id", lambda: boot)

    set_boot("first")
    return set_boot


def test_the_file_survives_the_process(a_boot: Callable[[str], None]) -> None:
    world = World()
    assert world.gap_checkpoint().load() == ReceivedUntil({}, False)
    gap_checkpoint = world.gap_checkpoint()
    gap_checkpoint.note(TOPICS)
    world.runtime.run_until_idle()
    assert world.gap_checkpoint().load() == ReceivedUntil(TOPICS, True)
    a_boot("second")  # the machine has failed
    assert world.gap_checkpoint().load() == ReceivedUntil(TOPICS, False)
    a_boot("")
    assert world.gap_checkpoint().load() == ReceivedUntil(TOPICS, False)
    gap_checkpoint.close({b"\3" * 16: 7})
    assert world.gap_checkpoint().load() == ReceivedUntil(
        {b"\3" * 16: 7}, True
    )  # stopped, before it went off


def test_unchanged_times_are_not_written() -> None:
    world = World()
    gap_checkpoint = world.gap_checkpoint()
    gap_checkpoint.close({})
    assert not world.disk.exists("/d/attendance")
    gap_checkpoint.note(TOPICS)
    world.runtime.run_until_idle()
    world.disk.remove("/d/attendance")
    gap_checkpoint.note(dict(TOPICS))
    world.runtime.run_until_idle()
    assert not world.disk.exists("/d/attendance")


@given(st.binary(max_size=100))
def test_a_damaged_file_is_ignored(content: bytes) -> None:
    world = World()
    world.disk.write_file("/d/attendance", content)
    assert world.gap_checkpoint().load() == ReceivedUntil({}, False)


def test_a_truncated_file_is_ignored(a_boot: Callable[[str], None]) -> None:
    world = World()
    world.gap_checkpoint().close(TOPICS)
    whole = world.disk.read_file("/d/attendance")
    for size in range(len(whole)):
        world.disk.write_file("/d/attendance", whole[:size])
        assert world.gap_checkpoint().load() == ReceivedUntil({}, False)


def test_a_failed_write_is_logged_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    gap_checkpoint = world.gap_checkpoint()
    world.disk.fault = lambda operation, _path: errno.ENOSPC if operation == "write" else None
    for number in range(50):
        gap_checkpoint.note({b"\1" * 16: number})
        world.runtime.advance(1)
    assert len(caplog.messages) == 1
    world.disk.fault = None
    gap_checkpoint.note(TOPICS)
    world.runtime.run_until_idle()
    assert world.gap_checkpoint().load().until_ms == TOPICS
