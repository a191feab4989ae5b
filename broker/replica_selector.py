"""From which replica a consumer reads best (KIP-392): what a leader says about it in a fetch answer.

Kafka names selectors by their Java class; its own two are here. Another class has no effect and the start says so.
Replicas that are offered are in sync, alive, reached by the consumer's listener, and hold the offset it asks for: one
that lags would be left for the leader's next advice and chosen again, for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from barnabas.broker.config import BrokerConfig

NO_PREFERENCE: Final = -1  # read here


class ReplicaView(msgspec.Struct, frozen=True):
    """One replica as a selector sees it."""

    broker_id: int
    rack: str | None
    log_end_offset: int
    caught_up_ms_ago: int  # since it last had all that the leader had; the leader 0


Selector = Callable[[str, ReplicaView, Sequence[ReplicaView]], ReplicaView]


def rack_aware(client_rack: str, leader: ReplicaView, replicas: Sequence[ReplicaView]) -> ReplicaView:
    """The leader if it stands in the client's rack or nobody does; else the replica there that has most, of equals
    the one that was caught up last, of those the one with the highest id."""
    near = [replica for replica in replicas if replica.rack == client_rack]
    if not client_rack or not near or any(replica.broker_id == leader.broker_id for replica in near):
        return leader
    return max(
        near, key=lambda replica: (replica.log_end_offset, -replica.caught_up_ms_ago, replica.broker_id)
    )


_SELECTORS: Final[dict[str, Selector | None]] = {
    "org.apache.kafka.common.replica.RackAwareReplicaSelector": rack_aware,
    "org.apache.kafka.common.replica.LeaderSelector": None,
}


def is_known_selector(class_name: str) -> bool:
    return class_name in _SELECTORS


def selector_of(config: BrokerConfig) -> Selector | None:
    """By replica.selector.class; None when consumers always read from the leader."""
    return _SELECTORS.get((config.replica_selector_class or "").strip())


def preferred_read_replica(
    select: Selector, client_rack: str, leader: ReplicaView, followers: Sequence[ReplicaView]
) -> int:
    """The broker that the consumer shall read from, NO_PREFERENCE when that is the leader."""
    chosen = select(client_rack, leader, (leader, *followers))
    return NO_PREFERENCE if chosen.broker_id == leader.broker_id else chosen.broker_id
