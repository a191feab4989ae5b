"""The fetchers of a broker: up to num.replica.fetchers for each broker that leads partitions followed here.

A partition is fetched by at most one of them. When this broker becomes the leader of a partition, or no longer hosts it,
`on_not_following` is called in the same turn, so no fetched record is appended behind a produced one.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from barnabas.broker.replica_fetcher.fetcher import ReplicaFetcher
from barnabas.runtime.slices import Periodic

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from barnabas.broker.partitions.partition import Partition
    from barnabas.broker.replica_fetcher.fetcher import FetcherSettings
    from barnabas.runtime.interface import Runtime
    from barnabas.storage.manager.manager import LogManager

log = logging.getLogger("barnabas.replication")

FetcherId = tuple[int, int]  # leader, number


class ReplicaFetcherManager:
    """See the module. `endpoint(node_id)` is the address of a broker's inter-broker listener, None if it is unknown.
    All calls on the loop's thread."""

    def __init__(
        self,
        runtime: Runtime,
        settings: FetcherSettings,
        log_manager: LogManager,
        endpoint: Callable[[int], tuple[str, int] | None],
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._num_fetchers = settings.num_fetchers
        self._log_manager = log_manager
        self._endpoint = endpoint
        self._fetchers: dict[FetcherId, ReplicaFetcher] = {}
        self._assigned: dict[tuple[bytes, int], FetcherId] = {}  # by topic id and partition
        self._stopped = False
        self._learning: Periodic | None = None
        if settings.tier_interval_ms:
            interval_s = settings.tier_interval_ms / 1000
            self._learning = Periodic(runtime, interval_s, interval_s, self._learn_tiered_offsets)

    def _learn_tiered_offsets(self, done: Callable[[], object]) -> None:
        for fetcher in self._fetchers.values():
            fetcher.learn_tiered_offsets()
        done()

    def on_following(self, partitions: Iterable[Partition]) -> None:
        """These follow their `leader_id` in their `leader_epoch` now."""
        if self._stopped:
            return
        added: dict[FetcherId, list[Partition]] = {}
        for partition in partitions:
            if partition.log.offline:
                self.on_not_following((partition,))
                continue
            key = (partition.topic_id, partition.partition)
            where = (partition.leader_id, self._number(key))
            before = self._assigned.get(key)
            if before is not None and before != where:
                self._remove(key, before)
            self._assigned[key] = where
            added.setdefault(where, []).append(partition)
        for where, those in added.items():
            fetcher = self._fetchers.get(where)
            if fetcher is None:
                fetcher = self._fetchers[where] = self._make(where)
            fetcher.add(those)
        self._close_idle()

    def on_not_following(self, partitions: Iterable[Partition]) -> None:
        """These are led by this broker now, have no leader, or are no longer hosted here."""
        for partition in partitions:
            key = (partition.topic_id, partition.partition)
            where = self._assigned.pop(key, None)
            if where is not None:
                self._remove(key, where)
        self._close_idle()

    def resize(self, num_fetchers: int, partitions: Iterable[Partition]) -> None:
        """num.replica.fetchers may have changed: of `partitions`, those whose fetcher is another one now are moved to it. Answers
        to requests of the old one are dropped."""
        if num_fetchers == self._num_fetchers:
            return
        self._num_fetchers = num_fetchers
        moved = []
        for partition in partitions:
            key = (partition.topic_id, partition.partition)
            before = self._assigned.get(key)
            if before is not None and before != (partition.leader_id, self._number(key)):
                moved.append(partition)
        self.on_following(moved)

    def brokers_changed(self, node_ids: Container[int]) -> None:
        """Registrations of brokers have changed: fetchers that wait to connect to them connect at once, and those connected to a
        former address connect to the new one."""
        for (leader_id, _), fetcher in list(self._fetchers.items()):
            if leader_id in node_ids:
                fetcher.leader_has_changed()

    def max_lag(self) -> int:
        """Kafka's MaxLag: how many committed records the partition lacks that lacks most."""
        return max((lag for fetcher in self._fetchers.values() for lag in fetcher.lags()), default=0)

    def stop(self) -> None:
        """Stop all fetchers."""
        self._stopped = True
        if self._learning is not None:
            self._learning.stop()
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._fetchers.clear()
        self._assigned.clear()

    def _number(self, key: tuple[bytes, int]) -> int:
        return (int.from_bytes(key[0][:4], "big") + key[1]) % self._num_fetchers

    def _make(self, where: FetcherId) -> ReplicaFetcher:
        leader_id, number = where
        client_id = f"broker-{self._settings.node_id}-fetcher-{number}"
        return ReplicaFetcher(
            self._runtime,
            self._settings,
            self._log_manager,
            client_id,
            leader_id,
            partial(self._endpoint, leader_id),
        )

    def _remove(self, key: tuple[bytes, int], where: FetcherId) -> None:
        fetcher = self._fetchers.get(where)
        if fetcher is not None:
            fetcher.remove(*key)

    def _close_idle(self) -> None:
        for where, fetcher in list(self._fetchers.items()):
            if not fetcher.partitions:
                fetcher.close()
                del self._fetchers[where]
