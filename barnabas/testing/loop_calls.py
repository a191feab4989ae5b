"""Calls from other threads on a broker's loop, which wait for their result as long as the broker runs.

Waiting callers get BrokerFailed at the broker's end: what the loop has not done by then it will never do.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - the loop is what this file is about
import threading  # noqa: TID251 - so are the threads beside it
from concurrent.futures import Future  # noqa: TID251 - as above
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


class BrokerFailed(RuntimeError):
    """The broker did not start, could not go on, or was stopped before it had done what it was asked to do."""


class LoopCalls:
    """Of one run of a broker. Made, and ended with `end`, on the loop's thread; the rest is for all others."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._is_ending = False
        self._has_ended = False
        self._awaited: set[Future[Any]] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    def call(self, function: Callable[[], T]) -> T:
        """What the function returns or raises there. BrokerFailed."""

        def begin(future: Future[T]) -> None:
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001 - the caller's
                future.set_exception(error)
            else:
                future.set_result(result)

        return self._await(begin)

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What the coroutine returns or raises there. BrokerFailed."""

        def begin(future: Future[T]) -> None:
            task = self._loop.create_task(work())
            self._tasks.add(task)
            task.add_done_callback(partial(self._ran, future))

        return self._await(begin)

    def cancel(self) -> None:
        """On the loop, some turns before `end`: begin nothing any more, let go what takes longer than the broker lives."""
        self._is_ending = True
        for task in tuple(self._tasks):
            task.cancel()

    def end(self) -> None:
        """Tell those who wait."""
        with self._lock:
            self._has_ended = True
            awaited, self._awaited = self._awaited, set()
        for future in awaited:
            if not future.done():
                future.set_exception(_stopped())

    def stop_loop(self) -> None:
        """From any thread."""
        with self._lock:
            if not self._has_ended:
                self._loop.call_soon_threadsafe(self._loop.stop)

    def _await(self, begin: Callable[[Future[T]], object]) -> T:
        future: Future[T] = Future()
        with self._lock:
            if self._has_ended:
                raise _stopped()
            self._awaited.add(future)
            self._loop.call_soon_threadsafe(self._begin, begin, future)
        try:
            return future.result()
        finally:
            self._awaited.discard(future)

    def _begin(self, begin: Callable[[Future[T]], object], future: Future[T]) -> None:
        if not self._is_ending:
            begin(future)

    def _ran(self, future: Future[T], task: asyncio.Task[T]) -> None:
        self._tasks.discard(task)
        if future.done():
            return
        if task.cancelled():
            future.set_exception(_stopped())
        elif (error := task.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(task.result())


def _stopped() -> BrokerFailed:
    return BrokerFailed("the broker has been stopped")
