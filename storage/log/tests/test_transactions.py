"""Transactions as the log sees them: against what Apache Kafka left on a disk, and against a model that keeps all."""

from __future__ import annotations

import errno
import heapq
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from barnabas.storage.disk.disk import RealDisk
from barnabas.storage.errors import StorageError, WouldWait
from barnabas.storage.log import producer_recovery
from barnabas.storage.log.log import Log
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.log.producer_snapshot import decode_snapshot
from barnabas.storage.log.producers import ProducerEntry
from barnabas.storage.segment import transaction_index
from barnabas.storage.segment.transaction_index import decode_transactions
from barnabas.storage.segment.transaction_marker import build_marker, find_marker
from barnabas.storage.tests.workshop import verified
from barnabas.storage.tier.upload import segment_to_copy
from barnabas.testing.memory_disk import MemoryFile
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import read_header
from barnabas.wire.records import iterate_records

# A partition of Apache Kafka 4.3.1 after a clean stop: an idempotent producer and three transactional ones, whose
# transactions overlap and reach over three segments; one is still open. A read_committed consumer was reported
# that the log ends at 40.
CAPTURED = Path(__file__).parent / "captured" / "transactions"
CAPTURED_AT_MS = 1_795_244_835_900
LAST_STABLE_OFFSET = 40
END = 49


def what_kafka_knew(entry: ProducerEntry) -> tuple[int, ...]:
    return (
        entry.producer_id,
        entry.producer_epoch,
        entry.last_sequence,
        entry.last_offset,
        entry.last_timestamp,
        entry.coordinator_epoch,
        entry.current_transaction_first_offset,
    )


@pytest.mark.parametrize(
    ("clean", "recovery_point", "missing"),
    [
        (True, 0, ()),
        (True, 0, (".snapshot",)),
        (False, 0, ()),
        (False, 0, (".snapshot", ".txnindex")),
        (False, 0, (".snapshot", ".txnindex", ".index", ".timeindex", "leader-epoch-checkpoint")),
        (False, 33, ()),
        (False, 33, ("33.txnindex", "49.snapshot")),
        (False, 40, ()),
        (False, END, ()),
    ],
)
def test_what_kafka_left(
    workshop: Any, tmp_path: Path, clean: bool, recovery_point: int, missing: tuple[str, ...]
) -> None:
    directory = tmp_path / "tx-0"
    shutil.copytree(CAPTURED, directory)
    for name in directory.iterdir():
        if name.name.endswith(missing):
            name.unlink()
    workshop.runtime.wall_offset_ms = CAPTURED_AT_MS - workshop.now
    log = Log.open(
        RealDisk(),
        workshop.runtime,
        str(tmp_path),
        "tx",
        0,
        b"i" * 16,
        LogConfig(segment_bytes=1500, index_interval_bytes=200),
        clean=clean,
        recovery_point=recovery_point,
    )
    assert (log.log_end_offset, log.last_stable_offset) == (END, LAST_STABLE_OFFSET)
    snapshot = decode_snapshot((CAPTURED / "00000000000000000049.snapshot").read_bytes())
    known = {entry.producer_id: what_kafka_knew(entry) for entry in snapshot}
    assert {key: what_kafka_knew(entry) for key, entry in log.producers.active.items()} == known
    aborted = [
        transaction
        for path in sorted(CAPTURED.glob("*.txnindex"))
        for transaction in decode_transactions(path.read_bytes(), int(path.stem))
    ]
    assert log.producers.collect_aborted(0, END) == aborted
    log.close()
    for path in CAPTURED.iterdir():
        if path.suffix in (".log", ".index", ".timeindex", ".txnindex"):
            assert (directory / path.name).read_bytes() == path.read_bytes(), path.name
    left = decode_snapshot((directory / "00000000000000000049.snapshot").read_bytes())
    assert sorted(map(what_kafka_knew, left)) == sorted(map(what_kafka_knew, snapshot))


def marker(
    producer: int,
    epoch: int = 0,
    *,
    commit: bool,
    coordinator_epoch: int = 0,
    timestamp: int = 1_700_000_000_000,
) -> bytes:
    return build_marker(
        producer, epoch, commit=commit, coordinator_epoch=coordinator_epoch, timestamp=timestamp
    )


