"""What a leader knows of one of its followers, from the follower's fetches.

The time at which it last was caught up follows Kafka's rule (Replica.updateFetchStateOrThrow): a fetch that begins at
the leader's end says that the follower is caught up now; one that begins at or behind where the leader's end was at the
follower's previous fetch says that it was then. So a follower counts as in step as long as it takes in everything
within the lag that is allowed, even where it is never at the very end.
"""

from __future__ import annotations

from typing import Final

UNKNOWN: Final = -1
NEVER: Final = float("-inf")


class RemoteReplica:
    """A follower of one partition. Offsets, and seconds on the monotonic clock."""

    __slots__ = (
        "broker_epoch",
        "broker_id",
        "end_offset",
        "last_caught_up",
        "last_fetch",
        "leader_end_at_last_fetch",
        "start_offset",
    )

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch: int | None = None  # as its fetches say; None before the first
        self.start_offset = UNKNOWN
        self.end_offset = UNKNOWN
        self.last_caught_up = NEVER
        self.last_fetch = NEVER
        self.leader_end_at_last_fetch = UNKNOWN

    def reset(self, now: float, leader_end_offset: int, *, in_sync: bool) -> None:
        """A new leader epoch has begun. `in_sync`: the follower is in the ISR."""
        self.leader_end_at_last_fetch = leader_end_offset
        self.last_fetch = self.last_caught_up = now if in_sync else NEVER

    def fetched(self, offset: int, start_offset: int, now: float, leader_end: int, broker_epoch: int) -> bool:
        """It asks for what comes from `offset` on, while the leader's log ends at `leader_end`. Whether its end has
        moved."""
        if offset >= leader_end:
            self.last_caught_up = now
        elif offset >= self.leader_end_at_last_fetch and self.last_fetch > self.last_caught_up:
            self.last_caught_up = self.last_fetch
        self.last_fetch = now
        self.leader_end_at_last_fetch = leader_end
        self.start_offset = start_offset
        self.broker_epoch = broker_epoch
        if offset == self.end_offset:
            return False
        self.end_offset = offset
        return True

    def was_idle(self, until: float) -> None:
        """It was at the leader's end, and went on to ask for more, up to the time `until`."""
        self.leader_end_at_last_fetch = self.end_offset
        self.last_fetch = max(self.last_fetch, until)
        self.last_caught_up = max(self.last_caught_up, until)

    def is_caught_up(self, leader_end: int, now: float, lag_max_s: float) -> bool:
        """Whether it has all there is, or had within the lag that is allowed (replica.lag.time.max.ms)."""
        return self.end_offset == leader_end or now - self.last_caught_up <= lag_max_s
