"""Replication quotas (KIP-73): leader.replication.throttled.rate limits what this broker sends to followers,
follower.replication.throttled.rate what it fetches.

Only replicas that a topic names in (leader|follower).replication.throttled.replicas count, and only those that are not in sync
are throttled, so no producer ever waits for a quota. The rate is measured over the last replication.quota.window.num windows,
as in Kafka; a burst that fills them is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from barnabas.broker.quotas.rate import NO_LIMIT, Rate

if TYPE_CHECKING:
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.partitions.partition import Partition
    from barnabas.controller.metadata.image import MetadataImage
    from barnabas.runtime.interface import Runtime

ALL: Final = "*"
LEADER: Final = "leader"
FOLLOWER: Final = "follower"
_DELAY_MIN_S: Final = 0.05
_DELAY_MAX_S: Final = 1.0


class ReplicationQuota:
    """The quota of one side, leader or follower. All calls on the loop's thread."""

    def __init__(
        self,
        runtime: Runtime,
        node_id: int,
        rate: Callable[[], float],
        replicas: Callable[[str], str],
        window_count: int = 11,
        window_s: float = 1.0,
    ) -> None:
        """`rate()`: bytes a second, infinite without a limit. `replicas(topic)`: the topic's list of throttled replicas."""
        self._runtime = runtime
        self._node_id = node_id
        self._rate = rate
        self._replicas = replicas
        self._copied = Rate(window_count, window_s)

    @property
    def is_set(self) -> bool:
        """Whether there is a limit at all."""
        return self._rate() != NO_LIMIT

    def is_throttled(self, topic: str, partition: int) -> bool:
        """Whether this broker's replica of the partition counts."""
        indexes = throttled_partitions(self._replicas(topic), self._node_id)
        return indexes is None or partition in indexes

    def record(self, size: int) -> None:
        """Count `size` bytes of throttled replicas that have been copied."""
        self._copied.record(size, self._runtime.monotonic())

    @property
    def is_exceeded(self) -> bool:
        """Whether more has been copied in the last windows than the rate allows."""
        return self.delay_s() > 0

    def delay_s(self) -> float:
        """For how long to copy nothing more, at most a second; 0 when the quota is not exceeded."""
        rate = self._rate()
        if rate == NO_LIMIT:
            return 0.0
        now = self._runtime.monotonic()
        if rate <= 0:
            return _DELAY_MAX_S if self._copied.total(now) > 0 else 0.0
        excess_s = self._copied.excess_s(rate, now)
        return min(max(excess_s, _DELAY_MIN_S), _DELAY_MAX_S) if excess_s > 0 else 0.0

    def holds_back(self, partition: Partition, follower_id: int) -> bool:
        """As the leader: whether this follower's fetches of the partition get no records for now."""
        return (
            follower_id not in partition.isr
            and self.is_throttled(partition.topic, partition.partition)
            and self.is_exceeded
        )


@lru_cache(maxsize=256)
def throttled_partitions(replicas: str, node_id: int) -> frozenset[int] | None:
    """The partitions whose replica on this broker is in a list such as `0:1,0:2,3:1` (partition:broker); None for `*`,
    all of them."""
    text = replicas.strip()
    if text == ALL:
        return None
    found = set()
    for pair in text.split(","):
        partition, colon, broker = pair.strip().partition(":")
        if colon and partition.isdecimal() and broker == str(node_id):
            found.add(int(partition))
    return frozenset(found)


def make_quota(
    runtime: Runtime,
    config: BrokerConfig,
    side: str,
    image: Callable[[], MetadataImage],
) -> ReplicationQuota:
    """The quota of a side, LEADER or FOLLOWER, as the dynamic configs of broker and topics have it at any time."""
    rate_name, replicas_name = f"{side}.replication.throttled.rate", f"{side}.replication.throttled.replicas"

    def rate() -> float:
        text = _stored(config, rate_name)
        return NO_LIMIT if text is None else float(text)

    def replicas(topic: str) -> str:
        properties: Mapping[str, str] = image().topic_configs(topic)
        return properties.get(replicas_name, "")

    return ReplicationQuota(
        runtime,
        config.node_id,
        rate,
        replicas,
        config.replication_quota_window_num,
        config.replication_quota_window_size_seconds,
    )


def _stored(config: BrokerConfig, name: str) -> str | None:
    """A dynamic value, of the node or else of the cluster."""
    text: str | None = config.stored_node.get(name, config.stored_cluster.get(name))
    return text
