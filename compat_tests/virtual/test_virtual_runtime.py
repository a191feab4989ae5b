"""The virtual clock, compared with a slow and obvious model, and the order of its events."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compat_tests.virtual.runtime import VirtualRuntime

delays = st.integers(min_value=0, max_value=50)


def noting(runtime: VirtualRuntime, seen: list[tuple[float, int]], number: int) -> Callable[[], None]:
    return lambda: seen.append((runtime.monotonic(), number))


@given(timers=st.lists(st.tuples(delays, st.booleans())), steps=st.lists(delays, max_size=8))
def test_timers_run_at_their_time_in_order(timers: list[tuple[int, bool]], steps: list[int]) -> None:
    runtime = VirtualRuntime()
    seen: list[tuple[float, int]] = []
    for number, (delay, cancelled) in enumerate(timers):
        timer = runtime.call_later(delay, noting(runtime, seen, number))
        if cancelled:
            timer.cancel()
    for step in steps:
        runtime.advance(step)
    runtime.run_until_idle()
    expected = sorted((d, n) for n, (d, cancelled) in enumerate(timers) if not cancelled and d <= sum(steps))
    assert seen == expected
    assert runtime.monotonic() == sum(steps)


def test_a_callback_that_schedules_another_within_the_step_runs_both() -> None:
    runtime = VirtualRuntime(start_ms=1000)
    seen: list[int] = []
    runtime.call_later(1, lambda: runtime.call_later(1, lambda: seen.append(runtime.time_ms())))
    runtime.advance(1.5)
    assert seen == []
    runtime.advance(0.5)
    assert seen == [3000]


def test_threads_return_results_and_errors_in_order() -> None:
    runtime = VirtualRuntime()
    seen: list[object] = []
    runtime.run_in_thread(lambda: 7, lambda result, error: seen.append((result, error)))
    runtime.run_in_thread(lambda: 1 // 0, lambda result, error: seen.append((result, type(error))))
    assert seen == []
    runtime.run_until_idle()
    assert seen == [(7, None), (None, ZeroDivisionError)]


def test_the_seed_decides_randomness() -> None:
    first, same, other = VirtualRuntime(1), VirtualRuntime(1), VirtualRuntime(2)
    drawn = first.random_bytes(16)
    assert drawn == same.random_bytes(16) != other.random_bytes(16)


def test_a_port_can_be_taken_once() -> None:
    runtime = VirtualRuntime()
    server = runtime.listen("127.0.0.1", 0, object)
    with pytest.raises(OSError, match="in use"):
        runtime.listen("127.0.0.1", server.port, object)
    server.close()
    runtime.listen("127.0.0.1", server.port, object)
