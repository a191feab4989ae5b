"""The state of a partition that is fetched: its status, and what the leader's fetch session has of it."""

from __future__ import annotations

import enum
import heapq
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.broker.partitions.partition import Partition
    from barnabas.runtime.interface import Runtime, Timer

TOGETHER_S: Final = 0.001  # delays that end so close to each other end together


class Status(enum.Enum):
    """Only a READY partition is fetched; the others say why not."""

    READY = enum.auto()
    DELAYED = enum.auto()  # for some time, after an error
    TRUNCATING = enum.auto()  # the log is being truncated or restarted
    AWAITING_OFFSETS = enum.auto()  # the leader's start and end offsets have been requested
    SYNCING = enum.auto()  # fetched records must be synced first
    THROTTLED = enum.auto()  # follower.replication.throttled.rate
    FAILED = enum.auto()  # until the metadata changes, as in Kafka


class FetchState:
    """A partition in one leader epoch; another epoch gets another state. `named_in`: number of the last request that named the
    partition, `first_named_in` of the first; 0 when the leader's session does not have it; `sent_offset`: the offset in that request."""

    __slots__ = (
        "failures", "first_named_in", "key", "lag", "leader_epoch", "named_in", "partition", "rounds", "sent_offset",
        "sent_start_offset", "status",
    )  # fmt: skip

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.key = (partition.topic_id, partition.partition)
        self.leader_epoch = partition.leader_epoch
        self.status = Status.READY
        self.failures = 0  # in a row
        self.rounds = 0  # of comparing epochs with the leader, in a row
        self.lag = -1  # committed records that the log lacked as of the last answer; -1 before one
        self.named_in = self.first_named_in = 0
        self.sent_offset = -1
        self.sent_start_offset = -1

    @property
    def name(self) -> str:
        return f"{self.partition.topic}-{self.partition.partition}"


class FetchDelays:
    """Delays of partitions, with one timer for all of them. `over(states)` is called with those whose delay has ended; they may
    have another status by then."""

    def __init__(self, runtime: Runtime, over: Callable[[list[FetchState]], object]) -> None:
        self._runtime = runtime
        self._over = over
        self._waiting: list[tuple[float, int, FetchState]] = []  # a heap: until when
        self._count = 0  # so that states need not be compared
        self._timer: Timer | None = None

    def add(self, state: FetchState, delay_s: float) -> None:
        self._count += 1
        heapq.heappush(self._waiting, (self._runtime.monotonic() + delay_s, self._count, state))
        if self._waiting[0][2] is state:
            self._set_timer()

    def stop(self) -> None:
        """Cancel all delays."""
        self._waiting.clear()
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            left_s = self._waiting[0][0] - self._runtime.monotonic()
            self._timer = self._runtime.call_later(max(left_s, 0), self._due)

    def _due(self) -> None:
        self._timer = None
        now = self._runtime.monotonic() + TOGETHER_S
        states: list[FetchState] = []
        while self._waiting and self._waiting[0][0] <= now:
            states.append(heapq.heappop(self._waiting)[2])
        self._set_timer()
        self._over(states)
