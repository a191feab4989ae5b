"""What no manifest names is removed, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from barnabas.storage.tier import garbage
from barnabas.storage.tier.garbage import ORPHAN_AGE_MS, remove_orphans
from barnabas.storage.tier.keys import segment_name
from barnabas.storage.tier.manifest import CorruptManifest
from barnabas.storage.tier.memory_store import Fault
from barnabas.storage.tier.object_store import ObjectInfo, StoreUnavailable
from barnabas.storage.tier.tests.test_tiered_log import TieredWorkshop, check
from barnabas.storage.tier.tiered_partition import COLLECT_INTERVAL_S


def tiered() -> TieredWorkshop:
    """A log whose segments are in the store, led in epoch 2."""
    workshop = TieredWorkshop()
    workshop.fill()
    workshop.tier()
    workshop.restart()
    workshop.tier()
    return workshop


def orphan(workshop: TieredWorkshop, epoch: int, number: int = 0) -> set[str]:
    """The objects of an upload in this leader epoch that no manifest names."""
    name = segment_name(5, epoch, f"{number:016x}")
    keys = {workshop.keys.log(name), workshop.keys.aux(name)}
    for key in keys:
        workshop.store.put(key, [b"orphan"])
    return keys


def test_a_claim_removes_what_older_leaders_have_left() -> None:
    workshop = tiered()
    before = workshop.objects
    orphan(workshop, 1)
    orphan(workshop, 2)
    mine = orphan(workshop, 3)
    later = orphan(workshop, 9)
    workshop.restart()
    workshop.tier()
    assert workshop.epoch == 3
    assert workshop.objects == before | mine | later
    assert workshop.manager.stats.orphans_removed == 4
    assert workshop.manager.stats.orphan_bytes_removed == 24
    workshop.retain(local_retention_bytes=0)
    check(workshop)


def test_what_this_leader_has_left_goes_after_a_day() -> None:
    workshop = tiered()
    before = workshop.objects
    mine = orphan(workshop, workshop.epoch)
    workshop.runtime.advance(60)
    workshop.tier()
    assert workshop.objects == before | mine
    workshop.runtime.advance(COLLECT_INTERVAL_S + 1)
    workshop.tier()
    assert workshop.objects == before


def test_odd_keys_are_left_alone() -> None:
    workshop = tiered()
    before = workshop.objects
    odd = {
        "x", "x.log", ".log", "0-0-0.aux", f"{segment_name(5, 1, 'a' * 16)}.tmp", f"a/{segment_name(5, 1, 'a' * 16)}.log",
        f"{segment_name(5, 1, 'a' * 16)}.log/b.log", f"{segment_name(5, 12345678901, 'a' * 16)}.log",
    }  # fmt: skip
    keys = {f"{workshop.keys.segments}{name}" for name in odd}
    for key in keys:
        workshop.store.put(key, [b""])
    workshop.restart()
    workshop.runtime.advance(2 * COLLECT_INTERVAL_S)
    workshop.tier()
    assert workshop.objects == before | keys


def test_a_listing_is_read_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "PAGE_OBJECTS", 3)
    workshop = tiered()
    before = workshop.objects
    for number in range(20):
        orphan(workshop, 1, number)
    workshop.restart()
    workshop.tier()
    assert workshop.objects == before


def test_a_listing_that_comes_back_to_its_beginning_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "PAGE_OBJECTS", 2)
    workshop = tiered()
    before = workshop.objects
    listed = list(workshop.store.list(workshop.keys.segments))

    def again(_prefix: str, _after: str = "") -> Iterator[ObjectInfo]:
        return iter([*listed, ObjectInfo("../../etc/x.log", 5, 0), ObjectInfo("", 0, 0)])

    monkeypatch.setattr(workshop.store, "list", again)
    workshop.restart()
    workshop.tier()
    monkeypatch.undo()
    assert workshop.objects == before


def test_nothing_is_removed_by_a_manifest_that_is_not_this_leaders() -> None:
    workshop = tiered()
    orphan(workshop, 1)
    before = workshop.objects
    for epoch in (workshop.epoch - 1, workshop.epoch + 1):
        assert remove_orphans(workshop.store, workshop.keys, epoch, 1 << 60, "").removed == 0
    content, _ = workshop.store.get(workshop.keys.manifest, 1 << 20)
    workshop.store.put(workshop.keys.manifest, [content[:-1]])
    with pytest.raises(CorruptManifest):
        remove_orphans(workshop.store, workshop.keys, workshop.epoch, 1 << 60, "")
    workshop.store.delete([workshop.keys.manifest])
    assert remove_orphans(workshop.store, workshop.keys, workshop.epoch, 1 << 60, "").removed == 0
    workshop.store.put(workshop.keys.manifest, [content])
    workshop.store.faults = lambda verb, _key: Fault.BEFORE if verb == "get" else None
    with pytest.raises(StoreUnavailable):
        remove_orphans(workshop.store, workshop.keys, workshop.epoch, 1 << 60, "")
    workshop.store.faults = lambda _verb, _key: None
    assert workshop.objects == before


def test_what_the_manifest_names_after_the_listing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is listing, manifest, removal."""
    workshop = tiered()
    before = workshop.objects
    list_them = workshop.store.list

    def late(prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        found = list(list_them(prefix, after))
        workshop.fill()
        for step in (partial(workshop.manager.run_pass, lambda: None), workshop.runtime.run_until_idle):
            step()
        return iter([*found, *(each for each in list_them(prefix, after) if each not in found)])

    monkeypatch.setattr(workshop.store, "list", late)
    far = workshop.runtime.time_ms() + ORPHAN_AGE_MS
    assert remove_orphans(workshop.store, workshop.keys, workshop.epoch, far, "").removed == 0
    assert before < {each.key for each in list_them(workshop.keys.prefix)}


def test_a_store_that_can_not_be_listed_does_not_hold_up_copying() -> None:
    workshop = tiered()
    orphan(workshop, 1)
    workshop.store.faults = lambda verb, _key: Fault.BEFORE if verb == "list" else None
    workshop.restart()
    for _ in range(3):
        copied = len(workshop.present)
        workshop.fill()
        workshop.tier()
        assert len(workshop.present) > copied
    workshop.store.faults = lambda _verb, _key: None
    workshop.runtime.advance(3600)
    workshop.tier()
    assert len(workshop.objects) == 1 + 2 * len(workshop.present)
