"""Procedures that ask and wait, written from top to bottom: `async` functions without an event loop of their own.

Setting up a consumer is a dozen requests, each of which may fail. Such a procedure awaits `Answer`s; `Steps` runs it
and goes on with it from the callback of whatever it waits for. `cancel` ends it where it stands. What messages take on
their way is none of this: it is plain callbacks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from barnabas.runtime.interface import Runtime

log = logging.getLogger("barnabas.nats")

T = TypeVar("T")
Done = Callable[["T | None", "BaseException | None"], object]


class Answer(Generic[T]):
    """What `begin(done)` will call back with: await it for the result; the error is raised there."""

    __slots__ = ("begin",)

    def __init__(self, begin: Callable[[Callable[[T | None, Any], object]], object]) -> None:
        self.begin = begin

    def __await__(self) -> Generator[Answer[T], T, T]:
        return (yield self)


def pause(runtime: Runtime, seconds: float) -> Answer[bool]:
    """Await it to go on later."""
    return Answer(lambda done: runtime.call_later(seconds, lambda: done(True, None)))


def in_thread(runtime: Runtime, work: Callable[[], T]) -> Answer[T]:
    """Await what `work` returns; it runs off the loop."""
    return Answer(lambda done: runtime.run_in_thread(work, done))


class Steps:
    """One run of a procedure. It begins at once; `ended(error)` is called when it returns (None) or raises an Exception."""

    __slots__ = ("_ended", "_is_over", "_procedure")

    def __init__(
        self, procedure: Coroutine[Any, Any, None], ended: Callable[[Exception | None], object]
    ) -> None:
        self._procedure = procedure
        self._ended = ended
        self._is_over = False
        self._go_on(None, None)

    def cancel(self) -> None:
        """Nothing of it happens any more, nor is `ended` called."""
        if not self._is_over:
            self._is_over = True
            try:
                self._procedure.close()
            except ValueError:  # it is what calls this: it ends when it waits next
                pass

    def _go_on(self, result: Any, error: BaseException | None) -> None:
        while not self._is_over:
            try:
                answer = self._procedure.send(result) if error is None else self._procedure.throw(error)
            except StopIteration:
                self._end(None)
                return
            except Exception as problem:  # noqa: BLE001 - `ended` is told of it
                self._end(problem)
                return
            if self._is_over:
                self._procedure.close()
                return
            # An answer that is there before `begin` returns must not nest the next one in it.
            waiting = _Waiting(self)
            try:
                answer.begin(waiting)
            except Exception as problem:  # noqa: BLE001 - raised in the procedure, which has asked for it
                waiting(None, problem)
            if not waiting.came:
                waiting.is_late = True
                return
            result, error = waiting.result, waiting.error

    def _end(self, error: Exception | None) -> None:
        if not self._is_over:
            self._is_over = True
            self._ended(error)
        elif error is not None:
            log.debug("a procedure that was given up ended with %r", error)


class _Waiting:
    """The callback of one answer."""

    __slots__ = ("came", "error", "is_late", "result", "steps")

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.came = False
        self.is_late = False
        self.result: Any = None
        self.error: BaseException | None = None

    def __call__(self, result: Any, error: BaseException | None) -> None:
        if self.came:
            return
        self.came = True
        if self.is_late:
            self.steps._go_on(result, error)
        else:
            self.result, self.error = result, error
