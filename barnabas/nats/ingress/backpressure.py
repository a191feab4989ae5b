"""How many bytes may wait in memory before no more is read: nats.buffer.bytes, over all that share it.

What a binding does when more waits for its logs than nats.buffer.bytes.

First it reads nothing more. That costs nothing as long as it is over before the server cuts the connection as too slow a
reader's; but nobody else on that connection reads meanwhile. So where it shares the connection with other bindings and
its logs take nothing for longer than a moment, it steps aside: it unsubscribes, which is a gap of its own, and the others
go on. It comes back when its logs have taken what waited.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.nats.connections import Intake
    from barnabas.runtime.interface import Runtime, Timer

RESUME_SHARE: Final = 0.5  # of the budget: below it reading goes on


class Budget:
    """`on_full(bool)` is told when more than `bytes_max` wait, and when it has become much less."""

    __slots__ = ("_is_full", "_on_full", "_sizes", "_total", "bytes_max")

    def __init__(self, bytes_max: int, on_full: Callable[[bool], object]) -> None:
        self.bytes_max = bytes_max
        self._on_full = on_full
        self._sizes: dict[object, int] = {}
        self._total = 0
        self._is_full = False

    def note(self, who: object, size: int) -> None:
        """So many bytes wait at `who` now."""
        self._total += size - self._sizes.pop(who, 0)
        if size:
            self._sizes[who] = size
        if not self._is_full and self._total > self.bytes_max:
            self._is_full = True
            self._on_full(True)
        elif self._is_full and self._total <= self.bytes_max * RESUME_SHARE:
            self._is_full = False
            self._on_full(False)


OTHERS_WAIT_S: Final = 5.0  # half of what servers wait for a reader
SLOW_FOR_S: Final = 60.0  # so long after it has come back the others are not made to wait again


class Backpressure:
    """Of one binding. `unsubscribe()`: nothing is to come here until `resubscribe()`."""

    def __init__(
        self,
        runtime: Runtime,
        intake: Intake,
        unsubscribe: Callable[[], object],
        resubscribe: Callable[[], object],
    ) -> None:
        self.is_full = False
        self.is_unsubscribed = False
        self._runtime = runtime
        self._intake = intake
        self._unsubscribe = unsubscribe
        self._resubscribe = resubscribe
        self._timer: Timer | None = None
        self._came_back_s = runtime.monotonic() - SLOW_FOR_S
        self._is_stopped = False

    def changed(self, is_full: bool) -> None:
        """More waits than may, or much less again."""
        self.is_full = is_full
        if self._is_stopped:
            return
        if is_full and not self.is_unsubscribed:
            self._intake.hold(self)
            is_slow = self._runtime.monotonic() - self._came_back_s < SLOW_FOR_S
            self._timer = self._runtime.call_later(0 if is_slow else OTHERS_WAIT_S, self._others_waited)
        elif not is_full:
            self._let_go()
            self._runtime.call_soon(self._return)  # whoever has made room may not be done

    def stop(self) -> None:
        """Whatever waits: what comes is read, and who is aside stays there."""
        self._is_stopped = True
        self._let_go()

    def _others_waited(self) -> None:
        self._timer = None
        if self._intake.is_shared:
            self.is_unsubscribed = True
            self._unsubscribe()
            self._let_go()
        else:
            self._timer = self._runtime.call_later(OTHERS_WAIT_S, self._others_waited)

    def _return(self) -> None:
        if self.is_unsubscribed and not self.is_full and not self._is_stopped:
            self.is_unsubscribed = False
            self._came_back_s = self._runtime.monotonic()
            self._resubscribe()

    def _let_go(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._intake.let_go(self)
