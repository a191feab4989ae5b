"""__consumer_offsets as the metadata sees it, and its creation on first use.

Created with the offsets.topic.* settings and the topic configs Kafka gives it: compacted, compressed as the
producer (the broker) did, which is not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec
from barnabas.controller.decision import Decision
from barnabas.controller.image import TOPIC_RESOURCE, MetadataImage, PartitionState, partition_record
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.metadata_records import ConfigRecord, TopicRecord

if TYPE_CHECKING:
    from barnabas.broker.config import BrokerConfig
    from barnabas.controller.controller import Controller
    from barnabas.storage.runtime import Runtime

GROUP_METADATA_TOPIC: Final = "__consumer_offsets"


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
        """Create it; NONE also when it exists by now. `done` may be called before this returns."""
        config = self._config
        topic_id = self._runtime.random_bytes(16)
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        }
        self._controller.run(
            lambda image: create_offsets_topic(
                image,
                topic_id,
                config.offsets_topic_num_partitions,
                config.offsets_topic_replication_factor,
                configs,
            ),
            done,
            lambda error, _: done(error),
        )


def create_offsets_topic(
    image: MetadataImage,
    topic_id: bytes,
    partition_count: int,
    replication_factor: int,
    configs: dict[str, str],
) -> Decision[ErrorCode]:
    """The records of the topic, its replicas spread over the usable brokers in turn."""
    if GROUP_METADATA_TOPIC in image.topics:
        return Decision([], ErrorCode.NONE)
    brokers = image.usable_brokers()
    if replication_factor > len(brokers):
        return Decision([], ErrorCode.INVALID_REPLICATION_FACTOR)
    records: list[msgspec.Struct] = [TopicRecord(name=GROUP_METADATA_TOPIC, topic_id=topic_id)]
    records += [
        ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=GROUP_METADATA_TOPIC, name=name, value=value)
        for name, value in configs.items()
    ]
    for index in range(partition_count):
        replicas = [brokers[(index + step) % len(brokers)] for step in range(replication_factor)]
        state = PartitionState(
            replicas=replicas,
            isr=replicas,
            leader=replicas[0],
            leader_epoch=0,
            partition_epoch=0,
            directories=[_directory(image, broker, index) for broker in replicas],
        )
        records.append(partition_record(topic_id, index, state))
    return Decision(records, ErrorCode.NONE)


def _directory(image: MetadataImage, broker_id: int, index: int) -> bytes:
    """Id of the log directory for the replica; zero (unassigned) when the broker has told none."""
    log_dirs = image.brokers[broker_id].log_dirs
    return log_dirs[index % len(log_dirs)] if log_dirs else bytes(16)
