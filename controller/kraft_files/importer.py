"""Import: from the records of Kafka's metadata log to an image that this broker can serve as a single node.

Refused are a quorum with other voters, partitions with replicas on other brokers, and a metadata.version of a later release:
serving a part of a cluster would lose or fork it. Partitions in a log directory that this node does not have are refused as well:
they would be empty.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

import msgspec

from barnabas.controller.kraft_files.log import KraftLog
from barnabas.controller.metadata.errors import MetadataError
from barnabas.controller.metadata.image import MetadataDelta, MetadataImage, PartitionState, TopicImage
from barnabas.controller.operations.features import METADATA_VERSION, METADATA_VERSION_LEVEL
from barnabas.wire.messages import metadata_records as wire

_NAMED_MAX: Final = 5  # partitions that an error lists

# Records about other nodes or older releases, which the image does not keep.
_PASSED_OVER: Final = (wire.RegisterControllerRecord, wire.ZkMigrationStateRecord)

log = logging.getLogger("barnabas.metadata")


def import_image(source: KraftLog, node_id: int, directory_ids: Collection[bytes]) -> MetadataImage:
    """The image that the log leads to; this node leads all partitions, in a new leader epoch.

    `directory_ids`: those of this node's log directories (16 bytes each). MetadataError, with a remedy, when this broker can't
    serve it.
    """
    others = sorted(source.voters - {node_id})
    if others:
        raise MetadataError(
            f"the metadata belongs to a controller quorum of nodes {sorted(source.voters)}; this broker, node "
            f"{node_id}, runs alone. {_SHRINK_FIRST}"
        )
    image = MetadataImage()
    delta = MetadataDelta()
    for record in source.records:
        replay_from_kafka(image, record, delta)
    level = image.features.get(METADATA_VERSION, METADATA_VERSION_LEVEL)
    if level > METADATA_VERSION_LEVEL:
        raise MetadataError(
            f"the metadata is of metadata.version {level}; this version reads up to {METADATA_VERSION_LEVEL} (4.3). "
            f"Downgrade it with kafka-features.sh, or use a later version."
        )
    _check_partitions(image, node_id, directory_ids)
    for broker_id in [each for each in image.brokers if each != node_id]:
        log.warning("broker %d, which has no replicas, is no longer registered", broker_id)
        del image.brokers[broker_id]
    for topic in image.topics.values():
        _lead_all(topic, node_id)
    return image


_SHRINK_FIRST: Final = (
    "While Kafka runs, move every partition to this one broker (kafka-reassign-partitions.sh), unregister the "
    "other brokers (kafka-cluster.sh unregister) and shrink the quorum to this node (kafka-metadata-quorum.sh "
    "remove-controller); or start with an empty directory and copy the topics with MirrorMaker."
)


def replay_from_kafka(image: MetadataImage, record: msgspec.Struct, delta: MetadataDelta) -> None:
    """As `image.replay`, also for records that only Kafka writes. MetadataError when one does not fit."""
    if isinstance(record, _PASSED_OVER):
        return
    image.replay(record, delta)


def _check_partitions(image: MetadataImage, node_id: int, directory_ids: Collection[bytes]) -> None:
    elsewhere: list[str] = []
    without_directory: list[str] = []
    for topic in image.topics.values():
        for index, state in topic.partitions.items():
            if state.replicas != [node_id]:
                elsewhere.append(f"{topic.name}-{index} on {state.replicas}")
            elif any(_is_real(each) and each not in directory_ids for each in state.directories):
                without_directory.append(f"{topic.name}-{index}")
    if elsewhere:
        raise MetadataError(
            f"{len(elsewhere)} partition(s) have replicas on other brokers than {node_id}: {_some(elsewhere)}. This "
            f"version runs alone. {_SHRINK_FIRST}"
        )
    if without_directory:
        raise MetadataError(
            f"{len(without_directory)} partition(s) lie in a log directory that log.dirs does not name: "
            f"{_some(without_directory)}. Set log.dirs to all directories that Kafka had."
        )


def _is_real(directory_id: bytes) -> bool:
    """Ids below 100 are reserved, such as "unassigned" and "lost"."""
    return int.from_bytes(directory_id, "big") >= 100


def _some(items: list[str]) -> str:
    return ", ".join(items[:_NAMED_MAX]) + (", ..." if len(items) > _NAMED_MAX else "")


def _lead_all(topic: TopicImage, node_id: int) -> None:
    """Kafka leaves partitions without a leader when it stops. A new leader is a new epoch, as in Kafka."""
    topic.partitions = {
        index: PartitionState(
            replicas=[node_id],
            isr=[node_id],
            leader=node_id,
            leader_epoch=state.leader_epoch + 1,
            partition_epoch=state.partition_epoch + 1,
            directories=state.directories,
        )
        for index, state in sorted(topic.partitions.items())
    }
