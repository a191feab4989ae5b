"""A log, its tier and an object store that fails: every record can be read until it has expired, byte for byte."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.runtime.slices import run_through
from barnabas.storage.errors import OffsetOutOfRange, StorageError, WouldWait
from barnabas.storage.log.leader_epochs import EPOCH_FILE
from barnabas.storage.log.log import Log
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.manager.retention import RetentionPass
from barnabas.storage.tests.workshop import NOW, Workshop, verified
from barnabas.storage.tier.keys import PartitionKeys
from barnabas.storage.tier.manifest import Entry, Manifest, decode, encode
from barnabas.storage.tier.manifest_writer import read_manifest
from barnabas.storage.tier.memory_store import Fault, MemoryStore
from barnabas.storage.tier.remote_cache import RemoteCache
from barnabas.storage.tier.remote_log import RemoteLog
from barnabas.storage.tier.remote_log_manager import RemoteLogManager
from barnabas.storage.tier.store_config import check_conditions
from barnabas.storage.tier.tiered_partition import COLLECT_INTERVAL_S
from barnabas.storage.wall_clock import WallClock
from barnabas.wire.record_batch import iterate_whole_headers, read_header
from barnabas.wire.records import Record, build_batch

SETTINGS: dict[str, Any] = {"segment_bytes": 400, "remote_storage_enable": True, "index_interval_bytes": 100}


class TieredWorkshop(Workshop):
    """Logs whose tier is a store in memory, which outlives their restarts."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.settings = {**SETTINGS, **settings}
        self.store = MemoryStore(self.runtime.time_ms)
        self.epoch = 0
        self.model: dict[int, bytes] = {}  # base offset -> batch, as it was appended
        self.tiered = self.open()

    def open(self, start: int = 0, **more: Any) -> Log:
        """The log as a start finds it, led here in a new epoch."""
        tiered = self.log(start=start, **self.settings, **more)
        tiered.checkpointed_start_offset = start
        self.cache = RemoteCache(self.disk, self.store, "/logs/remote-log-index-cache", 1 << 30)
        self.manager = RemoteLogManager(
            self.runtime,
            self.disk,
            self.store,
            self.cache,
            WallClock(self.runtime),
            lambda: "cluster",
            partial(check_conditions, self.store, self.runtime.random_bytes),
            interval_ms=30_000,
            copies_at_once=1,
        )
        self.epoch += 1
        self.manager.follow(tiered, self.epoch)
        self.manager.lead(tiered, self.epoch)
        self.tiered = tiered
        return tiered

    def restart(self) -> None:
        start = self.tiered.log_start_offset
        self.manager.stop()
        self.tiered.close()
        self.open(start)

    def append(self, count: int = 1, size: int = 100, timestamp: int = NOW) -> None:
        base = self.tiered.log_end_offset
        self.tiered.append_as_leader(self.batch(count, size=size, timestamp=timestamp), self.epoch)
        (region,) = self.tiered.read(base, 1 << 20).regions
        self.model[base] = region.read()

    def fill(self, batches: int = 12) -> None:
        for _ in range(batches):
            self.append()
        self.settle()

    def settle(self) -> None:
        self.tiered.flush()
        self.runtime.run_until_idle()

    def tier(self) -> None:
        """One pass, and what it begins."""
        self.settle()
        self.manager.run_pass(lambda: None)
        self.runtime.run_until_idle()

    def retain(self, **settings: Any) -> None:
        """Remove here what may be removed."""
        self.tiered.update_config(LogConfig(**{**self.settings, **settings}))
        RetentionPass(self.runtime, self.disk, WallClock(self.runtime), [self.tiered], lambda: None)
        self.runtime.run_until_idle()

    @property
    def manifest(self) -> Manifest | None:
        found = read_manifest(self.store, self.keys)
        return None if found is None else found[0]

    @property
    def keys(self) -> PartitionKeys:
        assert isinstance(self.tiered.remote, RemoteLog)
        return self.tiered.remote.keys

    @property
    def present(self) -> list[Entry]:
        manifest = self.manifest
        assert manifest is not None
        return manifest.present

    @property
    def objects(self) -> set[str]:
        return {each.key for each in self.store.list(self.keys.prefix)}


def read_batches(log: Log, offset: int, max_bytes: int = 1000) -> Iterator[bytes]:
    """As a consumer that waits for the store."""
    while offset < log.log_end_offset:
        result = waiting(partial(log.read, offset, max_bytes))
        data = b"".join(region.read() for region in result.regions)
        found = list(iterate_whole_headers(data))
        assert found, f"nothing at {offset}"
        for position, header in found:
            yield data[position : position + header.size]
            offset = header.next_offset


