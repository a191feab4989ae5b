"""The replicas of a partition: the one on this broker, and those of other brokers that follow it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from barnabas.broker.partitions.topic_stats import TopicStats

if TYPE_CHECKING:
    from barnabas.storage.log.log import Log

UNKNOWN: Final = -1
NEVER: Final = float("-inf")
REST_S_MIN: Final = 0.25
REST_S_MAX: Final = 30.0
STEADY_RESTS: Final = 10  # after so many times its last rest a replica counts as steady again


class PartitionListener(Protocol):
    """What waits for a partition: a fetch, or its session. `partition` is the Partition."""

    def appended(self, partition: Any, byte_count: int) -> None:
        """The partition grew by byte_count readable bytes."""
        ...

    def changed(self, partition: Any) -> None:
        """The partition was deleted, or its start, its leader or its health changed."""
        ...

    def high_watermark_moved(self, partition: Any) -> None:
        """The high watermark has moved. Called for fetches of followers only."""
        ...


Waiters: TypeAlias = "dict[PartitionListener, None]"  # in the order of their arrival


class LocalReplica:
    """The replica of a partition on this broker: its log, its epochs, and the fetches that wait for it. Partition (partition.py)
    gives it a role."""

    __slots__ = (
        "bytes_in", "bytes_out", "fetch_waiters", "holds_back", "leader_epoch", "log", "partition", "partition_epoch", "released", "replica_waiters",
        "stable_moved", "stats", "topic", "topic_id",
    )  # fmt: skip

    def __init__(
        self, topic: str, topic_id: bytes, partition: int, log: Log, stats: TopicStats | None = None
    ) -> None:
        """`stats`: what the topic's partitions on this broker count together."""
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.log = log
        self.stats = TopicStats() if stats is None else stats
        self.bytes_in = 0  # from producers, and to consumers below: of this partition alone, for load reports
        self.bytes_out = 0
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.fetch_waiters: Waiters = {}  # of consumers, which read what is committed
        self.replica_waiters: Waiters | None = None  # of followers, which read up to the end
        self.stable_moved = True  # during `wake`: whether the last stable offset has moved
        self.released = False  # during `wake`: whether it has moved over records that it had held back
        # Whether committed records lie behind the last stable offset, as of the last `wake` or read up to that offset
        self.holds_back = False

    @property
    def name(self) -> str:
        """For log lines."""
        return f"{self.topic}-{self.partition}"

    def waiters(self, of_followers: bool) -> Waiters:
        """The waiting fetches of followers, which read up to the log end, or those of consumers."""
        if not of_followers:
            return self.fetch_waiters
        if self.replica_waiters is None:
            self.replica_waiters = {}
        return self.replica_waiters

    def wake(self, byte_count: int, stable_offset: int) -> None:
        """Consumers may read `byte_count` bytes more; before, the last stable offset was `stable_offset`."""
        log = self.log
        stable_offset_now = log.last_stable_offset
        self.stable_moved = stable_offset_now != stable_offset
        self.released = self.stable_moved and self.holds_back
        if log.producers.state is not None:
            self.holds_back = stable_offset_now < log.high_watermark
        for waiter in tuple(self.fetch_waiters):
            waiter.appended(self, byte_count)

    def high_watermark_moved(self, byte_count: int, stable_offset: int) -> None:
        """As `wake`, and notify followers."""
        if self.fetch_waiters:
            self.wake(byte_count, stable_offset)
        if self.replica_waiters:
            for waiter in tuple(self.replica_waiters):
                waiter.high_watermark_moved(self)

    def interrupt_waiters(self) -> None:
        """The role, the log or its start has changed: every waiting fetch reads again."""
        for waiter in tuple(self.fetch_waiters):
            waiter.changed(self)
        self.interrupt_followers()

    def interrupt_followers(self) -> None:
        for waiter in tuple(self.replica_waiters or ()):
            waiter.changed(self)


class RemoteReplica:
    """A follower of a partition that is led here, as its fetches describe it: offsets, and seconds on the monotonic clock.

    `last_caught_up` follows Kafka's rule (Replica.updateFetchStateOrThrow): a fetch that begins at the leader's end shows that
    the follower is caught up now; one that begins at or behind the leader's end at the follower's previous fetch shows that
    it was then. So a follower counts as caught up as long as it copies everything within the lag that is allowed, even if it
    is never at the very end.
    """

    __slots__ = (
        "broker_epoch",
        "broker_id",
        "end_offset",
        "is_resting",
        "last_caught_up",
        "last_fetch",
        "leader_end_at_last_fetch",
        "rest_s",
        "rests_until",
        "start_offset",
    )

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch: int | None = None  # of its last fetch
        self.start_offset = UNKNOWN
        self.end_offset = UNKNOWN
        self.last_caught_up = NEVER
        self.last_fetch = NEVER
        self.leader_end_at_last_fetch = UNKNOWN
        self.is_resting = False  # hedged out, and not caught up since the end of its rest
        self.rest_s = 0.0
        self.rests_until = NEVER

    def reset(self, now: float, leader_end_offset: int, *, in_sync: bool) -> None:
        """A new leader epoch has begun. `in_sync`: the follower is in the ISR."""
        self.leader_end_at_last_fetch = leader_end_offset
        self.is_resting = False
        self.last_fetch = self.last_caught_up = now if in_sync else NEVER

    def fetched(self, offset: int, start_offset: int, now: float, leader_end: int, broker_epoch: int) -> bool:
        """A fetch from `offset` on, while the leader's log ends at `leader_end`. Returns whether the follower's end has
        moved."""
        if offset >= leader_end:
            self.last_caught_up = now
        elif offset >= self.leader_end_at_last_fetch and self.last_fetch > self.last_caught_up:
            self.last_caught_up = self.last_fetch
        if self.is_resting and self.last_caught_up >= self.rests_until:
            self.is_resting = False
        self.last_fetch = now
        self.leader_end_at_last_fetch = leader_end
        self.start_offset = start_offset
        self.broker_epoch = broker_epoch
        if offset == self.end_offset:
            return False
        self.end_offset = offset
        return True

    def was_idle(self, until: float) -> None:
        """The follower was at the leader's end, and fetched, up to the time `until`."""
        self.leader_end_at_last_fetch = self.end_offset
        self.last_fetch = max(self.last_fetch, until)
        self.last_caught_up = max(self.last_caught_up, until)

    def rest(self, now: float) -> None:
        """It has held up acknowledgements (isr_hedge.py): nothing waits for it until it has rested and caught up. The rest is twice
        as long as the one before where that ended not long ago, so that a replica which is slow again and again changes the ISR
        rarely."""
        is_again = now - self.rests_until < STEADY_RESTS * self.rest_s
        self.rest_s = min(2 * self.rest_s, REST_S_MAX) if is_again else REST_S_MIN
        self.rests_until = now + self.rest_s
        self.is_resting = True

    def is_caught_up(self, leader_end: int, now: float, lag_max_s: float) -> bool:
        """Whether it has all there is, or had within the lag that is allowed (replica.lag.time.max.ms)."""
        return self.end_offset == leader_end or now - self.last_caught_up <= lag_max_s
