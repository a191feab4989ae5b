"""Timers that heartbeats push back, against a list of deadlines; and what a process does that stood still."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from barnabas.broker.groups.timers import DeadlineTimer
from barnabas.wire.errors import ErrorCode as E
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


def test_members_are_not_failed_by_a_coordinator_that_stood_still(bench: Any) -> None:
    ids, generation = bench.stable(2)
    bench.clock.pass_ms(9_000)  # of 10,000
    bench.clock.hold_until(bench.clock.monotonic() + 14)
    bench.clock.pass_ms(14_000)
    assert [bench.heartbeat(member_id, generation) for member_id in ids] == [E.NONE] * 2
    bench.clock.pass_ms(9_999)
    assert bench.heartbeat(ids[0], generation) == E.NONE
    bench.clock.pass_ms(1)
    assert bench.heartbeat(ids[1], generation) == E.UNKNOWN_MEMBER_ID
