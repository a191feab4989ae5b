"""`barnabas tier`: what is in the object store of tiered topics, from the bucket alone, the removal of what no cluster knows, and topics made of it."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from uuid import UUID

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.tier.tiering import configured_store
from barnabas.commands.connection import CONNECTION, Cluster, ServerError, reason_of
from barnabas.commands.options import CommandFailed, Options
from barnabas.controller.config.validators import ConfigError
from barnabas.extensions import EXTENSIONS
from barnabas.runtime.asyncio_runtime import AsyncioRuntime
from barnabas.storage.tier.descriptions import CorruptDescription, read_description
from barnabas.storage.tier.garbage import next_folder, write_tombstone
from barnabas.storage.tier.keys import ClusterKeys, PartitionKeys, is_topic_id
from barnabas.storage.tier.manifest import CorruptManifest
from barnabas.storage.tier.manifest_writer import read_manifest
from barnabas.storage.tier.object_store import ObjectStore
from barnabas.tier_restore import restore
from barnabas.wire.uuids import uuid_to_string


def run(parsed: Namespace) -> int:
    """The process's exit code. Prints the result, or on standard error the reason of a failure. `parsed`: see cli.py."""
    try:
        file = None if parsed.file is None else Path(parsed.file)
        config = BrokerConfig.load(file, os.environ, parsed.settings, EXTENSIONS)
        runtime = AsyncioRuntime()
        try:
            store = configured_store(config, runtime.time_ms)
        finally:
            runtime.close()
        for line in _ACTIONS[parsed.action](store, parsed):
            print(line, flush=True)  # noqa: T201 - the terminal is the interface here
    except (ConfigError, CommandFailed, ServerError, CorruptManifest, CorruptDescription, OSError) as error:
        print(f"barnabas tier: {error}", file=sys.stderr)  # noqa: T201 - as above
        return 1
    return 0


@contextmanager
def _connected(parsed: Namespace) -> Iterator[Cluster]:
    """CommandFailed also for what kafka-python raises."""
    given = {"bootstrap-server": [parsed.bootstrap_server]}
    if parsed.command_config is not None:
        given["command-config"] = [parsed.command_config]
    with Cluster(Options({each.name: each for each in CONNECTION}, given, list(given), [])) as cluster:
        try:
            yield cluster
        except cluster.errors as error:
            raise CommandFailed(reason_of(error)) from error


def listing(store: ObjectStore) -> Iterator[str]:
    """One line a topic: cluster id, topic id, name, partitions, segments, bytes; tabs in between, and what is not known as `-`.
    ObjectStoreError."""
    for cluster_id in _folders(store, ""):
        keys = ClusterKeys(cluster_id)
        for topic_id in _folders(store, keys.prefix):
            if is_topic_id(topic_id):
                yield "\t".join((cluster_id, topic_id, *_topic(store, keys, topic_id)))


def _topic(store: ObjectStore, keys: ClusterKeys, topic_id: str) -> tuple[str, str, str, str]:
    try:
        found = read_description(store, keys, topic_id)
    except CorruptDescription:
        found = None
    segments = size = 0
    try:
        for name in _folders(store, keys.topic(topic_id)):
            if not name.isdecimal() or len(name) > 10:
                continue
            manifest = read_manifest(store, PartitionKeys(keys.cluster_id, topic_id, int(name)))
            if manifest is not None:
                segments += len(manifest[0].present)
                size += manifest[0].size
    except CorruptManifest as error:
        return "-" if found is None else found.name, "-", "-", f"- (manifest: {error})"
    described = ("-", "-") if found is None else (found.name, str(found.partitions))
    return (*described, str(segments), str(size))


def _remove(store: ObjectStore, parsed: Namespace) -> Iterator[str]:
    """Write tombstones for topics that the cluster does not have."""
    topic_ids: list[str] = parsed.topic_id
    if not topic_ids:
        raise CommandFailed("remove-unknown needs --topic-id; `barnabas tier list` shows them")
    with _connected(parsed) as cluster:
        found = cluster.admin.describe_cluster()
        if not found["cluster_id"] or found["controller_id"] < 0:
            raise CommandFailed("the cluster has no controller")
        known = {uuid_to_string(UUID(topic["topic_id"]).bytes) for topic in cluster.topics()}
    keys = ClusterKeys(found["cluster_id"])
    for topic_id in topic_ids:
        if not is_topic_id(topic_id):
            raise CommandFailed(f"{topic_id!r} is no topic id")
        if topic_id in known:
            raise CommandFailed(f"the cluster has the topic {topic_id}: delete it there")
        if next(store.list(keys.topic(topic_id)), None) is None:
            raise CommandFailed(f"cluster {keys.cluster_id} has no objects of the topic {topic_id}")
    for topic_id in topic_ids:
        write_tombstone(store, keys.tombstone(topic_id))
        yield f"{topic_id} is removed in an hour"


def _restore(store: ObjectStore, parsed: Namespace) -> Iterator[str]:
    cluster_ids = [parsed.cluster_id] if parsed.cluster_id else list(_folders(store, ""))
    if len(cluster_ids) != 1:
        found = f"it has {', '.join(cluster_ids)}" if cluster_ids else "it is empty"
        raise CommandFailed(
            f"say with --cluster-id whose topics are to be restored from the object store: {found}"
        )
    with _connected(parsed) as cluster:
        yield from restore(
            store,
            cluster,
            ClusterKeys(cluster_ids[0]),
            parsed.topic_id,
            parsed.topic,
            parsed.replication_factor,
        )


def _folders(store: ObjectStore, prefix: str) -> Iterator[str]:
    after = ""
    while (found := next_folder(store, prefix, after)) is not None:
        name, after = found
        yield name


_ACTIONS: Final[dict[str, Callable[[ObjectStore, Namespace], Iterator[str]]]] = {
    "list": lambda store, _: listing(store),
    "remove-unknown": _remove,
    "restore": _restore,
}
