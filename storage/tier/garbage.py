"""Removes from the store, in threads: objects that no manifest names, and all of a deleted topic.

An object of a segment is an orphan when the partition's manifest does not name it, and either the leader epoch in its key is below
the one that has claimed the manifest, so that it can't be named any more, or it was written more than a day ago. A listing is read
in pages, and the manifest after each page: what an entry names by then stays. The leader alone does this, while it uploads nothing.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

import msgspec

from barnabas.storage.tier.keys import PartitionKeys, check_key, is_name
from barnabas.storage.tier.manifest_writer import read_manifest
from barnabas.storage.tier.object_store import ConditionFailed, ObjectInfo, ObjectStore, StoreRefused

TOMBSTONES_MAX: Final = 100_000  # that are looked at
ORPHAN_AGE_MS: Final = 24 * 60 * 60 * 1000
PAGE_OBJECTS: Final = 1000
_SUFFIXES: Final = (".log", ".aux")
_AFTER_ALL: Final = "~"  # greater than every character of a key


class Page(msgspec.Struct, frozen=True):
    """What one page has come to. `last_key`: where the next begins; None where there is none."""

    removed: int
    removed_bytes: int
    last_key: str | None


def remove_orphans(
    store: ObjectStore,
    keys: PartitionKeys,
    leader_epoch: int,
    older_than_ms: int | None,
    after: str,
    kept: str = "",
) -> Page:
    """One page, of the keys greater than `after`; blocking. `leader_epoch`: of the leader that has claimed the manifest; where it
    has another epoch, or there is none, nothing is removed. `older_than_ms`: by the store's clock, in ms since the epoch; None
    where nothing may go by its age. `kept`: the name of a segment that the next manifest will name. ObjectStoreError,
    CorruptManifest."""
    page = list(islice(store.list(keys.segments, after), PAGE_OBJECTS))
    found = read_manifest(store, keys)
    if found is None or found[0].leader_epoch != leader_epoch:
        return Page(0, 0, None)
    named = {kept, *(entry.name for entry in found[0].entries)}
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


def write_tombstone(store: ObjectStore, key: str) -> None:
    """That the topic is deleted; the first one stays. ObjectStoreError."""
    try:
        store.create(key, b"")
    except ConditionFailed:
        pass


def next_folder(store: ObjectStore, prefix: str, after: str) -> tuple[str, str] | None:
    """The name of the first folder below `prefix`, which ends with a slash or is empty, that has a key greater than `after`, and what
    to go on after. None where there is no more. ObjectStoreError."""
    for found in store.list(prefix, after):
        name, slash, _ = found.key.removeprefix(prefix).partition("/")
        onward = f"{prefix}{name}/{_AFTER_ALL}" if slash else found.key
        if not found.key.startswith(prefix) or onward <= after:
            break  # not what was asked for
        return name, onward
    return None


def tombstones(store: ObjectStore, prefix: str) -> list[ObjectInfo]:
    """Those of a cluster; `prefix`: ClusterKeys.tombstones. ObjectStoreError."""
    return [each for each in islice(store.list(prefix), TOMBSTONES_MAX) if each.key.startswith(prefix)]


def remove_page(store: ObjectStore, prefix: str, after: str) -> tuple[int, str | None]:
    """Remove a page of all objects below `prefix`: how many there were, and what to go on after. ObjectStoreError."""
    page = [each.key for each in islice(store.list(prefix, after), PAGE_OBJECTS)]
    ours = [key for key in page if key.startswith(prefix) and _is_key(key)]
    if ours:
        store.delete(ours)
    return len(ours), page[-1] if len(page) == PAGE_OBJECTS and page[-1] > after else None


def _is_key(key: str) -> bool:
    try:
        check_key(key)
    except StoreRefused:
        return False
    return True
