"""The group coordinator: the shards of __consumer_offsets on this broker, and what concerns all of them.

Everything here runs on the loop's thread. Replies to members go out through one outbox after the current work, so that a reply
whose receiver sends the next request at once finds a consistent group.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from barnabas.broker.coordinator.shards import Shards
from barnabas.broker.coordinator.topic import CoordinatorTopic
from barnabas.broker.groups.member import GroupUsage
from barnabas.broker.groups.offsets import DeletedTopic
from barnabas.broker.groups.settings import GroupConfigs, GroupSettings
from barnabas.broker.groups.streams.internal_topics import InternalTopics
from barnabas.controller.operations.features import GROUP_VERSION, SHARE_VERSION, STREAMS_VERSION
from barnabas.controller.operations.internal_topics import GROUP_METADATA_TOPIC, group_metadata_topic
from barnabas.runtime.slices import PeriodicPasses, StepQueue
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.cluster.latest_offsets import LatestOffsets
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.coordinator.log import CoordinatorLog, Marker
    from barnabas.broker.coordinator.topic import CreateTopic
    from barnabas.broker.groups.shard import Shard
    from barnabas.broker.share_coordinator.persister import Persister
    from barnabas.controller.metadata.controller import Controller
    from barnabas.controller.metadata.image import MetadataImage
    from barnabas.runtime.interface import Runtime
    from barnabas.storage.wall_clock import WallClock

log = logging.getLogger("barnabas.coordinator")

R = TypeVar("R")


class GroupCoordinator:
    """All groups whose partitions this broker leads."""

    def __init__(
        self,
        coordinator_log: CoordinatorLog,
        config: BrokerConfig,
        runtime: Runtime,
        controller: Controller,
        wall_clock: WallClock,
        create_topic: CreateTopic,
        persister: Persister,
        latest_offsets: LatestOffsets,
    ) -> None:
        """`create_topic`: see CoordinatorTopic. `persister`: the client of the share coordinators."""
        self._log = coordinator_log
        self._settings = GroupSettings.from_config(config)
        self._configs = GroupConfigs(config.value, lambda: controller.image)
        self._usage = GroupUsage()
        self._persister = persister
        self._latest_offsets = latest_offsets
        self._work = StepQueue(runtime)  # that takes long: one piece at a time
        self._runtime = runtime
        self._controller = controller
        self._wall_clock = wall_clock
        self.internal_topics = InternalTopics(runtime)
        self._rebalance_protocols = frozenset(config.group_coordinator_rebalance_protocols)
        self.topic = CoordinatorTopic(
            GROUP_METADATA_TOPIC, controller, partial(group_metadata_topic, config), create_topic
        )
        self.shards = Shards(GROUP_METADATA_TOPIC, config.node_id, self._make_shard, runtime.monotonic)
        self._topic_names: dict[bytes, str] = {}  # to know the name of a topic that was deleted
        self._passes = PeriodicPasses(runtime)
        self._outbox: list[Callable[[], None]] = []

    def _make_shard(self, index: int) -> Shard:
        from barnabas.broker.groups.shard import Shard  # late: a broker without groups does not load it

        return Shard(
            index,
            self._log,
            self._runtime,
            self._settings,
            self._configs,
            self._persister,
            self._latest_offsets,
            self._usage,
            self._work,
        )

    @property
    def serves_consumer_groups(self) -> bool:
        """Whether the protocol of KIP-848 is switched on."""
        features = self._controller.image.features
        return "consumer" in self._rebalance_protocols and features.get(GROUP_VERSION, 0) > 0

    @property
    def serves_share_groups(self) -> bool:
        """Whether share groups are switched on (KIP-932)."""
        return self._controller.image.features.get(SHARE_VERSION, 0) > 0

    @property
    def serves_streams_groups(self) -> bool:
        """Whether the protocol of KIP-1071 is switched on."""
        features = self._controller.image.features
        return "streams" in self._rebalance_protocols and features.get(STREAMS_VERSION, 0) > 0

    # -- life

    def start(self) -> None:
        """Load the shards of this broker, follow the metadata, and expire offsets from now on."""
        image = self._controller.image
        self.shards.metadata_changed(self.topic.image())
        self._topic_names = {topic.topic_id: topic.name for topic in image.topics.values()}
        self._controller.add_listener(self.metadata_changed)
        self._passes.add(self._settings.offsets_retention_check_interval_ms, self._expire)

    def stop(self) -> None:
        """Requests are answered NOT_COORDINATOR from now on."""
        self._passes.stop()
        self.shards.stop()

    def metadata_changed(
        self, image: MetadataImage, topic_ids: Iterable[bytes], _config_topics: set[str]
    ) -> None:
        """These topics changed: shards are loaded and unloaded as partitions of __consumer_offsets have moved, and offsets of
        deleted topics are removed."""
        deleted = []
        names = set()
        are_created = False
        for topic_id in sorted(topic_ids):
            topic = image.topic_by_id(topic_id)
            if topic is not None:
                are_created |= topic_id not in self._topic_names
                self._topic_names[topic_id] = topic.name
                names.add(topic.name)
            elif topic_id in self._topic_names:
                deleted.append(DeletedTopic(self._topic_names.pop(topic_id), topic_id))
                names.add(deleted[-1].name)
        if GROUP_METADATA_TOPIC in names:
            self.shards.metadata_changed(self.topic.image())
        for led in tuple(self.shards.led.values()):
            led.shard.topics_changed(names, are_created=are_created, offset=image.offset)
            if deleted:
                led.shard.topics_deleted(deleted)

    def _expire(self) -> Iterator[None]:
        now_ms = self._wall_clock.deletion_time_ms()
        if now_ms is not None:
            for shard in self.shards.loaded():
                yield from shard.offset_requests.expire(now_ms)

    # -- transactions

    def end_transaction(
        self, partition_index: int, marker: Marker, done: Callable[[ErrorCode], object]
    ) -> None:
        """Append a marker to a partition of __consumer_offsets; `done(error)` once, maybe at once: NONE when the transaction's
        offsets are visible. NOT_LEADER_OR_FOLLOWER also while the groups are loaded, which sends the marker again."""

        def ended(error: ErrorCode) -> None:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER if error == ErrorCode.NOT_COORDINATOR else error)

        led = self.shards.led.get(partition_index)
        if led is None or led.is_loading:
            ended(ErrorCode.NOT_COORDINATOR)
        else:
            led.shard.end_transaction(marker, ended)

    # -- replies

    def outgoing(self, reply: Callable[[R], None]) -> Callable[[R], None]:
        """A reply that leaves when the current work is done: its receiver may send the next request at once."""

        def post(response: R) -> None:
            if not self._outbox:
                self._runtime.call_soon(self._flush)
            self._outbox.append(lambda: reply(response))

        return post

    def _flush(self) -> None:
        replies, self._outbox = self._outbox, []
        for reply in replies:
            try:
                reply()
            except Exception:
                log.exception("a reply could not be sent")
