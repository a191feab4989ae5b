"""What the partitions of each topic have taken in and given out here: the counters of Kafka's BrokerTopicMetrics.

They are plain integers, as every produce and fetch counts. A topic that leaves this broker takes its own counters along; the
broker's totals keep what they have counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterator

# As in Kafka (ReplicaManager), these are no failures of the broker: the client corrects them, or knows that it has to wait.
EXPECTED_OF_PRODUCE: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
EXPECTED_OF_FETCH: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)


class TopicStats:
    """The counters of one topic, since it came to this broker. Sizes in bytes; a request counts once for each partition."""

    __slots__ = (
        "bytes_in", "bytes_out", "bytes_rejected", "failed_fetch_requests", "failed_produce_requests", "fetch_requests",
        "messages_in", "produce_requests", "replication_bytes_in", "replication_bytes_out",
    )  # fmt: skip

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.bytes_out = 0  # to consumers
        self.bytes_rejected = 0  # of batches that are too large
        self.produce_requests = 0
        self.fetch_requests = 0  # of consumers and followers
        self.failed_produce_requests = 0
        self.failed_fetch_requests = 0
        self.replication_bytes_in = 0
        self.replication_bytes_out = 0

    def add(self, other: TopicStats) -> None:
        for name in COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def refused_append(self, error: ErrorCode, size: int) -> None:
        """A batch of `size` bytes was not appended."""
        self.produce_requests += 1
        if error in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
            self.bytes_rejected += size
        elif error not in EXPECTED_OF_PRODUCE:
            self.failed_produce_requests += 1

    def refused_read(self, error: ErrorCode) -> None:
        if error not in EXPECTED_OF_FETCH:
            self.failed_fetch_requests += 1


COUNTERS: Final = TopicStats.__slots__


class BrokerTopicStats:
    """The counters of all topics of this broker, by name."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicStats] = {}
        self._gone = TopicStats()  # of topics that have left

    def of(self, topic: str) -> TopicStats:
        """The topic's counters, which all its partitions share."""
        stats = self._topics.get(topic)
        if stats is None:
            stats = self._topics[topic] = TopicStats()
        return stats

    def topics(self) -> Iterator[tuple[str, TopicStats]]:
        """In the order of the names."""
        return iter(sorted(self._topics.items()))

    def left(self, topic: str) -> None:
        """No partition of the topic is here any more."""
        stats = self._topics.pop(topic, None)
        if stats is not None:
            self._gone.add(stats)

    def of_gone(self) -> TopicStats:
        """What topics that have left have counted."""
        counted = TopicStats()
        counted.add(self._gone)
        return counted
