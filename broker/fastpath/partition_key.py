"""The bytes that name one partition of one topic in a flexible request, and the partition they were found to name.

Produce and Fetch write them alike: the number of topics, the topic, the number of its partitions, the partition's
index. So they are looked up as they are, and an answer about the partition begins with the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.controller.metadata.image import INTERNAL_TOPICS

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.broker.partitions.partition_manager import PartitionManager

ID_KEY_SIZE: Final = 1 + 16 + 1 + 4
NAME_KEY_SIZE: Final = 1 + 1 + 4  # and the name, whose length is written plus one


def learn_key(partitions: PartitionManager, key: bytes, by_id: bool) -> Partition | None:
    """The partition that the key names, remembered; None when it names none, several, one that is not led here, or
    one that is not for everybody to write to. UnicodeDecodeError when the name is no name."""
    if key[0] != 2 or key[-5] != 2:  # one topic, one partition: counts are written plus one
        return None
    index = int.from_bytes(key[-4:], "big", signed=True)
    if by_id:
        partition = partitions.by_id(key[1:17], index)
        known = partitions.by_id_key
    elif key[1] < 128:
        partition = partitions.get(key[2:-5].decode(), index)
        known = partitions.by_name_key
    else:  # the name's length is two bytes long, so the key is not what it seems to be
        return None
    if partition is not None and partition.is_leader and partition.topic not in INTERNAL_TOPICS:
        known[key] = partition
        return partition
    return None
