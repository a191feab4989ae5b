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

# Work in steps: it yields None where a turn may end, or a function for a thread, whose result is sent to it.
Steps: TypeAlias = "Generator[Callable[[], Any] | None, Any, T]"
Done: TypeAlias = "Callable[[T | None, BaseException | None], object]"

logger = logging.getLogger("barnabas.storage")

TURN_S = 0.002  # of one turn of the loop, for one piece of work
SHORT_TURN_S = 0.0003  # where many pieces of work are short


class _Work(Generic[T]):
    """One piece of work. `turn` starts it; `done(result, error)` is called once, perhaps within the first turn."""

    def __init__(
        self, runtime: Runtime, steps: Steps[T], done: Done[T], remote: bool = False, background: bool = False
    ) -> None:
        self._runtime = runtime
        self._steps = steps
        self._done = done
        self._remote = remote
        self._background = background

    def turn(self, sent: Any = None, error: BaseException | None = None) -> None:
        """Continues for TURN_S, or until a thread has work; `sent` and `error` are the outcome of that."""
        deadline = self._runtime.monotonic() + TURN_S
        try:
            while True:
                work = self._steps.send(sent) if error is None else self._steps.throw(error)
                sent = error = None
                if work is not None:
                    self._runtime.run_in_thread(
                        work, self.turn, remote=self._remote, background=self._background
                    )
                    return
                if self._runtime.monotonic() >= deadline:
                    self._runtime.call_soon(self.turn)
                    return
        except StopIteration as stop:
            self._done(stop.value, None)
        except Exception as failure:  # noqa: BLE001 - passed on
            self._done(None, failure)


def run_steps(runtime: Runtime, steps: Steps[T], done: Done[T], *, remote: bool = False) -> None:
    """Does the work in turns and in threads, the first turn now; `done(result, error)` once, perhaps before this returns.
    `remote`: its threads wait for another machine (Runtime.run_in_thread)."""
    _Work(runtime, steps, done, remote).turn()


def in_slices(runtime: Runtime, steps: Iterator[object], done: Callable[[], object]) -> None:
    """Goes through `steps` in turns, the first of them now, then calls `done`, also after a step that has raised."""

    def ended(_result: None, error: BaseException | None) -> None:
        if error is not None:  # the next pass tries again
            logger.error("a background pass ended early", exc_info=error)
        done()

    run_steps(runtime, _without_values(steps), ended)


def _without_values(steps: Iterator[object]) -> Steps[None]:
    for _ in steps:
        yield None


class WorkQueue:
    """Does pieces of work in their order, one at a time, on the loop. A piece is an iterator that yields after each step; work
    that fits into a turn is done before `add` returns."""

    def __init__(self, runtime: Runtime, log: logging.Logger) -> None:
        self._runtime = runtime
        self._log = log
        self._pieces: deque[Iterator[object]] = deque()
        self._working = False

    def add(self, piece: Iterator[object]) -> None:
        """Starts the piece now, or after those before it. If it raises, the error is logged and the next piece follows."""
        self._pieces.append(piece)
        if not self._working:
            self._working = True
            in_slices(self._runtime, self._steps(), self._ended)

    def when_done(self, callback: Callable[[], object]) -> None:
        """Calls back when all pieces added so far are done, perhaps now."""
        if self._pieces:
            self._pieces.append(_call(callback))
        else:
            callback()

    def _steps(self) -> Iterator[object]:
        while self._pieces:
            try:
                yield from self._pieces[0]
            except Exception:  # noqa: BLE001 - logged, and the next piece follows
                self._log.exception("a piece of work ended early")
            self._pieces.popleft()

    def _ended(self) -> None:
        self._working = False


def _call(callback: Callable[[], object]) -> Iterator[object]:
    yield callback()


class TooManySteps(Exception):
    """Work takes longer than it may."""


def run_through(steps: Steps[T], steps_max: int | None = None) -> T:
    """Does all of the work now. TooManySteps when it yields more often than `steps_max`."""
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
            except Exception as failure:  # noqa: BLE001 - raised in the work
                error = failure
    steps.close()
    raise TooManySteps


class StepQueue:
    """Does pieces of work in their order, at most `at_once` at a time, each in turns of the loop and in threads. So at most
    `at_once` pieces hold memory for their work."""

    def __init__(
        self,
        runtime: Runtime,
        at_once: int = 1,
        *,
        begins_in_add: bool = False,
        remote: bool = False,
        background: bool = False,
    ) -> None:
        """`begins_in_add`: a piece that need not wait for others has its first turn in `add`. `remote` and `background`: as
        Runtime.run_in_thread says."""
        self._runtime = runtime
        self._free = at_once
        self._begins_in_add = begins_in_add
        self._remote = remote
        self._background = background
        self._waiting: deque[_Work[Any]] = deque()

    def add(self, steps: Steps[T], done: Done[T]) -> None:
        """`done(result, error)` on the loop, once; before this returns only if the queue begins in `add`."""

        def ended(result: T | None, error: BaseException | None) -> None:
            self._free += 1
            self._begin()
            done(result, error)

        work = _Work(self._runtime, steps, ended, self._remote, self._background)
        if self._begins_in_add and self._free and not self._waiting:
            self._free -= 1
            work.turn()
        else:
            self._waiting.append(work)
            self._begin()

    def _begin(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            self._runtime.call_soon(self._waiting.popleft().turn)


class TurnQueue:
    """Calls callbacks in their order, for SHORT_TURN_S of each turn of the loop, so that requests are served in between."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._waiting: deque[Callable[[], object]] = deque()
        self._is_due = False  # the next turn continues
        self._deadline = 0.0  # of this turn

    def add(self, callback: Callable[[], object]) -> None:
        """Calls it now if there is time in this turn, and none waits."""
        if self._waiting or (self._is_due and self._runtime.monotonic() >= self._deadline):
            self._waiting.append(callback)
            return
        if not self._is_due:
            self._begin()
        callback()

    def _begin(self) -> None:
        self._is_due = True
        self._runtime.call_soon(self._next)
        self._deadline = self._runtime.monotonic() + SHORT_TURN_S

    def _next(self) -> None:
        if not self._waiting:
            self._is_due = False
            return
        self._begin()
        while self._waiting:
            self._waiting.popleft()()
            if self._runtime.monotonic() >= self._deadline:
                break


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
        """Starts no more runs. The current one is not ended."""
        self._stopped = True
        self._timer.cancel()


class PeriodicPasses:
    """Passes in slices, each repeated some time after its end."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._passes: list[Periodic] = []

    def add(self, interval_ms: int, steps: Callable[[], Iterator[object]]) -> None:
        """Go through `steps()` after the interval, and again each time that it has passed since."""

        def run(done: Callable[[], object]) -> None:
            in_slices(self._runtime, steps(), done)

        self._passes.append(Periodic(self._runtime, interval_ms / 1000, interval_ms / 1000, run))

    def stop(self) -> None:
        """Begins no more passes. A current one is not ended."""
        for each in self._passes:
            each.stop()
        self._passes.clear()
