"""For how long a connection has not been read from. A server cuts a reader off after 10 s without progress, or for 64 MiB
that wait, mostly without a word: an end soon after much pausing is taken for that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.runtime.interface import Runtime, Timer

SLOW_AFTER_S: Final = 2.0  # of a pause so long is told, and again each time
HALVES_S: Final = 5.0


class Pausing:
    """Of one connection. `slow(seconds)` is called while a pause lasts."""

    def __init__(self, runtime: Runtime, slow: Callable[[float], object]) -> None:
        self._runtime = runtime
        self._slow = slow
        self._began_at: float | None = None
        self._ended_at = 0.0
        self._before_s = 0.0  # of late, as of then
        self._timer: Timer | None = None

    @property
    def is_paused(self) -> bool:
        return self._began_at is not None

    def begin(self) -> None:
        self._began_at = self._runtime.monotonic()
        self._timer = self._runtime.call_later(SLOW_AFTER_S, self._is_slow)

    def end(self) -> None:
        self._before_s = self.of_late_s()
        self._ended_at = self._runtime.monotonic()
        self._began_at = None
        self.cancel()

    def cancel(self) -> None:
        """Nothing is told any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def of_late_s(self) -> float:
        """For how long there were pauses; what is longer ago counts less and less."""
        now = self._runtime.monotonic()
        since_s = now - self._began_at if self._began_at is not None else 0.0
        return float(self._before_s * 0.5 ** ((now - self._ended_at) / HALVES_S)) + since_s

    def _is_slow(self) -> None:
        if self._began_at is not None:
            self._timer = self._runtime.call_later(SLOW_AFTER_S, self._is_slow)
            self._slow(self._runtime.monotonic() - self._began_at)
