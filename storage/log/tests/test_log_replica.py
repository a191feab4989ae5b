"""A follower's log: byte for byte the leader's, after restarts, crashes and truncations of either."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from barnabas.storage.errors import StorageError
from barnabas.storage.log.follower_append import UnexpectedAppendOffset
from barnabas.storage.log.log import Log
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.segment.transaction_marker import build_marker
from barnabas.storage.tests.crash_model import check_indexes, read_all
from barnabas.storage.tests.workshop import aborted_transactions
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import iterate_headers, read_header

RELAXED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
SETTINGS: dict[str, Any] = {"segment_bytes": 1500, "index_interval_bytes": 200, "max_message_bytes": 1400}


def stored(batch: bytes, offset: int, epoch: int) -> bytes:
    """The batch as a leader has it."""
    return struct.pack(">q", offset) + batch[8:12] + struct.pack(">i", epoch) + batch[16:]


def fetched(*batches: bytes) -> memoryview:
    return memoryview(bytearray(b"".join(batches)))


def log_at(workshop: Any, directory: str, **fields: Any) -> Log:
    """A log at a place of its own."""
    path = f"/logs/{directory}"
    workshop.disk.make_directory(path, parents=True)
    config = LogConfig(**{**SETTINGS, **fields.pop("config", {})})
    return Log.open(
        workshop.disk, workshop.runtime, "/logs", "t", 0, b"i" * 16, config, directory=path, **fields
    )


def copy(leader: Log, follower: Log, max_bytes: int) -> None:
    """Fetch until there is no more, in pieces of that size; the last batch of each may be cut."""
    while follower.log_end_offset < leader.log_end_offset:
        before = follower.log_end_offset
        data = b"".join(region.read() for region in leader.read(before, max_bytes).regions)
        result = follower.append_as_follower(fetched(data))
        assert 0 < result.size <= len(data)
        assert follower.log_end_offset > before


def producers(log: Log) -> dict[int, tuple[int, ...]]:
    """What a restart keeps of each: its last batch, as in Kafka, and its transaction."""
    return {
        producer_id: (
            entry.producer_epoch,
            entry.last_offset,
            entry.last_sequence,
            entry.coordinator_epoch,
            entry.current_transaction_first_offset,
        )
        for producer_id, entry in log.producers.active.items()
    }


def check_same(leader: Log, follower: Log) -> None:
    assert read_all(follower, 1 << 20) == read_all(leader, 1 << 20)
    assert follower.log_end_offset == leader.log_end_offset
    for batch in read_all(leader, 1 << 20):
        for _, header in iterate_headers(batch):
            assert follower.epochs.epoch_for_offset(header.base_offset) == header.partition_leader_epoch
    begin, end = leader.log_start_offset, leader.log_end_offset
    assert aborted_transactions(follower, begin, end) == aborted_transactions(leader, begin, end)
    assert producers(follower) == producers(leader)
    check_indexes(follower)


appends = st.tuples(st.just("append"), st.integers(1, 5), st.integers(0, 300), st.integers(0, 1))
of_producers = st.tuples(st.just("produce"), st.integers(0, 2), st.booleans())
ends = st.tuples(st.just("end"), st.integers(0, 2), st.booleans())
copies = st.tuples(st.just("copy"), st.integers(1, 2000))
operations = st.lists(
    st.one_of(
        appends,
        appends,
        of_producers,
        of_producers,
        ends,
        copies,
        copies,
        st.tuples(st.just("gap"), st.integers(1, 50)),
        st.tuples(st.just("roll")),
        st.tuples(st.just("diverge"), st.floats(0, 1), st.integers(1, 4)),
        st.tuples(st.just("restart")),
        st.tuples(st.just("kill")),
    ),
    min_size=5,
    max_size=40,
)


class Pair:
    """A leader and its follower on one disk."""

    def __init__(self, workshop: Any) -> None:
        self.workshop = workshop
        self.leader = log_at(workshop, "leader", config={"segment_bytes": 2000})
        self.follower = log_at(workshop, "follower")
        self.epoch = 0
        self.sequences: dict[int, int] = {}

    def send(self, batch: bytes) -> None:
        """What the leader would have appended; gaps are as compaction leaves them, so the offsets are given."""
        self.leader.append_as_follower(fetched(stored(batch, self.leader.log_end_offset, self.epoch)))

    def produce(self, producer_id: int, transactional: bool) -> None:
        open_now = self.leader.producers.active.get(producer_id)
        in_transaction = open_now is not None and open_now.current_transaction_first_offset >= 0
        sequence = self.sequences.get(producer_id, 0)
        self.send(
            self.workshop.batch(
                2,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=transactional or in_transaction,
            )
        )
        self.sequences[producer_id] = sequence + 2

    def end(self, producer_id: int, commit: bool) -> None:
        marker = build_marker(producer_id, 0, commit=commit, coordinator_epoch=1, timestamp=self.workshop.now)
        self.send(marker)

    def diverge(self, part: float, count: int) -> None:
        """The follower gets batches that the leader never had, after a part of what it has; then it agrees again."""
        bases = [
            header.base_offset for header in self.follower.segments.headers(self.follower.log_start_offset)
        ]
        cut = bases[int(part * len(bases))] if bases and part < 1 else self.follower.log_end_offset
        cut = max(cut, self.follower.log_start_offset)
        self.follower.truncate_to(cut)
        for index in range(count):
            wrong = self.workshop.batch(
                1, size=20 * index, producer_id=7, producer_epoch=0, base_sequence=index
            )
            end = self.follower.log_end_offset
            self.follower.append_as_follower(fetched(stored(wrong, end, self.epoch + 1)))
        self.follower.truncate_to(cut)
        assert self.follower.log_end_offset == cut
        self.epoch += 2

    def reopen(self, *, clean: bool) -> None:
        point = self.follower.flusher.recovery_point
        if clean:
            self.follower.close()
        self.follower = log_at(self.workshop, "follower", clean=clean, recovery_point=point)


@RELAXED
@given(steps=operations)
def test_a_follower_is_its_leader(make_workshop: Callable[[], Any], steps: list[tuple[Any, ...]]) -> None:
    pair = Pair(make_workshop())
    for step in steps:
        match step:
            case ("append", count, size, epochs):
                pair.epoch += epochs
                pair.send(pair.workshop.batch(count, size=size))
            case ("produce", producer_id, transactional):
                pair.produce(producer_id, transactional)
            case ("end", producer_id, commit):
                pair.end(producer_id, commit)
            case ("copy", max_bytes):
                copy(pair.leader, pair.follower, max_bytes)
                check_same(pair.leader, pair.follower)
            case ("gap", width):
                offset = pair.leader.log_end_offset + width
                pair.leader.append_as_follower(fetched(stored(pair.workshop.batch(), offset, pair.epoch)))
            case ("roll",):
                pair.leader.roll()
            case ("diverge", part, count):
                pair.diverge(part, count)
            case ("restart",):
                pair.reopen(clean=True)
            case ("kill",):
                pair.reopen(clean=False)
    copy(pair.leader, pair.follower, 700)
    pair.reopen(clean=False)
    assert producers(pair.follower) == producers(pair.leader)
    assert read_all(pair.follower, 1 << 20) == read_all(pair.leader, 1 << 20)


def test_an_incomplete_batch_is_left_out_and_fetched_again(workshop: Any) -> None:
    log = workshop.log()
    first, second = stored(workshop.batch(3), 0, 0), stored(workshop.batch(2), 3, 0)
    for cut in (1, 11, 12, 30, 61, len(second) - 1):
        assert log.append_as_follower(fetched(second[:cut])).size == 0
    assert log.append_as_follower(fetched(first, second[:-1])).size == len(first)
    assert log.log_end_offset == 3
    assert log.append_as_follower(fetched(second, first[:5])).size == len(second)
    assert read_all(log, 1 << 20) == [first, second]


def test_several_batches_are_one_write(workshop: Any) -> None:
    log = workshop.log()
    log.append_as_follower(fetched(stored(workshop.batch(), 0, 0)))
    writes: list[str] = []
    workshop.disk.fault = lambda operation, path: writes.append(path) if operation == "write" else None
    log.append_as_follower(fetched(*(stored(workshop.batch(), offset, 0) for offset in range(1, 30))))
    assert len(writes) == 1
    assert log.log_end_offset == 30


def test_nothing_is_appended_of_what_is_damaged(workshop: Any) -> None:
    log = workshop.log()
    good, bad = stored(workshop.batch(), 0, 0), bytearray(stored(workshop.batch(), 1, 0))
    bad[-1] ^= 1
    for data in (fetched(good, bytes(bad)), fetched(good, good), fetched(good[:8] + b"\0\0\0\1" + good[12:])):
        with pytest.raises(StorageError) as caught:
            log.append_as_follower(data)
        assert caught.value.error == ErrorCode.CORRUPT_MESSAGE
        assert log.log_end_offset == 0
        assert log.segments[0].size == 0


def test_a_batch_below_the_end_is_an_error_with_its_offsets(workshop: Any) -> None:
    log = workshop.log()
    log.append_as_follower(fetched(stored(workshop.batch(5), 0, 0)))
    with pytest.raises(UnexpectedAppendOffset) as caught:
        log.append_as_follower(fetched(stored(workshop.batch(6), 2, 0)))
    assert (caught.value.first_offset, caught.value.last_offset) == (2, 7)
    assert log.log_end_offset == 5


def test_batches_of_a_later_epoch_than_the_fetch_are_left_out(workshop: Any) -> None:
    """Their leader had cut its log and written on while its answer was on its way."""
    log = workshop.log()
    old, new = stored(workshop.batch(), 0, 3), stored(workshop.batch(), 1, 4)
    assert log.append_as_follower(fetched(old, new), leader_epoch=3).size == len(old)
    assert log.append_as_follower(fetched(new), leader_epoch=4).size == len(new)
    assert log.epochs.latest_epoch == 4


def test_some_batches_at_a_time(workshop: Any) -> None:
    log = log_at(workshop, "follower")
    batches = [stored(workshop.batch(2), 2 * number, 0) for number in range(5)]
    rest = fetched(*batches, batches[0][:30])
    ends = []
    for is_partial in (True, True, False):
        result = log.append_as_follower(rest, batches_max=2)
        assert result.is_partial == is_partial
        rest = rest[result.size :]
        ends.append(log.log_end_offset)
    assert ends == [4, 8, 10]
    assert read_all(log, 1 << 20) == batches


def test_a_failed_write_leaves_whole_batches(workshop: Any) -> None:
    log = workshop.log()
    batches = [stored(workshop.batch(), offset, 0) for offset in range(4)]
    log.append_as_follower(fetched(batches[0]))
    used = sum(len(content.data) for content in workshop.disk.files.values())
    workshop.disk.capacity = used + len(batches[1]) + 10
    with pytest.raises(StorageError) as caught:
        log.append_as_follower(fetched(*batches[1:]))
    assert caught.value.error == ErrorCode.KAFKA_STORAGE_ERROR
    workshop.disk.capacity = None
    copied = log.append_as_follower(fetched(*batches[log.log_end_offset :]))
    assert copied.size
    assert read_all(log, 1 << 20) == batches
    assert read_all(workshop.log(clean=False), 1 << 20) == batches


def test_a_gap_too_wide_for_one_segment(workshop: Any) -> None:
    log = workshop.log()
    log.append_as_follower(fetched(stored(workshop.batch(), 0, 0), stored(workshop.batch(), 1 << 33, 0)))
    assert [segment.base_offset for segment in log.segments] == [0, 1 << 33]
    assert log.log_end_offset == (1 << 33) + 1
    check_indexes(log)


def test_what_is_held_back_for_a_sync_does_not_count(workshop: Any) -> None:
    log = workshop.log(flush_messages=1)
    waiting: list[tuple[Any, Any]] = []
    workshop.runtime.run_in_thread = lambda work, done: waiting.append((work, done))
    log.replicate()
    result = log.append_as_follower(fetched(stored(workshop.batch(2), 0, 0)))
    assert result.awaits_sync
    assert log.replica_end_offset == 0
    reported: list[str | None] = []
    log.flusher.when_synced(log.log_end_offset, reported.append)
    while waiting:
        work, done = waiting.pop(0)
        done(work(), None)
    assert reported == [None]
    assert log.replica_end_offset == log.flusher.recovery_point == 2


# --- cutting back


def test_a_truncation_answers_those_that_wait_for_a_sync(workshop: Any) -> None:
    log = workshop.log(flush_messages=1)
    waiting: list[tuple[Any, Any]] = []
    workshop.runtime.run_in_thread = lambda work, done: waiting.append((work, done))
    for offset in range(4):
        log.append_as_follower(fetched(stored(workshop.batch(), offset, 0)))
    reported: list[tuple[int, str | None]] = []
    for end in (1, 4):
        log.flusher.when_synced(end, lambda failure, end=end: reported.append((end, failure)))
    log.truncate_to(2)
    assert [end for end, failure in reported if failure is not None] == [4]
    while waiting:
        work, done = waiting.pop(0)
        done(work(), None)
    assert (1, None) in reported
    assert log.flusher.recovery_point == 2
    assert log.high_watermark == 2


def test_the_high_watermark_reaches_the_end_when_all_held_records_are_truncated(workshop: Any) -> None:
    log = workshop.log(flush_messages=3)
    for _ in range(3):
        log.append_as_leader(workshop.batch(), 0)
    workshop.runtime.run_in_thread = lambda work, done: None
    for _ in range(3):
        log.append_as_leader(workshop.batch(), 0)
    assert log.high_watermark < log.log_end_offset
    log.truncate_to(3)
    log.append_as_leader(workshop.batch(), 0)
    assert log.high_watermark == log.log_end_offset == 4


def test_truncation_at_the_end_removes_an_epoch_without_a_record(workshop: Any) -> None:
    """A broker led for a moment and wrote nothing; the next leader never heard of its epoch."""
    log = workshop.log()
    log.append_as_follower(fetched(stored(workshop.batch(2), 0, 1)))
    log.assign_epoch_start_offset(2)
    assert log.epochs.latest_epoch == 2
    log.truncate_to(log.log_end_offset)
    assert log.epochs.latest_epoch == 1
    assert workshop.log(clean=False).epochs.latest_epoch == 1


def test_the_high_watermark_is_never_beyond_the_end(workshop: Any) -> None:
    log = workshop.log()
    log.replicate()
    for offset in range(5):
        log.append_as_follower(fetched(stored(workshop.batch(), offset, 0)))
    log.set_high_watermark(4)
    log.truncate_to(2)
    assert log.high_watermark == 2
    log.restart_at(10)
    assert log.log_start_offset == log.high_watermark == log.log_end_offset == 10


def test_a_log_begins_anew(workshop: Any) -> None:
    log = workshop.log(segment_bytes=200)
    for offset in range(9):
        log.append_as_follower(
            fetched(
                stored(
                    workshop.batch(producer_id=5, producer_epoch=0, base_sequence=offset), offset, offset // 4
                )
            )
        )
    log.flush()
    log.restart_at(100, log_start_offset=102)
    assert (log.log_start_offset, log.log_end_offset, log.epochs.latest_epoch) == (102, 100, -1)
    assert not log.producers.active
    batch = stored(workshop.batch(5), 100, 3)
    log.append_as_follower(fetched(batch))
    assert (log.log_start_offset, log.log_end_offset) == (102, 105)
    for clean in (False, True):
        if clean:
            log.close()
        log = workshop.log(clean=clean, start=102, segment_bytes=200)
        assert (log.log_start_offset, log.log_end_offset) == (102, 105)
        assert read_all(log, 1 << 20) == [batch]
        assert log.epochs.latest_epoch == 3
    assert {name.split(".")[0] for name in workshop.disk.list("/logs/t-0") if name.endswith(".log")} == {
        f"{100:020d}"
    }


def test_a_log_that_was_half_truncated_takes_no_appends(workshop: Any) -> None:
    """A disk that fails in the middle of it: the log takes nothing more until a start has looked at it."""
    log = workshop.log(segment_bytes=200)
    for offset in range(9):
        log.append_as_follower(fetched(stored(workshop.batch(), offset, 0)))
    workshop.disk.fault = lambda operation, _: errno.EIO if operation == "rename" else None
    with pytest.raises(OSError, match="Input/output"):
        log.truncate_to(2)
    workshop.disk.fault = None
    with pytest.raises(StorageError) as caught:
        log.append_as_follower(fetched(stored(workshop.batch(), 9, 0)))
    assert caught.value.error == ErrorCode.KAFKA_STORAGE_ERROR
    found = workshop.log(clean=False, segment_bytes=200)
    assert found.log_end_offset in (2, 9)


def test_truncation_reads_no_batches_when_each_producer_keeps_one(workshop: Any) -> None:
    log = workshop.log()
    for offset in range(6):
        sent = workshop.batch(producer_id=offset % 2, producer_epoch=0, base_sequence=offset // 2)
        log.append_as_follower(fetched(stored(sent, offset, 0)))
    reads: list[str] = []
    workshop.disk.fault = lambda operation, path: (
        reads.append(path) if operation == "read" and path.endswith(".log") else None
    )
    log.truncate_to(4)
    cut = log.producers.active
    assert {entry.producer_id: entry.last_sequence for entry in cut.values()} == {0: 1, 1: 1}
    assert len(reads) < 4
    log.append_as_leader(workshop.batch(producer_id=0, producer_epoch=0, base_sequence=2), 0)


@pytest.mark.parametrize("may_cut", [True, False])
def test_a_closed_segment_that_a_power_failure_has_emptied_in_part(workshop: Any, may_cut: bool) -> None:
    """Of a log that has other replicas what lies behind the gap goes, and comes from its leader again; of others it stays."""
    log = workshop.log(segment_bytes=400, index_interval_bytes=100)
    for _ in range(12):
        log.append_as_leader(workshop.batch(size=100), 0)
    first, second = log.segments[0], log.segments[1]
    positions = [position for position, _ in first.headers(0)]
    log.close()
    workshop.disk.open(first.path).truncate(positions[1])
    log = workshop.log(clean=False, segment_bytes=400, index_interval_bytes=100)
    log.settle_recovery(may_cut=may_cut)
    workshop.runtime.run_until_idle()
    found = [read_header(batch).base_offset for batch in workshop.content(log)]
    assert found == ([0] if may_cut else [0, *range(second.base_offset, 12)])
    assert log.flusher.recovery_point >= log.segments.active.base_offset


def test_what_a_power_failure_brings_back_below_the_start_is_no_gap(workshop: Any) -> None:
    """Of the segments that retention had removed one is there again, and the next is not."""
    log = workshop.log(segment_bytes=400, index_interval_bytes=100)
    for _ in range(12):
        log.append_as_leader(workshop.batch(size=100), 0)
    bases = list(log.segments.bases)
    log.close()
    workshop.disk.remove(f"/logs/t-0/{bases[1]:020d}.log")
    log = workshop.log(clean=False, start=bases[2], segment_bytes=400, index_interval_bytes=100)
    log.settle_recovery(may_cut=True)
    assert (log.log_start_offset, log.log_end_offset) == (bases[2], 12)
