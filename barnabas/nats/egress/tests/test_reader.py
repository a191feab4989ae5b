"""The reader returns the records that a read_committed consumer sees, from any offset and in pieces of any size."""

from __future__ import annotations

from collections.abc import Callable
from mmap import mmap
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.partitions.partition import Partition
from barnabas.nats.egress import reader as committed_reader
from barnabas.nats.egress.reader import CommittedReader
from barnabas.storage.errors import StorageError
from barnabas.storage.log.log import Log
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.log.verification import VERIFICATION_OFF
from barnabas.storage.segment.transaction_marker import build_marker
from barnabas.testing.memory_disk import MemoryDisk, MemoryFile
from barnabas.wire import codecs
from barnabas.wire import records as wire_records
from barnabas.wire.compression import Codec
from barnabas.wire.record_batch import InvalidBatch
from barnabas.wire.records import Record, build_batch
from compat_tests.virtual.runtime import VirtualRuntime

TOPIC_ID = b"topic".ljust(16)


class Bench:
    """A partition that is led here, in memory; the model is a list of (offset, value, when it counts)."""

    def __init__(self) -> None:
        self.runtime = VirtualRuntime()
        self.disk = MemoryDisk()
        self.disk.make_directory("/logs")
        self.disk.make_directory("/logs/t-0")
        config = LogConfig.from_properties(
            {"segment.bytes": "3000", "retention.ms": "-1", "index.interval.bytes": "200"}
        )
        log = Log.open(self.disk, self.runtime, "/logs", "t", 0, TOPIC_ID, config)
        log.end_replication()
        self.partition = Partition("t", TOPIC_ID, 0, log)
        self.partition.is_leader = True
        self.open: dict[int, list[tuple[int, bytes]]] = {}  # by producer
        self.settled: list[tuple[int, bytes]] = []
        self.sequences: dict[int, int] = {}
        self.woken = 0

    def append(self, count: int, codec: Codec, producer: int, size: int) -> None:
        """Records of one batch, of a transaction if there is a producer."""
        end = self.partition.log.log_end_offset
        values = [b"%d" % (end + number) + bytes(size) for number in range(count)]
        options: dict[str, Any] = {}
        if producer:
            sequence = self.sequences.get(producer, 0)
            self.sequences[producer] = sequence + count
            options = {
                "producer_id": producer,
                "producer_epoch": 0,
                "base_sequence": sequence,
                "transactional": True,
            }
        batch = build_batch(
            [Record(number, 0, None, value) for number, value in enumerate(values)], codec=codec, **options
        )
        self.partition.log.append_as_leader(batch, 0, verification=VERIFICATION_OFF)
        found = [(end + number, value) for number, value in enumerate(values)]
        (self.open.setdefault(producer, []) if producer else self.settled).extend(found)

    def end(self, producer: int, commit: bool) -> None:
        if producer not in self.open:
            return
        marker = build_marker(producer, 0, commit=commit, coordinator_epoch=1, timestamp=0)
        self.partition.log.append_as_leader(marker, 0, from_client=False)
        records = self.open.pop(producer)
        if commit:
            self.settled.extend(records)

    def expected(self, start: int) -> list[tuple[int, bytes]]:
        """What may be read now."""
        stable = min((records[0][0] for records in self.open.values()), default=1 << 62)
        return sorted(each for each in self.settled if start <= each[0] < stable)

    def wake(self) -> None:
        self.woken += 1

    def read(self, reader: CommittedReader, count: int) -> list[tuple[int, bytes]]:
        """All there is, in pieces of `count`."""
        found: list[tuple[int, bytes]] = []
        while True:
            records = reader.take(count)
            found += [(record.offset, record.value or b"") for record in records]
            if not records:
                if not reader.is_busy:
                    return found
                self.runtime.run_until_idle()


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"),
            st.integers(1, 5),
            st.sampled_from([Codec.NONE, Codec.GZIP, Codec.LZ4]),
            st.integers(0, 2),
            st.integers(0, 300),
        ),
        st.tuples(st.just("end"), st.integers(1, 2), st.booleans()),
        st.tuples(st.just("read")),
    ),
    max_size=40,
)


