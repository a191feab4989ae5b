"""Waiting until something has changed, in threads and in coroutines."""

from __future__ import annotations

import asyncio  # noqa: TID251 - for tests that wait in a loop of their own
import threading  # noqa: TID251 - for those that wait in a thread
import time  # noqa: TID251 - and for how long
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

WAIT_SECONDS: Final = 30.0


class Changes:
    """Wakes waiting threads and coroutines; `notify` may be called from any thread."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], object]] = []

    def notify(self) -> None:
        """Something has changed."""
        for wake in tuple(self._waiting):
            wake()

    def wait(self, is_so: Callable[[], bool], timeout_s: float, *, instead: str) -> bool:
        """Whether `is_so()` within `timeout_s`; it is called again at each change. RuntimeError in a coroutine, which calls the
        method `instead`."""
        _refuse_in_loop(instead)
        deadline = time.monotonic() + timeout_s
        changed = threading.Event()
        self._waiting.append(changed.set)
        try:
            while not is_so():
                if not changed.wait(max(0.0, deadline - time.monotonic())):
                    return False
                changed.clear()
        finally:
            self._waiting.remove(changed.set)
        return True

    async def wait_async(self, is_so: Callable[[], bool], timeout_s: float) -> bool:
        """As `wait`, in a coroutine."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        changed = asyncio.Event()
        wake = partial(_set_soon, changed, loop)
        self._waiting.append(wake)
        try:
            while not is_so():
                await asyncio.wait_for(changed.wait(), max(0.0, deadline - loop.time()))
                changed.clear()
        except TimeoutError:
            return False
        finally:
            self._waiting.remove(wake)
        return True


def _set_soon(changed: asyncio.Event, loop: asyncio.AbstractEventLoop) -> None:
    with suppress(RuntimeError):  # the loop has ended meanwhile
        loop.call_soon_threadsafe(changed.set)


def _refuse_in_loop(instead: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(f"this blocks the loop that runs now: await {instead}(...) instead")
