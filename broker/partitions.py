"""The partitions of this broker, kept in step with the metadata image.

After each committed change the listener creates what is new, closes and deletes what is gone, and hands
changed configs to the logs. At start it does the same for the whole image.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from barnabas.broker.partition import Partition
from barnabas.storage.errors import StorageError
from barnabas.storage.log_config import LogConfig
from barnabas.wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from barnabas.controller.image import MetadataImage, TopicImage
    from barnabas.storage.log import Log
    from barnabas.storage.manager import LogManager

log = logging.getLogger("barnabas.partitions")


class PartitionManager:
    """Finds a partition by topic name or id. All calls on the loop's thread."""

    def __init__(
        self,
        log_manager: LogManager,
        node_id: int,
        topic_configs: Callable[[MetadataImage, str], Mapping[str, str]],
    ) -> None:
        """`topic_configs(image, topic)` gives every topic-level setting that is in force, by Kafka's name."""
        self._log_manager = log_manager
        self._node_id = node_id
        self._topic_configs = topic_configs
        self._by_name: dict[tuple[str, int], Partition] = {}
        self._by_id: dict[tuple[bytes, int], Partition] = {}
        self._failed: set[bytes] = (
            set()
        )  # topics with a log that could not be made; tried again at each change

    def get(self, topic: str, partition: int) -> Partition | None:
        return self._by_name.get((topic, partition))

    def by_id(self, topic_id: bytes, partition: int) -> Partition | None:
        return self._by_id.get((topic_id, partition))

    def all(self) -> Iterator[Partition]:
        return iter(tuple(self._by_name.values()))

    def load(self, image: MetadataImage) -> None:
        """At start: everything in the image that is ours."""
        for topic in image.topics.values():
            self._update_topic(image, topic)
        for stray in self._log_manager.logs():
            if (stray.topic, stray.partition) not in self._by_name:
                log.warning("%s-%d is not in the metadata; it is left alone", stray.topic, stray.partition)

    def metadata_changed(self, image: MetadataImage, topic_ids: set[bytes], config_topics: set[str]) -> None:
        """Follow a committed change that touched these topics (by id) and the configs of these (by name).
        Removes first: a name may have been given away again."""
        for topic_id in topic_ids:
            if image.topic_by_id(topic_id) is None:
                self._remove_topic(topic_id)
        failed, self._failed = self._failed, set()
        for topic_id in topic_ids | failed:
            topic = image.topic_by_id(topic_id)
            if topic is not None:
                self._update_topic(image, topic)
        for name in config_topics:
            self._update_config(image, name)

    def _update_topic(self, image: MetadataImage, topic: TopicImage) -> None:
        config: LogConfig | None = None
        for index, state in topic.partitions.items():
            if self._node_id not in state.replicas:
                continue
            existing = self._by_name.get((topic.name, index))
            if existing is not None:
                if existing.leader_epoch != state.leader_epoch:
                    existing.leader_epoch = state.leader_epoch
                    existing.interrupt_waiters()
                continue
            config = config or LogConfig.from_properties(self._topic_configs(image, topic.name))
            try:
                opened = self._open_log(topic, index, config)
            except StorageError as error:  # the other partitions live on
                log.error("%s-%d is offline: %s", topic.name, index, error)
                self._failed.add(topic.topic_id)
                continue
            partition = Partition(topic.name, topic.topic_id, index, state.leader_epoch, opened)
            self._by_name[topic.name, index] = partition
            self._by_id[topic.topic_id, index] = partition

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
        for key in [key for key in self._by_id if key[0] == topic_id]:
            partition = self._by_id.pop(key)
            if self._by_name.get((partition.topic, partition.partition)) is partition:
                del self._by_name[partition.topic, partition.partition]
            self._log_manager.delete(partition.topic, partition.partition)
            partition.interrupt_waiters()

    def _update_config(self, image: MetadataImage, topic: str) -> None:
        config: LogConfig | None = None
        found = image.topics.get(topic)
        for index in found.partitions if found is not None else ():
            partition = self._by_name.get((topic, index))
            if partition is not None:
                config = config or LogConfig.from_properties(self._topic_configs(image, topic))
                partition.log.update_config(config)