def waiting(read: Callable[[], Any], tries: int = 8) -> Any:
    for _ in range(tries):
        try:
            return read()
        except WouldWait as cold:
            cold.prepare()
    raise AssertionError("the same read would always wait")


def check(workshop: TieredWorkshop, max_bytes: int = 1000) -> None:
    """All records from the start on, as they were appended."""
    log = workshop.tiered
    start = log.log_start_offset
    wanted = [
        batch for base, batch in sorted(workshop.model.items()) if read_header(batch).last_offset >= start
    ]
    assert list(read_batches(log, start, max_bytes)) == wanted


def test_tiered_segments_are_read_from_the_store() -> None:
    workshop = TieredWorkshop()
    workshop.fill()
    workshop.tier()
    tiered = workshop.tiered.remote
    assert tiered is not None
    assert tiered.tiered_offset == workshop.tiered.segments.active.base_offset - 1
    workshop.retain(local_retention_bytes=0)
    assert workshop.tiered.log_start_offset == 0
    assert workshop.tiered.local_log_start_offset == tiered.tiered_offset + 1 > 0
    for max_bytes in (1, 150, 1000, 1 << 20):
        check(workshop, max_bytes)


def test_nothing_is_removed_here_that_is_not_in_the_store() -> None:
    workshop = TieredWorkshop()
    workshop.fill()
    workshop.retain(local_retention_bytes=0, local_retention_ms=0)
    assert workshop.tiered.local_log_start_offset == 0
    check(workshop)


def test_a_restart_begins_with_the_manifest() -> None:
    workshop = TieredWorkshop()
    workshop.fill()
    workshop.tier()
    workshop.retain(local_retention_bytes=0)
    before = workshop.objects
    workshop.restart()
    check(workshop)
    workshop.tier()
    assert before <= workshop.objects
    firsts = [entry.first_offset for entry in (workshop.manifest or decode(b"", "", 0)).entries]
    assert len(workshop.objects) == 1 + 2 * len(set(firsts)), "nothing is copied twice"
    workshop.fill(4)
    workshop.tier()
    check(workshop)


