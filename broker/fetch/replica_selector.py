"""The preferred read replica of a consumer (KIP-392), which the leader names in a fetch response.

Kafka names selectors by their Java class; its own two are here. Another class has no effect and is warned of at the start.
Candidates are in sync or observers, alive, reachable by the consumer's listener, and have the requested offset: a consumer would return
from a replica that lags to the leader, which would name that replica again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.broker.config.warnings import LEADER_SELECTOR, RACK_AWARE_SELECTOR

if TYPE_CHECKING:
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.partitions.partition import Partition
    from barnabas.controller.metadata.image import BrokerRegistration

NO_PREFERENCE: Final = -1  # read here


class ReplicaView(msgspec.Struct, frozen=True):
    """One replica as a selector sees it."""

    broker_id: int
    rack: str | None
    log_end_offset: int
    caught_up_ms_ago: int  # 0 for the leader


Selector = Callable[[str, ReplicaView, Sequence[ReplicaView]], ReplicaView]


def rack_aware(client_rack: str, leader: ReplicaView, replicas: Sequence[ReplicaView]) -> ReplicaView:
    """The leader if it is in the client's rack or no replica is. Otherwise the replica in that rack with the highest end offset,
    then the one that was caught up last, then the highest id."""
    near = [replica for replica in replicas if replica.rack == client_rack]
    if not client_rack or not near or any(replica.broker_id == leader.broker_id for replica in near):
        return leader
    return max(
        near, key=lambda replica: (replica.log_end_offset, -replica.caught_up_ms_ago, replica.broker_id)
    )


_SELECTORS: Final[dict[str, Selector | None]] = {RACK_AWARE_SELECTOR: rack_aware, LEADER_SELECTOR: None}


def selector_of(config: BrokerConfig) -> Selector | None:
    """By replica.selector.class; None when consumers always read from the leader."""
    return _SELECTORS.get((config.replica_selector_class or "").strip())


def preferred_read_replica(
    select: Selector, client_rack: str, leader: ReplicaView, followers: Sequence[ReplicaView]
) -> int:
    """The broker that the consumer shall read from, NO_PREFERENCE when that is the leader."""
    chosen = select(client_rack, leader, (leader, *followers))
    return NO_PREFERENCE if chosen.broker_id == leader.broker_id else chosen.broker_id


class ReadAdvice:
    """Chooses the preferred read replicas for one fetch of a consumer."""

    __slots__ = ("_brokers", "_listener", "_node_id", "_now", "_rack", "_select")

    def __init__(
        self,
        select: Selector,
        client_rack: str,
        listener: str,
        node_id: int,
        brokers: Mapping[int, BrokerRegistration],
        now: float,
    ) -> None:
        """`now` on the monotonic clock."""
        self._select = select
        self._rack = client_rack
        self._listener = listener
        self._node_id = node_id
        self._brokers = brokers
        self._now = now

    def preferred(self, partition: Partition, fetch_offset: int) -> int:
        """The broker to read from instead, NO_PREFERENCE when that is this one."""
        leadership = partition.leadership
        if leadership is None:
            return NO_PREFERENCE
        followers = []
        for broker_id in leadership.readable:
            replica = leadership.replicas.get(broker_id)
            if replica is None or not replica.start_offset <= fetch_offset <= replica.end_offset:
                continue
            broker = self._brokers.get(broker_id)
            if broker is None or broker.fenced:
                continue
            if any(point.name == self._listener for point in broker.endpoints):
                ago_ms = round(min(self._now - replica.last_caught_up, 1e9) * 1000)
                followers.append(ReplicaView(broker_id, broker.rack, replica.end_offset, ago_ms))
        own = self._brokers.get(self._node_id)
        rack = None if own is None else own.rack
        leader = ReplicaView(self._node_id, rack, partition.log.log_end_offset, 0)
        return preferred_read_replica(self._select, self._rack, leader, followers)


def read_advice(
    config: BrokerConfig,
    client_rack: str,
    listener: str,
    brokers: Mapping[int, BrokerRegistration],
    now: float,
) -> ReadAdvice | None:
    """None for a consumer that reads from leaders."""
    if not client_rack:
        return None
    select = selector_of(config)
    return None if select is None else ReadAdvice(select, client_rack, listener, config.node_id, brokers, now)
