"""Requests and answers of the clients of a simulation, for the checkers. Independent of the broker's code."""

from __future__ import annotations

import bisect
import dataclasses

Partition = tuple[bytes, int]  # topic id, index


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclasses.dataclass(slots=True)
class Batch:
    """A batch that a producer sent or is about to send. `offset`: the acknowledged base offset, -1 without one."""

    producer: str
    number: int  # counts this producer's batches for this partition, from 0
    partition: Partition
    values: list[bytes]
    acks: int
    is_idempotent: bool
    started_at: float
    ended_at: float = -1.0
    outcome: str = "open"  # open, acked, sent (acks=0), failed (its outcome is unknown)
    offset: int = -1
    attempts: int = 0
    keys: list[bytes] = dataclasses.field(default_factory=list)  # of its records


@dataclasses.dataclass(slots=True)
class Commit:
    """An offset whose commit for a group was requested."""

    group: str
    partition: Partition
    offset: int
    by: str
    started_at: float
    ended_at: float = float("inf")
    outcome: str = "open"  # open, acked, failed (unknown), refused


@dataclasses.dataclass(slots=True)
class ConfigChange:
    """A config of a topic that an admin set. `ended_at` is infinite when the outcome is unknown."""

    topic: str
    name: str
    value: str
    started_at: float
    ended_at: float = float("inf")


@dataclasses.dataclass(slots=True)
class Topic:
    """A topic that an admin requested. Its times are those of the answers to its creation and its deletion."""

    name: str
    is_safe: bool  # acknowledged records may never be lost: replicated, and without unclean elections
    topic_id: bytes = b""
    partitions: int = 0
    configs: dict[str, str] = dataclasses.field(default_factory=dict)  # that it was created with
    is_deleted: bool = False  # a request for it was sent, with any outcome

    @property
    def is_compacted(self) -> bool:
        """A record may be missing when a later one has its key."""
        return self.configs.get("cleanup.policy") == "compact"

    @property
    def expires(self) -> bool:
        """Any record may be missing by now."""
        return "retention.ms" in self.configs


class History:
    """See the module."""

    def __init__(self, stale_s: float = 0.0) -> None:
        """`stale_s`: how long a replaced leader or coordinator may not know that it was replaced."""
        self.stale_s = stale_s
        self.batches: list[Batch] = []
        self.commits: list[Commit] = []
        self.config_changes: list[ConfigChange] = []
        self.topics: dict[str, Topic] = {}  # by name: a name is used once
        self.seen: dict[Partition, dict[int, tuple[int, int, str, float]]] = {}
        self.ends: dict[Partition, dict[int, int]] = {}  # by leader epoch: the largest end in an answer
        self.ends_at: dict[
            Partition, list[tuple[float, int]]
        ] = {}  # (time of the answer, largest end so far)
        self.requested_starts: dict[
            Partition, int
        ] = {}  # largest offsets up to which admins requested deletion
        self.values: dict[
            Partition, dict[int, bytes]
        ] = {}  # records that consumers read in compacted topics, by offset
        self.producer_ids: dict[tuple[int, int], str] = {}
        self.log: list[str] = []  # events, as text
        self.counts: dict[str, int] = {}

    def count(self, what: str, by: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + by

    def is_safe(self, partition: Partition) -> bool:
        return any(topic.topic_id == partition[0] and topic.is_safe for topic in self.topics.values())

    def topic(self, topic_id: bytes) -> Topic | None:
        return next((topic for topic in self.topics.values() if topic.topic_id == topic_id), None)

    def is_compacted(self, partition: Partition) -> bool:
        topic = self.topic(partition[0])
        return topic is not None and topic.is_compacted

    def last_start(self, partition: Partition) -> float:
        """The largest offset that an admin may have made the start of the log; infinite when records expire."""
        topic = self.topic(partition[0])
        if topic is not None and topic.expires:
            return float("inf")
        return self.requested_starts.get(partition, 0)

    def saw_record(self, consumer: str, partition: Partition, offset: int, value: bytes) -> None:
        """Notes a record of a compacted topic, where batches change and records do not."""
        before = self.values.setdefault(partition, {}).setdefault(offset, value)
        if before != value and self.is_safe(partition):
            raise Violation(
                f"{consumer} saw {value!r} at {offset} of {name(partition)}; {before!r} was read there before"
            )

    def is_deleted(self, topic_id: bytes) -> bool:
        return any(topic.topic_id == topic_id and topic.is_deleted for topic in self.topics.values())

    def consumed(
        self, consumer: str, partition: Partition, base_offset: int, last_offset: int, crc: int, now: float
    ) -> None:
        """Notes a batch that a consumer read. Violation when another consumer read another batch at these offsets."""
        seen = self.seen.setdefault(partition, {})
        before = seen.get(base_offset)
        if before is None:
            seen[base_offset] = last_offset, crc, consumer, now
        elif before[:2] != (last_offset, crc) and self.is_safe(partition):
            raise Violation(
                f"{consumer} saw batch {base_offset}-{last_offset} with CRC {crc:08x} in {name(partition)}; "
                f"{before[2]} at {before[3]:.3f} saw {base_offset}-{before[0]} with CRC {before[1]:08x}"
            )

    def end_before(self, partition: Partition, epoch: int) -> int:
        """The largest high watermark in answers of leaders up to this epoch. (A leader that does not know yet that it
        was replaced may lag behind its successors.)"""
        ends = self.ends.get(partition, {})
        return max((end for other, end in ends.items() if other <= epoch), default=-1)

    def end_answered(self, partition: Partition, now: float) -> int:
        """The largest end in any leader's answer more than `stale_s` before `now`."""
        answered = self.ends_at.get(partition, [])
        index = bisect.bisect_right(answered, now - self.stale_s, key=lambda each: each[0])
        return answered[index - 1][1] if index else -1

    def saw_end(self, partition: Partition, epoch: int, end: int, now: float) -> None:
        """Notes the end that the leader of this epoch answered."""
        ends = self.ends.setdefault(partition, {})
        ends[epoch] = max(end, ends.get(epoch, -1))
        answered = self.ends_at.setdefault(partition, [])
        answered.append((now, max(end, answered[-1][1]) if answered else end))

    def got_producer_id(self, producer: str, producer_id: int, epoch: int) -> None:
        """Notes a producer id; without a transactional id each is assigned once."""
        other = self.producer_ids.setdefault((producer_id, epoch), producer)
        if other != producer:
            raise Violation(f"{producer} got producer id {producer_id} epoch {epoch}, which {other} has")


def name(partition: Partition) -> str:
    """Short readable name of a partition."""
    return f"{partition[0].hex()[:6]}-{partition[1]}"
