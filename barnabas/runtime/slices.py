"""Long work in slices: a few milliseconds of each turn of the loop, so that requests are served in between.

The work is a generator that yields after each small step. A pass over ten thousand logs takes a few dozen turns.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any, Generic, TypeAlias, TypeVar

from barnabas.runtime.interface import Runtime, Timer

T = TypeVar("T")

# Work in steps: it yields None where a turn may end, or a function for a thread, whose result it is sent.
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


class WorkQueue:
    """Does pieces of work in the order in which they come, one at a time, on the loop. A piece is an iterator that yields after
    each step; what fits into a slice is done before `add` returns."""

    def __init__(self, runtime: Runtime, log: logging.Logger) -> None:
        self._runtime = runtime
        self._log = log
        self._pieces: deque[Iterator[object]] = deque()
        self._working = False

    def add(self, piece: Iterator[object]) -> None:
        """Begin with it now, or when all before it is done. One that raises is logged and ends there."""
        self._pieces.append(piece)
        if not self._working:
            self._working = True
            in_slices(self._runtime, self._steps(), self._rest)

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call back when everything added so far is done; now when it is."""
        if self._pieces:
            self._pieces.append(_call(callback))
        else:
            callback()

    def _steps(self) -> Iterator[object]:
        while self._pieces:
            try:
                yield from self._pieces[0]
            except Exception:  # noqa: BLE001 - logged, and the pieces behind it go on
                self._log.exception("a piece of work ended early")
            self._pieces.popleft()

    def _rest(self) -> None:
        self._working = False


def _call(callback: Callable[[], object]) -> Iterator[object]:
    yield callback()


class TooManySteps(Exception):
    """Work takes longer than it may."""


def run_through(steps: Steps[T], steps_max: int | None = None) -> T:
    """Do all of the work now. TooManySteps when it yields more often than `steps_max`."""
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
    the loop, and in threads where it yields a function. So at most `at_once` pieces hold memory for their work."""

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
        """Continue until the time is up, or a thread has to work; `sent` and `error` are the outcome of that."""
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
    """Calls `run(done)` repeatedly, `interval_s` after the last run has called `done()`, until stopped."""

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
        """Run no more. A pass that runs ends by itself."""
        self._stopped = True
        self._timer.cancel()
