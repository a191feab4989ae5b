"""Replication quotas (KIP-73): leader.replication.throttled.rate limits what this broker sends to followers,
follower.replication.throttled.rate what it fetches, of replicas that a topic names in (leader|follower).replication.throttled.replicas.
barnabas.reassignment.throttled.rate limits what it fetches of replicas that a reassignment adds (as KIP-542 proposed it): nothing has to be
set before a move, or taken off after it.

Only replicas that are not in sync are throttled, so no producer ever waits for a quota. The rate is measured over the last
replication.quota.window.num windows, as in Kafka; a burst that fills them is allowed.
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
_RATE_MAX: Final = 2**63 - 1  # the default: no limit
_DELAY_MIN_S: Final = 0.05
_DELAY_MAX_S: Final = 1.0


class ReplicationQuota:
    """The quota of one side, leader or follower. All calls on the loop's thread."""

    def __init__(
        self,
        runtime: Runtime,
        rate: Callable[[], float],
        counts: Callable[[Partition], bool],
        window_count: int = 11,
        window_s: float = 1.0,
    ) -> None:
        """`rate()`: bytes a second, infinite without a limit. `counts(partition)`: whether this broker's replica of it counts."""
        self._runtime = runtime
        self._rate = rate
        self._counts = counts
        self._copied = Rate(window_count, window_s)

    @property
    def is_set(self) -> bool:
        """Whether there is a limit at all."""
        return self._rate() != NO_LIMIT

    def applies_to(self, partition: Partition) -> bool:
        """Whether there is a limit, and this broker's replica of the partition counts."""
        return self.is_set and self._counts(partition)

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
        return follower_id not in partition.isr and self.applies_to(partition) and self.is_exceeded


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


def replication_quota(
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

    def counts(partition: Partition) -> bool:
        properties: Mapping[str, str] = image().topic_configs(partition.topic)
        indexes = throttled_partitions(properties.get(replicas_name, ""), config.node_id)
        return indexes is None or partition.partition in indexes

    return _quota(runtime, config, rate, counts)


def reassignment_quota(runtime: Runtime, config: BrokerConfig) -> ReplicationQuota:
    """The quota of a follower that a reassignment adds, as the config has it at any time."""

    def rate() -> float:
        found = config.barnabas_reassignment_throttled_rate
        return NO_LIMIT if found >= _RATE_MAX else float(found)

    def counts(partition: Partition) -> bool:
        return config.node_id in partition.state.adding_replicas

    return _quota(runtime, config, rate, counts)


def _quota(
    runtime: Runtime, config: BrokerConfig, rate: Callable[[], float], counts: Callable[[Partition], bool]
) -> ReplicationQuota:
    window_s = config.replication_quota_window_size_seconds
    return ReplicationQuota(runtime, rate, counts, config.replication_quota_window_num, window_s)


def _stored(config: BrokerConfig, name: str) -> str | None:
    """A dynamic value, of the node or else of the cluster."""
    text: str | None = config.stored_node.get(name, config.stored_cluster.get(name))
    return text
