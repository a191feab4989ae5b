"""Copying and expiry of a tiered log whose start moves meanwhile, whose store fails, and beside others that wait."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest

from barnabas.runtime.slices import run_through
from barnabas.storage.log.log import Log
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.tier import manifest_writer
from barnabas.storage.tier.garbage import ORPHAN_AGE_MS
from barnabas.storage.tier.manifest import CHUNK_BYTES, ENTRY_BYTES_MAX, CorruptManifest, encode
from barnabas.storage.tier.manifest_writer import read_manifest
from barnabas.storage.tier.memory_store import Fault
from barnabas.storage.tier.remote_log import RemoteLog
from barnabas.storage.tier.tests.test_tiered_log import TieredWorkshop, check, waiting


def no_faults(_verb: str, _key: str) -> None:
    """The store works."""


def is_log(verb: str, key: str) -> bool:
    return verb == "put" and key.endswith(".log")


def test_records_deleted_in_a_pass_leave_a_manifest_that_can_be_read() -> None:
    """The log's start passes all that is tiered before a segment is copied; then the leader dies before it has made another pass."""
    workshop = TieredWorkshop()
    workshop.fill(9)
    workshop.tier()
    workshop.fill(30)
    log = workshop.tiered
    calls: list[str] = []

    def faults(verb: str, _key: str) -> Fault | None:
        calls.append(verb)
        if verb == "delete":  # of what lay below the start when the pass began
            log.increment_log_start_offset(log.segments[len(log.segments) - 3].base_offset + 1)
        return (
            Fault.BEFORE
            if calls[-1] == "replace" and "put" in calls and calls.count("replace") == 4
            else None
        )

    workshop.store.faults = faults
    log.increment_log_start_offset(log.segments[1].base_offset)
    workshop.tier()
    assert calls.count("replace") == 4
    workshop.store.faults = no_faults
    present = workshop.present
    assert [entry.first_offset for entry in present[1:]] == [entry.last_offset + 1 for entry in present[:-1]]
    workshop.restart()
    workshop.tier()
    assert workshop.present[0].last_offset >= workshop.tiered.log_start_offset
    check(workshop)


def test_a_manifest_that_could_not_be_read_is_not_written() -> None:
    workshop = TieredWorkshop()
    workshop.fill(20)
    workshop.tier()
    manifest = workshop.manifest
    assert manifest is not None
    entries = manifest.entries
    with pytest.raises(CorruptManifest, match="behind those up to"):
        encode(msgspec.structs.replace(manifest, entries=[entries[0], *entries[2:]]))
    below = msgspec.structs.replace(
        manifest, entries=[entries[0], *entries[2:]], log_start_offset=entries[2].first_offset
    )
    assert encode(below), "a gap below the log's start is of records that are not read any more"


def test_a_cut_segment_of_several_chunks_is_read() -> None:
    """The batch at which it ends is in another chunk than what is read."""
    workshop = TieredWorkshop(
        segment_bytes=3 * CHUNK_BYTES, index_interval_bytes=4096, max_message_bytes=2_000_000
    )
    while len(workshop.tiered.segments) < 2:
        workshop.append(size=500_000)
    workshop.tier()
    (entry,) = workshop.present
    kept = entry.last_offset - 2
    workshop.manager.stop()
    workshop.tiered.truncate_to(kept)
    workshop.model = {base: batch for base, batch in workshop.model.items() if base < kept}
    workshop.tiered.close()
    workshop.open()
    while len(workshop.tiered.segments) < 4:
        workshop.append(size=500_000)
    workshop.tier()
    assert workshop.present[0].is_cut
    workshop.retain(local_retention_bytes=0)
    workshop.restart()  # with an empty cache
    workshop.tier()
    waiting(partial(workshop.tiered.read, 0, 1 << 20))
    check(workshop, 1 << 20)


def test_what_has_expired_leaves_a_store_that_takes_nothing_more() -> None:
    """Else a full one could never become free."""
    workshop = TieredWorkshop()
    workshop.fill(30)
    workshop.tier()
    before = workshop.objects
    workshop.fill(10)
    workshop.store.faults = lambda verb, key: Fault.BEFORE if is_log(verb, key) else None
    workshop.retain(local_retention_bytes=0, retention_bytes=900)
    for _ in range(3):
        workshop.runtime.advance(60)
        workshop.tier()
    assert len(workshop.objects) < len(before) // 2
    workshop.store.faults = no_faults
    workshop.runtime.advance(60)
    workshop.tier()
    check(workshop)


def test_what_is_going_leaves_a_store_that_takes_no_manifest_either() -> None:
    workshop = TieredWorkshop()
    workshop.fill(30)
    workshop.tier()
    workshop.store.faults = lambda verb, _key: Fault.BEFORE if verb == "delete" else None
    workshop.retain(local_retention_bytes=0, retention_bytes=900)
    workshop.tier()
    assert workshop.manifest is not None
    going = [entry for entry in workshop.manifest.entries if entry.going]
    before = len(workshop.objects)
    workshop.retain(local_retention_bytes=0, retention_bytes=0)  # more expires, which can't be noted
    workshop.store.faults = lambda verb, _key: Fault.BEFORE if verb in ("put", "replace") else None
    workshop.runtime.advance(60)
    workshop.tier()
    assert len(workshop.objects) == before - 2 * len(going)


def test_objects_that_cannot_be_removed_do_not_hold_up_copying() -> None:
    workshop = TieredWorkshop()
    workshop.fill(30)
    workshop.tier()
    workshop.store.faults = lambda verb, _key: Fault.BEFORE if verb == "delete" else None
    workshop.retain(local_retention_bytes=0, retention_bytes=900)
    workshop.fill(30)
    workshop.tier()
    assert workshop.present[-1].last_offset + 1 == workshop.tiered.segments.active.base_offset


