"""The internal topic of a coordinator, as the metadata has it: the partition of a key, the broker that leads it, creation.

A key (a group id, a transactional id) belongs to partition abs(hash(key)) % partitions, with Java's string hash, so that
every Kafka client, tool and broker agrees.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.controller.metadata.controller import Controller
    from barnabas.controller.metadata.image import TopicImage
    from barnabas.controller.operations.topics import NewTopic

    CreateTopic = Callable[[NewTopic, Callable[[ErrorCode], object]], object]

log = logging.getLogger("barnabas.coordinator")

HASHES_REMEMBERED: Final = 1024  # of keys, each of which is 32 KB at most


@lru_cache(HASHES_REMEMBERED)
def java_string_hash(text: str) -> int:
    """Java's String.hashCode: int32, over UTF-16 code units."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for index in range(0, len(units), 2):
        value = (31 * value + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def partition_for(key: str, partition_count: int) -> int:
    """The partition that holds the key."""
    value = java_string_hash(key)
    return (0 if value == -(1 << 31) else abs(value)) % partition_count


class CoordinatorTopic:
    """One internal topic, such as __consumer_offsets. All calls on the loop's thread."""

    def __init__(
        self,
        name: str,
        controller: Controller,
        new_topic: Callable[[], NewTopic],
        create_topic: CreateTopic,
    ) -> None:
        """`new_topic()`: the topic's settings. `create_topic(topic, done)` has the controller create a topic, and calls
        `done(error)` once this broker's metadata has it; NONE also if it exists already."""
        self.name = name
        self._controller = controller
        self._new_topic = new_topic
        self._create_topic = create_topic
        self._waiting: list[Callable[[ErrorCode], None]] = []  # for the creation
        self._logged_error = ErrorCode.NONE  # of the last creation
        self._fixed_count = 0

    def image(self) -> TopicImage | None:
        """None when it does not exist."""
        return self._controller.image.topics.get(self.name)

    def fix_partition_count(self) -> int:
        """Keep to the number of partitions that the topic has now, or that it would be created with, and return it."""
        topic = self.image()
        self._fixed_count = len(topic.partitions) if topic is not None else self._new_topic().num_partitions
        return self._fixed_count

    def find(self, key: str, reply: Callable[[ErrorCode, int], None]) -> None:
        """(error, node id) of the key's coordinator. The first call has the topic created, and replies when this broker's
        metadata has it: one round trip where Kafka's clients need two or more."""
        if self.image() is not None:
            reply(*self._locate(key))
            return
        self._waiting.append(lambda error: reply(error, -1) if error else reply(*self._locate(key)))
        if len(self._waiting) == 1:
            self._create_topic(self._new_topic(), self._created)

    def node_of(self, key: str) -> int:
        """The node id of the key's coordinator; -1 if there is none now."""
        return self._locate(key)[1]

    def partition_of(self, key: str) -> int:
        """The partition that holds the key, also before the topic is created."""
        topic = self.image()
        count = len(topic.partitions) if topic is not None else self._new_topic().num_partitions
        return partition_for(key, self._fixed_count or count)

    def _locate(self, key: str) -> tuple[ErrorCode, int]:
        topic = self.image()
        partitions = {} if topic is None else topic.partitions
        count = self._fixed_count or len(partitions)
        state = partitions.get(partition_for(key, count)) if partitions else None
        if state is None or state.leader < 0:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, -1
        return ErrorCode.NONE, state.leader

    def _created(self, error: ErrorCode) -> None:
        waiting, self._waiting = self._waiting, []
        if error:
            if error != self._logged_error:  # clients retry
                log.warning("%s could not be created: %s", self.name, error.name)
            self._logged_error = error
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        for callback in waiting:
            callback(error)
