"""Gives the partitions of tiered topics to the storage's RemoteLogManager, by their roles and settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.broker.metrics.families import COUNTER, Family, one
from barnabas.broker.tier.remote_quota import make_quotas
from barnabas.broker.tier.restores import Restores
from barnabas.controller.config.topic_configs import RESTORE, RestoreSource
from barnabas.controller.config.validators import ConfigError
from barnabas.storage.tier.deleted_topics import DeletedTopics
from barnabas.storage.tier.descriptions import Descriptions, TopicDescription
from barnabas.storage.tier.object_store import ObjectStoreError
from barnabas.storage.tier.remote_cache import CACHE_DIRECTORY, RemoteCache
from barnabas.storage.tier.remote_log_manager import RemoteLogManager
from barnabas.storage.tier.store_config import PREFIX, StoreConfigError, check_conditions, open_store
from barnabas.wire.uuids import uuid_from_string, uuid_to_string

if TYPE_CHECKING:
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.partitions.partition import Partition
    from barnabas.controller.metadata.controller import Controller
    from barnabas.controller.metadata.image import MetadataImage, TopicChanges
    from barnabas.runtime.interface import Runtime
    from barnabas.storage.disk.disk import Disk
    from barnabas.storage.manager.manager import LogManager
    from barnabas.storage.tier.object_store import ObjectStore

IMPL_PREFIX: Final = "remote.log.storage.manager.impl.prefix"


def configured_store(config: BrokerConfig, time_ms: Callable[[], int]) -> ObjectStore:
    """The object store that the properties name; it is not asked yet. `time_ms`: the wall clock. ConfigError."""
    prefix = config.static_value(IMPL_PREFIX) or PREFIX
    given = {
        PREFIX + name.removeprefix(prefix): text
        for name, text in config.given.items()
        if name.startswith(prefix)
    }
    try:
        return open_store(given, time_ms)
    except (StoreConfigError, ObjectStoreError) as error:
        raise ConfigError(str(error)) from error


def _is_source(image: MetadataImage, topic_id: str) -> bool:
    """Whether a topic begins with what is in the store of this one, and may not have copied it yet."""
    sources = (RestoreSource.parse(image.topic_configs(name).get(RESTORE, "")) for name in image.topics)
    return any(source is not None and source.topic_id == topic_id for source in sources)


class Tiering:
    """See the module. All calls on the loop's thread."""

    def __init__(
        self,
        config: BrokerConfig,
        runtime: Runtime,
        disk: Disk,
        log_manager: LogManager,
        cluster_id: Callable[[], str],
    ) -> None:
        """ConfigError where the object store is not or wrongly configured; OSError where the cache can't be made. The store itself
        is not asked yet."""
        try:
            store = configured_store(config, runtime.time_ms)
        except ConfigError as error:
            raise ConfigError(f"remote.log.storage.system.enable=true: {error}") from error
        self._runtime = runtime
        self._store = store
        wall_clock = self._wall_clock = log_manager.wall_clock
        self._cluster_id = cluster_id
        self._node_id = config.node_id
        self._tiered: set[bytes] = set()  # ids of topics that are tiered, or were since the start
        self._copy_quota, self._fetch_quota = make_quotas(runtime, config)
        self._descriptions = Descriptions(runtime, store, cluster_id)
        self.deleted_topics: DeletedTopics | None = None
        self.manager = RemoteLogManager(
            runtime,
            disk,
            store,
            RemoteCache(
                disk,
                store,
                f"{config.log_dirs[0]}/{CACHE_DIRECTORY}",
                config.remote_log_index_file_cache_total_size_bytes,
            ),
            wall_clock,
            cluster_id,
            partial(check_conditions, store, runtime.random_bytes),
            interval_ms=config.remote_log_manager_task_interval_ms,
            copies_at_once=config.remote_log_manager_copier_thread_pool_size,
            copy_quota=self._copy_quota,
            fetch_quota=self._fetch_quota,
        )

        self.restores = Restores(runtime, log_manager, self.manager)

    def begin(self, controller: Controller) -> None:
        """The metadata is known: note the tiered topics, and from now on those that are deleted."""
        image = controller.image
        self.deleted_topics = DeletedTopics(
            self._runtime,
            self._store,
            self._cluster_id,
            lambda topic_id: controller.image.topic_by_id(uuid_from_string(topic_id)) is not None,
            lambda topic_id: _is_source(controller.image, topic_id),
            lambda: self._collects(controller.image),
            self._wall_clock.deletion_time_ms,
        )
        self._note_tiered(image, image.topics)
        controller.add_listener(self._metadata_changed)

    def _metadata_changed(self, image: MetadataImage, topics: TopicChanges, config_topics: set[str]) -> None:
        """As Controller.add_listener says. That a topic was removed is certain, however old the image is."""
        for topic_id in topics:
            topic = image.topic_by_id(topic_id)
            if topic is not None:
                self._note_tiered(image, (topic.name,))
            elif topic_id in self._tiered:
                self._tiered.discard(topic_id)
                assert self.deleted_topics is not None
                self._descriptions.forget(uuid_to_string(topic_id))
                self.deleted_topics.deleted(uuid_to_string(topic_id))
        self._note_tiered(image, config_topics)

    def _note_tiered(self, image: MetadataImage, names: Iterable[str]) -> None:
        for name in names:
            topic = image.topics.get(name)
            configs = image.topic_configs(name)
            if topic is None or configs.get("remote.storage.enable", "").lower() != "true":
                continue
            self._tiered.add(topic.topic_id)
            topic_id = uuid_to_string(topic.topic_id)
            if topic.partitions[0].leader == self._node_id:
                self._descriptions.write(
                    TopicDescription(
                        topic_id=topic_id, name=name, partitions=len(topic.partitions), configs=dict(configs)
                    )
                )
            else:
                self._descriptions.forget(topic_id)

    def _collects(self, image: MetadataImage) -> bool:
        """Whether this is the first of the brokers that are alive: one deletes what deleted topics have left."""
        alive = image.usable_brokers()
        return not alive or alive[0] == self._node_id

    def partition_changed(self, partition: Partition) -> None:
        """It has another role, leader epoch, log or settings."""
        opened = partition.log
        if opened.offline:
            return
        if not opened.config.remote_storage_enable:
            if opened.remote is not None:  # switched off, which takes delete.on.disable (KIP-950)
                self.manager.remove(opened, delete=partition.is_leader)
                opened.end_tiering()
            opened.checkpointed_start_offset = None
        elif partition.is_leader:
            self.manager.lead(opened, partition.leader_epoch)
        else:
            self.manager.follow(opened, partition.leader_epoch)

    def partition_removed(self, partition: Partition, _deleted: bool) -> None:
        """It is not here any more. What a deleted topic has in the store is removed later (deleted_topics.py)."""
        self.manager.remove(partition.log, delete=False)
        self.restores.forget(partition.log)

    def metrics(self) -> Iterable[Family]:
        """Kafka's BrokerTopicMetrics of remote storage, of all topics together."""
        stats = self.manager.stats
        for name, value, text in (
            ("remotecopybytes", stats.copied_bytes, "Bytes of log segments copied to the object store"),
            ("remotecopyrequests", stats.copy_requests, "Segments whose copying was begun"),
            ("remotecopyerrors", stats.copy_errors, "Segments whose copying failed, and is tried again"),
            (
                "remotefetchbytes",
                stats.fetched_bytes,
                "Bytes that readers got of what is in the object store alone",
            ),
            (
                "remotefetchrequests",
                stats.fetch_requests,
                "Reads of partitions that were answered from there",
            ),
            (
                "remotefetcherrors",
                stats.fetch_errors,
                "Reads of partitions that failed because of the object store",
            ),
            (
                "remotedeletebytes",
                stats.deleted_bytes,
                "Bytes of expired log segments removed from the object store",
            ),
            (
                "remotedeleterequests",
                stats.delete_requests,
                "Segments, or whole partitions, whose removal was begun",
            ),
            (
                "buildremotelogauxstaterequests",
                stats.build_aux_requests,
                "Followers that were to begin behind what is in the object store",
            ),
            (
                "buildremotelogauxstateerrors",
                stats.build_aux_errors,
                "Those that could not yet",
            ),
            ("remotedeleteerrors", stats.delete_errors, "Removals that failed, and are tried again"),
        ):
            yield one(f"kafka_server_brokertopicmetrics_{name}_total", value, text, COUNTER)
        for name, value, text in (
            ("orphans_removed", stats.orphans_removed, "Objects removed from the object store that no manifest named"),
            ("orphan_bytes_removed", stats.orphan_bytes_removed, "Bytes of these objects"),
        ):  # fmt: skip
            yield one(f"barnabas_tier_{name}_total", value, text, COUNTER)
        yield from self._copy_quota.metrics("copy")
        yield from self._fetch_quota.metrics("fetch")
        deleted = self.deleted_topics
        yield one(
            "barnabas_tier_deleted_topics_removed_total",
            0 if deleted is None else deleted.removed,
            "Deleted topics whose objects this broker has removed from the object store",
            COUNTER,
        )
        yield one(
            "barnabas_tier_unknown_topics",
            0 if deleted is None else len(deleted.unknown),
            "Topics in the object store that neither the metadata nor a tombstone knows, by the last daily look",
        )
        yield one(
            "barnabas_tier_restoring_partitions",
            self.restores.count,
            "Partitions led here that wait for what they are restored with, and have no leader until then",
        )
        led = list(self.manager.led())
        lags = [partition.lag() for partition in led]
        remote = [partition.remote for partition in led]
        for name, value, text in (
            ("remotecopylagbytes", sum(size for size, _ in lags), "Bytes of closed segments that are not copied yet"),
            ("remotecopylagsegments", sum(count for _, count in lags), "Closed segments that are not copied yet"),
            ("remotelogmetadatacount", sum(len(each.entries) for each in remote), "Segments in the object store, of partitions led here"),
            ("remotelogsizebytes", sum(each.size for each in remote), "Bytes of these segments"),
        ):  # fmt: skip
            yield one(f"kafka_server_brokertopicmetrics_{name}", value, text)
        yield one(
            "barnabas_tier_cache_bytes",
            self.manager.cache.size,
            "Bytes of what was read from the object store, on disk",
        )

    def stop(self) -> None:
        """Begin nothing more."""
        self.manager.stop()
        self.restores.stop()
        self._copy_quota.stop()
        self._descriptions.stop()
        if self.deleted_topics is not None:
            self.deleted_topics.stop()
