"""Removes what no manifest names: objects of uploads that were interrupted, or whose leader was deposed.

An object of a segment is an orphan when the partition's manifest does not name it, and either the leader epoch in its key is below
the one that has claimed the manifest, so that it can't be named any more, or it was written more than a day ago. A listing is read
in pages, and the manifest after each page: what an entry names by then stays. The leader alone does this, while it uploads nothing.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

import msgspec

from barnabas.storage.tier.keys import PartitionKeys, is_name
from barnabas.storage.tier.manifest_writer import read_manifest
from barnabas.storage.tier.object_store import ObjectInfo, ObjectStore

ORPHAN_AGE_MS: Final = 24 * 60 * 60 * 1000
PAGE_OBJECTS: Final = 1000
_SUFFIXES: Final = (".log", ".aux")


class Page(msgspec.Struct, frozen=True):
    """What one page has come to. `last_key`: where the next begins; None where there is none."""

    removed: int
    removed_bytes: int
    last_key: str | None


def remove_orphans(
    store: ObjectStore, keys: PartitionKeys, leader_epoch: int, older_than_ms: int | None, after: str
) -> Page:
    """One page, of the keys greater than `after`; blocking. `leader_epoch`: of the leader that has claimed the manifest; where it
    has another epoch, or there is none, nothing is removed. `older_than_ms`: by the store's clock, in ms since the epoch; None
    where nothing may go by its age. ObjectStoreError, CorruptManifest."""
    page = list(islice(store.list(keys.segments, after), PAGE_OBJECTS))
    found = read_manifest(store, keys)
    if found is None or found[0].leader_epoch != leader_epoch:
        return Page(0, 0, None)
    named = {entry.name for entry in found[0].entries}
    orphans = [each for each in page if _is_orphan(each, keys, named, leader_epoch, older_than_ms)]
    if orphans:
        store.delete([each.key for each in orphans])
    last_key = page[-1].key if len(page) == PAGE_OBJECTS and page[-1].key > after else None
    return Page(len(orphans), sum(each.size for each in orphans), last_key)


def _is_orphan(
    found: ObjectInfo, keys: PartitionKeys, named: set[str], leader_epoch: int, older_than_ms: int | None
) -> bool:
    name, suffix = found.key[len(keys.segments) : -4], found.key[-4:]
    if not found.key.startswith(keys.segments) or suffix not in _SUFFIXES or not is_name(name):
        return False  # not of a segment: it is not known what it is
    if name in named:
        return False
    epoch = int(name.split("-")[1])
    is_old = older_than_ms is not None and found.modified_ms < older_than_ms
    return epoch < leader_epoch or (epoch == leader_epoch and is_old)
