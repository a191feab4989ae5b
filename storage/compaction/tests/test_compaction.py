"""One pass of compaction over handmade segments, against the slow model: keys, tombstones, transactions, codecs,
several cleanings while the clock moves on."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.storage.compaction.cleaning import Cleaning, Source, clean, group_sources
from barnabas.storage.compaction.tests import compaction_model as model
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.segment.segment import Segment
from barnabas.storage.segment.transaction_index import AbortedTransaction, TransactionIndex
from barnabas.storage.segment.transaction_marker import build_marker
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.compression import Codec
from barnabas.wire.record_batch import CorruptBatch, iterate_headers, read_header
from barnabas.wire.records import Record, build_batch

NOW = 1_700_000_000_000
RETENTION = 1000
CONFIG = LogConfig(
    cleanup_policy=frozenset({"compact"}),
    delete_retention_ms=RETENTION,
    segment_bytes=4000,
    index_interval_bytes=100,
)
ENTRY = 208 / 0.9


class Partition:
    """Segments on a memory disk, without a log around them."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.disk.make_directory("/t-0", parents=True)
        self.segments: list[Segment] = []
        self.ends: list[int] = []
        self.end = 0
        self.batches: list[model.ModelBatch] = []
        self.sequences: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        self.open_since: dict[int, int] = {}  # producer -> first offset of its transaction
        self.last_records: dict[int, tuple[int, int]] = {}
        self.aborted: list[AbortedTransaction] = []
        self.first_dirty = 0
        self.roll()

    def roll(self) -> None:
        if self.segments:
            if self.segments[-1].base_offset == self.end:
                return
            self.ends.append(self.end)
            self._seal()
        self.segments.append(Segment.create(self.disk, "/t-0", self.end, NOW))

    def _seal(self) -> None:
        segment = self.segments[-1]
        segment.add_time_index_entry()
        segment.save_indexes()
        if self.aborted:
            TransactionIndex(self.disk, "/t-0", segment.base_offset, self.aborted).save()
            self.aborted = []

    def append(self, batch: bytes) -> None:
        stored = struct.pack(">q", self.end) + batch[8:12] + struct.pack(">i", 3) + batch[16:]
        header = read_header(stored)
        segment = self.segments[-1]
        segment.open_for_append().pwrite(stored, segment.size)
        segment.appended(header, len(stored), 100, 10_000)
        self.batches.append(model.decode(stored))
        self.end = header.next_offset

    def data(
        self,
        records: list[tuple[int, bytes | None]],
        codec: Codec,
        producer: int,
        transactional: bool,
        time: int,
    ) -> None:
        if producer >= 0 and transactional:
            self.open_since.setdefault(producer, self.end)
        transactional = producer in self.open_since
        sequence = self.sequences.get(producer, 0)
        batch = build_batch(
            [
                Record(i, time + 7 * i % 10, b"k%d" % key if key >= 0 else None, value, [("h", b"x")])
                for i, (key, value) in enumerate(records)
            ],
            codec=codec,
            producer_id=producer,
            producer_epoch=self.epochs.get(producer, 0) if producer >= 0 else -1,
            base_sequence=sequence if producer >= 0 else -1,
            transactional=transactional,
            log_append_time=time if key_sum(records) % 5 == 0 else None,
        )
        if producer >= 0:
            self.sequences[producer] = sequence + len(records)
            self.last_records[producer] = self.end + len(records) - 1, self.epochs.get(producer, 0)
        self.append(batch)

    def finish(self, producer: int, commit: bool, fences: bool, time: int) -> None:
        """End the producer's transaction; `fences`: with a new epoch, so that its sequences begin again."""
        first = self.open_since.pop(producer, None)
        if first is None:
            return
        if not commit:
            stable = min(self.open_since.values(), default=self.end + 1)
            self.aborted.append(AbortedTransaction(producer, first, self.end, stable))
        if fences:
            self.epochs[producer] = self.epochs.get(producer, 0) + 1
            self.sequences[producer] = 0
            self.last_records[producer] = -1, self.epochs[producer]
        epoch = self.epochs.get(producer, 0)
        self.append(build_marker(producer, epoch, commit=commit, coordinator_epoch=1, timestamp=time))

    def transactions(self) -> list[AbortedTransaction]:
        found = []
        for segment in self.segments:
            index = TransactionIndex(self.disk, "/t-0", segment.base_offset, None)
            if self.disk.exists(index.path):
                found += index.entries()
        return found + self.aborted

    def sources(self) -> list[Source]:
        stable = min(self.open_since.values(), default=self.end)
        return [
            Source(segment, segment.path, segment.base_offset, end, segment.size, 0, 0)
            for segment, end in zip(self.segments[:-1], self.ends, strict=True)
            if end <= stable
        ]

    def clean(self, now: int, room: int = 1 << 30) -> Cleaning | None:
        """Clean in one go, swap by hand; the model does the same."""
        sources = self.sources()
        if not sources or sources[-1].end_offset <= self.first_dirty:
            return None
        position = next(
            source.segment.index_position(self.first_dirty)
            for source in sources
            if source.end_offset > self.first_dirty
        )
        cleaning = Cleaning(
            disk=self.disk,
            directory="/t-0",
            config=CONFIG,
            sources=sources,
            first_dirty_offset=self.first_dirty,
            first_dirty_position=position,
            now_ms=now,
            map_bytes=int(room * ENTRY) + 1,
            map_load_factor=0.9,
            last_records=dict(self.last_records),
            aborted=self.transactions(),
        )
        end = sources[-1].end_offset
        self.batches, expected_dirty = model.clean(
            self.batches,
            first_dirty=self.first_dirty,
            end=end,
            now=now,
            retention=RETENTION,
            last_records=self.last_records,
            segment_bases=[segment.base_offset for segment in self.segments],
            room=room,
        )
        for piece in clean(cleaning):
            if piece.cleaned is not None:
                self._swap(piece.cleaned, piece.old)
        assert cleaning.end_offset == expected_dirty
        self.first_dirty = expected_dirty
        return cleaning

    def _swap(self, cleaned: Segment, old: tuple[Segment, ...]) -> None:
        first = self.segments.index(old[0])
        for segment in old:
            for path in segment.files:
                self.disk.remove(path)
        cleaned.rename("")
        self.segments[first : first + len(old)] = [cleaned]
        self.ends[first : first + len(old)] = [self.ends[first + len(old) - 1]]

    def content(self) -> list[bytes]:
        found = []
        for segment in self.segments:
            data = bytes(self.disk.files[segment.path].data)
            assert len(data) == segment.size
            found += [data[at : at + header.size] for at, header in iterate_headers(data)]
        return found

    def check(self) -> None:
        assert not model.differences(self.batches, self.content())
        for segment in self.segments[:-1]:
            for relative, position in segment.offset_index.entries():
                header = next(segment.headers(position))[1]
                assert header.last_offset == segment.base_offset + relative
        aborted = {(one.producer_id, one.last_offset): one for one in self.transactions()}
        for (
            batch
        ) in self.batches:  # a reader of committed records needs the index entry as long as data is left
            if model.is_aborted(self.batches, batch):
                entry = next(
                    one
                    for (producer, last), one in sorted(aborted.items())
                    if producer == batch.producer_id and last > batch.last
                )
                assert entry.first_offset <= batch.base


