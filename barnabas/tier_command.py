"""`barnabas tier`: what is in the object store of tiered topics, from the bucket alone, and the removal of what no cluster knows."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.tier.tiering import configured_store
from barnabas.controller.config.validators import ConfigError
from barnabas.extensions import EXTENSIONS
from barnabas.health import Unhealthy, ask_metadata
from barnabas.runtime.asyncio_runtime import AsyncioRuntime
from barnabas.storage.tier.descriptions import CorruptDescription, read_description
from barnabas.storage.tier.garbage import next_folder, write_tombstone
from barnabas.storage.tier.keys import ClusterKeys, PartitionKeys, is_topic_id
from barnabas.storage.tier.manifest import CorruptManifest
from barnabas.storage.tier.manifest_writer import read_manifest
from barnabas.wire.primitives import DecodeError
from barnabas.wire.uuids import uuid_to_string

if TYPE_CHECKING:
    from barnabas.storage.tier.object_store import ObjectStore

TIMEOUT_S = 10.0


class _Refused(Exception):
    """The reason."""


def run(
    action: str, file: str | None, settings: Iterable[str], topic_ids: Sequence[str], bootstrap_server: str
) -> int:
    """The process's exit code. Prints the result, or on standard error the reason of a failure."""
    try:
        config = BrokerConfig.load(None if file is None else Path(file), os.environ, settings, EXTENSIONS)
        runtime = AsyncioRuntime()
        try:
            store = configured_store(config, runtime.time_ms)
        finally:
            runtime.close()
        lines = listing(store) if action == "list" else _remove(store, topic_ids, bootstrap_server)
        for line in lines:
            print(line)  # noqa: T201 - the terminal is the interface here
    except (ConfigError, _Refused, Unhealthy, DecodeError, OSError) as error:
        print(f"barnabas tier: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


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
                size += sum(entry.log_size for entry in manifest[0].present)
    except CorruptManifest as error:
        return "-" if found is None else found.name, "-", "-", f"- (manifest: {error})"
    described = ("-", "-") if found is None else (found.name, str(found.partitions))
    return (*described, str(segments), str(size))


def _remove(store: ObjectStore, topic_ids: Sequence[str], bootstrap_server: str) -> Iterator[str]:
    """Write tombstones for topics that the cluster does not have."""
    if not topic_ids:
        raise _Refused("remove-unknown needs --topic-id; `barnabas tier list` shows them")
    host, _, port = bootstrap_server.rpartition(":")
    if not port.isdigit():
        raise _Refused(f"{bootstrap_server} must look like HOST:PORT")
    answer = ask_metadata(host.strip("[]") or "127.0.0.1", int(port), TIMEOUT_S)
    if answer.cluster_id is None or answer.controller_id < 0:
        raise _Refused("the cluster has no controller")
    known = {uuid_to_string(topic.topic_id) for topic in answer.topics}
    keys = ClusterKeys(answer.cluster_id)
    for topic_id in topic_ids:
        if not is_topic_id(topic_id):
            raise _Refused(f"{topic_id!r} is no topic id")
        if topic_id in known:
            raise _Refused(f"the cluster has the topic {topic_id}: delete it there")
        if next(store.list(keys.topic(topic_id)), None) is None:
            raise _Refused(f"cluster {answer.cluster_id} has no objects of the topic {topic_id}")
    for topic_id in topic_ids:
        write_tombstone(store, keys.tombstone(topic_id))
        yield f"{topic_id} is removed in an hour"


def _folders(store: ObjectStore, prefix: str) -> Iterator[str]:
    after = ""
    while (found := next_folder(store, prefix, after)) is not None:
        name, after = found
        yield name
