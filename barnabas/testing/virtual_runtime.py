"""A runtime whose clock stands still until it is told to move, for tests that would otherwise wait.

- `run_until_idle` runs everything that is due; `advance` moves the clock and runs what comes due on the way,
  each callback at its own time.
- Threads are none: `run_in_thread` does its work at the next turn and hands over the result the turn after,
  so the order of events is the same in every run.
- Randomness comes from a seed. There is no network: `listen` hands out port numbers and remembers the
  protocol factories in `listening`, so a test can make a connection's protocol itself.
"""

from __future__ import annotations

import heapq
import random  # noqa: TID251 - this file is a runtime
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from barnabas.storage.runtime import Runtime

T = TypeVar("T")

EVENTS_MAX = 1_000_000  # run_until_idle gives up on callbacks that schedule each other for ever


class VirtualTimer:
    """A scheduled callback; ordered by its time, then by when it was scheduled."""

    __slots__ = ("at", "callback", "sequence")

    def __init__(self, at: float, sequence: int, callback: Callable[[], object]) -> None:
        self.at = at
        self.sequence = sequence
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None

    def __lt__(self, other: VirtualTimer) -> bool:
        return (self.at, self.sequence) < (other.at, other.sequence)


class VirtualServer:
    """A port number that nobody can reach."""

    def __init__(self, listening: dict[int, Callable[[], Any]], port: int) -> None:
        self.port = port
        self._listening = listening

    def close(self) -> None:
        self._listening.pop(self.port, None)


class VirtualRuntime(Runtime):
    """See the module. Wall clock and monotonic clock move together; the wall clock starts at `start_ms`."""

    def __init__(self, seed: int = 0, start_ms: int = 1_700_000_000_000) -> None:
        self.random = random.Random(seed)
        self.listening: dict[int, Callable[[], Any]] = {}
        self.writers: dict[int, Callable[[], object]] = {}
        self._start_ms = start_ms
        self._now = 0.0
        self._sequence = 0
        self._ready: deque[Callable[[], object]] = deque()
        self._timers: list[VirtualTimer] = []
        self._next_port = 40_000

    # -- the test's side

    def advance(self, seconds: float) -> None:
        """Move the clock, stopping at every timer on the way; whatever is due at the end has run."""
        assert seconds >= 0
        end = self._now + seconds
        self.run_until_idle()
        while self._timers and self._timers[0].at <= end:
            self._now = max(self._now, self._timers[0].at)
            self.run_until_idle()
        self._now = end

    def run_until_idle(self) -> None:
        """Run what is due now, and what that makes due, without moving the clock."""
        for _ in range(EVENTS_MAX):
            callback = self._next_due()
            if callback is None:
                return
            callback()
        raise AssertionError(f"still not idle after {EVENTS_MAX} events")

    def next_timer_at(self) -> float | None:
        """When the next timer comes due, on the monotonic clock; None when nothing is scheduled."""
        live = [timer.at for timer in self._timers if timer.callback is not None]
        return min(live, default=None)

    def _next_due(self) -> Callable[[], object] | None:
        while not self._ready:
            if not self._timers or self._timers[0].at > self._now:
                return None
            due = heapq.heappop(self._timers).callback
            if due is not None:
                return due
        return self._ready.popleft()

    # -- the runtime

    def time_ms(self) -> int:
        return self._start_ms + round(self._now * 1000)

    def monotonic(self) -> float:
        return self._now

    def random_bytes(self, count: int) -> bytes:
        return self.random.randbytes(count)

    def call_soon(self, callback: Callable[[], object]) -> None:
        self._ready.append(callback)

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> VirtualTimer:
        self._sequence += 1
        timer = VirtualTimer(self._now + max(delay_s, 0.0), self._sequence, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def run_in_thread(
        self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], object]
    ) -> None:
        def run() -> None:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - as a thread does: whatever it is goes to `done`
                failure = error
                self.call_soon(lambda: done(None, failure))
            else:
                self.call_soon(lambda: done(result, None))

        self.call_soon(run)

    def run_all(self, works: Sequence[Callable[[], object]]) -> list[BaseException | None]:
        return [_error_of(work) for work in works]

    def listen(
        self,
        host: str,
        port: int,
        protocol_factory: Callable[[], Any],
        *,
        send_buffer_bytes: int = -1,  # noqa: ARG002 - no sockets here
        receive_buffer_bytes: int = -1,  # noqa: ARG002
        tls: Any = None,  # noqa: ARG002
    ) -> VirtualServer:
        if port in self.listening:
            raise OSError(98, f"address {host}:{port} in use")
        if port == 0:
            self._next_port += 1
            port = self._next_port
        self.listening[port] = protocol_factory
        return VirtualServer(self.listening, port)

    def connect(
        self,
        host: str,
        port: int,
        protocol_factory: Callable[[], Any],  # noqa: ARG002
        failed: Callable[[OSError], object],
        *,
        tls: Any = None,  # noqa: ARG002
    ) -> VirtualTimer:
        return self.call_later(0, lambda: failed(ConnectionRefusedError(111, f"{host}:{port} refuses")))

    def add_writer(self, descriptor: int, callback: Callable[[], object]) -> None:
        self.writers[descriptor] = callback

    def remove_writer(self, descriptor: int) -> None:
        self.writers.pop(descriptor, None)


def _error_of(work: Callable[[], object]) -> BaseException | None:
    try:
        work()
    except Exception as error:  # noqa: BLE001 - handed over, as a thread pool does
        return error
    return None
