"""read_committed consumers at a leader: what they get, and when a fetch that waits is answered."""

from __future__ import annotations

import heapq
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.fetch import reader
from barnabas.broker.tests.leader import TOPIC_ID, Leader
from barnabas.broker.tests.reply import Reply
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.log.verification import VERIFICATION_OFF
from barnabas.storage.segment.transaction_marker import find_marker
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.record_batch import iterate_whole_headers
from barnabas.wire.records import Record, build_batch, iterate_records

FETCH, LIST_OFFSETS = 1, 2
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
LATEST, MAX_TIMESTAMP = -1, -3
LONG_MS = 600_000


class Bench:
    """A partition with one follower, or none, and the producers of transactions in it."""

    def __init__(self, *, replicated: bool, segment_bytes: int = 1 << 20) -> None:
        self.leader = Leader("/d", MemoryDisk())
        self.replicated = replicated
        if replicated:
            self.leader.register(2)
            self.follower = self.leader.follower(2)
        self.leader.create(replicas=[1, 2] if replicated else [1])
        self.partition = self.leader.partition()
        self.partition.log.update_config(LogConfig(segment_bytes=segment_bytes))

    @property
    def end(self) -> int:
        return self.partition.log.log_end_offset

    def append(self, producer: int | None, count: int = 1, size: int = 10) -> None:
        """A batch of the producer's transaction; None: a plain one."""
        fields: dict[str, Any] = {}
        if producer is not None:
            entry = self.partition.log.producers.active.get(producer)
            fields = {
                "producer_id": producer,
                "producer_epoch": 0,
                "base_sequence": 0 if entry is None else entry.last_sequence + 1,
                "transactional": True,
            }
        now = self.leader.runtime.time_ms()
        batch = build_batch([Record(at, now, b"k", b"v" * size) for at in range(count)], **fields)
        self.partition.append(memoryview(bytearray(batch)), verification=VERIFICATION_OFF)
        self.leader.run()

    def end_transaction(self, producer: int, *, commit: bool) -> None:
        self.partition.append_marker(
            producer, 0, commit=commit, coordinator_epoch=0, transaction_version=0, done=lambda _: None
        )
        self.leader.run()

    def replicate(self, offset: int) -> None:
        if self.replicated:
            self.follower.fetch(offset)
            self.leader.run()

    def fetch(self, offset: int, **fields: Any) -> Reply:
        wanted = FetchPartition(0, -1, offset, partition_max_bytes=fields.pop("partition_max_bytes", 1 << 20))
        values = {
            "max_wait_ms": LONG_MS,
            "min_bytes": 1,
            "isolation_level": READ_COMMITTED,
            "topics": [FetchTopic("t", TOPIC_ID, [wanted])],
            **fields,
        }
        reply = self.leader.ask(FETCH, 17, FetchRequest(**values))
        self.leader.run()
        return reply

    def latest(self, isolation_level: int, timestamp: int = LATEST) -> int:
        """As ListOffsets answers."""
        wanted = ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, timestamp)])
        request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation_level, topics=[wanted])
        reply = self.leader.ask(LIST_OFFSETS, 10, request)
        self.leader.run()
        offset: int = reply.answer.topics[0].partitions[0].offset
        return offset


