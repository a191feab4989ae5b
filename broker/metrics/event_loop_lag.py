"""Measures how long turns of the event loop take, for the metrics.

A timer is due every TICK_S; its delay is the time that a turn of the loop, or several in a row, have taken. A process that was
stopped or got no processor is late as well, so the processor time of the loop's thread is a metric of its own. It runs only
where metrics are served.
"""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.runtime.interface import Runtime, Timer

TICK_S: Final = 0.02
IDLE_S: Final = 60.0  # over which `idle` is a mean, newer times having more weight
STALL_S: Final = 0.1  # for which a request may delay others (DESIGN.md)

# The calling thread, which is the loop's; outside of Linux the process.
_USAGE_OF: Final = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


def _processor_s() -> float:
    usage = resource.getrusage(_USAGE_OF)
    return usage.ru_utime + usage.ru_stime


class EventLoopLag:
    """Measures one loop. `start` and `stop` once each. `processor_s()`: processor time so far."""

    def __init__(self, runtime: Runtime, processor_s: Callable[[], float] = _processor_s) -> None:
        self._runtime = runtime
        self._processor_s = processor_s
        self._processor_before_s = 0.0
        self._due_at = 0.0
        self._timer: Timer | None = None
        self.stalls = 0  # of more than STALL_S
        self.longest_s = 0.0
        self.longest_busy_s = 0.0  # processor time between two ticks
        self.idle = 1.0  # the part of the last minute, about, in which the loop's thread had nothing to do

    def start(self) -> None:
        """Measure from the loop's first turn on: the work of the start before it delays no request."""
        self._runtime.call_soon(self._later)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _later(self) -> None:
        self._processor_before_s = self._processor_s()
        self._due_at = self._runtime.monotonic() + TICK_S
        self._timer = self._runtime.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        late_s = self._runtime.monotonic() - self._due_at
        self.longest_s = max(self.longest_s, late_s)
        busy_s = self._processor_s() - self._processor_before_s
        self.longest_busy_s = max(self.longest_busy_s, busy_s)
        passed_s = late_s + TICK_S
        self.idle += (1 - min(busy_s / passed_s, 1) - self.idle) * min(passed_s / IDLE_S, 1)
        self.stalls += late_s > STALL_S
        self._later()
