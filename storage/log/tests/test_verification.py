"""Transactions of both versions in one partition: verification, data and markers, against a slow model that replays its history
for every question; and against a follower, restarts and truncation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from barnabas.storage.errors import StorageError
from barnabas.storage.log.log import Log
from barnabas.storage.log.verification import ENTRIES_MAX, VERIFICATION_OFF, WAIT_MS_MAX, Verification
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import read_header

E = ErrorCode
SETTINGS = {"segment_bytes": 900, "index_interval_bytes": 150}
TOP_EPOCH = 32767


@dataclass
class Item:
    """A batch or a marker in the log."""

    producer: int
    epoch: int
    offset: int
    count: int
    sequence: int = -1  # of the first record; -1 in a batch of the group coordinator
    transactional: bool = True
    coordinator_epoch: int | None = None  # of a marker

    @property
    def last_sequence(self) -> int:
        return self.sequence + self.count - 1 if self.sequence >= 0 else -1


@dataclass
class Known:
    """What the log says of a producer."""

    epoch: int
    batches: list[Item] = field(default_factory=list)  # of that epoch
    open_at: int = -1
    coordinator_epoch: int = -1


@dataclass
class Asked:
    """A verification: what was asked of the coordinator since it began."""

    version_2: bool
    asks: list[tuple[int, int]] = field(default_factory=list)  # (epoch, sequence)

    @property
    def epoch(self) -> int:
        return max(epoch for epoch, _ in self.asks)

    @property
    def lowest(self) -> int:
        # an ask of an earlier epoch is of a producer that was fenced meanwhile
        latest = next(at for at, ask in enumerate(self.asks) if ask[0] == self.epoch)
        return min(sequence for epoch, sequence in self.asks[latest:] if epoch == self.epoch)


@dataclass
class Model:
    items: list[Item] = field(default_factory=list)
    asked: dict[int, Asked] = field(default_factory=dict)
    forgotten: set[int] = field(default_factory=set)  # offsets of batches that a snapshot has left out
    maybe_forgotten: set[int] = field(default_factory=set)
    end: int = 0

    def known(self, producer: int) -> Known | None:
        known: Known | None = None
        for item in self.items:
            if item.producer != producer:
                continue
            if known is None:
                known = Known(item.epoch)
            if known.epoch != item.epoch:
                known.epoch, known.batches = item.epoch, []
            if item.coordinator_epoch is not None:
                known.open_at, known.coordinator_epoch = -1, item.coordinator_epoch
            else:
                known.batches.append(item)
                if item.transactional and known.open_at < 0:
                    known.open_at = item.offset
        return known

    @property
    def last_stable_offset(self) -> int:
        producers = {item.producer for item in self.items}
        opened = [known.open_at for known in map(self.known, producers) if known and known.open_at >= 0]
        return min(opened, default=self.end)

    def begin(self, producer: int, epoch: int, sequence: int, version_2: bool) -> Asked | ErrorCode | None:
        known = self.known(producer)
        if known is not None and epoch < known.epoch:
            return E.INVALID_PRODUCER_EPOCH
        if known is not None and known.open_at >= 0 and epoch == known.epoch:
            return None
        asked = self.asked.setdefault(producer, Asked(version_2))
        asked.asks.append((epoch, sequence))
        return asked

    def append(
        self,
        producer: int,
        epoch: int,
        sequence: int,
        count: int,
        transactional: bool,
        brought: Asked | str | None,
        from_client: bool,
    ) -> set[int | ErrorCode]:
        """The results that are right: an offset or an error."""
        known = self.known(producer)
        right: set[int | ErrorCode] = set()
        if known is not None and from_client and known.epoch == epoch:
            for batch in known.batches[-5:]:
                if (batch.sequence, batch.count) == (sequence, count) and batch.offset not in self.forgotten:
                    if batch.offset not in self.maybe_forgotten:
                        return {batch.offset}
                    right.add(batch.offset)
        error = self.refusal(known, producer, epoch, sequence, transactional, brought, from_client)
        if right:
            return right | {E.OUT_OF_ORDER_SEQUENCE_NUMBER, E.INVALID_TXN_STATE}
        if error is not None:
            return {error}
        self.items.append(Item(producer, epoch, self.end, count, sequence, transactional))
        self.end += count
        if transactional:
            self.asked.pop(producer, None)
        return {self.end - count}

    def refusal(
        self,
        known: Known | None,
        producer: int,
        epoch: int,
        sequence: int,
        transactional: bool,
        brought: Asked | str | None,
        from_client: bool,
    ) -> ErrorCode | None:
        if known is not None and epoch < known.epoch:
            return E.INVALID_PRODUCER_EPOCH
        asked = self.asked.get(producer)
        is_open = known is not None and known.open_at >= 0
        in_transaction = is_open and known is not None and known.epoch == epoch
        if (
            transactional
            and not in_transaction
            and brought != "off"
            and (not brought or brought is not asked)
        ):
            return E.INVALID_TXN_STATE
        if from_client:
            if asked is not None:
                if asked.version_2 and sequence and (known is None or not known.batches):
                    return E.OUT_OF_ORDER_SEQUENCE_NUMBER
                if sequence > asked.lowest:
                    return E.OUT_OF_ORDER_SEQUENCE_NUMBER
            if known is not None:
                fits = known.epoch == epoch and known.batches
                wanted = known.batches[-1].last_sequence + 1 if fits else 0
                if sequence != wanted:
                    return E.OUT_OF_ORDER_SEQUENCE_NUMBER
        if is_open and not transactional:
            return E.INVALID_TXN_STATE
        return None

    def marker(self, producer: int, epoch: int, coordinator_epoch: int, version: int) -> ErrorCode | int:
        known = self.known(producer)
        if known is not None:
            if epoch < known.epoch:
                return E.INVALID_PRODUCER_EPOCH
            if version == 2 and epoch == known.epoch and known.open_at >= 0 and epoch != TOP_EPOCH:
                return E.INVALID_PRODUCER_EPOCH
            if coordinator_epoch < known.coordinator_epoch:
                return E.TRANSACTION_COORDINATOR_FENCED
        self.items.append(Item(producer, epoch, self.end, 1, coordinator_epoch=coordinator_epoch))
        self.end += 1
        asked = self.asked.get(producer)
        if asked is not None and not (asked.version_2 and asked.epoch == epoch):
            del self.asked[producer]
        return self.end - 1

    def restart(self, *, clean: bool) -> None:
        self.asked.clear()
        self.maybe_forgotten.clear()
        self.forgotten.clear()
        if clean:
            latest = {item.producer: item.offset for item in self.items if item.coordinator_epoch is None}
            self.forgotten = {item.offset for item in self.items} - set(latest.values())

    def truncate(self, offset: int) -> None:
        if offset < self.end:
            self.asked.clear()
            self.items = [item for item in self.items if item.offset < offset]
            latest = {item.producer: item.offset for item in self.items if item.coordinator_epoch is None}
            self.maybe_forgotten = {item.offset for item in self.items} - set(latest.values())
            self.forgotten.clear()
            self.end = offset


def result(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except StorageError as error:
        return error.error


def what_is_known(log: Log) -> dict[int, tuple[int, ...]]:
    return {
        producer: (
            entry.producer_epoch,
            entry.last_sequence,
            entry.coordinator_epoch,
            entry.current_transaction_first_offset,
        )
        for producer, entry in log.producers.active.items()
    }


producers = st.integers(1, 2)
epochs = st.sampled_from([0, 0, 0, 1, 1, 2, TOP_EPOCH])
steps = st.one_of(
    st.tuples(st.just("begin"), producers, epochs, st.integers(-1, 3), st.booleans()),
    # the last: how many batches back from the next one; None: sequence 0
    *[
        st.tuples(
            st.just("data"),
            producers,
            epochs,
            st.sampled_from([0, 0, 0, 0, None, None, 1, -1, -2]),
            st.sampled_from(["latest", "latest", "latest", "first", "none", "off", "plain", "coordinator"]),
        )
    ]
    * 3,
    st.tuples(st.just("verified"), producers, epochs, st.sampled_from([0, 0, None, 1]), st.booleans()),
    st.tuples(st.just("verified"), producers, epochs, st.sampled_from([0, 0, None, 1]), st.booleans()),
    *[st.tuples(st.just("marker"), producers, epochs, st.integers(0, 2), st.sampled_from([0, 1, 2]))] * 2,
    st.tuples(st.sampled_from(["restart", "kill", "truncate", "follower starts"]), *[st.integers(0, 50)] * 4),
)


class Run:
    """A leader's log, a follower's and the model, step by step."""

    def __init__(self, make_workshop: Callable[[], Any]) -> None:
        self.workshop, self.other = make_workshop(), make_workshop()
        self.log: Log = self.workshop.log(**SETTINGS)
        self.follower: Log = self.other.log(**SETTINGS)
        self.model = Model()
        self.pairs: dict[int, list[tuple[Verification, Asked]]] = {}

    def next_sequence(self, producer: int, epoch: int, back: int | None) -> tuple[int, int]:
        """(sequence, record count) of the batch to send."""
        known = self.model.known(producer)
        if back is None or known is None or known.epoch != epoch or not known.batches:
            return max(back or 0, 0), 2
        if back < 0:
            again = known.batches[max(back, -len(known.batches))]
            return max(again.sequence, 0), again.count
        return known.batches[-1].last_sequence + 1 + back, 2

    def begin(self, producer: int, epoch: int, sequence: int, version_2: bool) -> Any:
        expected = self.model.begin(producer, epoch, sequence, version_2)
        found = result(
            lambda: self.log.begin_verification(producer, epoch, sequence, supports_epoch_bump=version_2)
        )
        if not isinstance(expected, Asked):
            assert found == expected
            return None, None
        assert isinstance(found, Verification)
        pairs = self.pairs.setdefault(producer, [])
        if pairs and pairs[-1][1] is expected:
            assert pairs[-1][0] is found
        else:
            assert all(found is not earlier for earlier, _ in pairs), "a Verification that has ended is back"
            pairs.append((found, expected))
        return found, expected

    def data(
        self, producer: int, epoch: int, back: int | None, brought: Verification | None, asked: Any, how: str
    ) -> None:
        sequence, count = self.next_sequence(producer, epoch, back)
        from_client = how != "coordinator"
        if not from_client:
            sequence = -1
        transactional = how != "plain"
        batch = self.workshop.batch(
            count,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        end = self.log.log_end_offset
        found = result(
            lambda: (
                self.log.append_as_leader(batch, 0, from_client=from_client, verification=brought).base_offset
            )
        )
        right = self.model.append(producer, epoch, sequence, count, transactional, asked, from_client)
        assert found in right
        if found == end:
            assert self.model.end == self.log.log_end_offset

    def step(self, step: tuple[Any, ...]) -> None:
        kind, producer, epoch, third, fourth = step
        if kind == "begin":
            self.begin(producer, epoch, third, fourth)
        elif kind == "verified":
            sequence, _ = self.next_sequence(producer, epoch, third)
            found, expected = self.begin(producer, epoch, sequence, fourth)
            self.data(producer, epoch, third, found, expected, "client")
        elif kind == "data":
            pairs: list[Any] = self.pairs.get(producer, [])
            pair: Any = (None, None)
            if fourth == "off":
                pair = (VERIFICATION_OFF, "off")
            elif fourth != "none" and pairs:
                pair = pairs[0] if fourth == "first" else pairs[-1]
            self.data(producer, epoch, third, pair[0], pair[1], fourth)
        elif kind == "marker":
            self.marker(producer, epoch, third, fourth)
        elif kind == "restart":
            self.log.close()
            self.log = self.workshop.log(**SETTINGS)
            self.model.restart(clean=True)
        elif kind == "kill":
            self.log = self.workshop.log(clean=False, **SETTINGS)
            self.model.restart(clean=False)
        elif kind == "truncate":
            bases = [header.base_offset for header in self.log.segments.headers(0)]
            if bases:
                offset = bases[-1 - epoch % min(len(bases), 6)]
                self.follower.truncate_to(offset)
                self.log.truncate_to(offset)
                self.model.truncate(offset)
        else:
            self.follower.close()
            self.follower = self.other.log(**SETTINGS)

    def marker(self, producer: int, epoch: int, coordinator_epoch: int, version: int) -> None:
        def append() -> int:
            marker = self.log.marker_to_append(
                producer,
                epoch,
                commit=bool(epoch % 2),
                coordinator_epoch=coordinator_epoch,
                transaction_version=version,
            )
            return self.log.append_as_leader(marker, 0, from_client=False).base_offset

        expected = self.model.marker(producer, epoch, coordinator_epoch, version)
        assert result(append) == expected

    def replicate(self) -> None:
        while self.follower.log_end_offset < self.log.log_end_offset:
            read = self.log.read(self.follower.log_end_offset, 1 << 20)
            data = b"".join(region.read() for region in read.regions)
            self.follower.append_as_follower(memoryview(data))


@given(steps=st.lists(steps, max_size=50))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_against_the_model(make_workshop: Callable[[], Any], steps: list[tuple[Any, ...]]) -> None:
    run = Run(make_workshop)
    for step in steps:
        run.step(step)
        run.replicate()
        model, log = run.model, run.log
        assert (log.log_end_offset, log.last_stable_offset) == (model.end, model.last_stable_offset)
        wanted = {}
        for producer in {item.producer for item in model.items}:
            known = model.known(producer)
            assert known is not None
            last = known.batches[-1] if known.batches else None
            sequence = -1 if last is None else last.last_sequence
            wanted[producer] = (known.epoch, sequence, known.coordinator_epoch, known.open_at)
        assert what_is_known(log) == wanted
        assert what_is_known(run.follower) == wanted
        assert run.follower.last_stable_offset == model.last_stable_offset


def test_a_batch_that_repeats_the_first_one_behind_one_without_a_sequence(
    make_workshop: Callable[[], Any],
) -> None:
    """As of a group coordinator: the next sequence is 0 then, which the first batch has as well."""
    run = Run(make_workshop)
    run.step(("verified", 1, 0, 0, False))
    run.step(("data", 1, 0, 0, "coordinator"))
    run.step(("data", 1, 0, 0, "plain"))
    assert run.log.log_end_offset == 4


def refused(act: Callable[[], object]) -> tuple[ErrorCode, str]:
    with pytest.raises(StorageError) as caught:
        act()
    return caught.value.error, str(caught.value)


def batch(workshop: Any, sequence: int, *, epoch: int = 0, producer: int = 1, count: int = 1) -> bytes:
    made: bytes = workshop.batch(
        count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, transactional=True
    )
    return made


def end(log: Log, epoch: int, *, version: int, coordinator_epoch: int = 0, producer: int = 1) -> None:
    marker = log.marker_to_append(
        producer,
        epoch,
        commit=True,
        coordinator_epoch=coordinator_epoch,
        transaction_version=version,
    )
    log.append_as_leader(marker, 0, from_client=False)


def test_the_texts_of_refusals_are_kafkas(workshop: Any) -> None:
    """As in the constants of Kafka 4.3.1's storage jar."""
    log = workshop.log()
    assert refused(lambda: log.append_as_leader(batch(workshop, 0), 0)) == (
        E.INVALID_TXN_STATE,
        "Record was not part of an ongoing transaction",
    )
    guard = log.begin_verification(1, 0, 3, supports_epoch_bump=True)
    assert refused(lambda: log.append_as_leader(batch(workshop, 3), 0, verification=guard)) == (
        E.OUT_OF_ORDER_SEQUENCE_NUMBER,
        "Invalid sequence number for producer 1 at offset 0 in partition t-0: 3 (incoming seq. number). "
        "Expected sequence 0 for transactions v2 idempotent producer with no existing state.",
    )
    log = workshop.log(clean=False)
    log.begin_verification(1, 0, 0, supports_epoch_bump=False)
    guard = log.begin_verification(1, 0, 2, supports_epoch_bump=False)
    assert refused(lambda: log.append_as_leader(batch(workshop, 2), 0, verification=guard)) == (
        E.OUT_OF_ORDER_SEQUENCE_NUMBER,
        "Out of order sequence number for producer 1 at offset 0 in partition t-0: 2 (incoming seq. number), "
        "0 (earliest seen sequence)",
    )
    log.append_as_leader(batch(workshop, 0), 0, verification=guard)
    assert refused(lambda: end(log, 0, version=2)) == (
        E.INVALID_PRODUCER_EPOCH,
        "Epoch of producer 1 at offset 1 in t-0 is 0, which is <= the last seen epoch 0 (TV2)",
    )
    end(log, 5, version=1, coordinator_epoch=7)
    assert refused(lambda: end(log, 4, version=0)) == (
        E.INVALID_PRODUCER_EPOCH,
        "Epoch of producer 1 at offset 2 in t-0 is 4, which is < the last seen epoch 5 (TV0)",
    )
    assert refused(lambda: end(log, 5, version=0, coordinator_epoch=6)) == (
        E.TRANSACTION_COORDINATOR_FENCED,
        "Invalid coordinator epoch for producerId 1 at offset 2 in partition t-0: 6 (zombie), 7 (current)",
    )
    stale = E.INVALID_PRODUCER_EPOCH, "Epoch of producer 1 is 4, which is smaller than the last seen epoch 5"
    assert refused(lambda: log.begin_verification(1, 4, 0, supports_epoch_bump=False)) == stale
    assert refused(lambda: log.append_as_leader(batch(workshop, 0, epoch=4), 0)) == stale