def key_sum(records: list[tuple[int, bytes | None]]) -> int:
    return sum(key for key, _ in records) + len(records)


values = st.one_of(st.none(), st.binary(max_size=60), st.just(b"v" * 200))
records = st.lists(st.tuples(st.integers(0, 4), values), min_size=1, max_size=5)
codecs = st.sampled_from(Codec)
rooms = st.sampled_from([1 << 30, 1 << 30, 1 << 30, 1, 2, 3, 5])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("data"), records, codecs, st.integers(-1, 1), st.booleans()),
        st.tuples(st.just("transaction"), records, codecs, st.integers(0, 1), st.booleans(), st.booleans()),
        st.tuples(st.just("end"), st.integers(0, 1), st.booleans(), st.booleans()),
        st.tuples(st.just("roll")),
        st.tuples(st.just("wait"), st.sampled_from([1, RETENTION - 1, RETENTION, RETENTION + 1])),
        st.tuples(st.just("clean"), rooms),
        st.tuples(st.just("roll and clean"), rooms),
        st.tuples(st.just("start over")),
    ),
    max_size=30,
)


@pytest.mark.slow
@given(steps=steps)
def test_cleaning_leaves_what_the_model_says(steps: list[tuple[Any, ...]]) -> None:
    partition = Partition()
    now = NOW
    for step in steps:
        match step:
            case ("data", records, codec, producer, transactional):
                partition.data(records, codec, producer, transactional, now)
            case ("transaction", records, codec, producer, commit, fences):
                partition.data(records, codec, producer, True, now)
                partition.finish(producer, commit, fences, now)
            case ("end", producer, commit, fences):
                partition.finish(producer, commit, fences, now)
            case ("roll",):
                partition.roll()
            case ("wait", milliseconds):
                now += milliseconds
            case ("clean", room):
                partition.clean(now, room)
                partition.check()
            case ("roll and clean", room):
                partition.roll()
                partition.clean(now, room)
                partition.check()
            case ("start over",):  # the checkpoint is lost
                partition.first_dirty = 0
    partition.roll()
    for _ in range(3):
        partition.clean(now)
        partition.check()
        partition.data([(0, b"again")], Codec.NONE, -1, False, now)
        partition.roll()
        now += RETENTION
    partition.check()


def one_segment(*batches: list[tuple[int, bytes | None]]) -> Partition:
    partition = Partition()
    for records in batches:
        partition.data(records, Codec.NONE, -1, False, NOW)
    partition.roll()
    return partition


