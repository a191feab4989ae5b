"""Waiting in tests: for a condition, never for a time.

The timeout guards against a test that hangs; nothing is measured by it. `stays` is for what must not happen: there passing
time itself is the input.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

Value = TypeVar("Value")

TIMEOUT_S = 60.0
PAUSE_FIRST_S, PAUSE_MAX_S = 0.002, 0.05  # between two checks; doubled each time


def eventually(
    check: Callable[..., Value], timeout: float = TIMEOUT_S, *, message: Callable[[], object] | None = None
) -> Value:
    """Call `check` until its value is true, and return it. AssertionError after `timeout` seconds, with `message()`."""
    for pause_s in _pauses(timeout):
        value = check()
        if value:
            return value
        time.sleep(pause_s)
    raise _not_so(timeout, value, message)


async def eventually_async(
    check: Callable[..., Value | Awaitable[Value]],
    timeout: float = TIMEOUT_S,
    *,
    message: Callable[[], object] | None = None,
) -> Value:
    """As `eventually`, while the running loop goes on; `check` may be a coroutine function."""
    for pause_s in _pauses(timeout):
        result = check()
        value: Value = await result if inspect.isawaitable(result) else result
        if value:
            return value
        await asyncio.sleep(pause_s)
    raise _not_so(timeout, value, message)


def stays(check: Callable[..., object], seconds: float) -> None:
    """`check` is true now and whenever it is called within `seconds`."""
    until = time.monotonic() + seconds
    while True:
        value = check()
        assert value, f"no longer so: {value!r}"
        if time.monotonic() >= until:
            return
        time.sleep(min(PAUSE_MAX_S, seconds / 10))


def _pauses(timeout: float) -> Iterator[float]:
    """The pause after each check, until the time is over; one check at least."""
    deadline = time.monotonic() + timeout
    pause_s = PAUSE_FIRST_S
    while True:
        yield pause_s
        if time.monotonic() > deadline:
            return
        pause_s = min(2 * pause_s, PAUSE_MAX_S)


def _not_so(timeout: float, value: object, message: Callable[[], object] | None) -> AssertionError:
    said = "" if message is None else f": {message()}"
    return AssertionError(f"not so within {timeout:g} s (last value {value!r}){said}")
