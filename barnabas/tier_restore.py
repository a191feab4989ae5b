"""`barnabas tier restore`: creates topics that begin with what a bucket has of them.

The topics are created with barnabas.remote.restore, which tells the leaders of their partitions what to copy to their own place in the
bucket, and the controller which leader epoch to begin with. What they were made of stays.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.commands.connection import Cluster, raise_for, retried
from barnabas.commands.options import CommandFailed
from barnabas.controller.config.topic_configs import OBSERVERS, RESTORE, RestoreSource
from barnabas.storage.tier.descriptions import TopicDescription, read_description
from barnabas.storage.tier.keys import ClusterKeys, PartitionKeys, is_topic_id
from barnabas.storage.tier.manifest_writer import read_manifest

if TYPE_CHECKING:
    from barnabas.storage.tier.object_store import ObjectStore

# They name brokers of the cluster that was.
_OF_BROKERS: Final = (
    OBSERVERS,
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)
_WAIT_MS: Final = 24 * 60 * 60 * 1000


class Stored(msgspec.Struct, frozen=True):
    """A topic in the bucket. `leader_epoch`: the largest of those that have claimed a manifest of it; -1 where there is none."""

    cluster_id: str
    description: TopicDescription
    leader_epoch: int
    segments: int
    size: int

    @property
    def name(self) -> str:
        return self.description.name

    def configs(self) -> dict[str, str]:
        """Of the topic that is made of it."""
        kept = {name: text for name, text in self.description.configs.items() if name not in _OF_BROKERS}
        source = RestoreSource(self.cluster_id, self.description.topic_id, self.leader_epoch + 1)
        return {**kept, "remote.storage.enable": "true", RESTORE: str(source)}


def restore(
    store: ObjectStore,
    cluster: Cluster,
    keys: ClusterKeys,
    topic_ids: Collection[str],
    names: Collection[str],
    replication_factor: int,
) -> Iterator[str]:
    """One line a topic, when it is restored: name, partitions, segments, bytes; tabs in between. `keys`: of the cluster that was.
    `names`, `topic_ids`: which topics; both empty: all. ServerError, CommandFailed, ObjectStoreError, CorruptManifest,
    CorruptDescription."""
    topics = list(_chosen(store, keys, topic_ids, names))
    if not topics:
        raise CommandFailed(f"there is nothing to restore in remote storage of cluster {keys.cluster_id}")
    present = {topic["name"] for topic in cluster.topics()}
    there = [topic.name for topic in topics if topic.name in present]
    if there:
        raise CommandFailed(f"the cluster has these topics already: {', '.join(there)}")
    for topic in topics:
        _create(cluster, topic, replication_factor)
    print(  # noqa: T201 - the terminal is the interface here
        f"created {len(topics)} topics; their leaders copy what they begin with, also if this is interrupted",
        file=sys.stderr,
    )
    for topic in topics:
        _wait(cluster, topic)
        yield f"{topic.name}\t{topic.description.partitions}\t{topic.segments}\t{topic.size}"


def _chosen(
    store: ObjectStore, keys: ClusterKeys, topic_ids: Collection[str], names: Collection[str]
) -> Iterator[Stored]:
    """CommandFailed where one is not there, or two have one name."""
    found: dict[str, Stored] = {}
    for description in _described(store, keys, topic_ids):
        if names and description.name not in names and description.topic_id not in topic_ids:
            continue
        other = found.get(description.name)
        if other is not None:
            raise CommandFailed(
                f"two topics are called {description.name}, {other.description.topic_id} and {description.topic_id}: say which with "
                f"--topic-id"
            )
        found[description.name] = _stored(store, keys, description)
    missing = [name for name in names if name not in found]
    if missing:
        raise CommandFailed(f"not in remote storage of cluster {keys.cluster_id}: {', '.join(missing)}")
    yield from found.values()


def _described(
    store: ObjectStore, keys: ClusterKeys, topic_ids: Collection[str]
) -> Iterator[TopicDescription]:
    """Those with these ids; all but the deleted ones where there are none."""
    if topic_ids:
        for topic_id in topic_ids:
            description = read_description(store, keys, topic_id) if is_topic_id(topic_id) else None
            if description is None:
                raise CommandFailed(f"cluster {keys.cluster_id} has no topic {topic_id} in remote storage")
            yield description
        return
    deleted = {each.key.removeprefix(keys.tombstones) for each in store.list(keys.tombstones)}
    for each in store.list(keys.descriptions):
        topic_id = each.key.removeprefix(keys.descriptions)
        if is_topic_id(topic_id) and topic_id not in deleted:
            description = read_description(store, keys, topic_id)
            if description is not None:
                yield description


def _stored(store: ObjectStore, keys: ClusterKeys, description: TopicDescription) -> Stored:
    leader_epoch, segments, size = -1, 0, 0
    for partition in range(description.partitions):
        found = read_manifest(store, PartitionKeys(keys.cluster_id, description.topic_id, partition))
        if found is not None:
            leader_epoch = max(leader_epoch, found[0].leader_epoch)
            segments += len(found[0].present)
            size += found[0].size
    return Stored(keys.cluster_id, description, leader_epoch, segments, size)


def _create(cluster: Cluster, topic: Stored, replication_factor: int) -> None:
    wanted: Mapping[str, object] = {
        "num_partitions": topic.description.partitions,
        "replication_factor": replication_factor,
        "assignments": {},
        "configs": topic.configs(),
    }
    (result,) = cluster.admin.create_topics({topic.name: wanted}, raise_errors=False)["topics"]
    raise_for(result["error_code"], result["error_message"])


def _wait(cluster: Cluster, topic: Stored) -> None:
    """Until its partitions have leaders, which is when they have what they begin with."""
    from kafka import TopicPartition

    ends = {TopicPartition(topic.name, index): -1 for index in range(topic.description.partitions)}
    retried(lambda: cluster.admin.list_partition_offsets(ends), _WAIT_MS)
