"""A timer that is cheap to push back, because every heartbeat pushes one back.

Setting it again while it is armed only writes the new deadline; the timer compares when it fires, and is armed again for the
rest. So a session of 45 s with a heartbeat every second costs one runtime timer in 45 s.

A timer that fires much too late shows that this process stood still, not that a client was silent: it is set again. Requests
that arrived meanwhile are read first, and in a cluster the metadata that says that another broker coordinates the key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from barnabas.runtime.interface import Runtime, Timer


LATE_S: Final = 1.0


class DeadlineTimer:
    """Calls `expired` once the deadline set last has passed. Not armed until `set` is called."""

    __slots__ = ("_armed_until", "_deadline", "_delay_s", "_expired", "_runtime", "_timer")

    def __init__(self, runtime: Runtime, expired: Callable[[], object]) -> None:
        self._runtime = runtime
        self._expired = expired
        self._deadline = 0.0
        self._armed_until = 0.0
        self._delay_s = 0.0
        self._timer: Timer | None = None

    @property
    def armed(self) -> bool:
        return self._timer is not None

    def set(self, delay_ms: int) -> None:
        """Expire `delay_ms` from now, whatever was set before."""
        delay_s = max(delay_ms, 0) / 1000  # a client may have given a negative one
        deadline = self._runtime.monotonic() + delay_s
        self._deadline = deadline
        self._delay_s = delay_s
        if self._timer is not None:
            if deadline >= self._armed_until:
                return
            self._timer.cancel()
        self._arm(delay_s)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, delay_s: float) -> None:
        self._armed_until = self._deadline
        self._timer = self._runtime.call_later(delay_s, self._fired)

    def _fired(self) -> None:
        self._timer = None
        now = self._runtime.monotonic()
        remaining_s = self._deadline - now
        if remaining_s > 0.0005:
            self._arm(remaining_s)
        elif now - self._armed_until > LATE_S and self._delay_s:
            self._deadline = now + self._delay_s
            self._arm(self._delay_s)
        else:
            self._expired()
