"""What all fetchers of a broker share of its configuration, under Kafka's names without `replica.fetch.`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

    from barnabas.broker.cluster.inter_broker_authentication import InterBrokerAuthentication
    from barnabas.broker.partitions.replication_quota import ReplicationQuota


@dataclass(slots=True)
class FetcherSettings:
    """Times in ms, sizes in bytes. `broker_epoch()` is that of this broker's registration."""

    node_id: int
    broker_epoch: Callable[[], int]
    authentication: InterBrokerAuthentication | None = None
    num_fetchers: int = 1
    max_bytes: int = 1_048_576  # of one partition
    response_max_bytes: int = 10_485_760
    min_bytes: int = 1
    wait_max_ms: int = 500
    backoff_ms: int = 1000
    socket_timeout_ms: int = 30_000
    tls: ssl.SSLContext | None = None
    quota: ReplicationQuota | None = None  # follower.replication.throttled.rate
