"""Timers that are set again and again, against a list of deadlines."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from barnabas.broker.coordinator.timers import DeadlineTimer
from compat_tests.virtual.runtime import VirtualRuntime

# Eighths of a second, in ms: sums of them are exact as floats, so the clock and the model agree on what is due.
amounts = st.integers(1, 50).map(lambda eighths: 125 * eighths)


@given(steps=st.lists(st.tuples(st.sampled_from(["set", "cancel", "pass"]), amounts), max_size=30))
@example(steps=[("pass", 125), ("set", 2500), ("pass", 625), ("pass", 1875)])
def test_it_expires_when_the_last_deadline_has_passed(steps: list[tuple[str, int]]) -> None:
    runtime = VirtualRuntime()
    expired: list[int] = []
    timer = DeadlineTimer(runtime, lambda: expired.append(round(runtime.monotonic() * 1000)))
    expected: list[int] = []
    now, deadline = 0, None
    for what, amount in steps:
        if what == "set":
            timer.set(amount)
            deadline = now + amount
        elif what == "cancel":
            timer.cancel()
            deadline = None
        else:
            now += amount
            runtime.advance(amount / 1000)
            if deadline is not None and deadline <= now:
                expected.append(deadline)
                deadline = None
        assert timer.armed == (deadline is not None)
    assert expired == expected
