"""Backpressure of a core binding, when more bytes wait for its logs than nats.buffer.bytes.

`Budget` counts the bytes that wait, over all parts that share it. `Backpressure` stops reading from the connection first.
That loses no message if it ends before the server closes the connection of a slow consumer; but other bindings on the same
connection are not read either. So when the connection is shared and the logs take nothing for OTHERS_WAIT_S, the binding
unsubscribes, which is a gap of its own, and the others continue. It subscribes again when its logs have taken the messages
that waited.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from barnabas.nats.connections import Intake
    from barnabas.runtime.interface import Runtime, Timer

RESUME_SHARE: Final = 0.5  # of the budget: below it reading continues


class Budget:
    """Bytes that wait, by owner. `on_full(True)` is called when more than `bytes_max` wait, `on_full(False)` when at most
    RESUME_SHARE of them do."""

    __slots__ = ("_is_full", "_on_full", "_sizes", "_total", "bytes_max")

    def __init__(self, bytes_max: int, on_full: Callable[[bool], object]) -> None:
        self.bytes_max = bytes_max
        self._on_full = on_full
        self._sizes: dict[object, int] = {}
        self._total = 0
        self._is_full = False

    def note(self, owner: object, size: int) -> None:
        """`size` bytes wait at `owner` now."""
        self._total += size - self._sizes.pop(owner, 0)
        if size:
            self._sizes[owner] = size
        if not self._is_full and self._total > self.bytes_max:
            self._is_full = True
            self._on_full(True)
        elif self._is_full and self._total <= self.bytes_max * RESUME_SHARE:
            self._is_full = False
            self._on_full(False)


OTHERS_WAIT_S: Final = 5.0  # half of the time that servers wait for a reader
SLOW_FOR_S: Final = 60.0  # within this time after it has subscribed again, it unsubscribes at once


class Backpressure:
    """Of one binding. `unsubscribe()` ends delivery until `resubscribe()`."""

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
        self._resubscribed_s = runtime.monotonic() - SLOW_FOR_S
        self._is_stopped = False

    def changed(self, is_full: bool) -> None:
        """The budget is full, or no longer."""
        self.is_full = is_full
        if self._is_stopped:
            return
        if is_full and not self.is_unsubscribed:
            self._intake.hold(self)
            is_slow = self._runtime.monotonic() - self._resubscribed_s < SLOW_FOR_S
            self._timer = self._runtime.call_later(0 if is_slow else OTHERS_WAIT_S, self._others_waited)
        elif not is_full:
            self._release()
            self._runtime.call_soon(self._subscribe_again)  # the caller has not finished

    def stop(self) -> None:
        """Has the connection read again; a binding that has unsubscribed stays so."""
        self._is_stopped = True
        self._release()

    def _others_waited(self) -> None:
        self._timer = None
        if self._intake.is_shared:
            self.is_unsubscribed = True
            self._unsubscribe()
            self._release()
        else:
            self._timer = self._runtime.call_later(OTHERS_WAIT_S, self._others_waited)

    def _subscribe_again(self) -> None:
        if self.is_unsubscribed and not self.is_full and not self._is_stopped:
            self.is_unsubscribed = False
            self._resubscribed_s = self._runtime.monotonic()
            self._resubscribe()

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._intake.let_go(self)
