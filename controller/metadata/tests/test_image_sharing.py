"""Copies of an image share exactly the objects that are never changed in place."""

from __future__ import annotations

from barnabas.controller.metadata.image import TOPIC_RESOURCE, MetadataDelta, MetadataImage
from barnabas.wire.messages.metadata_records import (
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
)

FIRST, SECOND = b"1" * 16, b"2" * 16


def partition(index: int, topic_id: bytes = FIRST, replicas: tuple[int, ...] = (1, 2)) -> PartitionRecord:
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=list(replicas),
        isr=list(replicas),
        leader=replicas[0],
        leader_epoch=0,
        partition_epoch=0,
        directories=[bytes(16)] * len(replicas),
    )


def image() -> MetadataImage:
    made, delta = MetadataImage(), MetadataDelta()
    for record in (
        FeatureLevelRecord(name="metadata.version", feature_level=30),
        TopicRecord(name="first", topic_id=FIRST),
        *(partition(index, replicas=((1, 2), (2, 1))[index // 50]) for index in range(100)),
        ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name="first", name="retention.ms", value="1"),
        ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=1000),
    ):
        made.replay(record, delta)
    return made


CHANGES = (
    TopicRecord(name="second", topic_id=SECOND),
    partition(0, SECOND),
    partition(100),
    PartitionChangeRecord(partition_id=3, topic_id=FIRST, isr=[2], leader=2),
    ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name="first", name="retention.ms", value="2"),
    FeatureLevelRecord(name="metadata.version", feature_level=31),
    ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=2000),
    RemoveTopicRecord(topic_id=FIRST),
)


def test_a_copy_is_equal_and_independent() -> None:
    for changed_is_copy in (False, True):
        original = image()
        copy = original.copy()
        before = list(original.records())
        assert list(copy.records()) == before
        changed, other = (copy, original) if changed_is_copy else (original, copy)
        expected = image()
        for change in CHANGES:
            changed.replay(change, MetadataDelta())
            expected.replay(change, MetadataDelta())
            assert list(changed.records()) == list(expected.records())
            assert list(other.records()) == before
            assert (other.topic_by_id(FIRST), other.topic_by_id(SECOND)) == (other.topics["first"], None)


def test_equal_states_of_neighbours_are_one_object() -> None:
    partitions = image().topics["first"].partitions
    assert len({id(state) for state in partitions.values()}) == 2
    assert partitions[0].replicas == [1, 2]
    assert partitions[99].replicas == [2, 1]