def test_the_last_batch_of_the_section_stays_as_an_empty_one() -> None:
    partition = one_segment([(0, b"a")])
    partition.data([(1, b"aborted")], Codec.LZ4, 0, True, NOW)
    partition.roll()
    partition.finish(0, commit=False, fences=False, time=NOW)
    partition.last_records.clear()
    partition.clean(NOW)
    left = [read_header(raw) for raw in partition.content()]
    assert [(header.base_offset, header.record_count, header.codec) for header in left] == [
        (0, 1, 0),
        (1, 0, 0),
        (2, 1, 0),
    ]
    partition.check()


def test_an_earlier_aborted_transaction_does_not_affect_the_next_one() -> None:
    partition = one_segment([(0, b"old")])
    partition.data([(1, b"aborted")], Codec.NONE, 0, True, NOW)
    partition.finish(0, commit=False, fences=False, time=NOW)
    partition.roll()
    partition.clean(NOW)
    partition.data([(0, b"new")], Codec.NONE, 0, True, NOW)
    partition.finish(0, commit=True, fences=False, time=NOW)
    partition.roll()
    partition.clean(NOW)
    partition.check()
    data = [record.value for batch in partition.batches if not batch.control for record in batch.records]
    assert data == [b"new"]


def test_compaction_removes_records_without_a_key() -> None:
    partition = one_segment([(0, b"a"), (-1, b"keyless"), (1, b"b")], [(-1, b"keyless")], [(2, b"c")])
    partition.clean(NOW)
    partition.check()
    assert [record.key for batch in partition.batches for record in batch.records] == [b"k0", b"k1", b"k2"]


@pytest.mark.parametrize("size", [31, 32, 33, 34, 127, 128, 5000, 20_000])
def test_long_keys(size: int) -> None:
    key, other = b"x" * size, b"x" * (size - 1) + b"y"
    partition = Partition()
    for number in range(70):
        partition.append(build_batch([Record(0, NOW, key, b"%d" % number), Record(1, NOW, other, None)]))
    partition.roll()
    partition.clean(NOW)
    partition.check()
    assert [(r.offset, r.key) for batch in partition.batches for r in batch.records] == [
        (138, key),
        (139, other),
    ]


def test_offsets_and_lengths_beyond_one_byte() -> None:
    partition = Partition()
    partition.append(
        build_batch([Record(i, NOW + 100_000 * i, b"k%d" % (i % 300), b"v" * (i % 300)) for i in range(1000)])
    )
    partition.roll()
    partition.clean(NOW)
    partition.check()
    assert len(partition.batches[0].records) == 300


@pytest.mark.parametrize("position", [62, 65, 66, 70, 100])
def test_damage_is_an_error_and_leaves_nothing_behind(position: int) -> None:
    partition = one_segment([(0, b"a" * 30), (0, b"b" * 30)], [(0, b"c")])
    partition.disk.files[partition.segments[0].path].data[position] ^= 0x55
    before = dict(partition.disk.files)
    with pytest.raises(CorruptBatch, match="corrupt"):
        partition.clean(NOW)
    assert dict(partition.disk.files) == before


def test_giving_up_removes_what_is_half_written() -> None:
    partition = one_segment([(0, b"a")], [(0, b"b")])
    before = dict(partition.disk.files)
    sources = partition.sources()
    pieces = clean(
        Cleaning(
            disk=partition.disk,
            directory="/t-0",
            config=CONFIG,
            sources=sources,
            first_dirty_offset=0,
            first_dirty_position=0,
            now_ms=NOW,
            map_bytes=1 << 20,
            map_load_factor=0.9,
            last_records={},
            aborted=[],
        )
    )
    next(pieces)
    next(pieces)
    assert dict(partition.disk.files) != before
    pieces.close()
    assert dict(partition.disk.files) == before


def test_segments_are_grouped_by_size_and_offsets() -> None:
    segment = Segment(MemoryDisk(), "/t-0", 0, 0, fresh=True)

    def grouped(*sizes: tuple[int, int, int]) -> list[int]:
        sources = [Source(segment, "", base, end, size, size // 10, 0) for base, end, size in sizes]
        return [len(group) for group in group_sources(sources, 1000, 100)]

    assert grouped((0, 10, 500), (10, 20, 500), (20, 30, 1)) == [2, 1]
    assert grouped((0, 10, 400), (10, 20, 700), (20, 30, 100)) == [1, 2]
    assert [len(one) for one in group_sources([Source(segment, "", 0, 1, 1, 60, 0)] * 2, 1000, 100)] == [1, 1]
    assert [len(one) for one in group_sources([Source(segment, "", 0, 1, 1, 0, 60)] * 2, 1000, 100)] == [1, 1]
    assert grouped((0, 10, 2000), (10, 20, 1), (20, 30, 1)) == [1, 2]
    assert grouped((0, 10, 1), (10, 1 << 31, 1), (1 << 31, (1 << 31) + 1, 1)) == [2, 1]
    assert grouped((0, 10, 1), (10, 1 << 32, 0)) == [2]