def test_an_open_transaction_is_not_copied() -> None:
    workshop = TieredWorkshop()
    batch = build_batch(
        [Record(0, NOW, b"k", b"v" * 100)],
        producer_id=5,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    workshop.tiered.append_as_leader(batch, 1, verification=verified(workshop.tiered, batch))
    workshop.fill()
    workshop.tier()
    assert workshop.manifest is None


def transactional(workshop: TieredWorkshop, producer_id: int, sequence: int) -> None:
    batch = build_batch(
        [Record(0, NOW, b"k", b"v" * 100)],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=True,
    )
    log = workshop.tiered
    base = log.log_end_offset
    log.append_as_leader(batch, 1, verification=verified(log, batch))
    (region,) = log.read(base, 1 << 20).regions
    workshop.model[base] = region.read()


def end(workshop: TieredWorkshop, producer_id: int, *, commit: bool) -> None:
    log = workshop.tiered
    base = log.log_end_offset
    marker = log.marker_to_append(producer_id, 0, commit=commit, coordinator_epoch=0, transaction_version=1)
    log.append_as_leader(marker, 1, from_client=False)
    (region,) = log.read(base, 1 << 20).regions
    workshop.model[base] = region.read()


@pytest.mark.parametrize("max_bytes", [1, 250, 1 << 20])
def test_aborted_transactions_are_those_that_the_log_named_before(max_bytes: int) -> None:
    """Some of their markers lie in later segments, and in segments that are here."""
    workshop = TieredWorkshop()
    for turn in range(6):
        transactional(workshop, 1, turn)
        transactional(workshop, 2, turn)
        end(workshop, 1, commit=bool(turn % 2))
        workshop.append()
        end(workshop, 2, commit=False)
    transactional(workshop, 3, 0)
    workshop.fill(4)
    end(workshop, 3, commit=False)
    workshop.settle()
    log = workshop.tiered

    def answers() -> list[tuple[int, set[tuple[int, int]]]]:
        found = []
        for offset in range(log.log_end_offset):
            read = waiting(partial(log.read, offset, max_bytes))
            end = max(
                header.last_offset
                for _, header in iterate_whole_headers(b"".join(each.read() for each in read.regions))
            )
            aborted = waiting(partial(log.aborted_within, offset, read))
            found.append((offset, {(producer, first) for producer, first in aborted if first <= end}))
        return found

    before = answers()
    workshop.tier()
    workshop.retain(local_retention_bytes=0)
    assert log.local_log_start_offset > 20
    assert answers() == before
    workshop.restart()
    log = workshop.tiered
    assert answers() == before


def test_without_a_manifest_nothing_is_given_up() -> None:
    """The log begins before its first segment, so there has been one: another store may be configured now."""
    workshop = TieredWorkshop()
    workshop.fill()
    workshop.tier()
    workshop.retain(local_retention_bytes=0)
    workshop.manager.stop()
    workshop.tiered.close()
    kept, workshop.store = workshop.store, MemoryStore(workshop.runtime.time_ms)
    workshop.open()
    workshop.tier()
    assert workshop.tiered.log_start_offset == 0
    workshop.fill()
    workshop.tier()
    assert list(workshop.store.list("")) == []
    workshop.manager.stop()
    workshop.tiered.close()
    workshop.store = kept
    workshop.open()
    workshop.tier()
    check(workshop)


def test_a_log_whose_directory_was_lost_leaves_the_store_alone() -> None:
    workshop = TieredWorkshop()
    workshop.fill()
    workshop.tier()
    before = workshop.manifest
    workshop.manager.stop()
    workshop.tiered.close()
    workshop.disk.remove_tree("/logs/t-0")
    workshop.disk.make_directory("/logs/t-0")
    workshop.open()
    workshop.tier()
    workshop.fill()
    workshop.retain(local_retention_bytes=0)
    workshop.tier()
    workshop.runtime.advance(60)
    workshop.tier()
    assert workshop.manifest == before
    assert workshop.tiered.segments.bases[0] == 0, "nothing is removed here either"


def test_an_unclaimed_manifest_removes_nothing() -> None:
    """A reader may bring it in before the new leader's first pass."""
    workshop = TieredWorkshop()
    workshop.fill()
    workshop.tier()
    workshop.manager.stop()
    workshop.tiered.close()
    workshop.open()
    remote = workshop.tiered.remote
    assert isinstance(remote, RemoteLog)
    with pytest.raises(WouldWait) as cold:
        remote.read(0, 1000, True, 1)
    cold.value.prepare()
    waiting(partial(remote.read, 0, 1000, True, 1))
    assert remote.manifest is not None
    assert remote.tiered_offset == -1


def test_an_end_that_is_interrupted_leaves_nothing_to_read_or_to_build_on() -> None:
    workshop = TieredWorkshop()
    workshop.fill()
    workshop.tier()
    workshop.store.faults = lambda verb, key: (
        Fault.BEFORE if verb == "delete" and key.endswith(".log") else None
    )
    workshop.manager.remove(workshop.tiered, delete=True)
    workshop.tiered.end_tiering()
    workshop.runtime.run_until_idle()
    found = list(workshop.store.list("cluster/"))
    assert found
    workshop.manager.follow(workshop.tiered, workshop.epoch)
    workshop.manager.lead(workshop.tiered, 2)
    workshop.tier()
    assert workshop.present == [], "nothing is copied before the end is complete"
    workshop.store.faults = lambda _verb, _key: None
    workshop.runtime.advance(60)
    workshop.tier()
    check(workshop)
    workshop.retain(local_retention_bytes=0)
    check(workshop)


def test_retention_removes_from_the_store() -> None:
    workshop = TieredWorkshop()
    workshop.fill()
    workshop.tier()
    workshop.retain(local_retention_bytes=0, retention_bytes=900)
    workshop.tier()
    manifest = workshop.manifest
    assert manifest is not None
    assert (
        0 < manifest.log_start_offset == workshop.tiered.log_start_offset == manifest.entries[0].first_offset
    )
    assert len(workshop.objects) == 1 + 2 * len(manifest.entries)
    check(workshop)
    with pytest.raises(OffsetOutOfRange):
        workshop.tiered.read(0, 1000)


def test_retention_by_time_goes_by_the_largest_timestamp() -> None:
    workshop = TieredWorkshop(retention_ms=1000)
    for _ in range(6):
        workshop.append(timestamp=NOW - 5000)
    workshop.fill()
    workshop.tier()
    workshop.tier()
    assert workshop.tiered.log_start_offset == 6
    check(workshop)


def test_deleted_records_leave_the_store() -> None:
    workshop = TieredWorkshop()
    workshop.fill()
    workshop.tier()
    workshop.retain(local_retention_bytes=0)
    workshop.tiered.increment_log_start_offset(7)
    workshop.tier()
    manifest = workshop.manifest
    assert manifest is not None
    assert all(entry.last_offset >= 7 for entry in manifest.entries)
    check(workshop)


@pytest.mark.parametrize("is_checkpointed", [True, False])
def test_a_kill_after_the_start_has_grown_loses_no_epoch(is_checkpointed: bool) -> None:
    """The checkpoint of the start is written after that, and may not be."""
    workshop = TieredWorkshop()
    workshop.fill(4)
    workshop.restart()
    workshop.fill(8)
    workshop.tier()
    workshop.retain(local_retention_bytes=0)
    local = workshop.tiered.local_log_start_offset
    epochs = workshop.tiered.epochs.entries
    assert [epoch for epoch, _ in epochs] == [1, 2]
    start = epochs[1][1] + 1
    assert start < local
    workshop.tiered.increment_log_start_offset(start)
    visible = workshop.tiered.epochs
    assert visible.entries == [(2, start)], "as in Kafka, whose file begins there, too"
    assert visible.epoch_for_offset(start - 1) == -1
    assert visible.epoch_for_offset(start) == 2
    assert visible.end_offset(0, workshop.tiered.log_end_offset) == (0, start)
    assert visible.end_offset(1, workshop.tiered.log_end_offset) == (1, start)
    workshop.manager.stop()
    workshop.tiered.close()
    workshop.open(start if is_checkpointed else 0, clean=False, recovery_point=local)
    assert workshop.tiered.epochs.entries[0] == ((2, start) if is_checkpointed else epochs[0])
    check(workshop)


def test_a_full_disk_does_not_keep_a_log_from_being_tiered() -> None:
    """Epochs below its start are cut when it is opened; their file may keep them."""
    workshop = TieredWorkshop()
    workshop.fill(4)
    workshop.restart()
    workshop.fill(8)
    workshop.tier()
    workshop.retain(local_retention_bytes=0)
    start = workshop.tiered.epochs.entries[1][1] + 1
    workshop.tiered.increment_log_start_offset(start)
    workshop.settle()
    workshop.manager.stop()
    workshop.tiered.close()
    workshop.disk.fault = lambda operation, path: (
        errno.ENOSPC if operation == "write" and path.endswith(EPOCH_FILE) else None
    )
    workshop.open(start)
    assert workshop.tiered.epochs.entries == [(2, start)]
    workshop.disk.fault = lambda _operation, _path: None
    workshop.fill(8)
    check(workshop)


def test_hidden_epochs_do_not_come_back_when_tiering_ends() -> None:
    workshop = TieredWorkshop()
    workshop.fill(4)
    workshop.restart()
    workshop.fill(8)
    workshop.tier()
    workshop.retain(local_retention_bytes=0)
    log = workshop.tiered
    first = log.segments.bases[0]
    log.increment_log_start_offset(first)
    workshop.manager.remove(log, delete=False)
    log.end_tiering()
    before = log.epochs.entries
    assert before[0][1] == first
    log.close()
    again = workshop.log(start=first, **{**workshop.settings, "remote_storage_enable": False})
    assert again.epochs.entries == before


def test_a_deposed_leader_writes_nothing() -> None:
    workshop = TieredWorkshop()
    workshop.fill()
    workshop.tier()
    old = workshop.manager
    (partition,) = old.led()
    workshop.fill(4)
    claim(workshop, epoch=9)
    before = workshop.manifest
    workshop.tier()
    assert workshop.manifest == before
    assert partition.is_ended


def claim(workshop: TieredWorkshop, epoch: int) -> None:
    """Another broker leads."""
    found = read_manifest(workshop.store, workshop.keys)
    assert found is not None
    manifest, version = found
    content = msgspec_replace(manifest, leader_epoch=epoch, number=manifest.number + 1, nonce="other")
    workshop.store.replace(workshop.keys.manifest, encode(content), version)


def msgspec_replace(manifest: Manifest, **changes: Any) -> Manifest:
    return msgspec.structs.replace(manifest, **changes)


def test_a_lookup_by_time_searches_the_store() -> None:
    workshop = TieredWorkshop()
    for number in range(12):
        workshop.append(timestamp=NOW + 1000 * number)
    workshop.tier()
    workshop.retain(local_retention_bytes=0)
    for number in range(12):
        found = run_through(workshop.tiered.timestamp_lookup(NOW + 1000 * number - 500))
        assert found is not None
        assert found.offset == number
    largest = run_through(workshop.tiered.timestamp_lookup(None))
    assert largest is not None
    assert largest.offset == 11  # here


def test_the_largest_timestamp_is_that_of_what_is_here() -> None:
    """As in Kafka, also where an older record has a later time."""
    workshop = TieredWorkshop()
    for number in range(12):
        workshop.append(timestamp=NOW - 1000 * number)
    workshop.tier()
    workshop.retain(local_retention_bytes=0)
    largest = run_through(workshop.tiered.timestamp_lookup(None))
    assert largest is not None
    assert largest.offset == workshop.tiered.local_log_start_offset > 0


@pytest.mark.parametrize("kind", [".log", ".aux"])
@pytest.mark.parametrize("damage", ["flip", "cut", "swap", "missing"])
def test_a_damaged_object_is_an_error_and_is_never_served(kind: str, damage: str) -> None:
    workshop = TieredWorkshop()
    workshop.fill()
    workshop.tier()
    workshop.retain(local_retention_bytes=0)
    keys = [key for key in sorted(workshop.objects) if key.endswith(kind)]
    key = keys[0]
    content, _ = workshop.store.get(key, 1 << 20)
    if damage == "missing":
        workshop.store.delete([key])
    elif damage == "swap":
        workshop.store.put(key, [workshop.store.get(keys[1], 1 << 20)[0]])
    else:
        workshop.store.put(key, [content[:-1] if damage == "cut" else bytes([content[0] ^ 1]) + content[1:]])
    with pytest.raises(StorageError):
        waiting(lambda: workshop.tiered.read(0, 1000))
    second = (workshop.manifest or decode(b"", "", 0)).entries[1].first_offset
    workshop.runtime.advance(2)
    waiting(lambda: workshop.tiered.read(second, 1000))


def test_a_store_that_is_away_is_an_error_for_the_read_and_tried_again() -> None:
    workshop = TieredWorkshop()
    workshop.fill()
    workshop.tier()
    workshop.retain(local_retention_bytes=0)
    workshop.store.faults = lambda _verb, _key: Fault.BEFORE
    with pytest.raises(StorageError):
        waiting(lambda: workshop.tiered.read(0, 1000))
    workshop.append()  # writes go on
    workshop.store.faults = lambda _verb, _key: None
    workshop.runtime.advance(2)
    check(workshop)


def test_switching_off_removes_all_from_the_store() -> None:
    workshop = TieredWorkshop()
    workshop.fill()
    workshop.tier()
    workshop.retain(local_retention_bytes=0)
    prefix = workshop.keys.prefix
    workshop.manager.remove(workshop.tiered, delete=True)
    workshop.tiered.end_tiering()
    workshop.runtime.run_until_idle()
    assert list(workshop.store.list(prefix)) == []
    assert workshop.tiered.log_start_offset == workshop.tiered.segments.bases[0] > 0


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 6)),
        st.tuples(st.just("tier"), st.none()),
        st.tuples(
            st.just("retain"), st.sampled_from([{"local_retention_bytes": 0}, {"retention_bytes": 1500}])
        ),
        st.tuples(st.just("delete"), st.integers(1, 8)),
        st.tuples(st.just("restart"), st.none()),
        st.tuples(st.just("lose"), st.sampled_from(list(Fault))),
        st.tuples(st.just("check"), st.integers(1, 2000)),
    ),
    max_size=30,
)


