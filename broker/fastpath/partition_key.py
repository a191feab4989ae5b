"""Partition keys: the bytes that name one partition of one topic in a flexible request.

Produce and Fetch have the same layout: the number of topics, the topic, the number of its partitions, the partition's index.
So the bytes are looked up as they are, and a response about the partition begins with the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.controller.metadata.image import INTERNAL_TOPICS
from barnabas.wire.messages.fast_layouts import (
    ID_KEY,
    ID_KEY_FIXED,
    KEY_PARTITION,
    KEY_PARTITION_FIXED,
    NAME_KEY_TOPIC,
    NAME_KEY_TOPIC_FIXED,
)

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.broker.partitions.partition_manager import PartitionManager

ID_KEY_SIZE: Final = ID_KEY.size
# Without the name's bytes; its length plus one is at NAME_LENGTH_OFFSET
NAME_KEY_SIZE: Final = NAME_KEY_TOPIC.size - 1 + KEY_PARTITION.size
NAME_LENGTH_OFFSET: Final = NAME_KEY_TOPIC.size - 1
_ONE_BYTE_LENGTH_MAX: Final = 127
_unpack_id_key: Final = ID_KEY.unpack


def id_of_key(key: bytes) -> tuple[bytes, int] | None:
    """(topic id, partition index) of a key of ID_KEY_SIZE bytes; None when it names several topics or partitions."""
    topics, topic_id, partitions, index = _unpack_id_key(key)
    return (topic_id, index) if (topics, partitions) == ID_KEY_FIXED else None


def learn_key(partitions: PartitionManager, key: bytes, by_id: bool) -> Partition | None:
    """The partition that the key names, which is remembered under the key. None when it names none, several, one that another
    broker leads, or one of an internal topic. UnicodeDecodeError when the name is not UTF-8."""
    found = id_of_key(key) if by_id else _name_of_key(key)
    if found is None:
        return None
    topic, index = found
    if isinstance(topic, bytes):
        partition, known = partitions.by_id(topic, index), partitions.by_id_key
    else:
        partition, known = partitions.get(topic, index), partitions.by_name_key
    if partition is not None and partition.is_leader and partition.topic not in INTERNAL_TOPICS:
        known[key] = partition
        return partition
    return None


def _name_of_key(key: bytes) -> tuple[str, int] | None:
    topics, length = NAME_KEY_TOPIC.unpack_from(key)
    end = len(key) - KEY_PARTITION.size
    partitions, index = KEY_PARTITION.unpack_from(key, end)
    # The length of a longer name takes two bytes, so that these bytes have another layout.
    if (topics, partitions) != (*NAME_KEY_TOPIC_FIXED, *KEY_PARTITION_FIXED) or length > _ONE_BYTE_LENGTH_MAX:
        return None
    return key[NAME_KEY_TOPIC.size : end].decode(), index
