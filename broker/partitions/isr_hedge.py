"""The hedged ISR: a replica that holds up acknowledgements leaves the in-sync replicas (barnabas.isr.hedge.ms).

A record is committed when all in-sync replicas have it. In Kafka one that is slow but alive is waited for until it has lagged for
replica.lag.time.max.ms, half a minute and more. Here a leader proposes an ISR without it once acknowledgements have waited for the
hedge time while the high watermark stood still, if at least HEDGED_ISR_MIN and min.insync.replicas stay. No rule of commits or
elections changes: each replica in the ISR has all that is committed.

The leaders of a broker are looked at together, so that what a slow broker holds up in a thousand partitions is one request to
the controller. Each that waits is looked at LOOKS_PER_HEDGE times in its hedge time.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from barnabas.runtime.interface import Runtime

log = logging.getLogger("barnabas.replication")

HEDGED_ISR_MIN: Final = 2  # in-sync replicas that a hedge leaves, whatever min.insync.replicas is
LOOKS_PER_HEDGE: Final = 2  # so a replica leaves after one and a half times the hedge time at the latest
HEDGE_MS_MIN: Final = 1  # also where 0 is configured


class HedgedLeader(Protocol):
    """A leader whose acknowledgements may wait for replicas: PartitionLeadership."""

    wait: object | None  # while it is watched; set and cleared here

    @property
    def hedge_ms(self) -> int:
        """barnabas.isr.hedge.ms; negative: it waits as Kafka does."""
        ...

    @property
    def awaited_high_watermark(self) -> int:
        """The high watermark, while acknowledgements wait for it to move; else -1."""
        ...

    def hedge(self) -> None:
        """Wait no longer for the replicas that lack the oldest record that waits."""
        ...


class IsrHedge:
    """Looks at the leaders of this broker that have acknowledgements to give. All calls on the loop's thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._queues: dict[int, _Queue] = {}  # by the hedge time, of which a broker has few
        self.hedges: Counter[int] = Counter()  # by broker id: how often it has left an ISR

    def watch(self, leader: HedgedLeader) -> None:
        """Acknowledgements of the leader wait, and it is not watched, or has another hedge time now."""
        leader.wait = None
        hedge_ms = leader.hedge_ms
        if hedge_ms < 0:
            return
        queue = self._queues.get(hedge_ms)
        if queue is None:
            queue = self._queues[hedge_ms] = _Queue(self._runtime, hedge_ms)
        queue.add(leader)


class _Wait:
    """A high watermark that acknowledgements wait for, since when it has stood still, and when to look again."""

    __slots__ = ("due", "high_watermark", "leader", "since")

    def __init__(self, leader: HedgedLeader, since: float, due: float) -> None:
        self.leader = leader
        self.high_watermark = leader.awaited_high_watermark
        self.since = since
        self.due = due


class _Queue:
    """The leaders with one hedge time, in the order in which they are looked at."""

    def __init__(self, runtime: Runtime, hedge_ms: int) -> None:
        self._runtime = runtime
        self._hedge_s = max(hedge_ms, HEDGE_MS_MIN) / 1000
        self._step_s = self._hedge_s / LOOKS_PER_HEDGE
        self._waits: deque[_Wait] = deque()
        # A timer is set, or the look that goes on sets one; leaders are added from within a look, too.
        self._will_look = False
        self._reads_first = False  # whether this look hedges none, as the loop was held up itself

    def add(self, leader: HedgedLeader) -> None:
        now = self._runtime.monotonic()
        leader.wait = wait = _Wait(leader, now, now + self._step_s)
        self._waits.append(wait)
        if not self._will_look:
            self._will_look = True
            self._runtime.call_later(self._step_s, self._look)

    def _look(self) -> None:
        waits, now = self._waits, self._runtime.monotonic()
        # By so much this loop was held up itself. That does not count, and what followers have sent meanwhile is read first; once, as
        # a loop may always be late.
        late_s = now - waits[0].due
        self._reads_first = late_s > self._step_s and not self._reads_first
        for _ in range(len(waits)):
            if waits[0].due > now:
                break
            wait = waits.popleft()
            wait.since += late_s
            try:
                self._look_at(wait, now)
            except Exception:
                log.exception("a replica could not be hedged out")
                wait.leader.wait = None
            if wait.leader.wait is wait:
                wait.due = now + self._step_s
                waits.append(wait)
        if waits:
            self._runtime.call_later(max(waits[0].due - now, 0.0), self._look)
        else:
            self._will_look = False

    def _look_at(self, wait: _Wait, now: float) -> None:
        leader = wait.leader
        if leader.wait is not wait:
            return  # it is watched by another hedge time now, or not any more
        awaited = leader.awaited_high_watermark
        if awaited < 0:
            leader.wait = None
        elif awaited != wait.high_watermark:
            wait.high_watermark, wait.since = awaited, now
        elif now - wait.since >= self._hedge_s and not self._reads_first:
            wait.since = now
            leader.hedge()
