"""Which brokers may be in the in-sync replicas of partitions that this broker leads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.broker.partitions.isr_hedge import IsrHedge
    from barnabas.broker.partitions.replica import LocalReplica, RemoteReplica
    from barnabas.controller.metadata.image import MetadataImage

LAG_TIME_MAX_S = 30.0  # Kafka's default


class IsrRules:
    """The rules for all leaders on this broker. All calls on the loop's thread."""

    def __init__(
        self,
        node_id: int,
        now: Callable[[], float],
        image: Callable[[], MetadataImage],
        hedge: IsrHedge,
        *,
        lag_time_max_s: float = LAG_TIME_MAX_S,
        may_take_over: Callable[[LocalReplica, RemoteReplica], bool],
        on_append_failed: Callable[[], object],
    ) -> None:
        """`now()` on the monotonic clock. `lag_time_max_s`: replica.lag.time.max.ms. `may_take_over(partition, replica)`: whether
        extensions let a follower that has caught up join the ISR. `on_append_failed()`: the disk refuses appends of
        partitions that are led here."""
        self.node_id = node_id
        self.now = now
        self._image = image
        self.hedge = hedge
        self.lag_time_max_s = lag_time_max_s
        self.may_take_over = may_take_over
        self.on_append_failed = on_append_failed
        self.isr_shrinks = 0  # of partitions led here
        self.isr_expands = 0

    def alive_epoch(self, broker_id: int) -> int | None:
        """The broker's epoch; None while it is fenced or not registered."""
        broker = self._image().brokers.get(broker_id)
        return None if broker is None or broker.fenced else broker.broker_epoch

    def may_be_in_sync(self, replica: RemoteReplica) -> bool:
        """Whether the follower's broker is neither fenced nor shutting down, and fetches in the epoch of its registration
        (KIP-841, KIP-903)."""
        broker = self._image().brokers.get(replica.broker_id)
        return (
            broker is not None
            and not broker.fenced
            and not broker.in_controlled_shutdown
            and replica.broker_epoch == broker.broker_epoch
        )
