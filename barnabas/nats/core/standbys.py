"""Which followers of a core binding could lead its partitions without a message missing.

A follower has to have every message that the leader has: in its own copy of the log, or received and waiting in its
shadow (core/shadow.py). It has them all once three things have happened in this order:

1. The server has the follower's subscriptions: what is published from then on comes to it.
2. A mark that the follower has published behind them has come to the leader, which has appended all that it received
   before the mark and tells where its log ends then; and the mark has come to the follower itself.
3. The follower's log has reached that end.

What is published in the very moment of the mark may be behind it at the leader and before it at the follower, so there is a
second mark half a second later.

From then on nothing can be missing there, whoever leads, for as long as its subscriptions are not interrupted. It tells
the leader so, and the leader lets it into the ISR (IsrRules.may_take_over): so a clean election finds such a replica,
and a reassignment completes when the new replica is one.

A follower that gets no further (its account may not publish marks, it finds no server) is let in after WAIT_S all the same,
because the topic's Kafka clients need its copy. So is one that comes while the leader has no connection itself. Whether
messages are missing does not rest on the leader's word but on what the follower knows of itself: one that becomes the
leader without the three, or after an interruption, notes a gap (Lapse).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from barnabas.runtime.interface import Runtime

log = logging.getLogger("barnabas.nats")

WAIT_S: Final = 10.0
TOLD_EVERY_S: Final = 0.5  # by a follower that is not in the ISR yet
VALID_S: Final = 3.0  # what it has told


class Standby(msgspec.Struct):
    """What a follower tells its leaders: it could lead these partitions. With the number of an absence (core/refill.py): nothing
    of that is missing in them; with a negative one: it was absent itself."""

    broker: int
    broker_epoch: int
    partitions: list[int]
    absence: int = 0


class Standbys:
    """Those of one binding, at the leader. All calls on the loop's thread."""

    def __init__(self, runtime: Runtime, topic: str) -> None:
        self._runtime = runtime
        self._topic = topic
        self._ready: dict[tuple[int, int], tuple[int, float]] = {}  # (partition, broker): broker epoch, when
        self._waiting: dict[tuple[int, int], tuple[int | None, float]] = {}  # likewise, since when

    def told(self, standby: Standby, partition: int) -> None:
        """A follower could lead the partition."""
        self._ready[partition, standby.broker] = standby.broker_epoch, self._runtime.monotonic()

    def may_take_over(self, partition: int, broker: int, broker_epoch: int | None) -> bool:
        """Whether a follower that is level with the leader's log is to be waited for no longer."""
        key = partition, broker
        now_s = self._runtime.monotonic()
        told = self._ready.get(key)
        is_ready = told is not None and broker_epoch in (-1, told[0]) and now_s - told[1] <= VALID_S
        if not is_ready:
            waiting_epoch, since_s = self._waiting.get(key, (None, now_s))
            if (
                waiting_epoch != broker_epoch or now_s - since_s > 2 * WAIT_S
            ):  # another run of it, or another time
                since_s = now_s
            self._waiting[key] = broker_epoch, since_s
            if now_s - since_s < WAIT_S:
                return False
            log.warning(
                "%s-%d: broker %d joins the ISR, and may have missed messages from NATS that came to this broker alone; "
                "if it leads before it has caught up with them, that is a gap",
                self._topic,
                partition,
                broker,
            )
        self._ready.pop(key, None)
        self._waiting.pop(key, None)
        return True
