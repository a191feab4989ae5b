"""Work over many logs that never holds the loop: a little of it on each turn.

A pass is a generator that yields after each small step. Ten thousand logs take a few dozen turns, between
which requests are served.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from barnabas.storage.runtime import Runtime, Timer

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
