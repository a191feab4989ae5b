"""Begins a partition with what another topic has in the store (`barnabas tier restore`).

The other partition's objects are copied within the store to the keys of this one, then the manifest that names them is written. What
the log has to know to begin behind them is returned, as for a follower (KIP-405). The other topic keeps what it has. The broker that
leads the partition does this before it serves it. Where it is interrupted, or another leads by then, it goes on from where it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from barnabas.runtime.slices import Steps
from barnabas.storage.log.segments import AuxState
from barnabas.storage.tier.descriptions import read_description
from barnabas.storage.tier.keys import ClusterKeys, PartitionKeys
from barnabas.storage.tier.manifest import Entry, Manifest
from barnabas.storage.tier.manifest_writer import LeaderDeposed, ManifestWriter, read_manifest
from barnabas.storage.tier.object_store import ObjectMissing, ObjectStore, StoreRefused
from barnabas.storage.tier.remote_cache import RemoteCache
from barnabas.storage.tier.remote_segment import read_aux_state

logger = logging.getLogger("barnabas.tier")


class Restored(msgspec.Struct, frozen=True):
    """What the log begins with: its start, and what it has to know of the records up to `state.offset`."""

    log_start_offset: int
    state: AuxState


class Restore:
    """Of one partition, by its leader of one epoch."""

    def __init__(
        self,
        store: ObjectStore,
        cache: RemoteCache,
        source: PartitionKeys,
        keys: PartitionKeys,
        leader_epoch: int,
        nonce: str,
        has_ended: Callable[[], bool],
        is_called_off: Callable[[], bool],
    ) -> None:
        """`has_ended()`: the broker no longer leads the partition in this epoch. `is_called_off()`: it is to begin empty, where no
        manifest names what was copied yet."""
        self._store = store
        self._cache = cache
        self._source = source
        self._keys = keys
        self._leader_epoch = leader_epoch
        self._nonce = nonce
        self._has_ended = has_ended
        self._is_called_off = is_called_off

    def steps(self) -> Steps[Restored]:
        """ObjectStoreError, CorruptManifest, CorruptDescription, LeaderDeposed, OSError."""
        writer = ManifestWriter(self._store, self._keys, self._leader_epoch)
        manifest: Manifest | None = yield writer.read
        if manifest is None:
            if self._is_called_off():
                return Restored(0, AuxState(0, [], []))
            manifest = yield self._source_manifest
            assert manifest is not None
            yield from self._copy(manifest.entries)
            yield partial(writer.write, manifest)
        restored: Restored = yield partial(self._restored, manifest)
        return restored

    def _source_manifest(self) -> Manifest:
        """Ours, from what the source has; without entries where it has tiered nothing."""
        source = self._source
        found = read_manifest(self._store, source)
        if (
            found is None
            and read_description(self._store, ClusterKeys(source.cluster_id), source.topic_id) is None
        ):
            raise ObjectMissing(
                f"the topic {source.topic_id} of cluster {source.cluster_id} is not in remote storage"
            )
        if found is not None and found[0].leader_epoch >= self._leader_epoch:
            raise StoreRefused(
                f"{source.manifest} has been claimed in leader epoch {found[0].leader_epoch}, and {self._keys.prefix} begins with "
                f"{self._leader_epoch}: delete the topic, and restore it anew"
            )
        return Manifest(
            topic_id=self._keys.topic_id,
            partition=self._keys.partition,
            number=0,  # the writer counts
            leader_epoch=self._leader_epoch,
            nonce=self._nonce,
            log_start_offset=0 if found is None else found[0].log_start_offset,
            entries=[] if found is None else found[0].present,
        )

    def _copy(self, entries: Sequence[Entry]) -> Steps[None]:
        copied: set[tuple[str, int]] = yield self._sizes
        for source, key, size in self._objects(entries):
            if self._has_ended():
                raise LeaderDeposed(
                    f"{self._keys.prefix} is no longer led here in leader epoch {self._leader_epoch}"
                )
            if (key, size) not in copied:
                yield partial(self._store.copy, source, key)
        if entries:
            logger.info(
                "copied %d segments from %s to %s", len(entries), self._source.prefix, self._keys.prefix
            )

    def _objects(self, entries: Sequence[Entry]) -> Iterator[tuple[str, str, int]]:
        """(key of the source, key here, bytes) of each."""
        source, keys = self._source, self._keys
        for entry in entries:
            yield source.log(entry.name), keys.log(entry.name), entry.log_size
            yield source.aux(entry.name), keys.aux(entry.name), sum(entry.aux_sizes)

    def _sizes(self) -> set[tuple[str, int]]:
        return {(found.key, found.size) for found in self._store.list(self._keys.segments)}

    def _restored(self, manifest: Manifest) -> Restored:
        entries = manifest.present
        if not entries:
            return Restored(manifest.log_start_offset, AuxState(manifest.log_start_offset, [], []))
        end = entries[-1].last_offset + 1
        return Restored(
            max(manifest.log_start_offset, entries[0].first_offset),
            read_aux_state(self._cache, self._keys, entries, end),
        )
