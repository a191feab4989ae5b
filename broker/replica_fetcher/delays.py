"""Partitions that are left out of fetching for a while, each until its own moment, with one timer for all of them."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.broker.replica_fetcher.state import FetchState
    from barnabas.runtime.interface import Runtime, Timer

TOGETHER_S: Final = 0.001  # those whose moments lie so close come back together


class FetchDelays:
    """See the module. `over(states)` hears of those whose time has come; they may have another status by then."""

    def __init__(self, runtime: Runtime, over: Callable[[list[FetchState]], object]) -> None:
        self._runtime = runtime
        self._over = over
        self._waiting: list[tuple[float, int, FetchState]] = []  # a heap: until when
        self._count = 0  # so that states need not be compared
        self._timer: Timer | None = None

    def add(self, state: FetchState, delay_s: float) -> None:
        self._count += 1
        heapq.heappush(self._waiting, (self._runtime.monotonic() + delay_s, self._count, state))
        if self._waiting[0][2] is state:
            self._set_timer()

    def stop(self) -> None:
        """Nobody comes back."""
        self._waiting.clear()
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            left_s = self._waiting[0][0] - self._runtime.monotonic()
            self._timer = self._runtime.call_later(max(left_s, 0), self._due)

    def _due(self) -> None:
        self._timer = None
        now = self._runtime.monotonic() + TOGETHER_S
        states: list[FetchState] = []
        while self._waiting and self._waiting[0][0] <= now:
            states.append(heapq.heappop(self._waiting)[2])
        self._set_timer()
        self._over(states)