@pytest.mark.parametrize(
    ("version_2", "marker_epoch", "appended"),
    [(False, 0, False), (False, 1, False), (True, 1, True), (True, 2, False)],
)
def test_a_marker_between_the_question_and_the_append(
    workshop: Any, version_2: bool, marker_epoch: int, appended: bool
) -> None:
    """The batch is refused, unless its transaction is the one behind a marker of version 2."""
    log = workshop.log()
    epoch = 1 if version_2 else 0
    guard = log.begin_verification(1, epoch, 0, supports_epoch_bump=version_2)
    end(log, marker_epoch, version=2 if version_2 else 0)

    def append() -> object:
        return log.append_as_leader(batch(workshop, 0, epoch=epoch), 0, verification=guard)

    if appended:
        append()
        return
    fenced = marker_epoch > epoch
    assert refused(append)[0] == (E.INVALID_PRODUCER_EPOCH if fenced else E.INVALID_TXN_STATE)
    if not fenced:
        again = log.begin_verification(1, epoch, 0, supports_epoch_bump=version_2)
        assert again is not guard
        log.append_as_leader(batch(workshop, 0, epoch=epoch), 0, verification=again)


def test_batches_in_flight_share_a_verification_and_keep_their_order(workshop: Any) -> None:
    """The second is not appended before the first, and needs nothing once the first has opened the transaction."""
    log = workshop.log()
    first = log.begin_verification(1, 0, 0, supports_epoch_bump=False)
    second = log.begin_verification(1, 0, 1, supports_epoch_bump=False)
    assert first is second
    error, _ = refused(lambda: log.append_as_leader(batch(workshop, 1), 0, verification=second))
    assert error == E.OUT_OF_ORDER_SEQUENCE_NUMBER
    log.append_as_leader(batch(workshop, 0), 0, verification=first)
    log.append_as_leader(batch(workshop, 1), 0, verification=second)
    assert log.begin_verification(1, 0, 2, supports_epoch_bump=False) is None
    log.append_as_leader(batch(workshop, 2), 0)


