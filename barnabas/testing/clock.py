"""The clock of a test broker: the machine's, and as far ahead of it as a test says.

`broker.clock.advance(30)` makes happen what half a minute brings (sessions that end, records that expire, brokers that are
missed), each timer at its own moment and in their order, with turns of the loop in between, so that nodes
react to each other. In a long advance, timers that lie close together fire at once. The broker's clients live in the machine's time.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from typing import TYPE_CHECKING, Final

from barnabas.testing.loop_calls import BrokerFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from barnabas.testing.broker_loop import BrokerLoop
    from barnabas.testing.broker_node import BrokerNode
    from barnabas.testing.node_runtime import Clock, NodeRuntime
    from barnabas.testing.operations import Done

log = logging.getLogger("barnabas.testing")

TURNS: Final = 8  # of the loop after each moment: a request to another node and its answer need that many
AHEAD_SECONDS_MAX: Final = 1000 * 366 * 86_400  # times in ms fit into 64 bits, with any retention added
EXACT_MOMENTS: Final = 500  # that are gone to one by one; then the way that is left is divided
STEPS_MAX: Final = 1000  # into so many
CLUSTER_SECONDS_MAX: Final = 3 * 3600  # which costs half a minute of CPU
CLUSTER_STEP_S: Final = (0.1, 0.25)  # of a cluster: with longer ones its nodes would miss each other


class BrokerClock:
    """`broker.clock`, as tests see it."""

    def __init__(self, clock: Clock, advances: Advances, loop: BrokerLoop) -> None:
        self._clock = clock
        self._advances = advances
        self._loop = loop

    @property
    def ahead_s(self) -> float:
        """Seconds by which it is ahead of the machine's clock."""
        return self._clock.ahead_s

    def time_ms(self) -> int:
        """The broker's time, milliseconds since the epoch."""
        return self._clock.time_ms()

    def advance(self, seconds: float) -> Awaitable[None]:
        """Go forward; on return (in the running loop: once it has been awaited) everything has happened that comes due until
        then. ValueError for a time that is negative or too long."""
        return self._loop.perform(lambda done: self._advances.begin(seconds, done))


class Advances:
    """Moves the clock of some nodes forward, one advance after the other. All calls on the nodes' loop."""

    def __init__(self, clock: Clock, nodes: Sequence[BrokerNode]) -> None:
        self._clock = clock
        self._nodes = nodes
        self._waiting: deque[tuple[float, Done]] = deque()  # the first of them is running
        self._running: _Advance | None = None

    def begin(self, seconds: float, done: Done) -> None:
        """ValueError."""
        if not math.isfinite(seconds):
            raise ValueError(f"a clock goes some seconds forward, and not {seconds}")
        if seconds < 0:
            raise ValueError("a clock does not go back")
        if self._clock.ahead_s + seconds > AHEAD_SECONDS_MAX:
            raise ValueError(f"a clock is {AHEAD_SECONDS_MAX} s ahead at most, a thousand years")
        if len(self._nodes) > 1 and seconds > CLUSTER_SECONDS_MAX:
            raise ValueError(
                f"a cluster goes {CLUSTER_SECONDS_MAX} s at most at a time, a broker of one node as far as you like"
            )
        self._waiting.append((seconds, done))
        self._run_next()

    def cut_off(self, why: str) -> None:
        """Go no further; waiting callers get BrokerFailed."""
        waiting, self._waiting = self._waiting, deque()
        if self._running is not None:
            self._running.is_cut_off = True
            self._running = None
        for _, done in waiting:
            done(BrokerFailed(why))

    def _run_next(self) -> None:
        if self._running is not None or not self._waiting:
            return
        seconds, done = self._waiting[0]
        nodes = self._nodes
        step_s = seconds / STEPS_MAX
        if len(nodes) > 1:
            step_s = min(max(step_s, CLUSTER_STEP_S[0]), CLUSTER_STEP_S[1])
        call_soon = nodes[0].loop.call_soon

        def runtimes() -> list[NodeRuntime]:
            return [each.runtime for each in nodes if each.is_running]

        def finished(error: Exception | None) -> None:
            self._waiting.popleft()
            self._running = None
            call_soon(self._run_next)
            done(error)

        self._running = _Advance(self._clock, runtimes, call_soon, seconds, step_s, finished)
        self._running.go_on()


class _Advance:
    """One advance of the clock."""

    def __init__(
        self,
        clock: Clock,
        runtimes: Callable[[], Sequence[NodeRuntime]],
        call_soon: Callable[..., object],
        seconds: float,
        step_s: float,
        done: Done,
    ) -> None:
        self._clock = clock
        self._runtimes = runtimes
        self._call_soon = call_soon
        self._until_ahead_s = clock.ahead_s + seconds
        self._step_s = step_s
        self._done = done
        self.is_cut_off = False
        self._turns_left = 0
        self._moments = 0

    def go_on(self) -> None:
        """To the next moment at which something is due, or to the end."""
        clock = self._clock
        real = clock.monotonic() - clock.ahead_s
        due = min((each for runtime in self._runtimes() for each in runtime.due_times()), default=None)
        wanted = self._until_ahead_s if due is None else due - real
        is_last = wanted >= self._until_ahead_s
        if is_last:
            clock.ahead_s = max(clock.ahead_s, self._until_ahead_s)
        else:
            step_s = 0.0 if self._moments < EXACT_MOMENTS else self._step_s
            self._moments += 1
            clock.ahead_s = min(max(clock.ahead_s, wanted) + step_s, self._until_ahead_s)
        now = clock.monotonic()
        events = [event for runtime in self._runtimes() for event in runtime.due_by(now)]
        for event in sorted(events, key=lambda each: each.due or 0.0):
            event.fire_soon()
        self._turns_left = TURNS
        self._turn(is_last)

    def _turn(self, is_last: bool) -> None:
        if self.is_cut_off:
            return
        if self._turns_left:
            self._turns_left -= 1
            self._call_soon(self._turn, is_last)
        elif is_last:
            for runtime in self._runtimes():
                runtime.reschedule()
            self._done(None)
        else:
            self.go_on()
