"""The partitions of this broker, kept in step with the metadata image.

After each committed change the listener creates what is new, closes and deletes what is gone, and hands
changed configs to the logs, a few milliseconds at a time (work_queue.py). At start it does the same for the
whole image.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from barnabas.broker.partition import Partition
from barnabas.broker.work_queue import WorkQueue
from barnabas.storage.errors import StorageError
from barnabas.storage.log_config import LogConfig
from barnabas.wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from barnabas.controller.image import MetadataImage, TopicImage
    from barnabas.storage.log import Log
    from barnabas.storage.manager import LogManager
    from barnabas.storage.runtime import Runtime

log = logging.getLogger("barnabas.partitions")


class PartitionManager:
    """Finds a partition by topic name or id. All calls on the loop's thread."""

    def __init__(
        self,
        log_manager: LogManager,
        node_id: int,
        topic_configs: Callable[[MetadataImage, str], Mapping[str, str]],
        runtime: Runtime,
    ) -> None:
        """`topic_configs(image, topic)` gives every topic-level setting that is in force, by Kafka's name."""
        self._log_manager = log_manager
        self._node_id = node_id
        self._topic_configs = topic_configs
        # By name and by id it is the same dict of a topic's partitions by index.
        self._by_name: dict[str, dict[int, Partition]] = {}
        self._by_id: dict[bytes, dict[int, Partition]] = {}
        self._failed: set[bytes] = (
            set()
        )  # topics with a log that could not be made; tried again at each change
        self._log_configs: dict[frozenset[tuple[str, str]], LogConfig] = {}  # by what is set on a topic
        self._work = WorkQueue(runtime)

    def get(self, topic: str, partition: int) -> Partition | None:
        partitions = self._by_name.get(topic)
        return partitions.get(partition) if partitions is not None else None

    def by_id(self, topic_id: bytes, partition: int) -> Partition | None:
        partitions = self._by_id.get(topic_id)
        return partitions.get(partition) if partitions is not None else None

    def all(self) -> Iterator[Partition]:
        return iter([each for partitions in self._by_name.values() for each in partitions.values()])

    def load(self, image: MetadataImage) -> None:
        """At start: everything in the image that is ours."""
        for topic in image.topics.values():
            for _ in self._update_topic(image, topic):
                pass
        for stray in self._log_manager.logs():
            if self.get(stray.topic, stray.partition) is None:
                log.warning("%s-%d is not in the metadata; it is left alone", stray.topic, stray.partition)

    def metadata_changed(self, image: MetadataImage, topic_ids: set[bytes], config_topics: set[str]) -> None:
        """Follow a committed change that touched these topics (by id) and the configs of these (by name).
        Removes first: a name may have been given away again. Many logs take several turns of the loop;
        `when_settled` tells when they are through."""
        for topic_id in topic_ids:
            if image.topic_by_id(topic_id) is None:
                self._remove_topic(topic_id)
        if config_topics:
            self._log_configs.clear()
        failed, self._failed = self._failed, set()
        for topic_id in topic_ids | failed:
            topic = image.topic_by_id(topic_id)
            if topic is not None:
                self._follow(image, topic)
        for name in config_topics:
            self._work.add(self._update_config(image, name))

    def when_settled(self, callback: Callable[[], object]) -> None:
        """Call back when the partitions are as the changes so far have it; now when they are."""
        self._work.when_done(callback)

    def _follow(self, image: MetadataImage, topic: TopicImage) -> None:
        steps = self._update_topic(image, topic)
        if topic.is_internal:  # its coordinator follows the same change, and finds the partitions open
            for _ in steps:
                pass
        else:
            self._work.add(steps)

    def _update_topic(self, image: MetadataImage, topic: TopicImage) -> Iterator[None]:
        for index in tuple(topic.partitions):
            if image.topic_by_id(topic.topic_id) is not topic:
                return  # removed since the last step
            state = topic.partitions[index]
            if self._node_id not in state.replicas:
                continue
            existing = self.by_id(topic.topic_id, index)
            if existing is not None:
                if existing.leader_epoch != state.leader_epoch:
                    existing.leader_epoch = state.leader_epoch
                    existing.interrupt_waiters()
                continue
            try:
                opened = self._open_log(topic, index, self._log_config(image, topic.name))
            except StorageError as error:  # the other partitions live on
                log.error("%s-%d is offline: %s", topic.name, index, error)
                self._failed.add(topic.topic_id)
                continue
            self._add(Partition(topic.name, topic.topic_id, index, state.leader_epoch, opened))
            yield

    def _add(self, partition: Partition) -> None:
        partitions = self._by_id.setdefault(partition.topic_id, {})
        partitions[partition.partition] = partition
        self._by_name[partition.topic] = partitions

    def _log_config(self, image: MetadataImage, topic: str) -> LogConfig:
        """Topics whose settings are equal share one."""
        own = frozenset(image.topic_configs(topic).items())
        config = self._log_configs.get(own)
        if config is None:
            config = self._log_configs[own] = LogConfig.from_properties(self._topic_configs(image, topic))
        return config

    def _open_log(self, topic: TopicImage, index: int, config: LogConfig) -> Log:
        opened = self._log_manager.get(topic.name, index)
        if opened is not None and opened.topic_id == ZERO_UUID:
            self._log_manager.adopt(opened, topic.topic_id)
        if opened is not None and opened.topic_id != topic.topic_id:
            log.warning(
                "%s-%d on disk belongs to a deleted topic of that name; removing it", topic.name, index
            )
            self._log_manager.delete(topic.name, index)
            opened = None
        if opened is None:
            return self._log_manager.create(topic.name, topic.topic_id, index, config)
        opened.update_config(config)
        return opened

    def _remove_topic(self, topic_id: bytes) -> None:
        """Out of service at once; the logs go one by one."""
        partitions = self._by_id.pop(topic_id, None)
        if not partitions:
            return
        name = next(iter(partitions.values())).topic
        if self._by_name.get(name) is partitions:
            del self._by_name[name]
        self._work.add(self._delete_logs(partitions))

    def _delete_logs(self, partitions: Mapping[int, Partition]) -> Iterator[None]:
        for partition in partitions.values():
            # By now the name may belong to another topic's log.
            if self._log_manager.get(partition.topic, partition.partition) is partition.log:
                self._log_manager.delete(partition.topic, partition.partition)
            partition.interrupt_waiters()
            yield

    def _update_config(self, image: MetadataImage, topic: str) -> Iterator[None]:
        for partition in tuple(self._by_name.get(topic, {}).values()):
            if topic not in image.topics:
                return
            partition.log.update_config(self._log_config(image, topic))
            yield
