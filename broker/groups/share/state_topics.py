"""Which partitions of a share group have a delivery state at the share coordinator. Pure functions on StateTopics.

A partition is `initializing` from the heartbeat that found it until the share coordinator has answered, then `initialized`, and may be
assigned. A topic is `deleting` while its states are being deleted for an administrator. Source: GroupMetadataManager of Kafka's group
coordinator.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from barnabas.broker.groups.modern.values import Partitions
from barnabas.broker.groups.share.values import StateTopic, StateTopics

if TYPE_CHECKING:
    from barnabas.controller.metadata.image import MetadataImage

Topics = Mapping[bytes, StateTopic]


def uninitialized(
    image: MetadataImage, names: Iterable[str], states: StateTopics, *, with_initializing: bool
) -> dict[bytes, StateTopic]:
    """Partitions of these topics that have no state. `with_initializing`: also those whose initialization has not ended."""
    found = {}
    for name in sorted(names):
        topic = image.topics.get(name)
        if topic is None:
            continue
        known = _partitions(states.initialized, topic.topic_id)
        if not with_initializing:
            known |= _partitions(states.initializing, topic.topic_id)
        missing = topic.partitions.keys() - known
        if missing:
            found[topic.topic_id] = StateTopic(name, frozenset(missing))
    return found


def begin(states: StateTopics, topics: Topics) -> StateTopics:
    """These are being initialized."""
    deleting = {topic_id: name for topic_id, name in states.deleting.items() if topic_id not in topics}
    return msgspec.structs.replace(
        states, initializing=_joined(states.initializing, topics), deleting=deleting
    )


def finish(states: StateTopics, partitions: Partitions, image: MetadataImage) -> StateTopics:
    """These are initialized. Those of topics that were deleted meanwhile are dropped."""
    existing = {
        topic_id: StateTopic(topic.name, indexes)
        for topic_id, indexes in partitions.items()
        if (topic := image.topic_by_id(topic_id)) is not None
    }
    return msgspec.structs.replace(
        states,
        initializing=_without(states.initializing, partitions),
        initialized=_joined(states.initialized, existing),
    )


def give_up(states: StateTopics, partitions: Partitions) -> StateTopics:
    """These could not be initialized."""
    return msgspec.structs.replace(states, initializing=_without(states.initializing, partitions))


def begin_deletion(states: StateTopics, topic_ids: Collection[bytes]) -> StateTopics:
    """The states of these topics, which are initialized, are being deleted."""
    names = {topic_id: states.initialized[topic_id].name for topic_id in topic_ids}
    initialized = {topic_id: each for topic_id, each in states.initialized.items() if topic_id not in names}
    return msgspec.structs.replace(states, initialized=initialized, deleting={**states.deleting, **names})


def begin_deletion_of_all(states: StateTopics) -> StateTopics:
    """The group is being deleted."""
    topics = {**states.initialized, **states.initializing}
    names = {topic_id: each.name for topic_id, each in topics.items()}
    return StateTopics(deleting={**states.deleting, **names})


def finish_deletion(states: StateTopics, topic_ids: Collection[bytes]) -> StateTopics:
    deleting = {topic_id: name for topic_id, name in states.deleting.items() if topic_id not in topic_ids}
    return msgspec.structs.replace(states, deleting=deleting)


def without_topics(states: StateTopics, topic_ids: Collection[bytes]) -> StateTopics:
    """These topics do not exist any more; the share coordinator deletes their states by itself."""
    initializing, initialized = (
        {topic_id: each for topic_id, each in topics.items() if topic_id not in topic_ids}
        for topics in (states.initializing, states.initialized)
    )
    return finish_deletion(StateTopics(initializing, initialized, states.deleting), topic_ids)


def all_partitions(states: StateTopics, image: MetadataImage) -> Partitions:
    """Those that may have a state: to delete them all. Of a topic whose states are being deleted already all of its partitions; of one
    that does not exist any more none."""
    found = {}
    for topic_id in states.initialized.keys() | states.initializing.keys() | states.deleting.keys():
        topic = image.topic_by_id(topic_id)
        if topic is None:
            continue
        if topic_id in states.deleting:
            found[topic_id] = frozenset(topic.partitions)
        else:
            initialized = _partitions(states.initialized, topic_id)
            found[topic_id] = initialized | _partitions(states.initializing, topic_id)
    return found


def _partitions(topics: Topics, topic_id: bytes) -> frozenset[int]:
    found = topics.get(topic_id)
    return frozenset() if found is None else found.partitions


def _joined(one: Topics, other: Topics) -> dict[bytes, StateTopic]:
    joined = dict(one)
    for topic_id, each in other.items():
        joined[topic_id] = StateTopic(each.name, each.partitions | _partitions(one, topic_id))
    return joined


def _without(topics: Topics, partitions: Partitions) -> dict[bytes, StateTopic]:
    left = {}
    for topic_id, each in topics.items():
        indexes = each.partitions - partitions.get(topic_id, frozenset())
        if indexes:
            left[topic_id] = StateTopic(each.name, indexes)
    return left
