"""The clock that several virtual runtimes share, and the order of their events.

There is one queue of events, each with its moment and the runtime that owns it. Where two events of one moment may
come in either order (they belong to different runtimes, or are timers), the seed decides if `shuffles` is set;
otherwise they run in the order in which they were scheduled. Callbacks of one runtime's `call_soon` always run in
order, as on a real event loop.

A runtime can be paused (`VirtualRuntime.hold_until`, as SIGSTOP does) and ended (`VirtualRuntime.end`, as kill -9
does): its events wait, or never happen. With `on_killed` set, a `ProcessKilled` that leaves an event ends the
runtime, too.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Protocol

from barnabas.testing.memory_disk import ProcessKilled

EVENTS_MAX = 1_000_000  # run_until_idle fails after so many, as callbacks may schedule each other for ever
TURN_FIRST = -1  # callbacks of call_soon come before timers that are due at the same moment


class Process(Protocol):
    """The owner of events: a runtime."""

    ended: bool
    held_until: float

    def end(self) -> None: ...


class VirtualEvent:
    """A scheduled callback; None after cancellation."""

    __slots__ = ("callback", "owner")

    def __init__(self, owner: Process, callback: Callable[[], object]) -> None:
        self.owner = owner
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class VirtualWorld:
    """See the module. `now` is in seconds and starts at 0."""

    def __init__(self, seed: int = 0, *, shuffles: bool = False) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.events_count = 0  # number of events so far
        self.shuffles = shuffles
        # Gets an exception that leaves an event, with the event's owner; by default the exception goes to the caller that
        # runs the world.
        self.on_error: Callable[[Process, Exception], object] | None = None
        # Called when ProcessKilled has ended a runtime; by default the exception goes to the caller that runs the world.
        self.on_killed: Callable[[Process], object] | None = None
        self._events: list[tuple[float, int, int, VirtualEvent]] = []
        self._sequence = 0

    def schedule(
        self, at: float, owner: Process, callback: Callable[[], object], *, is_turn: bool = False
    ) -> VirtualEvent:
        """Schedules a callback for a moment, now at the earliest."""
        event = VirtualEvent(owner, callback)
        self._sequence += 1
        first = TURN_FIRST if is_turn else 0
        order = int(self.random.random() * 65536) if self.shuffles else first
        heapq.heappush(self._events, (max(at, self.now), order, self._sequence, event))
        return event

    def run_until(self, moment: float) -> None:
        """Runs every event that is due up to a moment, each at its own time, and stops the clock there."""
        while self.step(moment):
            pass
        self.now = max(self.now, moment)

    def run_until_idle(self) -> None:
        """Runs what is due now, and what that makes due, without moving the clock."""
        for _ in range(EVENTS_MAX):
            if not self.step(self.now):
                return
        raise AssertionError(f"still not idle after {EVENTS_MAX} events")

    def next_at(self) -> float | None:
        """The moment of the next event; None when nothing is scheduled."""
        live = (
            at for at, _, _, event in self._events if event.callback is not None and not event.owner.ended
        )
        return min(live, default=None)

    def step(self, until: float) -> bool:
        """Runs one event that is due by then; False when there is none."""
        events = self._events
        while events:
            at, order, sequence, event = events[0]
            if at > until:
                return False
            heapq.heappop(events)
            owner = event.owner
            if event.callback is None or owner.ended:
                continue
            if owner.held_until > at:
                heapq.heappush(events, (owner.held_until, order, sequence, event))
                continue
            self.now = max(self.now, at)
            callback, event.callback = event.callback, None
            self.events_count += 1
            self._call(owner, callback)
            return True
        return False

    def _call(self, owner: Process, callback: Callable[[], object]) -> None:
        try:
            callback()
        except ProcessKilled:
            if self.on_killed is None:
                raise
            owner.end()
            self.on_killed(owner)
        except Exception as error:
            if self.on_error is None:
                raise
            self.on_error(owner, error)