def test_a_duplicate_is_recognized_before_its_verification(workshop: Any) -> None:
    log = workshop.log()
    guard = log.begin_verification(1, 0, 0, supports_epoch_bump=False)
    log.append_as_leader(batch(workshop, 0), 0, verification=guard)
    end(log, 0, version=0)
    assert log.append_as_leader(batch(workshop, 0), 0).duplicate


def test_a_marker_of_version_2_is_repeated_harmlessly(workshop: Any) -> None:
    log = workshop.log()
    guard = log.begin_verification(1, 0, 0, supports_epoch_bump=True)
    log.append_as_leader(batch(workshop, 0), 0, verification=guard)
    end(log, 1, version=2)
    end(log, 1, version=2)
    assert log.last_stable_offset == log.log_end_offset == 3
    assert log.producers.collect_aborted(0, 3) == []
    guard = log.begin_verification(1, 1, 0, supports_epoch_bump=True)
    log.append_as_leader(batch(workshop, 0, epoch=1), 0, verification=guard)
    assert refused(lambda: end(log, 1, version=2))[0] == E.INVALID_PRODUCER_EPOCH, "late, of the last one"
    end(log, 1, version=0)  # as kafka-transactions.sh abort sends it


def test_the_last_epoch_of_a_producer_ends_its_transaction(workshop: Any) -> None:
    """A fenced producer of epoch 32767 can't be given a later one."""
    log = workshop.log()
    log.append_as_leader(batch(workshop, 0, epoch=TOP_EPOCH), 0, verification=VERIFICATION_OFF)
    end(log, TOP_EPOCH, version=2)
    assert log.last_stable_offset == 2


