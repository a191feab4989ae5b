"""Procedures: `async` functions that wait for callbacks, without an event loop of their own.

A procedure awaits `Call`s. `Procedure` runs it and continues it from the callback of the call that it awaits, so a sequence
of requests, each of which may fail, is written from top to bottom. Messages and records do not pass through procedures.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from barnabas.runtime.interface import Runtime

log = logging.getLogger("barnabas.runtime")

T = TypeVar("T")


class Call(Generic[T]):
    """An asynchronous call: `begin(done)` starts it, and `done(result, error)` ends it, perhaps before `begin` returns. Await
    it for the result; the error is raised there."""

    __slots__ = ("begin",)

    def __init__(self, begin: Callable[[Callable[[T | None, Any], object]], object]) -> None:
        self.begin = begin

    def __await__(self) -> Generator[Call[T], T, T]:
        return (yield self)


def pause(runtime: Runtime, seconds: float) -> Call[bool]:
    """Await it to continue later."""
    return Call(lambda done: runtime.call_later(seconds, lambda: done(True, None)))


def in_thread(runtime: Runtime, work: Callable[[], T], *, remote: bool = False) -> Call[T]:
    """Await the result of `work`, which runs in a thread; `remote` as Runtime.run_in_thread says."""
    return Call(lambda done: runtime.run_in_thread(work, done, remote=remote))


class Procedure:
    """One run of an async function. `ended(error)` is called when it returns (None) or raises an Exception, unless it was
    cancelled before; perhaps within `start`."""

    __slots__ = ("_ended", "_is_over", "_procedure")

    def __init__(
        self, procedure: Coroutine[Any, Any, None], ended: Callable[[Exception | None], object]
    ) -> None:
        self._procedure = procedure
        self._ended = ended
        self._is_over = False

    def start(self) -> None:
        self._continue(None, None)

    def cancel(self) -> None:
        """Ends the procedure where it waits. `ended` is not called."""
        if not self._is_over:
            self._is_over = True
            try:
                self._procedure.close()
            except ValueError:  # the procedure itself calls this: it ends at its next call
                pass

    def _continue(self, result: Any, error: BaseException | None) -> None:
        while not self._is_over:
            try:
                call = self._procedure.send(result) if error is None else self._procedure.throw(error)
            except StopIteration:
                self._end(None)
                return
            except Exception as problem:  # noqa: BLE001 - passed to `ended`
                self._end(problem)
                return
            if self._is_over:
                self._procedure.close()
                return
            # A loop, because results that come before `begin` returns would nest without a limit.
            waiting = _Waiting(self)
            try:
                call.begin(waiting)
            except Exception as problem:  # noqa: BLE001 - raised in the procedure, which has made the call
                waiting(None, problem)
            if not waiting.is_done:
                waiting.is_late = True
                return
            result, error = waiting.result, waiting.error

    def _end(self, error: Exception | None) -> None:
        if not self._is_over:
            self._is_over = True
            self._ended(error)
        elif error is not None:
            log.debug("a cancelled procedure ended with %r", error)


class _Waiting:
    """The callback of one call. Only its first result counts."""

    __slots__ = ("error", "is_done", "is_late", "procedure", "result")

    def __init__(self, procedure: Procedure) -> None:
        self.procedure = procedure
        self.is_done = False
        self.is_late = False  # `begin` has returned
        self.result: Any = None
        self.error: BaseException | None = None

    def __call__(self, result: Any, error: BaseException | None) -> None:
        if self.is_done:
            return
        self.is_done = True
        if self.is_late:
            self.procedure._continue(result, error)
        else:
            self.result, self.error = result, error
