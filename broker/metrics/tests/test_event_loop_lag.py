"""The metric of the event loop's stalls."""

from __future__ import annotations

from barnabas.broker.metrics.process import STALL_S, EventLoopLag
from compat_tests.virtual.runtime import VirtualRuntime


def test_a_long_turn_is_counted() -> None:
    runtime = VirtualRuntime()
    processor = iter(range(10_000))
    lag = EventLoopLag(runtime, lambda: next(processor) / 1000)
    lag.start()
    runtime.advance(1)
    assert (lag.stalls, lag.longest_s < STALL_S) == (0, True)
    for seconds in (3.0, STALL_S / 2, 0.5):
        runtime.held_until = runtime.monotonic() + seconds
        runtime.advance(5)
    assert lag.stalls == 2
    assert 2.9 < lag.longest_s <= 3.0
    assert 0.0005 < lag.longest_busy_s < 0.0015, "asked at both ends of each tick"
    lag.stop()
    runtime.held_until = runtime.monotonic() + 10
    runtime.advance(20)
    assert lag.stalls == 2
