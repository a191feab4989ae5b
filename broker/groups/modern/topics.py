"""The topics of a group, as the metadata has them."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.controller.metadata.image import MetadataImage


def metadata_hash(image: MetadataImage, names: Iterable[str]) -> int:
    """It changes when one of the topics is created, deleted or gets partitions; 0 where none exists.

    Kafka hashes by XXH3, and the racks of the replicas as well, which its assignors do not use. A group that moves from or to
    Kafka gets one epoch more.
    """
    digest = blake2b(digest_size=8)
    exists = False
    for name in sorted(names):
        topic = image.topics.get(name)
        if topic is not None:
            exists = True
            digest.update(topic.topic_id + len(topic.partitions).to_bytes(4, "big"))
    return int.from_bytes(digest.digest(), "big", signed=True) if exists else 0