def test_a_marker_without_a_transaction_fences(workshop: Any) -> None:
    log = workshop.log()
    end(log, 4, version=2, coordinator_epoch=3)
    assert log.last_stable_offset == 1
    assert log.producers.collect_aborted(0, 1) == []
    assert what_is_known(log) == {1: (4, -1, 3, -1)}
    assert log.producers.active[1].last_timestamp == workshop.now


def test_an_append_that_fails_keeps_the_verification(workshop: Any) -> None:
    log = workshop.log(max_message_bytes=200)
    guard = log.begin_verification(1, 0, 0, supports_epoch_bump=False)
    error, _ = refused(lambda: log.append_as_leader(batch(workshop, 0, count=50), 0, verification=guard))
    assert error == E.MESSAGE_TOO_LARGE
    log.append_as_leader(batch(workshop, 0), 0, verification=guard)


def test_verifications_expire(workshop: Any) -> None:
    log = workshop.log()
    guard = log.begin_verification(1, 0, 0, supports_epoch_bump=False)
    log.producers.remove_expired(workshop.now + 999, 1000)
    assert log.begin_verification(1, 0, 0, supports_epoch_bump=False) is guard
    log.producers.remove_expired(workshop.now + 1000, 1000)
    error, _ = refused(lambda: log.append_as_leader(batch(workshop, 0), 0, verification=guard))
    assert error == E.INVALID_TXN_STATE