@given(STEPS, st.integers(0, 60), st.integers(1, 9), st.sampled_from([300, 1000, 100_000]), st.booleans())
def test_it_reads_the_records_that_read_committed_consumers_see(
    steps: list[Any], start: int, count: int, read_bytes: int, in_threads: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(committed_reader, "READ_BYTES", read_bytes)
        patch.setattr(committed_reader, "UNPACKED_HERE_BYTES", 0 if in_threads else 1 << 20)
        if in_threads:  # nothing is in memory before a thread reads it
            patch.setattr(MemoryFile, "pread_now", _cold)
        bench = Bench()
        reader = CommittedReader(bench.partition, bench.runtime, start, bench.wake)
        found: list[tuple[int, bytes]] = []
        for step in [*steps, ("read",)]:
            if step[0] == "append":
                bench.append(*step[1:])
            elif step[0] == "end":
                bench.end(*step[1:])
            elif start <= bench.partition.log.log_end_offset:
                found += bench.read(reader, count)
                assert found == bench.expected(start)
                assert reader.next_offset == max(start, bench.partition.last_stable_offset)


def test_a_batch_that_unpacks_too_large_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is small, and in memory no more than its bound, in a thread."""
    monkeypatch.setattr(wire_records, "_UNPACKED_ALWAYS_ALLOWED", 1 << 20)
    mapped: list[int] = []
    original = codecs._map

    def noted(size: int) -> mmap:
        mapped.append(size)
        return original(size)

    monkeypatch.setattr(codecs, "_map", noted)
    bench = Bench()
    batch = build_batch([Record(0, 0, None, bytes(2 << 20))], codec=Codec.GZIP)
    assert len(batch) < 50_000
    bench.partition.log.append_as_leader(batch, 0)
    reader = CommittedReader(bench.partition, bench.runtime, 0, bench.wake)
    assert reader.take(1) == []
    assert (reader.is_busy, mapped) == (True, [])
    bench.runtime.run_until_idle()
    with pytest.raises(InvalidBatch, match="limit"):
        reader.take(1)
    assert mapped == [1 << 20]


def _cold(_file: MemoryFile, _count: int, _offset: int) -> bytes:
    raise BlockingIOError


def test_a_damaged_batch_is_an_error_at_its_offset() -> None:
    bench = Bench()
    bench.append(3, Codec.NONE, 0, 10)
    bench.append(3, Codec.GZIP, 0, 400)
    damage(bench, lambda data: data[:-30] + bytes(30))
    reader = CommittedReader(bench.partition, bench.runtime, 0, bench.wake)
    assert [record.offset for record in reader.take(10)] == [0, 1, 2]
    for _ in range(3):  # and does not get past it by being asked again
        with pytest.raises(Exception, match=r"decompressed|record"):
            reader.take(10)
        assert reader.next_offset == 3


def damage(bench: Bench, change: Callable[[bytes], bytes]) -> None:
    (segment,) = bench.partition.log.segments
    path = f"/logs/t-0/{segment.base_offset:020}.log"
    region = bench.partition.log.read(0, 1 << 20).regions[0]
    data = change(region.read())
    file = bench.disk.open(path)
    file.pwrite(data, 0)


def test_a_followers_log_is_not_read() -> None:
    bench = Bench()
    bench.append(3, Codec.NONE, 0, 10)
    bench.partition.is_leader = False
    with pytest.raises(StorageError, match="not led here"):
        CommittedReader(bench.partition, bench.runtime, 0, bench.wake).take(1)


def test_removed_records_are_counted() -> None:
    bench = Bench()
    bench.append(5, Codec.NONE, 0, 10)
    bench.partition.log.increment_log_start_offset(3)
    reader = CommittedReader(bench.partition, bench.runtime, 1, bench.wake)
    assert [record.offset for record in reader.take(10)] == [3, 4]
    assert reader.removed == 2