def test_nothing_is_copied_for_a_manifest_that_is_full(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    workshop = TieredWorkshop()
    workshop.fill(12)
    workshop.tier()
    before = workshop.objects
    monkeypatch.setattr(manifest_writer, "SIZE_MAX", ENTRY_BYTES_MAX)
    workshop.fill(12)
    for _ in range(100):
        workshop.runtime.advance(60)
        workshop.tier()
    assert workshop.objects == before
    assert caplog.text.count("has no room for more") == 1
    monkeypatch.undo()
    workshop.tier()
    assert workshop.present[-1].last_offset + 1 == workshop.tiered.segments.active.base_offset


def test_a_segment_is_copied_once_where_the_manifest_can_not_be_written() -> None:
    workshop = TieredWorkshop()
    workshop.fill(12)
    workshop.tier()
    before = len(workshop.objects)
    workshop.store.faults = lambda verb, key: (
        Fault.BEFORE if verb == "replace" and key.endswith("manifest") else None
    )
    workshop.fill(4)
    for _ in range(20):
        workshop.runtime.advance(60)
        workshop.tier()
    assert len(workshop.objects) == before + 2, "a log and what lies beside it"
    workshop.store.faults = no_faults
    workshop.runtime.advance(60)
    workshop.tier()
    assert len(workshop.objects) == 1 + 2 * len(workshop.present)
    check(workshop)


def test_a_copied_segment_is_no_orphan_while_it_waits_for_the_manifest() -> None:
    """However long that can't be written."""
    workshop = TieredWorkshop()
    workshop.fill(12)
    workshop.tier()
    workshop.store.faults = lambda verb, key: (
        Fault.BEFORE if verb == "replace" and key.endswith("manifest") else None
    )
    workshop.fill(4)
    workshop.tier()
    workshop.runtime.advance(2 * ORPHAN_AGE_MS / 1000)
    workshop.store.faults = no_faults
    workshop.tier()
    assert workshop.present[-1].last_offset + 1 == workshop.tiered.segments.active.base_offset
    named = {
        key
        for entry in workshop.present
        for key in (workshop.keys.log(entry.name), workshop.keys.aux(entry.name))
    }
    assert workshop.objects == {workshop.keys.manifest, *named}
    workshop.retain(local_retention_bytes=0)
    workshop.restart()
    check(workshop)


def test_a_backlog_holds_up_no_claim_of_another_partition() -> None:
    workshop = TieredWorkshop()
    workshop.disk.make_directory("/logs/t-1", parents=True)
    other = Log.open(
        workshop.disk, workshop.runtime, "/logs", "t", 1, b"i" * 16, LogConfig(**workshop.settings)
    )
    for _ in range(60):
        workshop.append()
    workshop.settle()
    uploads = []

    def faults(verb: str, key: str) -> None:
        if is_log(verb, key):
            uploads.append(key)
            if len(uploads) == 1:
                workshop.manager.follow(other, 2)
                workshop.manager.lead(other, 2)
                workshop.manager.run_pass(lambda: None)
        if isinstance(other.remote, RemoteLog) and key == other.remote.keys.manifest:
            uploads.append("claim")

    workshop.store.faults = faults
    workshop.manager.run_pass(lambda: None)
    workshop.runtime.run_until_idle()
    assert 0 < uploads.index("claim") < 5
    assert workshop.present[-1].last_offset + 1 == workshop.tiered.segments.active.base_offset


def test_a_replica_takes_the_manifest_of_the_new_leader() -> None:
    """It has read that of the last one before the new one has claimed it and taken two segments out."""
    workshop = TieredWorkshop()
    workshop.fill(20)
    workshop.tier()
    workshop.retain(local_retention_bytes=0)
    workshop.manager.follow(workshop.tiered, 9)
    waiting(partial(workshop.tiered.read, 0, 100))
    found = read_manifest(workshop.store, workshop.keys)
    assert found is not None
    manifest, version = found
    claimed = msgspec.structs.replace(
        manifest, leader_epoch=9, number=manifest.number + 1, entries=manifest.entries[:-2]
    )
    workshop.store.replace(workshop.keys.manifest, encode(claimed), version)
    workshop.runtime.advance(60)
    waiting(partial(workshop.tiered.read, 0, 100))  # asks the store for it, and does not wait
    workshop.runtime.run_until_idle()
    waiting(partial(workshop.tiered.read, 0, 100))
    remote = workshop.tiered.remote
    assert isinstance(remote, RemoteLog)
    assert [entry.name for entry in remote.entries] == [entry.name for entry in claimed.entries]


@pytest.mark.parametrize(
    "suffixes",
    [(".chunk",), (".index",), (".txnindex",), (".timeindex",), (".chunk", ".checksums"), (".snapshot",)],
)
def test_a_file_that_was_removed_from_the_cache_is_read_again(suffixes: tuple[str, ...]) -> None:
    workshop = TieredWorkshop()
    workshop.fill(20)
    workshop.tier()
    workshop.retain(local_retention_bytes=0)
    check(workshop)
    directory = workshop.cache.segment_directory(workshop.present[0])
    removed = [name for name in workshop.disk.list(directory) if name.endswith(suffixes)]
    assert len(removed) == len(suffixes)
    for name in removed:
        workshop.disk.remove(f"{directory}/{name}")
    waiting(partial(workshop.tiered.read, 1, 1000))
    check(workshop)
    first = workshop.present[0]
    remote = workshop.tiered.remote
    assert remote is not None
    state = run_through(remote.aux_state(first.last_offset + 1, workshop.epoch))
    assert state.offset == first.last_offset + 1