@dataclass
class Transaction:
    producer: int
    first: int
    end: int | None = None  # the marker's offset
    committed: bool = False


@dataclass
class Model:
    """Every record's offset with its transaction, None for a plain one."""

    records: dict[int, Transaction | None] = field(default_factory=dict)
    transactions: list[Transaction] = field(default_factory=list)
    sequences: dict[int, int] = field(default_factory=dict)
    end: int = 0

    def open_of(self, producer: int) -> Transaction | None:
        return next((t for t in self.transactions if t.producer == producer and t.end is None), None)

    @property
    def last_stable_offset(self) -> int:
        return min((t.first for t in self.transactions if t.end is None), default=self.end)

    def stable_below(self, high_watermark: int) -> int:
        """Of a replicated log."""
        held = (t.first for t in self.transactions if t.end is None or t.end >= high_watermark)
        return min(high_watermark, *held, high_watermark)

    def committed(self, start: int) -> list[int]:
        return [
            offset
            for offset, transaction in self.records.items()
            if start <= offset < self.last_stable_offset and (transaction is None or transaction.committed)
        ]

    def truncate(self, offset: int) -> None:
        self.records = {at: transaction for at, transaction in self.records.items() if at < offset}
        self.transactions = [t for t in self.transactions if t.first < offset]
        for transaction in self.transactions:
            if transaction.end is not None and transaction.end >= offset:
                transaction.end, transaction.committed = None, False
        self.end = offset


def consume(log: Log, start: int, max_bytes: int) -> list[int]:
    """Offsets of the records that a read_committed consumer hands out, fetch by fetch, by the protocol's rules."""
    delivered: list[int] = []
    offset = start
    while offset < log.last_stable_offset:
        result = log.read(offset, max_bytes, end_offset=log.last_stable_offset)
        ahead = [(first, producer) for producer, first in log.aborted_within(offset, result)]
        heapq.heapify(ahead)
        aborted: set[int] = set()
        data = b"".join(region.read() for region in result.regions)
        for position, header in iterate_headers_of_whole(data):
            while ahead and ahead[0][0] <= header.last_offset:
                aborted.add(heapq.heappop(ahead)[1])
            batch = data[position : position + header.size]
            if header.is_control:
                decided = find_marker(batch)
                if decided is not None and not decided.commit:
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                delivered += [record.offset for record in iterate_records(batch) if record.offset >= offset]
            offset = header.next_offset
    return delivered


def iterate_headers_of_whole(data: bytes) -> list[tuple[int, Any]]:
    found = []
    position = 0
    while position + 61 <= len(data):
        header = read_header(data, position)
        if position + header.size > len(data):
            break
        found.append((position, header))
        position += header.size
    return found


SETTINGS = {"segment_bytes": 900, "index_interval_bytes": 150}

steps = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 4), st.integers(1, 3)),
    st.tuples(st.just("send"), st.integers(1, 4), st.integers(1, 3)),
    st.tuples(st.just("plain"), st.integers(1, 2), st.just(0)),
    st.tuples(st.sampled_from(["commit", "abort", "abort"]), st.integers(1, 4), st.just(0)),
    st.tuples(st.sampled_from(["restart", "kill", "kill all", "flush", "roll"]), st.just(0), st.just(0)),
    st.tuples(st.just("truncate"), st.integers(0, 60), st.just(0)),
    st.tuples(st.just("lose"), st.sampled_from([".snapshot", ".txnindex"]), st.just(0)),
)