class Consumer:
    """Reads to the last stable offset, and waits there. `delivered`: the offsets of the records that it hands out."""

    def __init__(self, bench: Bench, *, in_session: bool, max_bytes: int) -> None:
        self._bench = bench
        self._max_bytes = max_bytes
        self.position = 0
        self.delivered: list[int] = []
        self._session_id, self._session_epoch = 0, 0 if in_session else -1
        self._in_session = in_session
        self._waiting = self._fetch()

    def _fetch(self) -> Reply:
        reply = self._bench.fetch(
            self.position,
            partition_max_bytes=self._max_bytes,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
        )
        if self._in_session:
            self._session_epoch += 1
        return reply

    def read(self) -> None:
        """Take answers until a fetch waits."""
        while self._waiting.done:
            answer = self._waiting.answer
            if self._in_session:
                self._session_id = answer.session_id
            for topic in answer.responses:
                self._take(topic.partitions[0])
            self._waiting = self._fetch()

    def _take(self, answer: Any) -> None:
        assert answer.error_code == 0
        data = answer.records
        if not isinstance(data, bytes):
            data = b"".join(region.read() for region in data or ())
        ahead = [(each.first_offset, each.producer_id) for each in answer.aborted_transactions]
        heapq.heapify(ahead)
        aborted: set[int] = set()
        for at, header in iterate_whole_headers(data):
            while ahead and ahead[0][0] <= header.last_offset:
                aborted.add(heapq.heappop(ahead)[1])
            batch = data[at : at + header.size]
            if header.is_control:
                marker = find_marker(batch)
                if marker is not None and not marker.commit:
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                found = [record.offset for record in iterate_records(batch)]
                self.delivered += [offset for offset in found if offset >= self.position]
            self.position = max(self.position, header.next_offset)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 3), st.integers(1, 3)),
        st.tuples(st.just("plain"), st.just(0), st.integers(1, 3)),
        st.tuples(st.sampled_from(["commit", "abort"]), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("replicate"), st.just(0), st.integers(0, 5)),
    ),
    max_size=30,
)


@given(steps=steps, replicated=st.booleans(), max_bytes=st.sampled_from([1, 200, 1 << 20]))
def test_consumers_get_what_is_committed_and_wait_no_longer(
    steps: list[tuple[str, int, int]], replicated: bool, max_bytes: int
) -> None:
    bench = Bench(replicated=replicated, segment_bytes=600)
    consumers = [Consumer(bench, in_session=each, max_bytes=max_bytes) for each in (False, True)]
    open_since: dict[int, int] = {}
    ended: list[tuple[int, int]] = []  # (first offset, the marker's) of transactions
    of_transaction: dict[int, list[int]] = {}
    committed: list[int] = []
    high_watermark = 0
    ends = [0]  # of batches, where followers fetch
    for step, producer, count in steps:
        offsets = list(range(bench.end, bench.end + count))
        if step == "send":
            open_since.setdefault(producer, bench.end)
            of_transaction.setdefault(producer, []).extend(offsets)
            bench.append(producer, count)
        elif step == "plain":
            committed += offsets
            bench.append(None, count)
        elif step == "replicate":
            high_watermark = ends[min(ends.index(high_watermark) + count, len(ends) - 1)]
            bench.replicate(high_watermark)
        else:
            if producer in open_since:
                ended.append((open_since.pop(producer), bench.end))
            records = of_transaction.pop(producer, [])
            if step == "commit":
                committed += records
            bench.end_transaction(producer, commit=step == "commit")
        if bench.end > ends[-1]:
            ends.append(bench.end)
        if not replicated:
            high_watermark = bench.end
        held = [*open_since.values(), *(first for first, marker in ended if marker >= high_watermark)]
        stable = min([high_watermark, *held])
        assert bench.latest(READ_COMMITTED) == stable
        assert bench.latest(READ_UNCOMMITTED) == high_watermark
        for consumer in consumers:
            consumer.read()
            assert consumer.position == stable
            assert consumer.delivered == sorted(offset for offset in committed if offset < stable)


