"""A binding of which too much waits: it stops its connection for a moment, and leaves it to others after that."""

from __future__ import annotations

from typing import Any, cast

from barnabas.nats.ingress.backpressure import OTHERS_WAIT_S, SLOW_FOR_S, Backpressure
from compat_tests.virtual.runtime import VirtualRuntime


class Connection:
    """The intake, as far as it matters here."""

    def __init__(self) -> None:
        self.is_shared = True
        self.holding: set[object] = set()

    def hold(self, who: object) -> None:
        self.holding.add(who)

    def let_go(self, who: object) -> None:
        self.holding.discard(who)


class Bench:
    def __init__(self) -> None:
        self.runtime = VirtualRuntime()
        self.connection = Connection()
        self.told: list[str] = []
        self.overflow = Backpressure(
            self.runtime,
            cast("Any", self.connection),
            lambda: self.told.append("aside"),
            lambda: self.told.append("back"),
        )

    def pass_time(self, seconds: float) -> None:
        self.runtime.advance(seconds)
        self.runtime.run_until_idle()


def test_a_short_pause_unsubscribes_nothing() -> None:
    bench = Bench()
    for _ in range(3):
        bench.overflow.changed(True)
        bench.pass_time(0.9 * OTHERS_WAIT_S)
        assert bench.connection.holding
        bench.overflow.changed(False)
        assert not bench.connection.holding
    bench.pass_time(10 * OTHERS_WAIT_S)
    assert bench.told == []


def test_a_full_binding_unsubscribes_when_others_wait() -> None:
    bench = Bench()
    bench.connection.is_shared = False
    bench.overflow.changed(True)
    bench.pass_time(2.5 * OTHERS_WAIT_S)
    assert bench.told == []
    assert bench.connection.holding
    bench.connection.is_shared = True
    bench.pass_time(OTHERS_WAIT_S)
    assert bench.told == ["aside"]
    assert not bench.connection.holding
    bench.overflow.changed(False)
    bench.overflow.changed(True)  # before its turn to return
    bench.pass_time(OTHERS_WAIT_S)
    assert not bench.connection.holding
    assert bench.told == ["aside"]
    bench.overflow.changed(False)
    bench.pass_time(0)
    assert bench.told == ["aside", "back"]


def test_a_slow_log_unsubscribes_at_once_the_next_time() -> None:
    bench = Bench()
    bench.overflow.changed(True)
    bench.pass_time(OTHERS_WAIT_S)
    for _ in range(3):
        bench.overflow.changed(False)
        bench.pass_time(1)
        bench.overflow.changed(True)
        bench.pass_time(0.01)
        assert bench.overflow.is_unsubscribed
    bench.overflow.changed(False)
    bench.pass_time(SLOW_FOR_S)
    bench.overflow.changed(True)
    bench.pass_time(0.9 * OTHERS_WAIT_S)
    assert not bench.overflow.is_unsubscribed


def test_a_stopped_binding_does_not_subscribe_again() -> None:
    bench = Bench()
    bench.overflow.changed(True)
    bench.pass_time(OTHERS_WAIT_S)
    bench.overflow.changed(False)
    bench.overflow.stop()
    bench.pass_time(OTHERS_WAIT_S)
    assert bench.told == ["aside"]


def test_a_stopped_binding_pauses_no_connection() -> None:
    bench = Bench()
    bench.overflow.changed(True)
    bench.overflow.stop()
    assert not bench.connection.holding
    bench.overflow.changed(False)
    bench.overflow.changed(True)
    assert not bench.connection.holding
    bench.pass_time(10 * OTHERS_WAIT_S)
    assert bench.told == []