@given(steps=st.lists(steps, max_size=40), max_bytes=st.integers(1, 1500))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_consumers_get_what_was_committed(
    make_workshop: Callable[[], Any], steps: list[tuple[str, Any, int]], max_bytes: int
) -> None:
    workshop = make_workshop()
    log = workshop.log(**SETTINGS)
    model = Model()
    for step, subject, count in steps:
        if step == "send":
            sequence = model.sequences.get(subject, 0)
            batch = workshop.batch(
                count,
                producer_id=subject,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=True,
            )
            transaction = model.open_of(subject)
            if transaction is None:
                transaction = Transaction(subject, model.end)
                model.transactions.append(transaction)
            log.append_as_leader(batch, 0, verification=verified(log, batch))
            model.sequences[subject] = sequence + count
            for offset in range(model.end, model.end + count):
                model.records[offset] = transaction
            model.end += count
        elif step == "plain":
            log.append_as_leader(workshop.batch(subject), 0)
            for offset in range(model.end, model.end + subject):
                model.records[offset] = None
            model.end += subject
        elif step in ("commit", "abort"):
            log.append_as_leader(marker(subject, commit=step == "commit"), 0, from_client=False)
            transaction = model.open_of(subject)
            if transaction is not None:
                transaction.end, transaction.committed = model.end, step == "commit"
            model.end += 1
        elif step == "restart":
            log.close()
            log = workshop.log(**SETTINGS)
        elif step in ("kill", "kill all"):
            point = log.flusher.recovery_checkpoint if step == "kill" else 0
            log = workshop.log(clean=False, recovery_point=point, **SETTINGS)
        elif step == "flush":
            log.flush()
        elif step == "roll":
            log.roll()
        elif step == "truncate":
            headers = [header.base_offset for header in log.segments.headers(0)]
            if headers:
                offset = headers[subject % len(headers)]
                log.truncate_to(offset)
                model.truncate(offset)
                last: dict[int, int] = {}
                for header in log.segments.headers(0):
                    if header.producer_id > 0 and not header.is_control:
                        last[header.producer_id] = header.last_sequence + 1
                model.sequences = last
        else:  # a file of the kind is gone or damaged, and only a crash makes recovery look
            for name in workshop.disk.files:
                if name.endswith(subject):
                    workshop.disk.files[name].data[3:] = b"damage"
            log = workshop.log(clean=False, recovery_point=0, **SETTINGS)
        assert (log.log_end_offset, log.last_stable_offset) == (model.end, model.last_stable_offset)
        assert consume(log, 0, max_bytes) == model.committed(0)
        halfway = model.end // 2
        assert consume(log, halfway, max_bytes) == model.committed(halfway)


replicated_steps = st.one_of(
    st.tuples(st.sampled_from(["send", "commit", "abort"]), st.integers(1, 2)),
    st.tuples(st.sampled_from(["send", "commit", "abort"]), st.integers(1, 2)),
    st.tuples(st.just("replicated"), st.integers(1, 4)),
    # with a checkpoint that is so far behind
    st.tuples(st.sampled_from(["restart", "restart", "kill", "kill all"]), st.integers(0, 2)),
    st.tuples(st.just("truncate"), st.integers(0, 4)),
    st.tuples(st.sampled_from(["roll", "flush", "move"]), st.just(0)),
)