@pytest.mark.slow
@given(STEPS)
def test_every_record_that_has_not_expired_can_be_read(steps: list[tuple[str, Any]]) -> None:
    workshop = TieredWorkshop()
    countdown = [0]
    for kind, value in steps:
        log = workshop.tiered
        if kind == "append":
            for _ in range(value):
                workshop.append()
            workshop.settle()
        elif kind == "tier":
            workshop.tier()
        elif kind == "retain":
            workshop.retain(**value)
        elif kind == "delete":
            log.increment_log_start_offset(min(log.log_start_offset + value, log.log_end_offset))
        elif kind == "restart":
            workshop.restart()
        elif kind == "lose":
            countdown[0] = 3

            def fault(verb: str, _key: str, kind: Fault = value) -> Fault | None:
                countdown[0] -= 1
                return kind if countdown[0] == 0 and verb not in ("get", "get_range", "list") else None

            workshop.store.faults = fault
        else:
            workshop.runtime.advance(2)
            check(workshop, value)
    workshop.runtime.advance(40)
    workshop.store.faults = lambda _verb, _key: None
    workshop.tier()
    workshop.runtime.advance(40)
    check(workshop)
    found = workshop.manifest
    if found is not None:
        # orphans of the last leader epoch have to be a day old
        workshop.runtime.advance(2 * COLLECT_INTERVAL_S)
        workshop.tier()
        found = workshop.manifest
        assert found is not None
        assert workshop.objects - {workshop.keys.manifest} == {
            key
            for each in found.entries
            for key in (workshop.keys.log(each.name), workshop.keys.aux(each.name))
        }
        check(workshop)