def begin(log: Log, producer: int, sequence: int = 0) -> Verification:
    found = log.begin_verification(producer, 0, sequence, supports_epoch_bump=False)
    assert found is not None
    return found


def append(workshop: Any, log: Log, producer: int, verification: Verification) -> None:
    batch = workshop.batch(1, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)
    log.append_as_leader(batch, 0, verification=verification)


def test_batches_that_wait_do_not_make_room_for_others(workshop: Any) -> None:
    """The coordinator may have added their partition already."""
    log = workshop.log()
    begun = [begin(log, producer) for producer in range(ENTRIES_MAX)]
    full = E.NOT_ENOUGH_REPLICAS, "Too many transactions are being verified in t-0"
    assert refused(lambda: begin(log, ENTRIES_MAX)) == full
    assert begin(log, 0, 1) is begun[0], "it is asked again"
    log.verification_failed(7, begun[7], is_final=True)
    newest = begin(log, ENTRIES_MAX)
    assert refused(lambda: begin(log, ENTRIES_MAX + 1)) == full
    log.verification_failed(5, begun[5], is_final=False)
    later = begin(log, ENTRIES_MAX + 1)
    assert refused(lambda: begin(log, ENTRIES_MAX + 2)) == full
    for producer in (5, 7):
        with pytest.raises(StorageError) as caught:
            append(workshop, log, producer, begun[producer])
        assert caught.value.error == E.INVALID_TXN_STATE
    append(workshop, log, 0, begun[0])
    append(workshop, log, 1, begun[1])
    append(workshop, log, ENTRIES_MAX, newest)
    append(workshop, log, ENTRIES_MAX + 1, later)


