"""__consumer_offsets as the metadata sees it, and its creation on first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from barnabas.controller.operations.internal_topics import GROUP_METADATA_TOPIC, group_metadata_topic
from barnabas.controller.operations.topics import CreatedTopic, create_topics
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.config import BrokerConfig
    from barnabas.controller.controller import Controller
    from barnabas.storage.runtime import Runtime

__all__ = ["GROUP_METADATA_TOPIC", "OffsetsTopic"]


class OffsetsTopic:
    """Existence, leaders and creation of the topic that holds all groups."""

    def __init__(self, controller: Controller, config: BrokerConfig, runtime: Runtime) -> None:
        self._controller = controller
        self._config = config
        self._runtime = runtime

    def partition_count(self) -> int:
        """0 when the topic does not exist."""
        topic = self._controller.image.topics.get(GROUP_METADATA_TOPIC)
        return 0 if topic is None else len(topic.partitions)

    def leader(self, partition_index: int) -> int:
        """Node id of the partition's leader, -1 when there is none."""
        topic = self._controller.image.topics.get(GROUP_METADATA_TOPIC)
        state = None if topic is None else topic.partitions.get(partition_index)
        return -1 if state is None else state.leader

    def create(self, done: Callable[[ErrorCode], None]) -> None:
        """Create it by the offsets.topic.* settings; NONE also when it exists by now. `done` may be called
        before this returns."""

        def created(results: list[CreatedTopic]) -> None:
            error = results[0].error
            done(ErrorCode.NONE if error == ErrorCode.TOPIC_ALREADY_EXISTS else error)

        topic = group_metadata_topic(self._config)
        self._controller.run(
            lambda image: create_topics(image, [topic], self._config, lambda: self._runtime.random_bytes(16)),
            created,
            lambda error, _: done(error),
        )