@pytest.mark.parametrize("in_session", [True, False])
def test_a_response_names_so_many_aborted_transactions(
    in_session: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer gets fewer records at a time then, and all in the end."""
    monkeypatch.setattr(reader, "ABORTED_MAX", 4)
    bench = Bench(replicated=False)
    bench.partition.log.update_config(LogConfig(index_interval_bytes=100))
    for producer in range(40):
        bench.append(producer)
        bench.end_transaction(producer, commit=producer % 10 == 0)
    answer = bench.fetch(0, min_bytes=1 << 20).answer
    assert answer is not None, "it does not wait for more"
    [first] = answer.responses[0].partitions
    assert 0 < len(first.aborted_transactions) <= 4
    consumer = Consumer(bench, in_session=in_session, max_bytes=1 << 20)
    consumer.read()
    assert consumer.position == bench.end == 80
    assert consumer.delivered == [0, 20, 40, 60]


def test_a_sparse_offset_index_does_not_make_a_response_name_all_aborted_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The index can't tell where a batch ends."""
    monkeypatch.setattr(reader, "ABORTED_MAX", 4)
    bench = Bench(replicated=False)
    bench.partition.log.update_config(LogConfig(index_interval_bytes=1 << 30))
    for producer in range(40):
        bench.append(producer)
        bench.end_transaction(producer, commit=producer % 10 == 0)
    [first] = bench.fetch(2, min_bytes=1 << 20).answer.responses[0].partitions
    assert [(each.producer_id, each.first_offset) for each in first.aborted_transactions] == [(1, 2)]
    consumer = Consumer(bench, in_session=False, max_bytes=1 << 20)
    consumer.read()
    assert consumer.position == bench.end == 80
    assert consumer.delivered == [0, 20, 40, 60]


def test_a_batch_in_many_aborted_transactions_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "ABORTED_MAX", 4)
    bench = Bench(replicated=False)
    for producer in range(10):
        bench.append(producer)
    bench.append(None)
    for producer in range(10):
        bench.end_transaction(producer, commit=False)
    [first] = bench.fetch(10).answer.responses[0].partitions
    assert len(first.aborted_transactions) == 10
    consumer = Consumer(bench, in_session=False, max_bytes=1 << 20)
    consumer.read()
    assert (consumer.position, consumer.delivered) == (bench.end, [10])


def test_an_open_transaction_does_not_end_a_wait() -> None:
    bench = Bench(replicated=False)
    bench.append(1)
    committed, uncommitted = bench.fetch(0), bench.fetch(1, isolation_level=READ_UNCOMMITTED)
    bench.append(1)
    bench.append(None)
    assert (committed.done, uncommitted.done) == (False, True)
    bench.leader.runtime.advance(LONG_MS / 1000)
    [answer] = committed.answer.responses[0].partitions
    assert (answer.high_watermark, answer.last_stable_offset, answer.records) == (3, 0, b"")


@pytest.mark.parametrize("begins_before", [True, False])
@pytest.mark.parametrize("replicated", [True, False])
def test_what_a_transaction_held_back_counts_as_new(replicated: bool, begins_before: bool) -> None:
    """A fetch with fetch.min.bytes does not wait for more than the marker."""
    bench = Bench(replicated=replicated)
    if begins_before:
        bench.append(1, count=50, size=100)
        bench.replicate(bench.end)
    waiting = bench.fetch(0, min_bytes=2000)
    if not begins_before:
        bench.append(1, count=50, size=100)
        bench.replicate(bench.end)
    bench.end_transaction(1, commit=True)
    assert waiting.done != replicated
    bench.replicate(bench.end)
    assert waiting.done
    [answer] = waiting.answer.responses[0].partitions
    assert answer.last_stable_offset == 51
    assert len(answer.records) > 5000


def test_fetch_min_bytes_without_a_transaction() -> None:
    bench = Bench(replicated=False)
    bench.append(1)
    bench.end_transaction(1, commit=True)
    waiting = bench.fetch(2, min_bytes=2000)
    bench.append(None)
    bench.append(1)
    assert not waiting.done
    bench.append(None, count=20, size=100)
    assert not waiting.done, "it lies behind the open transaction"
    bench.end_transaction(1, commit=False)
    assert waiting.done


def test_the_largest_timestamp_is_of_a_committed_record() -> None:
    bench = Bench(replicated=False)
    bench.append(None)
    assert bench.latest(READ_COMMITTED, MAX_TIMESTAMP) == 0
    bench.leader.runtime.advance(1)
    bench.append(1)
    assert bench.latest(READ_UNCOMMITTED, MAX_TIMESTAMP) == 1
    assert bench.latest(READ_COMMITTED, MAX_TIMESTAMP) == -1
