"""The share coordinator: the shards of __share_group_state on this broker, and what concerns all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING

from barnabas.broker.coordinator.shards import Shards
from barnabas.broker.coordinator.topic import CoordinatorTopic
from barnabas.broker.share_coordinator.state import (
    NEGATIVE_PARTITION,
    READ_UNINITIALIZED,
    WRITE_UNINITIALIZED,
    SharePartitionKey,
    refusal,
)
from barnabas.controller.metadata.decision import ApiError
from barnabas.controller.operations.internal_topics import SHARE_GROUP_STATE_TOPIC, share_group_state_topic
from barnabas.runtime.slices import PeriodicPasses, in_slices
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.coordinator.log import CoordinatorLog
    from barnabas.broker.coordinator.topic import CreateTopic
    from barnabas.broker.share_coordinator.shard import Done, DoneReading, ShareCoordinatorShard
    from barnabas.broker.share_coordinator.state_batches import StateBatch
    from barnabas.controller.metadata.controller import Controller
    from barnabas.controller.metadata.image import MetadataImage
    from barnabas.runtime.interface import Runtime


class ShareCoordinator:
    """All share partitions that this broker coordinates. All calls on the loop's thread."""

    def __init__(
        self,
        coordinator_log: CoordinatorLog,
        config: BrokerConfig,
        runtime: Runtime,
        controller: Controller,
        create_topic: CreateTopic,
        has_session: Callable[[], bool],
    ) -> None:
        """`create_topic`: see CoordinatorTopic. `has_session`: see PartitionManager; without a session another broker may be the
        coordinator, and what is said without an append may be old."""
        self._has_session = has_session
        self._log = coordinator_log
        self._config = config
        self._runtime = runtime
        self._controller = controller
        self.topic = CoordinatorTopic(
            SHARE_GROUP_STATE_TOPIC, controller, partial(share_group_state_topic, config), create_topic
        )
        self.shards = Shards(SHARE_GROUP_STATE_TOPIC, config.node_id, self._make_shard, runtime.monotonic)
        self._passes = PeriodicPasses(runtime)

    def _make_shard(self, index: int) -> ShareCoordinatorShard:
        from barnabas.broker.share_coordinator.shard import (  # late: a start without share groups needs none of it
            ShareCoordinatorShard,
            ShareSettings,
        )

        config = self._config
        settings = ShareSettings(
            config.share_coordinator_snapshot_update_records_per_snapshot,
            config.share_coordinator_write_timeout_ms,
        )
        return ShareCoordinatorShard(index, self._log, self._runtime, settings)

    # -- life

    def start(self) -> None:
        """Load the shards of this broker, follow the metadata, and keep the topic short from now on."""
        self.shards.fixed_count = self.topic.fix_partition_count()
        self.shards.metadata_changed(self.topic.image())
        self._controller.add_listener(self.metadata_changed)
        config = self._config
        cold_ms = config.share_coordinator_cold_partition_snapshot_interval_ms
        self._passes.add(cold_ms, partial(self._snapshot_cold, cold_ms))
        self._passes.add(config.share_coordinator_state_topic_prune_interval_ms, self._prune)

    def stop(self) -> None:
        """Requests are answered NOT_COORDINATOR from now on."""
        self._passes.stop()
        self.shards.stop()

    def metadata_changed(
        self, image: MetadataImage, topic_ids: Collection[bytes], _config_topics: set[str]
    ) -> None:
        """These topics changed: shards are loaded and unloaded as partitions of __share_group_state have moved, and the states
        of deleted topics are deleted."""
        topic = self.topic.image()
        if topic is None or topic.topic_id in topic_ids:
            self.shards.metadata_changed(topic)
        deleted = {topic_id for topic_id in topic_ids if image.topic_by_id(topic_id) is None}
        if deleted and self.shards.led:
            in_slices(self._runtime, self._delete_topics(deleted), lambda: None)

    def _delete_topics(self, topic_ids: Collection[bytes]) -> Iterator[None]:
        for shard in self.shards.loaded():
            yield from shard.delete_topics(topic_ids)

    def _snapshot_cold(self, interval_ms: int) -> Iterator[None]:
        for shard in self.shards.loaded():
            yield from shard.snapshot_cold(interval_ms)

    def _prune(self) -> Iterator[None]:
        for shard in self.shards.loaded():
            shard.prune()
            yield

    # -- requests

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int, done: Done) -> None:
        """InitializeShareGroupState, of one share partition; the state replaces any that there is."""
        shard = self._shard(key)
        if isinstance(shard, ApiError):
            done(shard)
        else:
            shard.initialize(key, state_epoch, start_offset, done)

    def read(self, key: SharePartitionKey, leader_epoch: int, done: DoneReading) -> None:
        """ReadShareGroupState: fences the leaders of epochs before `leader_epoch` (-1: none)."""
        shard = self._shard(key, uninitialized=READ_UNINITIALIZED)
        if isinstance(shard, ApiError):
            done(shard)
        else:
            shard.read(key, leader_epoch, done)

    def write(
        self,
        key: SharePartitionKey,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Collection[StateBatch],
        done: Done,
    ) -> None:
        """WriteShareGroupState: merges the batches into the state, and moves its start offset (-1: it stays)."""
        shard = self._shard(key, uninitialized=WRITE_UNINITIALIZED)
        if isinstance(shard, ApiError):
            done(shard)
        else:
            shard.write(key, state_epoch, leader_epoch, start_offset, delivery_complete_count, batches, done)

    def delete(self, key: SharePartitionKey, done: Done) -> None:
        """DeleteShareGroupState."""
        shard = self._shard(key)
        if isinstance(shard, ApiError):
            done(shard)
        else:
            shard.delete(key, done)

    def summary_of(self, key: SharePartitionKey, done: DoneReading) -> None:
        """ReadShareGroupStateSummary: `done(None)` if there is no state."""
        shard = self._shard(key)
        if isinstance(shard, ApiError):
            done(shard)
        else:
            shard.summary_of(key, done)

    def _shard(
        self, key: SharePartitionKey, *, uninitialized: ApiError | None = None
    ) -> ShareCoordinatorShard | ApiError:
        """The shard that has the key, or the error. `uninitialized`: the error where there is no state, before it is looked
        whether the partition is in the metadata."""
        found = self.shards.of(key.text)
        if isinstance(found, ErrorCode):
            return refusal(found)
        if not self._has_session():
            return refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if key.partition < 0:
            return NEGATIVE_PARTITION
        if uninitialized is not None and not found.has(key):
            return uninitialized
        topic = self._controller.image.topic_by_id(key.topic_id)
        if topic is None or key.partition not in topic.partitions:
            return refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return found