def test_what_waits_for_too_long_makes_room(workshop: Any) -> None:
    log = workshop.log()
    begun = [begin(log, producer) for producer in range(ENTRIES_MAX)]
    workshop.runtime.wall_offset_ms += WAIT_MS_MAX - 1
    begin(log, 0)
    assert refused(lambda: begin(log, ENTRIES_MAX))[0] == E.NOT_ENOUGH_REPLICAS
    workshop.runtime.wall_offset_ms += 1
    newest = begin(log, ENTRIES_MAX)
    error, _ = refused(lambda: append(workshop, log, 1, begun[1]))
    assert error == E.INVALID_TXN_STATE
    append(workshop, log, 0, begun[0])
    append(workshop, log, ENTRIES_MAX, newest)


def test_what_waits_makes_no_room_while_its_answer_may_come(workshop: Any) -> None:
    """With a long request.timeout.ms."""
    log = workshop.log()
    begun = [
        log.begin_verification(producer, 0, 0, supports_epoch_bump=False, request_timeout_ms=90_000)
        for producer in range(ENTRIES_MAX)
    ]
    workshop.runtime.wall_offset_ms += 4 * 90_000 - 1
    assert refused(lambda: begin(log, ENTRIES_MAX))[0] == E.NOT_ENOUGH_REPLICAS
    append(workshop, log, 0, begun[0])
    begin(log, ENTRIES_MAX)
    workshop.runtime.wall_offset_ms += 1
    begin(log, ENTRIES_MAX + 1)
    assert refused(lambda: append(workshop, log, 1, begun[1]))[0] == E.INVALID_TXN_STATE


