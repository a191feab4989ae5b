"""A follower beside the test: logs of its own, and the fetchers that fill them from a real broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from barnabas.broker.replica_fetcher.manager import ReplicaFetcherManager
from barnabas.broker.replica_fetcher.settings import FetcherSettings
from barnabas.broker.replica_fetcher.state import ReplicaObserver
from barnabas.storage.disk.disk import Disk, RealDisk
from barnabas.storage.log.log import Log
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.manager.manager import LogManager


class FollowedPartition:
    """What the fetchers see of a partition."""

    def __init__(self, topic: str, topic_id: bytes, index: int, leader_id: int, epoch: int, log: Log) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = index
        self.leader_id = leader_id
        self.leader_epoch = epoch
        self.log = log
        self.observer: ReplicaObserver | None = None

    def set_follower_high_watermark(self, offset: int, byte_count: int = 1) -> None:
        self.log.set_high_watermark(offset)


class FollowerNode:
    """Broker 2, of which nothing but its logs and fetchers exists."""

    def __init__(
        self,
        runtime: Any,
        directory: Path | str,
        ports: dict[int, int],
        disk: Disk | None = None,
        **settings: Any,
    ) -> None:
        """`ports`: where each broker listens."""
        self.runtime = runtime
        self.ports = ports
        self.manager = LogManager(
            disk if disk is not None else RealDisk(), [str(directory)], runtime, node_id=2, cluster_id="c"
        )
        self.manager.open()
        self.partitions: dict[tuple[str, int], FollowedPartition] = {}
        self.settings = FetcherSettings(node_id=2, broker_epoch=lambda: 7, **settings)
        self.fetchers = ReplicaFetcherManager(
            runtime,
            self.settings,
            self.manager,
            lambda node: ("127.0.0.1", ports[node]) if node in ports else None,
        )

    def partition(
        self, topic: str, topic_id: bytes, index: int, *, leader: int = 1, epoch: int = 0, **config: Any
    ) -> FollowedPartition:
        """Made, if there is none, with its log; not followed yet."""
        known = self.partitions.get((topic, index))
        if known is None:
            log = self.manager.get(topic, index)
            if log is None:
                log = self.manager.create(topic, topic_id, index, LogConfig(**config))
            log.replicate()
            known = self.partitions[topic, index] = FollowedPartition(
                topic, topic_id, index, leader, epoch, log
            )
        known.leader_id, known.leader_epoch = leader, epoch
        return known

    def follow(self, topic: str, topic_id: bytes, index: int, **fields: Any) -> FollowedPartition:
        partition = self.partition(topic, topic_id, index, **fields)
        self.fetchers.on_following([partition])
        return partition

    def stop(self) -> None:
        self.fetchers.stop()
        self.manager.close()
