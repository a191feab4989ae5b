"""`eventually`, `eventually_async` and `stays`: what they return and what they raise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from compat_tests.harness.eventually import eventually, eventually_async, stays, stays_async


def in_turn(values: list[object]) -> Callable[[], object]:
    """The values in turn; an exception is raised."""
    turns = iter(values)

    def check() -> object:
        value = next(turns)
        if isinstance(value, Exception):
            raise value
        return value

    return check


def test_the_first_true_value_is_returned() -> None:
    assert eventually(in_turn([0, None, "yes", "no"])) == "yes"
    assert asyncio.run(eventually_async(in_turn([0, None, "yes", "no"]))) == "yes"


def test_a_coroutine_function_is_awaited() -> None:
    check = in_turn([0, 7])

    async def later() -> object:
        return check()

    assert asyncio.run(eventually_async(later)) == 7


def test_errors_to_retry_on_count_as_false_and_others_are_raised() -> None:
    assert eventually(in_turn([OSError(), 1]), retry_on=(OSError,)) == 1
    assert asyncio.run(eventually_async(in_turn([OSError(), 1]), retry_on=(OSError,))) == 1
    with pytest.raises(KeyError):
        eventually(in_turn([OSError(), KeyError("k")]), retry_on=(OSError,))


def test_the_last_value_and_the_message_are_shown() -> None:
    with pytest.raises(AssertionError, match=r"within 0 s \(last 0\): all is lost"):
        eventually(lambda: 0, 0, message=lambda: "all is lost")
    with pytest.raises(AssertionError, match=r"within 0 s \(last OSError\('x'\)\)"):
        asyncio.run(eventually_async(in_turn([OSError("x")] * 9), 0, retry_on=(OSError,)))


def test_what_stays_is_checked_more_than_once() -> None:
    calls: list[int] = []

    def check() -> bool:
        calls.append(1)
        return True

    stays(check, 0.01)
    asyncio.run(stays_async(check, 0.01))
    assert len(calls) > 3
    with pytest.raises(AssertionError, match="no longer so"):
        stays(in_turn([True, False]), 60)
    with pytest.raises(AssertionError, match="no longer so"):
        asyncio.run(stays_async(in_turn([True, False]), 60))