def test_a_refused_verification_stays_while_another_batch_waits(workshop: Any) -> None:
    log = workshop.log()
    guard = begin(log, 1)
    assert begin(log, 1) is guard
    log.verification_failed(1, guard, is_final=True)
    assert begin(log, 1) is guard
    log.verification_failed(1, guard, is_final=True)
    append(workshop, log, 1, guard)


def test_a_refusal_leaves_the_verification_of_the_next_transaction(workshop: Any) -> None:
    log = workshop.log()
    first = begin(log, 1)
    end(log, 0, version=0)
    second = begin(log, 1)
    log.verification_failed(1, first, is_final=True)
    append(workshop, log, 1, second)


def test_a_batch_that_will_be_sent_again_holds_back_those_behind_it(workshop: Any) -> None:
    log = workshop.log()
    first = begin(log, 1, 0)
    second = begin(log, 1, 1)
    log.verification_failed(1, first, is_final=False)
    assert second is first
    error, _ = refused(lambda: log.append_as_leader(batch(workshop, 1), 0, verification=second))
    assert error == E.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_truncated_log_has_to_verify_again(workshop: Any) -> None:
    """What was cut off may have opened or ended the transaction."""
    log = workshop.log()
    log.append_as_leader(workshop.batch(1), 0)
    guard = log.begin_verification(1, 0, 0, supports_epoch_bump=False)
    log.truncate_to(0)
    error, _ = refused(lambda: log.append_as_leader(batch(workshop, 0), 0, verification=guard))
    assert error == E.INVALID_TXN_STATE


@pytest.mark.parametrize(("silent_ms", "is_late"), [(1_300_000, False), (1_300_001, True)])
def test_late_transactions(workshop: Any, silent_ms: int, is_late: bool) -> None:
    """Longer than transaction.max.timeout.ms and five minutes without a write, of the oldest that is open."""
    log = workshop.log()
    assert not log.producers.has_late_transaction(workshop.now + silent_ms, 1_000_000)
    log.append_as_leader(batch(workshop, 0), 0, verification=VERIFICATION_OFF)
    log.append_as_leader(batch(workshop, 0, producer=2), 0, verification=VERIFICATION_OFF)
    assert log.producers.has_late_transaction(workshop.now + silent_ms, 1_000_000) is is_late
    end(log, 0, version=0)
    end(log, 0, version=0, producer=2)
    assert not log.producers.has_late_transaction(workshop.now + silent_ms, 1_000_000)


@pytest.mark.parametrize(
    "topic",
    [
        {"message_timestamp_type": "LogAppendTime"},
        {"compression_type": "gzip"},
        {"cleanup_policy": frozenset({"compact"})},
        {"message_timestamp_before_max_ms": 1000},
    ],
)
def test_a_marker_is_the_same_whatever_the_topic_is_set_to(workshop: Any, topic: dict[str, Any]) -> None:
    log = workshop.log(**topic)
    guard = log.begin_verification(1, 0, 0, supports_epoch_bump=True)
    log.append_as_leader(batch(workshop, 0), 0, verification=guard)
    end(log, 1, version=2, coordinator_epoch=9)
    assert log.last_stable_offset == 2
    header = read_header(workshop.content(log)[-1])
    assert (header.is_control, header.is_transactional, header.record_count) == (True, True, 1)
    assert header.attributes & 7 == 0, "never compressed"
