"""The keys of objects: what any store takes, those of a tiered partition, and those of its cluster."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from barnabas.storage.tier.object_store import StoreRefused

KEY_LENGTH_MAX = 900  # S3 and GCS take 1,024 bytes, of which the store's prefix needs some

_NAME: Final = re.compile(r"[0-9]{20}-[0-9]{1,10}-[0-9a-f]{16}")
_TOPIC_ID: Final = re.compile(r"[A-Za-z0-9_-]{22}")
_KEY = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*")
_PREFIX = re.compile(r"[A-Za-z0-9._/-]*")


def check_key(key: str) -> None:
    """StoreRefused for a key that some store can't have."""
    parts = key.split("/")
    if _KEY.fullmatch(key) is None or len(key) > KEY_LENGTH_MAX or "." in parts or ".." in parts:
        raise StoreRefused(f"{key[:1000]!r} can't be an object's key")


def check_prefix(prefix: str) -> None:
    """StoreRefused for what can't be the beginning of a key."""
    folders = prefix.split("/")[:-1]
    if _PREFIX.fullmatch(prefix) is None or not {"", ".", ".."}.isdisjoint(folders):
        raise StoreRefused(f"{prefix[:1000]!r} can't be the beginning of an object's key")


class ClusterKeys(msgspec.Struct, frozen=True):
    """What is not of one partition. Prefixes end with a slash."""

    cluster_id: str

    @property
    def prefix(self) -> str:
        return f"{self.cluster_id}/"

    @property
    def tombstones(self) -> str:
        """The prefix of what says that a topic is deleted."""
        return f"{self.prefix}deleted/"

    @property
    def descriptions(self) -> str:
        """The prefix of the topics' names and configs."""
        return f"{self.prefix}topics/"

    def tombstone(self, topic_id: str) -> str:
        return f"{self.tombstones}{topic_id}"

    def description(self, topic_id: str) -> str:
        return f"{self.descriptions}{topic_id}"

    def topic(self, topic_id: str) -> str:
        """The prefix of its partitions."""
        return f"{self.prefix}{topic_id}/"


class PartitionKeys(msgspec.Struct, frozen=True):
    """`prefix` ends with a slash; everything of the partition lies below it."""

    cluster_id: str
    topic_id: str
    partition: int

    @property
    def prefix(self) -> str:
        return f"{self.cluster_id}/{self.topic_id}/{self.partition}/"

    @property
    def manifest(self) -> str:
        return f"{self.prefix}manifest"

    @property
    def segments(self) -> str:
        """The prefix of all segments."""
        return f"{self.prefix}s/"

    def log(self, name: str) -> str:
        """A segment's records, as they are in its file."""
        return f"{self.segments}{name}.log"

    def aux(self, name: str) -> str:
        """Its indexes and the snapshot of the producers at its end, one behind the other."""
        return f"{self.segments}{name}.aux"


def segment_name(base_offset: int, leader_epoch: int, nonce: str) -> str:
    """Of one attempt to upload the segment at `base_offset`."""
    return f"{base_offset:020d}-{leader_epoch}-{nonce}"


def is_name(name: str) -> bool:
    """Whether this is such a name; only then may it be part of a path."""
    return _NAME.fullmatch(name) is not None


def is_topic_id(text: str) -> bool:
    """Whether this is the id of a topic, as Kafka writes it."""
    return _TOPIC_ID.fullmatch(text) is not None
