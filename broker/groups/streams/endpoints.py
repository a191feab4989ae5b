"""Which member answers queries of which partitions: those with a user endpoint (application.server)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from barnabas.wire.messages.streams_group_heartbeat import (
    EndpointToPartitions,
    ResponseEndpoint,
    TopicPartition,
)

if TYPE_CHECKING:
    from barnabas.broker.groups.streams.group import StreamsGroup
    from barnabas.broker.groups.streams.topology import ConfiguredTopology
    from barnabas.controller.metadata.image import MetadataImage


def partitions_by_endpoint(
    group: StreamsGroup, asking_id: str, configured: ConfiguredTopology, image: MetadataImage
) -> list[EndpointToPartitions]:
    """Of all members that have an endpoint; that of the member which asks comes last."""
    found = []
    for member_id in sorted(group.members, key=lambda each: (each == asking_id, each)):
        endpoint = group.members[member_id].user_endpoint
        if endpoint is not None:
            assigned = group.current(member_id).assigned
            found.append(
                EndpointToPartitions(
                    ResponseEndpoint(*endpoint),
                    _partitions(assigned.active, configured, image),
                    _partitions(assigned.standby, configured, image),
                )
            )
    return found


def _partitions(
    tasks: Mapping[str, Mapping[int, int] | frozenset[int]],
    configured: ConfiguredTopology,
    image: MetadataImage,
) -> list[TopicPartition]:
    """Of the topics that exist; a topic may have fewer partitions than there are tasks."""
    found = []
    for subtopology_id, indexes in tasks.items():
        subtopology = configured.subtopologies.get(subtopology_id)
        for topic in () if subtopology is None else subtopology.sources:
            if topic in image.topics:
                count = len(image.topics[topic].partitions)
                found.append(TopicPartition(topic, [index for index in sorted(indexes) if index < count]))
    return found
