"""Whatever is appended, committed, aborted, rolled, cleaned, killed and started again: a reader of committed
records has the same state in the end, offsets stay what they were, and producers are recognised."""

from __future__ import annotations

import heapq
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.storage.compaction.tests.test_cleaner import CleanerWorld
from barnabas.storage.log.log import Log
from barnabas.storage.log.verification import VERIFICATION_OFF
from barnabas.storage.segment.transaction_marker import build_marker, find_marker
from barnabas.storage.tests.workshop import aborted_transactions, read_batches
from barnabas.testing.memory_disk import ProcessKilled
from barnabas.wire.compression import Codec
from barnabas.wire.record_batch import read_header
from barnabas.wire.records import Record, build_batch, iterate_records

CONFIGS: dict[str, Any] = {
    "segment_bytes": 1500,
    "min_cleanable_dirty_ratio": 0.0,
    "delete_retention_ms": 20_000,
    "index_interval_bytes": 150,
}
State = dict[bytes | None, bytes]


class World:
    """One compacted log and what is known of all that was ever sent to it."""

    def __init__(self) -> None:
        self.cleaner_world = CleanerWorld()
        self.log = self.cleaner_world.create(**CONFIGS)
        self.started = False
        self.sent: dict[int, tuple[bytes | None, bytes | None]] = {}  # offset -> record
        self.committed: dict[int, tuple[bytes | None, bytes | None]] = {}
        self.open: dict[int, list[int]] = {}  # producer -> offsets of its transaction
        self.sequences: dict[int, int] = {}
        self.last: dict[int, bytes] = {}  # producer -> its last batch, as sent

    def data(
        self, records: list[tuple[int, bytes | None]], codec: Codec, producer: int, transactional: bool
    ) -> None:
        transactional = producer in self.open or (transactional and producer >= 0)
        sequence = self.sequences.get(producer, 0)
        now = self.cleaner_world.runtime.time_ms()
        batch = build_batch(
            [Record(i, now + i, b"k%d" % key, value) for i, (key, value) in enumerate(records)],
            codec=codec,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence if producer >= 0 else -1,
            transactional=transactional,
        )
        base = self.log.append_as_leader(batch, 0, verification=VERIFICATION_OFF).base_offset
        if producer >= 0:
            self.sequences[producer] = sequence + len(records)
            self.last[producer] = batch
        for index, (key, value) in enumerate(records):
            self.sent[base + index] = b"k%d" % key, value
            if transactional:
                self.open.setdefault(producer, []).append(base + index)
            else:
                self.committed[base + index] = b"k%d" % key, value

    def finish(self, producer: int, commit: bool) -> None:
        offsets = self.open.pop(producer, None)
        if offsets is None:
            return
        marker = build_marker(
            producer, 0, commit=commit, coordinator_epoch=0, timestamp=self.cleaner_world.runtime.time_ms()
        )
        self.log.append_as_leader(marker, 0, from_client=False)
        if commit:
            self.committed.update({offset: self.sent[offset] for offset in offsets})

    def clean(self, kill_after: int | None, power: st.DataObject | None) -> None:
        """One look of the cleaner; the process may die at it, with the power or without."""
        cleaner_world = self.cleaner_world
        self.log.flush()
        cleaner_world.runtime.run_until_idle()
        cleaner_world.manager.checkpoint()
        for directory in ("/data/t-0", "/data"):
            cleaner_world.disk.sync_directory(directory)
        cleaner_world.disk.kill_after = kill_after
        try:
            if self.started:
                cleaner_world.runtime.advance(15)
            else:
                cleaner_world.start_cleaner()
            self.started = True
        except ProcessKilled:
            if power is not None:
                cleaner_world.disk = cleaner_world.disk.crash(lambda most: power.draw(st.integers(0, most)))
            self.restart()
        cleaner_world.disk.kill_after = None

    def restart(self, *, clean: bool = False) -> None:
        if clean:
            self.cleaner_world.close()
        self.cleaner_world, self.log = self.cleaner_world.reopen(**CONFIGS)
        self.started = False

    def check(self) -> None:
        log = self.log
        assert log.log_end_offset == max(
            [offset + 1 for offset in self.sent] + [log.log_end_offset if self.sent else 0], default=0
        )
        stable = min((offsets[0] for offsets in self.open.values()), default=log.log_end_offset)
        assert log.last_stable_offset == stable
        expected: dict[bytes | None, bytes | None] = {}
        for offset in sorted(self.committed):
            if offset < stable:
                key, value = self.committed[offset]
                expected[key] = value
        found = {}
        for record in read_committed(log):
            assert self.sent[record.offset] == (record.key, record.value)
            found[record.key] = record.value
        assert existing(found) == existing(expected)
        for producer, batch in self.last.items():
            if producer not in self.open:
                assert log.append_as_leader(batch, 0).duplicate


def existing(state: dict[bytes | None, bytes | None]) -> State:
    return {key: value for key, value in state.items() if value is not None}


def read_committed(log: Log) -> list[Record]:
    """As a consumer does it: the aborted transactions of the whole range, then batch by batch."""
    stable = log.last_stable_offset
    ahead = [(first, producer) for producer, first in aborted_transactions(log, log.log_start_offset, stable)]
    heapq.heapify(ahead)
    aborted: set[int] = set()
    found = []
    for raw in read_batches(log, 700):
        header = read_header(raw)
        if header.base_offset >= stable:
            break
        while ahead and ahead[0][0] <= header.last_offset:
            aborted.add(heapq.heappop(ahead)[1])
        if header.is_control:
            marker = find_marker(raw)
            if marker is not None and not marker.commit:
                aborted.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborted):
            found += list(iterate_records(raw))
    return found


values = st.one_of(st.none(), st.binary(max_size=20), st.just(b"v" * 300))
records = st.lists(st.tuples(st.integers(0, 4), values), min_size=1, max_size=4)
some_data = st.tuples(st.just("data"), records, st.sampled_from(Codec), st.integers(-1, 1), st.booleans())
steps = st.lists(
    st.one_of(
        some_data,
        some_data,
        some_data,
        st.tuples(st.just("transaction"), records, st.integers(0, 1), st.booleans()),
        st.tuples(st.just("end"), st.integers(0, 1), st.booleans()),
        st.tuples(st.just("wait"), st.sampled_from([5, 20, 40])),
        st.tuples(st.just("clean"), st.booleans()),
        st.tuples(st.just("kill"), st.integers(0, 50), st.booleans()),
        st.tuples(st.just("restart"), st.booleans()),
    ),
    min_size=10,
    max_size=30,
)


@pytest.mark.slow
@given(steps=steps, data=st.data())
def test_a_reader_of_committed_records_misses_nothing(
    steps: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    world = World()
    for step in steps:
        match step:
            case ("data", written, codec, producer, transactional):
                world.data(written, codec, producer, transactional)
            case ("end", producer, commit):
                world.finish(producer, commit)
            case ("transaction", written, producer, commit):
                world.data(written, Codec.NONE, producer, True)
                world.finish(producer, commit)
            case ("wait", seconds):
                world.cleaner_world.runtime.advance(seconds)
            case ("clean", rolls):
                if rolls:
                    world.log.roll()
                world.clean(None, None)
            case ("kill", changes, power):
                world.log.roll()
                world.clean(changes, data if power else None)
            case ("restart", clean):
                world.restart(clean=clean)
        world.check()
    world.log.roll()
    world.clean(None, None)
    world.check()
    assert not [
        name
        for name in world.cleaner_world.disk.list("/data/t-0")
        if name.endswith((".cleaned", ".swap", ".tmp"))
    ]