@given(steps=st.lists(replicated_steps, max_size=40))
@example(steps=[("send", 1), ("replicated", 1), ("commit", 1), ("move", 0)])
@example(
    steps=[
        ("send", 1),
        ("replicated", 1),
        ("commit", 1),
        ("send", 1),
        ("roll", 0),
        ("send", 2),
        ("truncate", 1),
    ]
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_end_that_is_not_replicated_is_not_seen(
    make_workshop: Callable[[], Any], steps: list[tuple[str, int]]
) -> None:
    """Neither after a restart, which may go back behind the high watermark, nor after a part of the log was cut off."""
    _check_ends(make_workshop, steps, is_exact=True)


@given(steps=st.lists(replicated_steps, max_size=40), bytes_max=st.sampled_from([0, 300, 600]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_it_is_not_seen_where_a_start_cannot_look_for_its_transaction(
    make_workshop: Callable[[], Any], steps: list[tuple[str, int]], bytes_max: int
) -> None:
    """In a large log; readers are held back further then, until the high watermark has passed what a start found."""
    with mock.patch.object(producer_recovery, "_REPLAYED_AGAIN_MAX", bytes_max):
        _check_ends(make_workshop, steps, is_exact=False)


def _check_ends(make_workshop: Callable[[], Any], steps: list[tuple[str, int]], *, is_exact: bool) -> None:
    workshop = make_workshop()
    log = workshop.log(**SETTINGS)
    log.replicate()
    model = Model()
    high_watermark = 0
    found_end = 0  # the log's when it was opened or cut
    for step, subject in steps:
        if step == "send":
            transaction = model.open_of(subject)
            if transaction is None:
                transaction = Transaction(subject, model.end)
                model.transactions.append(transaction)
            entry = log.producers.active.get(subject)
            send(workshop, log, subject, 0 if entry is None else entry.last_sequence + 1)
            model.records[model.end] = transaction
            model.end += 1
        elif step in ("commit", "abort"):
            log.append_as_leader(marker(subject, commit=step == "commit"), 0, from_client=False)
            transaction = model.open_of(subject)
            if transaction is not None:
                transaction.end, transaction.committed = model.end, step == "commit"
            model.end += 1
        elif step == "replicated":
            log.set_high_watermark(log.high_watermark + subject)
            high_watermark = min(high_watermark + subject, model.end)
        elif step == "truncate":
            offset = max(high_watermark, model.end - subject)
            log.truncate_to(offset)
            model.truncate(offset)
            found_end = model.end
        elif step == "roll":
            log.roll()
        elif step == "flush":
            log.flush()
        elif step == "move":  # to another directory
            log.close()
            moved = workshop.log(**SETTINGS)
            moved.take_high_watermark(log)
            log = moved
        else:
            point = log.flusher.recovery_checkpoint if step == "kill" else 0
            if step == "restart":
                log.close()
            high_watermark = max(high_watermark - subject, 0)
            log = workshop.log(
                clean=step == "restart", recovery_point=point, high_watermark=high_watermark, **SETTINGS
            )
            before_its_role = log.last_stable_offset
            log.replicate()
            assert log.last_stable_offset == before_its_role
            found_end = model.end
        assert (log.log_end_offset, log.high_watermark) == (model.end, high_watermark)
        stable_offset = model.stable_below(high_watermark)
        if is_exact or high_watermark >= found_end:
            assert log.last_stable_offset == stable_offset
        else:
            assert log.last_stable_offset <= stable_offset


def send(workshop: Any, log: Log, producer: int, sequence: int, epoch: int = 0, **fields: Any) -> Any:
    batch = workshop.batch(
        1,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        **{"transactional": True, **fields},
    )
    return log.append_as_leader(batch, 0, verification=verified(log, batch))


def refused(act: Callable[[], object]) -> ErrorCode:
    with pytest.raises(StorageError) as caught:
        act()
    return caught.value.error


def test_coordinators_and_producers_of_the_past_are_fenced(workshop: Any) -> None:
    log = workshop.log()

    def end(epoch: int, coordinator_epoch: int) -> Callable[[], object]:
        def act() -> None:
            batch = log.marker_to_append(
                1, epoch, commit=True, coordinator_epoch=coordinator_epoch, transaction_version=0
            )
            log.append_as_leader(batch, 0, from_client=False)

        return act

    send(workshop, log, 1, 0, epoch=3)
    end(3, 5)()
    size = log.size
    assert refused(end(2, 5)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert refused(end(3, 4)) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert refused(lambda: send(workshop, log, 1, 1, epoch=2)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.size == size
    end(4, 5)()  # the coordinator gives up on a producer and takes its epoch away
    assert refused(lambda: send(workshop, log, 1, 1, epoch=3)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert refused(lambda: send(workshop, log, 1, 1, epoch=4)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    send(workshop, log, 1, 0, epoch=4)
    log.close()
    log = workshop.log()
    assert refused(end(4, 4)) == ErrorCode.TRANSACTION_COORDINATOR_FENCED, "after a restart too"


def test_a_plain_batch_has_no_place_in_a_transaction(workshop: Any) -> None:
    log = workshop.log()
    send(workshop, log, 1, 0)
    assert refused(lambda: send(workshop, log, 1, 1, transactional=False)) == ErrorCode.INVALID_TXN_STATE
    log.append_as_leader(marker(1, commit=True), 0, from_client=False)
    send(workshop, log, 1, 1, transactional=False)


def test_clients_can_not_write_markers(workshop: Any) -> None:
    log = workshop.log()
    batch = marker(1, commit=True)
    assert refused(lambda: log.append_as_leader(batch, 0)) == ErrorCode.INVALID_RECORD


def test_an_end_that_has_not_been_synced_is_not_seen(workshop: Any) -> None:
    """flush.messages holds records back until they are synced; a transaction is as open as its marker is."""
    log = workshop.log(flush_messages=1)
    held: list[Callable[[], None]] = []
    at_once = workshop.runtime.run_in_thread
    send(workshop, log, 1, 0)
    assert (log.high_watermark, log.last_stable_offset) == (1, 0)
    workshop.runtime.run_in_thread = lambda work, done: held.append(lambda: at_once(work, done))
    log.append_as_leader(marker(1, commit=False), 0, from_client=False)
    assert (log.high_watermark, log.last_stable_offset) == (1, 0)
    workshop.runtime.run_in_thread = at_once
    held[0]()
    assert (log.high_watermark, log.last_stable_offset) == (2, 2)


def test_a_log_start_inside_an_open_transaction(workshop: Any) -> None:
    log = workshop.log()
    send(workshop, log, 1, 0)
    for sequence in range(1, 4):
        send(workshop, log, 1, sequence)
    log.increment_log_start_offset(2)
    assert log.last_stable_offset == 2
    log.append_as_leader(marker(1, commit=False), 0, from_client=False)
    assert log.last_stable_offset == 5
    assert consume(log, 2, 1000) == []


def test_an_open_transaction_never_expires(workshop: Any) -> None:
    log = workshop.log()
    send(workshop, log, 1, 0)
    send(workshop, log, 2, 0)
    log.append_as_leader(marker(2, commit=True), 0, from_client=False)
    log.producers.remove_expired(workshop.now + 10**12, 1000)
    assert list(log.producers.active) == [1]
    assert log.last_stable_offset == 0
    log.close()
    workshop.runtime.wall_offset_ms += 10**9
    assert list(workshop.log().producers.active) == [1]


def test_aborted_transactions_that_are_not_in_memory(workshop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop does not wait for the disk: a thread loads the files, and what was asked is asked again."""
    log = workshop.log(index_interval_bytes=50)
    for producer in range(300):
        send(workshop, log, producer, 0)
        log.append_as_leader(marker(producer, commit=producer % 3 == 0), 0, from_client=False)
    log.roll()
    aborted = log.producers.collect_aborted(0, 600)
    assert len(aborted) == 200
    assert log.producers.collect_aborted(0, 600, 5) == aborted[:5]
    assert log.producers.collect_aborted(590, 600) == aborted[-4:]
    result = log.read(100, 5000)
    within = log.aborted_within(100, result)
    assert (
        within
        == [(each.producer_id, each.first_offset) for each in aborted if each.last_offset >= 100][
            : len(within)
        ]
    )
    assert len(within) > 10
    cold = {name for name in workshop.disk.files if name.endswith((".txnindex", ".index"))}
    assert len(cold) == 2
    monkeypatch.setattr(MemoryFile, "is_cached", lambda file, *_: file._path not in cold)
    monkeypatch.setattr(MemoryFile, "load", lambda file, *_: cold.discard(file._path))
    for _ in range(2):  # the offset index, then the transactions
        with pytest.raises(WouldWait) as caught:
            log.aborted_within(100, result, wait=False)
        caught.value.prepare()
    assert log.aborted_within(100, result, wait=False) == within


def test_a_long_transaction_needs_one_thread_for_all_its_segments(
    workshop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch is not tried again for each."""
    monkeypatch.setattr(transaction_index, "UNNOTED_MAX", transaction_index.BLOCK)
    log = workshop.log()
    send(workshop, log, 0, 0)
    for producer in range(1, 201):
        send(workshop, log, producer, 0)
        log.append_as_leader(marker(producer, commit=False), 0, from_client=False)
        if producer % 40 == 0:
            log.roll()
    log.append_as_leader(marker(0, commit=False), 0, from_client=False)
    assert len(log.segments.bases) == 6
    expected = log.producers.collect_aborted(10, 12)
    assert [each.producer_id for each in expected] == [5, 6, 0]
    with pytest.raises(WouldWait) as caught:
        log.producers.collect_aborted(10, 12, wait=False)
    caught.value.prepare()
    assert log.producers.collect_aborted(10, 12, wait=False) == expected


def test_the_indexes_of_removed_segments_are_forgotten(workshop: Any) -> None:
    log = workshop.log()
    for number in range(4):
        send(workshop, log, 7, number)
        log.append_as_leader(marker(7, commit=False), 0, from_client=False)
        log.roll()
    assert len(log.producers.collect_aborted(0, log.log_end_offset)) == 4
    log.increment_log_start_offset(log.log_end_offset)
    assert not log.producers._transaction_indexes, "memory that would never be freed"


def test_a_marker_that_is_not_committed_holds_readers_back_though_its_producer_expires(workshop: Any) -> None:
    log = workshop.log()
    log.replicate()
    send(workshop, log, 7, 0)
    log.append_as_leader(marker(7, commit=True), 0, from_client=False)
    log.set_high_watermark(1)
    log.producers.remove_expired(workshop.now + 2000, 1000)
    assert not log.producers.active
    assert (log.high_watermark, log.last_stable_offset) == (1, 0)
    log.set_high_watermark(2)
    assert log.last_stable_offset == 2


def _send(workshop: Any, log: Log, producer: int) -> None:
    batch = workshop.batch(producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)
    log.append_as_leader(batch, 0, verification=verified(log, batch))


def _fail_on_index(_operation: str, path: str) -> int | None:
    return errno.EIO if path.endswith(".txnindex") else None


def test_an_abort_does_not_need_the_index_of_a_run_before(workshop: Any) -> None:
    """Its marker would be in the log, and nothing would say that it has aborted anything."""
    log = workshop.log()
    _send(workshop, log, 1)
    log.append_as_leader(marker(1, commit=False), 0, from_client=False)
    log.close()
    log = workshop.log()
    _send(workshop, log, 2)
    workshop.disk.fault = _fail_on_index
    log.append_as_leader(marker(2, commit=False), 0, from_client=False)
    workshop.disk.fault = None
    assert consume(log, 0, 1 << 20) == []


def test_a_follower_does_not_need_it_either(make_workshop: Any) -> None:
    leader, workshop = make_workshop().log(), make_workshop()
    for producer in (1, 2):
        _send(workshop, leader, producer)
        leader.append_as_leader(marker(producer, commit=False), 0, from_client=False)
    batches = workshop.content(leader)
    log = workshop.log()
    log.append_as_follower(memoryview(b"".join(batches[:2])))
    log.close()
    log = workshop.log()
    workshop.disk.fault = _fail_on_index
    log.append_as_follower(memoryview(b"".join(batches[2:])))
    workshop.disk.fault = None
    assert log.log_end_offset == 4
    assert consume(log, 0, 1 << 20) == []


def test_what_could_not_be_written_beside_a_closed_segment_is_written_at_the_stop(workshop: Any) -> None:
    """The snapshot of its end, for one: a replica that begins behind what is tiered has its producers from there."""
    log = workshop.log()
    for sequence in range(2):
        log.append_as_leader(workshop.batch(producer_id=7, producer_epoch=0, base_sequence=sequence), 0)
    workshop.disk.fault = lambda _operation, path: errno.ENOSPC if path.endswith("2.snapshot") else None
    log.roll()
    assert not log.offline
    log.append_as_leader(workshop.batch(producer_id=7, producer_epoch=0, base_sequence=2), 0)
    assert log.flusher.recovery_checkpoint == 0
    with pytest.raises(OSError, match="space"):
        log.close()
    workshop.disk.fault = None
    log.close()
    (path,) = (path for path in workshop.disk.files if path.endswith("2.snapshot"))
    (entry,) = decode_snapshot(workshop.disk.read_file(path))
    assert (entry.producer_id, entry.last_offset) == (7, 1)
    log = workshop.log()
    assert segment_to_copy(log, 0, 0, "nonce") is not None


@pytest.mark.parametrize("is_cut", [True, False])
def test_what_is_missing_beside_a_segment_that_is_gone_is_not_written(workshop: Any, is_cut: bool) -> None:
    log = workshop.log()
    for producer in range(2):
        _send(workshop, log, producer)
        log.append_as_leader(marker(producer, commit=False), 0, from_client=False)
    workshop.disk.fault = lambda _operation, path: errno.ENOSPC if "txnindex" in path else None
    log.roll()
    workshop.disk.fault = None
    if is_cut:
        log.truncate_to(1)
    else:
        assert log.remove_segments_below(4)
    workshop.runtime.advance(120)  # files are removed later
    log.close()
    gone = "4.snapshot" if is_cut else "0.txnindex"
    assert not [path for path in workshop.disk.files if path.endswith(gone)]