def test_a_follower_removes_nothing_by_an_old_manifest() -> None:
    """The next leader may have other records in its place."""
    workshop = TieredWorkshop()
    workshop.fill()
    workshop.tier()
    workshop.manager.follow(workshop.tiered, workshop.epoch)
    workshop.retain(local_retention_bytes=0)
    assert workshop.tiered.local_log_start_offset == 0
    check(workshop)


def test_what_an_uncleanly_elected_leader_lacks_is_not_read() -> None:
    """Its log ends within a tiered segment: the records before are read from there, and its own ones behind."""
    workshop = TieredWorkshop()
    workshop.fill()
    workshop.tier()
    entry = next(each for each in workshop.present if each.last_offset > each.first_offset)
    kept = entry.first_offset + 1
    workshop.manager.stop()
    workshop.tiered.truncate_to(kept)
    workshop.model = {base: batch for base, batch in workshop.model.items() if base < kept}
    workshop.tiered.close()
    workshop.epoch += 1
    workshop.open()
    workshop.fill()
    workshop.tier()
    workshop.retain(local_retention_bytes=0)
    assert workshop.tiered.local_log_start_offset > kept
    for max_bytes in (1, 1 << 20):
        check(workshop, max_bytes)


def test_a_log_that_is_cut_back_below_its_first_segment_begins_anew() -> None:
    """Its leader says where: what the producers had written before is in the store."""
    workshop = TieredWorkshop()
    workshop.fill()
    workshop.tier()
    workshop.retain(local_retention_bytes=0)
    workshop.tiered.truncate_to(5)
    assert workshop.tiered.log_start_offset == 0
    assert workshop.tiered.log_end_offset == 0


