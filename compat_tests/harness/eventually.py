"""Waiting in tests: for a condition, never for a time.

The timeout only ends a test that hangs. `stays` asserts that something does not happen: there passing time itself is the
input.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar, overload

Value = TypeVar("Value")
Errors = tuple[type[BaseException], ...]

TIMEOUT_S = 60.0
PAUSE_FIRST_S, PAUSE_MAX_S = 0.002, 0.05  # between two checks; doubled each time


def eventually(
    check: Callable[..., Value],
    timeout: float = TIMEOUT_S,
    *,
    retry_on: Errors = (),
    message: Callable[[], object] | None = None,
) -> Value:
    """Call `check` until its value is true, and return it; an exception of `retry_on` counts as false. AssertionError after
    `timeout` seconds, with `message()`."""
    last: object = None
    for pause_s in _pauses(timeout):
        try:
            value = check()
        except retry_on as error:
            last = error
        else:
            if value:
                return value
            last = value
        time.sleep(pause_s)
    raise _not_so(timeout, last, message)


@overload
async def eventually_async(
    check: Callable[..., Awaitable[Value]],
    timeout: float = ...,
    *,
    retry_on: Errors = ...,
    message: Callable[[], object] | None = ...,
) -> Value: ...


@overload
async def eventually_async(
    check: Callable[..., Value],
    timeout: float = ...,
    *,
    retry_on: Errors = ...,
    message: Callable[[], object] | None = ...,
) -> Value: ...


async def eventually_async(
    check: Callable[..., Any],
    timeout: float = TIMEOUT_S,
    *,
    retry_on: Errors = (),
    message: Callable[[], object] | None = None,
) -> Any:
    """As `eventually`, while the running loop goes on; `check` may be a coroutine function."""
    last: object = None
    for pause_s in _pauses(timeout):
        try:
            value = check()
            if inspect.isawaitable(value):
                value = await value
        except retry_on as error:
            last = error
        else:
            if value:
                return value
            last = value
        await asyncio.sleep(pause_s)
    raise _not_so(timeout, last, message)


def stays(check: Callable[..., object], seconds: float) -> None:
    """`check` is true now, whenever it is called within `seconds`, and after them."""
    for pause_s in _steps(seconds):
        value = check()
        assert value, f"no longer so: {value!r}"
        time.sleep(pause_s)
    assert check(), "no longer so"


async def stays_async(check: Callable[..., object], seconds: float) -> None:
    """As `stays`, while the running loop goes on."""
    for pause_s in _steps(seconds):
        value = check()
        assert value, f"no longer so: {value!r}"
        await asyncio.sleep(pause_s)
    assert check(), "no longer so"


def _pauses(timeout: float) -> Iterator[float]:
    """The pause after each check, until the time is over; one check at least."""
    deadline = time.monotonic() + timeout
    pause_s = PAUSE_FIRST_S
    while True:
        yield pause_s
        if time.monotonic() > deadline:
            return
        pause_s = min(2 * pause_s, PAUSE_MAX_S)


def _steps(seconds: float) -> Iterator[float]:
    """Pauses that come to `seconds`."""
    until = time.monotonic() + seconds
    while (left_s := until - time.monotonic()) > 0:
        yield min(PAUSE_MAX_S, seconds / 10, left_s)


def _not_so(timeout: float, last: object, message: Callable[[], object] | None) -> AssertionError:
    text = "" if message is None else f": {message()}"
    return AssertionError(f"not so within {timeout:g} s (last {last!r}){text}")
