"""Fetches that wait for data (KIP-541 calls the place a purgatory).

Consumers wait for committed records, followers for appended ones. A waiting fetch, or its session, is in the waiter set of
every partition that it fetches. A partition notifies its waiters of the number of new bytes, and a fetch that has collected
its min_bytes is answered on the next turn of the loop. So the cost of an append depends on the waiters of that partition
alone. A timer answers the fetch after max_wait, with whatever there is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.runtime.interface import Runtime, Timer

log = logging.getLogger("barnabas.purgatory")

# A follower gets a new high watermark with the next records, or after this delay: under load it costs nothing, and without
# load the delay does not matter.
HIGH_WATERMARK_DELAY_S: Final = 0.005


class FetchWaiter:
    """One waiting fetch. `answer()` is called exactly once, unless the waiter is cancelled. `touched`: the partitions that have
    changed while it waited."""

    __slots__ = (
        "_answer",
        "_delayed_wake",
        "_missing_bytes",
        "_purgatory",
        "_timer",
        "committed",
        "done",
        "touched",
    )

    def __init__(
        self, purgatory: FetchPurgatory, missing_bytes: int, answer: Callable[[], object], max_wait_s: float
    ) -> None:
        self._purgatory = purgatory
        self._missing_bytes = missing_bytes
        self._answer = answer
        self._timer = purgatory.runtime.call_later(max_wait_s, self.finish)
        self._delayed_wake: Timer | None = None
        self.committed = False  # whether it reads up to the last stable offset only
        self.done = False
        self.touched: set[Partition] = set()

    def appended(self, partition: Partition, byte_count: int) -> None:
        """A partition of the fetch grew by byte_count readable bytes."""
        self.touched.add(partition)
        if self.committed and not partition.stable_moved:
            return  # an open transaction holds it back
        self._missing_bytes -= byte_count
        # A transaction that has ended may have held back any number of bytes.
        if self._missing_bytes <= 0 or (self.committed and partition.released):
            self.wake()

    def changed(self, partition: Partition) -> None:
        """A partition of the fetch changed in another way (deleted, truncated, another leader): answer now."""
        self.touched.add(partition)
        self.wake()

    def high_watermark_moved(self, partition: Partition) -> None:
        """Records that the follower has are committed: answer soon, with new records if any come."""
        self.touched.add(partition)
        if self._delayed_wake is None:
            self._delayed_wake = self._purgatory.runtime.call_later(HIGH_WATERMARK_DELAY_S, self.wake)

    def wake(self) -> None:
        """Answer on the next turn of the loop."""
        self._purgatory.wake(self)

    def finish(self) -> None:
        """Answer now."""
        if not self.done:
            self.cancel()
            self._answer()

    def cancel(self) -> None:
        """Never answer: the client has disconnected."""
        if not self.done:
            self.done = True
            self._timer.cancel()
            if self._delayed_wake is not None:
                self._delayed_wake.cancel()
            self._purgatory.waiting -= 1


class FetchPurgatory:
    """All waiting fetches of the broker."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._woken: list[FetchWaiter] = []
        self.waiting = 0

    def wait(self, missing_bytes: int, max_wait_s: float, answer: Callable[[], object]) -> FetchWaiter:
        """Call `answer()` once the waiter has been notified of missing_bytes, or after max_wait_s. The caller adds the waiter to the
        partitions, removes it again, and cancels it when the client disconnects."""
        self.waiting += 1
        return FetchWaiter(self, missing_bytes, answer, max_wait_s)

    def wake(self, waiter: FetchWaiter) -> None:
        # Not at once: the response of the append leaves first, and several appends of one read of the socket give one
        # response.
        if not self._woken:
            self.runtime.call_soon(self._answer_woken)
        self._woken.append(waiter)

    def _answer_woken(self) -> None:
        woken, self._woken = self._woken, []
        for waiter in woken:
            try:
                waiter.finish()
            except Exception:  # the others must be answered nevertheless
                log.exception("a fetch that waited could not be answered")
