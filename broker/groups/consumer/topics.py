"""The topics that a group is subscribed to, as the metadata has them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from barnabas.broker.groups.consumer.assignors import Subscriber

if TYPE_CHECKING:
    from barnabas.broker.groups.consumer.group import ConsumerGroup
    from barnabas.broker.groups.consumer.values import Member
    from barnabas.controller.metadata.image import MetadataImage


def topic_ids(image: MetadataImage, names: Iterable[str]) -> frozenset[bytes]:
    """Of those that exist."""
    topics = image.topics
    return frozenset(topics[name].topic_id for name in names if name in topics)


def subscribers(image: MetadataImage, group: ConsumerGroup) -> dict[str, Subscriber]:
    """The members, as an assignor needs them."""
    ids_of: dict[
        tuple[frozenset[str], str | None], frozenset[bytes]
    ] = {}  # members mostly read the same topics

    def ids(member: Member) -> frozenset[bytes]:
        key = member.topic_names, member.regular_expression
        found = ids_of.get(key)
        if found is None:
            found = ids_of[key] = topic_ids(image, group.topics_of(member))
        return found

    return {
        member_id: Subscriber(ids(member), member.instance_id, group.target(member_id))
        for member_id, member in group.members.items()
    }


def partition_counts(image: MetadataImage, names: Iterable[str]) -> dict[bytes, int]:
    """By topic id, of those that exist."""
    topics = image.topics
    return {topics[name].topic_id: len(topics[name].partitions) for name in names if name in topics}