def test_closed_segments_that_a_crash_has_left_unsynced_are_tiered() -> None:
    """Their own syncs have ended with the process, and appends sync only what they roll: the start has them synced."""
    workshop = TieredWorkshop()
    for _ in range(12):
        workshop.append()
    workshop.manager.stop()
    workshop.tiered.close()
    workshop.open(clean=False, recovery_point=0)
    closed = workshop.tiered.segments.active.base_offset
    assert closed > 0
    workshop.tiered.settle_recovery(may_cut=True)
    workshop.tier()
    assert workshop.tiered.remote is not None
    assert workshop.tiered.remote.tiered_offset == closed - 1


def test_a_segment_that_a_power_failure_brings_back_is_no_part_of_the_log() -> None:
    """It lies in front of others whose removal has lasted: there would be a hole behind it."""
    workshop = TieredWorkshop()
    workshop.fill()
    workshop.tier()
    workshop.retain(local_retention_bytes=0)
    local = workshop.tiered.local_log_start_offset
    gone = sorted(name for name in workshop.disk.list("/logs/t-0") if name.endswith(".log.deleted"))
    assert len(gone) > 2
    workshop.manager.stop()
    workshop.tiered.close()
    workshop.disk.rename(f"/logs/t-0/{gone[0]}", f"/logs/t-0/{gone[0].removesuffix('.deleted')}")
    workshop.open(clean=False, recovery_point=local)
    assert workshop.tiered.local_log_start_offset == local
    check(workshop, 1 << 20)


def test_the_tiered_offset_outlives_its_segments_but_not_a_cut() -> None:
    workshop = TieredWorkshop()
    workshop.fill()
    workshop.tier()
    remote = workshop.tiered.remote
    assert isinstance(remote, RemoteLog)
    last = remote.tiered_offset
    assert last > 0
    assert remote.manifest is not None
    expired = msgspec.structs.replace(remote.manifest, entries=[], log_start_offset=last + 1)
    remote.claimed(expired)
    assert remote.tiered_offset == last
    remote.claimed(msgspec.structs.replace(expired, log_start_offset=last))
    assert remote.tiered_offset == -1
