"""__consumer_offsets as the metadata sees it, and its creation on first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from barnabas.controller.operations.internal_topics import GROUP_METADATA_TOPIC, group_metadata_topic
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.controller.metadata.controller import Controller
    from barnabas.controller.metadata.image import TopicImage
    from barnabas.controller.operations.topics import NewTopic

__all__ = ["GROUP_METADATA_TOPIC", "OffsetsTopic"]


class OffsetsTopic:
    """Existence, leaders and creation of the topic that holds all groups."""

    def __init__(
        self,
        controller: Controller,
        config: BrokerConfig,
        create_topic: Callable[[NewTopic, Callable[[ErrorCode], object]], object],
    ) -> None:
        self._controller = controller
        self._config = config
        self._create_topic = create_topic

    def image(self) -> TopicImage | None:
        """None when it does not exist."""
        return self._controller.image.topics.get(GROUP_METADATA_TOPIC)

    def partition_count(self) -> int:
        """0 when the topic does not exist."""
        topic = self.image()
        return 0 if topic is None else len(topic.partitions)

    def leader(self, partition_index: int) -> int:
        """Node id of the partition's leader, -1 when there is none."""
        topic = self.image()
        state = None if topic is None else topic.partitions.get(partition_index)
        return -1 if state is None else state.leader

    def create(self, done: Callable[[ErrorCode], object]) -> None:
        """Have it created by the offsets.topic.* settings; NONE also when it exists by now. `done` may be called
        before this returns."""
        self._create_topic(group_metadata_topic(self._config), done)
