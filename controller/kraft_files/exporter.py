"""Export: from the image to the records of Apache Kafka 4.3's metadata log.

They have the state of Kafka's own log after a clean stop: the broker is registered and fenced, no partition has a leader, and with
eligible leader replicas (KIP-966) this node is one of them instead of in sync. A Kafka that starts on them registers the broker
again and elects it in a new leader epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from barnabas.controller.metadata.image import MetadataImage
from barnabas.controller.operations.features import (
    FEATURES,
    KRAFT_VERSION,
    METADATA_VERSION,
    SUPPORTED_FEATURES,
    with_elr,
)
from barnabas.wire.messages import metadata_records as wire

DIRECTORIES_SINCE: Final = 17  # metadata.version 3.7-IV2; Kafka refuses records that its level does not have
# The features of a new 4.3 cluster that only Kafka has; written for metadata that was never Kafka's.
NEW_CLUSTER_FEATURES: Final = tuple((each.name, each.highest) for each in FEATURES if not each.served)


def kafka_records(
    image: MetadataImage, directory_ids: Sequence[bytes], directory_of: Callable[[str, int], bytes | None]
) -> Iterator[msgspec.Struct]:
    """The records for Kafka. `directory_of(topic, partition)`: id of the log directory (16 bytes) that has the partition, None
    for none. `directory_ids`: those of all log directories of this node."""
    uses_elr = with_elr(image)
    with_directories = image.features.get(METADATA_VERSION, 0) >= DIRECTORIES_SINCE
    new = image.features.keys() <= SUPPORTED_FEATURES.keys()
    names = {topic.topic_id: topic.name for topic in image.topics.values()}
    for record in image.records():
        if isinstance(record, wire.FeatureLevelRecord) and record.name == KRAFT_VERSION:
            continue  # Kafka has it in a control record, with the voters
        if isinstance(record, wire.RegisterBrokerRecord):
            record.fenced = True
            record.in_controlled_shutdown = False
            record.log_dirs = sorted(directory_ids) if with_directories else []
            record.cordoned_log_dirs = None
        elif isinstance(record, wire.PartitionRecord):
            record.leader = -1
            record.leader_epoch += 1
            record.partition_epoch += 1
            if uses_elr:
                record.eligible_leader_replicas = record.last_known_elr = record.isr
                record.isr = []
            if with_directories:
                directory = directory_of(names[record.topic_id], record.partition_id)
                if directory is not None and len(record.replicas) == 1:
                    record.directories = [directory]
            else:
                record.directories = []
        yield record
        if new and isinstance(record, wire.FeatureLevelRecord) and record.name == METADATA_VERSION:
            for name, level in NEW_CLUSTER_FEATURES:
                yield wire.FeatureLevelRecord(name=name, feature_level=level)
