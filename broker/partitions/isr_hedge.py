"""The hedged ISR: a replica that holds up acknowledgements leaves the in-sync replicas (barnabas.isr.hedge.ms).

A record is committed when all in-sync replicas have it. In Kafka one that is slow but alive is waited for until it has lagged for
replica.lag.time.max.ms, half a minute and more. Here a leader proposes an ISR without it once acknowledgements have waited for the
hedge time while the high watermark stood still, if at least HEDGED_ISR_MIN and min.insync.replicas stay. No rule of commits or
elections changes: each replica in the ISR has all that is committed.

All leaders of a broker are looked at together, so that what a slow broker holds up in a thousand partitions is one request to
the controller.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from barnabas.runtime.interface import Runtime

HEDGED_ISR_MIN: Final = 2  # in-sync replicas that a hedge leaves, whatever min.insync.replicas is
LOOKS_PER_HEDGE: Final = 2  # so a replica leaves after one and a half times the hedge time at the latest
LOOK_S_MIN: Final = 0.001


class HedgedLeader(Protocol):
    """A leader whose acknowledgements may wait for replicas: PartitionLeadership."""

    @property
    def hedge_s(self) -> float:
        """barnabas.isr.hedge.ms in seconds; negative: it waits as Kafka does."""
        ...

    @property
    def held_up_at(self) -> int:
        """The high watermark, while acknowledgements wait for it to move; else -1."""
        ...

    def hedge(self) -> None:
        """Wait no longer for the replicas that lack the oldest record that waits."""
        ...


class _Wait:
    """A high watermark that acknowledgements wait for, and since when it has stood still."""

    __slots__ = ("high_watermark", "since")

    def __init__(self, high_watermark: int, since: float) -> None:
        self.high_watermark = high_watermark
        self.since = since


class IsrHedge:
    """Looks at the leaders of this broker that have acknowledgements to give. All calls on the loop's thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._waits: dict[HedgedLeader, _Wait] = {}
        self._look_at = 0.0  # when it looks next, while leaders wait
        self.hedges: Counter[int] = Counter()  # by broker id: how often it has been left out

    def watch(self, leader: HedgedLeader) -> None:
        """An acknowledgement of the leader begins to wait, and none did before."""
        waits = self._waits
        if leader not in waits:
            waits[leader] = _Wait(leader.held_up_at, self._runtime.monotonic())
            if len(waits) == 1:
                self._look_later()

    def _look_later(self) -> None:
        hedge_s = min(leader.hedge_s for leader in self._waits)
        delay_s = max(hedge_s / LOOKS_PER_HEDGE, LOOK_S_MIN)
        self._look_at = self._runtime.monotonic() + delay_s
        self._runtime.call_later(delay_s, self._look)

    def _look(self) -> None:
        now = self._runtime.monotonic()
        late_s = now - self._look_at
        for leader, wait in tuple(self._waits.items()):
            hedge_s = leader.hedge_s
            held_up_at = leader.held_up_at
            if held_up_at < 0 or hedge_s < 0:
                del self._waits[leader]
            elif held_up_at != wait.high_watermark or late_s > hedge_s / LOOKS_PER_HEDGE:
                # This loop was held up itself, when it is so late: what followers have sent meanwhile is read first.
                wait.high_watermark, wait.since = held_up_at, now
            elif now - wait.since >= hedge_s:
                wait.since = now
                leader.hedge()
        if self._waits:
            self._look_later()
