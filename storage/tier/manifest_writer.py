"""Reads and replaces the manifest of one partition, as its leader. All calls in threads, one at a time.

After an error it is not known whether the last version was written: the next call reads what there is. A version that carries
this writer's nonce was written by it, and only the reply was lost.
"""

from __future__ import annotations

import msgspec

from barnabas.storage.tier.keys import PartitionKeys
from barnabas.storage.tier.manifest import ENTRY_BYTES_MAX, SIZE_MAX, Manifest, decode, encode
from barnabas.storage.tier.object_store import (
    ConditionFailed,
    ObjectMissing,
    ObjectStore,
    StoreRefused,
    Version,
)


class LeaderDeposed(Exception):
    """A later leader has claimed the manifest: this one must not tier any more."""


def read_manifest(store: ObjectStore, keys: PartitionKeys) -> tuple[Manifest, Version] | None:
    """None where there is none. ObjectStoreError, CorruptManifest."""
    found = _read(store, keys)
    return None if found is None else found[:2]


def _read(store: ObjectStore, keys: PartitionKeys) -> tuple[Manifest, Version, int] | None:
    """With its size in bytes."""
    try:
        data, version = store.get(keys.manifest, SIZE_MAX)
    except ObjectMissing:
        return None
    return decode(data, keys.topic_id, keys.partition), version, len(data)


class ManifestWriter:
    """See the module."""

    def __init__(self, store: ObjectStore, keys: PartitionKeys, leader_epoch: int) -> None:
        self._store = store
        self._keys = keys
        self._leader_epoch = leader_epoch
        self._version: Version | None = None  # of `manifest`; None: there is none yet
        self._is_known = False  # whether `manifest` is what lies in the store
        self._size = 0  # of `manifest`, in bytes
        self.manifest: Manifest | None = None

    def read(self) -> Manifest | None:
        """What lies in the store. ObjectStoreError, CorruptManifest, LeaderDeposed."""
        found = _read(self._store, self._keys)
        self.manifest, self._version, self._size = (None, None, 0) if found is None else found
        if self.manifest is not None and self.manifest.leader_epoch > self._leader_epoch:
            raise LeaderDeposed(
                f"leader epoch {self.manifest.leader_epoch} has claimed {self._keys.manifest}, this is {self._leader_epoch}"
            )
        self._is_known = True
        return self.manifest

    def write(self, manifest: Manifest) -> None:
        """Put it in the place of what was read or written last: its number and leader epoch are set here. ConditionFailed where
        that has been replaced meanwhile, and then `manifest` is what was found. As `read` besides."""
        assert self._is_known or self.manifest is None
        number = 1 if self.manifest is None else self.manifest.number + 1
        manifest = msgspec.structs.replace(manifest, number=number, leader_epoch=self._leader_epoch)
        content = encode(manifest)
        if len(content) > SIZE_MAX:  # a larger one could not be read any more
            raise StoreRefused(
                f"{self._keys.manifest} has no room for more than its {len(manifest.entries)} segments: no more are copied"
            )
        self._is_known = False
        try:
            if self._version is None:
                version = self._store.create(self._keys.manifest, content)
            else:
                version = self._store.replace(self._keys.manifest, content, self._version)
        except ConditionFailed:
            found = self.read()
            if found is None or found.nonce != manifest.nonce:
                raise
            return
        self.manifest, self._version, self._is_known, self._size = manifest, version, True, len(content)

    @property
    def has_room(self) -> bool:
        """Whether the manifest can have one more entry."""
        return self._size <= SIZE_MAX - ENTRY_BYTES_MAX
