"""Coroutines on a virtual runtime, for clients that are easier to read as a sequence than as callbacks.

There is no other clock or thread: a task waits for a `Result` until it is set. A task whose runtime has ended never
continues.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from compat_tests.virtual.runtime import VirtualRuntime

T = TypeVar("T")


class Result(Generic[T]):
    """A future: a value or an exception; the first one that is set counts."""

    def __init__(self) -> None:
        self.is_done = False
        self._value: T | None = None
        self._error: Exception | None = None
        self._waiting: list[Callable[[], object]] = []

    def set(self, value: T) -> None:
        if not self.is_done:
            self._value = value
            self._finish()

    def fail(self, error: Exception) -> None:
        if not self.is_done:
            self._error = error
            self._finish()

    def _finish(self) -> None:
        self.is_done = True
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()

    def when_done(self, callback: Callable[[], object]) -> None:
        if self.is_done:
            callback()
        else:
            self._waiting.append(callback)

    def __await__(self) -> Generator[Result[Any], None, T]:
        if not self.is_done:
            yield self
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # it is set


class Task:
    """A coroutine that runs on a runtime. An exception that it raises leaves the world's event."""

    def __init__(self, runtime: VirtualRuntime, coroutine: Coroutine[Any, Any, object]) -> None:
        self._runtime = runtime
        self._coroutine = coroutine
        self.ended: Result[None] = Result()
        runtime.call_soon(self._step)

    @property
    def is_done(self) -> bool:
        return self.ended.is_done

    def _step(self) -> None:
        try:
            awaited = self._coroutine.send(None)
        except StopIteration:
            self.ended.set(None)
            return
        awaited.when_done(self._continue)

    def _continue(self) -> None:
        self._runtime.call_soon(self._step)


def sleep(runtime: VirtualRuntime, seconds: float) -> Result[None]:
    """A result to await, set after so many seconds."""
    result: Result[None] = Result()
    runtime.call_later(seconds, lambda: result.set(None))
    return result


def within(runtime: VirtualRuntime, result: Result[T], seconds: float, error: Exception) -> Result[T]:
    """The same result, which fails with `error` after `seconds`."""
    timer = runtime.call_later(seconds, lambda: result.fail(error))
    result.when_done(timer.cancel)
    return result
