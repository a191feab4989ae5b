"""One partition that a fetcher keeps level with its leader: what the leader was told of it, and why it has to wait."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from barnabas.storage.log.log import Log


class ReplicaObserver(Protocol):
    """Somebody who keeps count of what a follower's log holds."""

    def replicated(self, batches: memoryview) -> None:
        """These whole batches have been appended. They are gone when this returns."""
        ...

    def cutting(self, log: Log, offset: int) -> None:
        """What stands from `offset` on is about to go."""
        ...


class Follower(Protocol):
    """A partition that follows (broker/partitions/partition.py)."""

    topic: str
    topic_id: bytes
    partition: int
    leader_epoch: int
    log: Log
    observer: ReplicaObserver | None

    @property
    def leader_id(self) -> int: ...

    def set_follower_high_watermark(self, offset: int, byte_count: int = 1) -> None:
        """The leader says that everything below `offset` is committed; tells the consumers that wait here."""
        ...


class Status(enum.Enum):
    READY = enum.auto()  # is fetched
    DELAYED = enum.auto()  # until a moment, after an error
    CUTTING = enum.auto()  # the log is being cut back or begun anew
    ASKING = enum.auto()  # the leader was asked where its log begins and ends
    SYNCING = enum.auto()  # what was fetched has to reach the disk first
    THROTTLED = enum.auto()  # follower.replication.throttled.rate
    FAILED = enum.auto()  # until metadata has news, as Kafka


class FetchState:
    """One partition in one leader epoch; another epoch gets another one. `named_in` is the number of the last request
    that said something of it, 0 when the leader's session does not have it; `sent_offset` what that said."""

    __slots__ = (
        "failures", "is_caught_up", "key", "leader_epoch", "named_in", "partition", "rounds", "sent_offset",
        "sent_start_offset", "status",
    )  # fmt: skip

    def __init__(self, partition: Follower) -> None:
        self.partition = partition
        self.key = (partition.topic_id, partition.partition)
        self.leader_epoch = partition.leader_epoch
        self.status = Status.READY
        self.failures = 0  # in a row
        self.rounds = 0  # of finding out where the logs part, in a row
        self.is_caught_up = False  # it had everything that was committed when it last heard
        self.named_in = 0
        self.sent_offset = -1
        self.sent_start_offset = -1

    @property
    def name(self) -> str:
        return f"{self.partition.topic}-{self.partition.partition}"
