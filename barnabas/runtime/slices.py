"""Work over many logs that never holds the loop: a little of it on each turn.

A pass is a generator that yields after each small step. Ten thousand logs take a few dozen turns, between
which requests are served.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any, Generic, TypeAlias, TypeVar

from barnabas.runtime.interface import Runtime, Timer

T = TypeVar("T")

# Work in steps: it yields None where others may be served, and what a thread is to do, whose result it is sent.
Steps: TypeAlias = "Generator[Callable[[], Any] | None, Any, T]"

logger = logging.getLogger("barnabas.storage")

TURN_S = 0.002  # what one turn of the loop may spend on a pass


def in_slices(runtime: Runtime, steps: Iterator[object], done: Callable[[], object]) -> None:
    """Go through `steps` in turns of at most TURN_S, then call `done`, even when a step has raised."""

    def turn() -> None:
        deadline = runtime.monotonic() + TURN_S
        try:
            for _ in steps:
                if runtime.monotonic() >= deadline:
                    runtime.call_soon(turn)
                    return
        except Exception:  # the next pass tries again
            logger.exception("a background pass ended early")
        done()

    turn()


class TooManySteps(Exception):
    """Work takes longer than it may."""


def run_through(steps: Steps[T], steps_max: int | None = None) -> T:
    """Do all of the work here and now. TooManySteps when it yields more often than `steps_max`."""
    sent: Any = None
    error: Exception | None = None
    count = 0
    while steps_max is None or count <= steps_max:
        count += 1
        try:
            work = steps.send(sent) if error is None else steps.throw(error)
        except StopIteration as stop:
            result: T = stop.value
            return result
        sent = error = None
        if work is not None:
            try:
                sent = work()
            except Exception as failure:  # noqa: BLE001 - handed over
                error = failure
    steps.close()
    raise TooManySteps


class StepQueue:
    """Does pieces of work in the order in which they come, at most `at_once` at a time: each in turns of at most TURN_S on
    the loop, and in threads where it says so. What a piece holds in memory is held `at_once` times at most."""

    def __init__(self, runtime: Runtime, at_once: int = 1) -> None:
        self._runtime = runtime
        self._free = at_once
        self._waiting: deque[_Piece[Any]] = deque()

    def add(self, steps: Steps[T], done: Callable[[T | None, BaseException | None], object]) -> None:
        """`done(result, error)` on the loop, once, and never before this returns."""
        self._waiting.append(_Piece(self._runtime, steps, done, self._ended))
        self._begin()

    def _begin(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            self._runtime.call_soon(self._waiting.popleft().turn)

    def _ended(self) -> None:
        self._free += 1
        self._begin()


class _Piece(Generic[T]):
    def __init__(
        self,
        runtime: Runtime,
        steps: Steps[T],
        done: Callable[[T | None, BaseException | None], object],
        ended: Callable[[], object],
    ) -> None:
        self._runtime = runtime
        self._steps = steps
        self._done = done
        self._ended = ended

    def turn(self, sent: Any = None, error: BaseException | None = None) -> None:
        """Go on until the time is up, or there is work for a thread; `sent` and `error` are what has come of that."""
        deadline = self._runtime.monotonic() + TURN_S
        try:
            while True:
                work = self._steps.send(sent) if error is None else self._steps.throw(error)
                sent = error = None
                if work is not None:
                    self._runtime.run_in_thread(work, self.turn)
                    return
                if self._runtime.monotonic() >= deadline:
                    self._runtime.call_soon(self.turn)
                    return
        except StopIteration as stop:
            self._end(stop.value, None)
        except Exception as failure:  # noqa: BLE001 - handed over
            self._end(None, failure)

    def _end(self, result: T | None, error: BaseException | None) -> None:
        self._ended()
        self._done(result, error)


class Periodic:
    """Calls `run(done)` again and again, `interval_s` after the last one has said `done()`, until stopped."""

    def __init__(
        self,
        runtime: Runtime,
        first_s: float,
        interval_s: float,
        run: Callable[[Callable[[], object]], object],
    ) -> None:
        self._runtime = runtime
        self._interval_s = interval_s
        self._run = run
        self._stopped = False
        self._timer: Timer = runtime.call_later(min(first_s, interval_s), self._begin)

    def _begin(self) -> None:
        if not self._stopped:
            self._run(self._again)

    def _again(self) -> None:
        if not self._stopped:
            self._timer = self._runtime.call_later(self._interval_s, self._begin)

    def stop(self) -> None:
        """Never run again. A pass under way ends at its own time."""
        self._stopped = True
        self._timer.cancel()
