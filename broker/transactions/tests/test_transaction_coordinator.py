"""The transaction coordinator: requests, markers, timeouts and expiry, over a log in memory and scripted brokers."""

from __future__ import annotations

import msgspec
import pytest

from barnabas.broker.transactions.shard import EXPIRED_IDS_MAX
from barnabas.broker.transactions.state import TransactionState as S
from barnabas.broker.transactions.tests.coordinators import Coordinators, markers_of
from barnabas.wire.errors import ErrorCode as E

A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)
NONE, CONCURRENT = E.NONE, E.CONCURRENT_TRANSACTIONS
DAY_S = 24 * 60 * 60

APPEND_ERRORS = {
    E.UNKNOWN_TOPIC_OR_PARTITION: E.COORDINATOR_NOT_AVAILABLE,
    E.NOT_ENOUGH_REPLICAS: E.COORDINATOR_NOT_AVAILABLE,
    E.NOT_LEADER_OR_FOLLOWER: E.NOT_COORDINATOR,
    E.KAFKA_STORAGE_ERROR: E.NOT_COORDINATOR,
    E.MESSAGE_TOO_LARGE: E.UNKNOWN_SERVER_ERROR,
    E.RECORD_LIST_TOO_LARGE: E.UNKNOWN_SERVER_ERROR,
}


@pytest.fixture
def all_(request: pytest.FixtureRequest) -> Coordinators:
    return Coordinators()


# -- requests


def test_a_transaction_from_its_begin_to_its_end(all_: Coordinators) -> None:
    assert all_.initialize() == [(NONE, 1000, 0)]
    assert all_.add(1000, 0, A0, A1) == [(NONE,)]
    assert all_.leader.verify_partitions("id", 1000, 0, [A0, B0]) == {A0: NONE, B0: E.TRANSACTION_ABORTABLE}
    assert all_.end(1000, 0) == [(NONE, -1, -1)]
    assert all_.state() == S.PREPARE_COMMIT
    assert all_.write_markers() == 2
    assert all_.state() == S.COMPLETE_COMMIT
    assert all_.log.states() == ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"]
    assert all_.end(1000, 0) == [(NONE, -1, -1)]


def test_each_partition_gets_its_marker_from_its_leader(all_: Coordinators) -> None:
    all_.elect(1)
    producer = all_.ongoing(A0, A1, B0)
    all_.end(*producer, commit=False)
    asked = all_.asked()
    assert markers_of(asked) == {
        A0: (1000, 0, False, 1, 0, 1),
        A1: (1000, 0, False, 1, 0, 2),
        B0: (1000, 0, False, 1, 0, 2),
    }


def test_with_transaction_version_2_each_end_raises_the_epoch(all_: Coordinators) -> None:
    producer = all_.ongoing(A0, bumps=True)
    assert all_.end(*producer, bumps=True) == [(NONE, 1000, 1)]
    assert markers_of(all_.asked())[A0] == (1000, 1, True, 0, 2, 1)
    assert all_.end(*producer, bumps=True) == [(CONCURRENT, -1, -1)]


def test_an_abort_of_nothing_raises_the_epoch_without_markers(all_: Coordinators) -> None:
    all_.initialize()
    assert all_.end(1000, 0, commit=False, bumps=True) == [(NONE, 1000, 1)]
    assert all_.asked() == []
    assert all_.log.states() == ["Empty", "PrepareAbort", "CompleteAbort"]
    assert all_.add(1000, 1, A0, bumps=True) == [(NONE,)]


def test_epochs_that_are_used_up_lead_to_a_new_producer_id(all_: Coordinators) -> None:
    all_.initialize()
    transaction = all_.transaction()
    transaction.data = msgspec.structs.replace(transaction.data, producer_epoch=32765)
    assert all_.end(1000, 32765, commit=False, bumps=True) == [(NONE, 1000, 32766)]
    assert all_.add(1000, 32766, A0, bumps=True) == [(NONE,)]
    all_.has_ids = False
    assert all_.end(1000, 32766, bumps=True) == [(E.COORDINATOR_LOAD_IN_PROGRESS, -1, -1)]
    all_.has_ids = True
    assert all_.end(1000, 32766, bumps=True) == [(NONE, 1001, 0)]
    assert markers_of(all_.asked())[A0] == (1000, 32767, True, 0, 2, 1)


def test_partitions_that_are_there_already_are_not_written_again(all_: Coordinators) -> None:
    producer = all_.ongoing(A0, A1)
    assert all_.add(*producer, A1) == [(NONE,)]
    assert all_.log.states() == ["Empty", "Ongoing"]


@pytest.mark.parametrize(("error", "answered"), APPEND_ERRORS.items())
def test_failed_appends_change_nothing(all_: Coordinators, error: E, answered: E) -> None:
    all_.log.errors = [error]
    assert all_.initialize() == [(answered, -1, -1)]
    assert all_.leader.transactions() == []
    producer = all_.ongoing(A0)
    all_.log.errors = [error] * 3
    assert all_.add(*producer, A1) == [(answered,)]
    assert all_.end(*producer) == [(answered, -1, -1)]
    assert all_.end(*producer, bumps=True) == [(answered, -1, -1)]
    assert all_.state() == S.ONGOING
    assert all_.asked() == []
    assert all_.end(*producer) == [(NONE, -1, -1)]
    assert set(markers_of(all_.asked())) == {A0}


def test_answers_wait_for_the_commit_and_others_get_concurrent_transactions(all_: Coordinators) -> None:
    producer = all_.ongoing(A0)
    all_.log.holds = True
    added = all_.add(*producer, A1)
    assert all_.add(*producer, A1) == [(CONCURRENT,)]
    assert all_.end(*producer, bumps=True) == [(CONCURRENT, -1, -1)]
    assert all_.initialize() == [(CONCURRENT, -1, -1)]
    # As in Kafka a verification is answered all the same, by what is committed.
    assert all_.leader.verify_partitions("id", *producer, [A0, A1]) == {A0: NONE, A1: E.TRANSACTION_ABORTABLE}
    assert added == []
    all_.log.partitions[0].commit()
    assert added == [(NONE,)]
    ended = all_.end(*producer)
    assert (ended, all_.asked()) == ([], [])
    all_.log.partitions[0].commit()
    assert ended == [(NONE, -1, -1)]
    assert set(markers_of(all_.asked())) == {A0, A1}


def test_while_markers_are_written_all_but_fenced_producers_get_concurrent_transactions(
    all_: Coordinators,
) -> None:
    producer = all_.ongoing(A0)
    all_.end(*producer)
    assert all_.initialize() == [(CONCURRENT, -1, -1)]
    assert all_.initialize(producer_id=7, epoch=7) == [(CONCURRENT, -1, -1)]
    assert all_.add(7, 7, A0) == [(CONCURRENT,)]
    assert all_.end(*producer, commit=False) == [(CONCURRENT, -1, -1)]
    assert all_.end(7, 0) == [(E.INVALID_PRODUCER_ID_MAPPING, -1, -1)]
    assert all_.end(1000, 7) == [(E.PRODUCER_FENCED, -1, -1)]
    assert all_.end(7, 7, bumps=True) == [(CONCURRENT, -1, -1)]
    assert all_.leader.verify_partitions("id", *producer, [A0]) == {A0: CONCURRENT}
    assert all_.leader.verify_partitions("id", 1000, 7, [A0]) == {A0: E.PRODUCER_FENCED}


def test_an_append_times_out_with_its_transaction(all_: Coordinators) -> None:
    producer = all_.ongoing(A0, timeout_ms=5000)
    slow = all_.ongoing(A0, name="slow", timeout_ms=50_000)
    all_.log.holds = True
    of_slow = all_.end(*slow, name="slow")
    ended = all_.end(*producer)
    all_.runtime.advance(4.9)
    assert ended == []
    all_.runtime.advance(0.2)
    assert ended == [(E.COORDINATOR_NOT_AVAILABLE, -1, -1)]
    assert all_.end(*producer) == [(CONCURRENT, -1, -1)]  # it may be committed yet
    all_.runtime.advance(44)
    assert of_slow == []
    all_.runtime.advance(2)
    assert of_slow == [(E.COORDINATOR_NOT_AVAILABLE, -1, -1)]
    all_.log.holds = False
    all_.log.partitions[0].commit()
    all_.write_markers()
    assert all_.end(*producer) == [(NONE, -1, -1)]
    assert all_.state("slow") == S.COMPLETE_COMMIT


def test_a_new_producer_fences_the_transaction_of_the_former_one(all_: Coordinators) -> None:
    producer = all_.ongoing(A0)
    assert all_.initialize() == [(CONCURRENT, -1, -1)]
    assert markers_of(all_.asked())[A0] == (1000, 1, False, 0, 2, 1)
    assert all_.end(*producer) == [(E.PRODUCER_FENCED, -1, -1)]


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_fence_that_fails_raises_the_epoch_once(all_: Coordinators, level: int) -> None:
    all_.metadata.features["transaction.version"] = level
    all_.ongoing(A0)
    all_.log.errors = [E.NOT_ENOUGH_REPLICAS] * 2
    for _ in range(2):
        assert all_.initialize() == [(E.COORDINATOR_NOT_AVAILABLE, -1, -1)]
    assert all_.initialize() == [(CONCURRENT, -1, -1)]
    assert all_.write_markers() == 1
    assert all_.initialize() == [(NONE, 1000, 2)]


def test_without_producer_ids_the_producer_tries_again(all_: Coordinators) -> None:
    all_.has_ids = False
    assert all_.initialize() == [(E.COORDINATOR_LOAD_IN_PROGRESS, -1, -1)]
    all_.has_ids = True
    assert all_.initialize() == [(NONE, 1000, 0)]


def test_two_first_requests_with_one_id_share_a_producer_id(all_: Coordinators) -> None:
    all_.log.holds = True
    first, second = all_.initialize(), all_.initialize()
    all_.log.partitions[0].commit()
    assert (first, second) == ([(NONE, 1000, 0)], [(CONCURRENT, -1, -1)])
    third = all_.initialize()
    all_.log.partitions[0].commit()
    assert third == [(NONE, 1000, 1)]


def test_what_is_refused_at_once(all_: Coordinators) -> None:
    leader = all_.leader
    assert all_.initialize("") == [(E.INVALID_REQUEST, -1, -1)]
    for timeout_ms in (-1, 0, 900_001):
        assert all_.initialize(timeout_ms=timeout_ms) == [(E.INVALID_TRANSACTION_TIMEOUT, -1, -1)]
    assert all_.add(1, 0, A0, name="") == [(E.INVALID_REQUEST,)]
    assert all_.end(1, 0, name="") == [(E.INVALID_REQUEST, -1, -1)]
    assert leader.verify_partitions("", 1, 0, [A0]) == {A0: E.INVALID_REQUEST}
    assert leader.describe("") == E.INVALID_REQUEST
    unknown = E.INVALID_PRODUCER_ID_MAPPING
    assert all_.add(1, 0, A0) == [(unknown,)]
    assert all_.end(1, 0) == [(unknown, -1, -1)]
    assert leader.verify_partitions("id", 1, 0, [A0]) == {A0: unknown}
    assert leader.describe("id") == E.TRANSACTIONAL_ID_NOT_FOUND


def test_an_id_that_fits_a_request_but_no_record(all_: Coordinators) -> None:
    assert all_.initialize("x" * 40_000) == [(E.UNKNOWN_SERVER_ERROR, -1, -1)]
    assert all_.leader.transactions() == []


# -- markers


def test_a_transaction_is_complete_when_the_last_marker_is_written(all_: Coordinators) -> None:
    producer = all_.ongoing(A0, A1, B0)
    all_.end(*producer)
    of_1, of_2 = all_.asked()
    all_.brokers.asked = [of_1]
    all_.write_markers()
    assert all_.state() == S.PREPARE_COMMIT
    assert all_.transaction().data.partitions == {A1, B0}
    all_.brokers.asked = [of_2]
    all_.write_markers()
    assert all_.state() == S.COMPLETE_COMMIT
    assert all_.transaction().data.partitions == frozenset()


def test_a_deleted_partition_needs_no_marker(all_: Coordinators) -> None:
    producer = all_.ongoing(A0, B0)
    del all_.metadata.leaders[B0]
    all_.end(*producer)
    assert all_.write_markers() == 1
    assert all_.state() == S.COMPLETE_COMMIT


def test_markers_wait_for_a_leader(all_: Coordinators) -> None:
    producer = all_.ongoing(A0)
    all_.metadata.leaders[A0] = -1
    all_.end(*producer)
    assert all_.asked() == []
    assert all_.leader.markers.unknown_destinations == 1
    all_.metadata.leaders[A0] = 2
    all_.metadata.changed()
    assert markers_of(all_.asked()) == {A0: (1000, 0, True, 0, 0, 2)}


def test_markers_wait_for_a_broker_that_registers(all_: Coordinators) -> None:
    producer = all_.ongoing(A0)
    all_.metadata.leaders[A0] = 3
    all_.end(*producer)
    assert all_.asked() == []
    all_.metadata.leaders[A0] = 2
    for listener in all_.metadata.broker_listeners:
        listener(all_.metadata.image, {2})
    assert len(all_.asked()) == 1


def test_a_completion_that_fails_is_written_again(all_: Coordinators) -> None:
    producer = all_.ongoing(A0)
    all_.end(*producer)
    all_.log.errors = [E.NOT_ENOUGH_REPLICAS] * 3
    all_.write_markers()
    assert all_.state() == S.PREPARE_COMMIT
    assert all_.leader.completions_to_retry == 1
    assert all_.initialize() == [(CONCURRENT, -1, -1)]
    all_.runtime.advance(3)
    assert all_.state() == S.COMPLETE_COMMIT
    assert all_.leader.completions_to_retry == 0
    assert all_.log.states()[-1:] == ["CompleteCommit"]
    assert all_.log.states().count("CompleteCommit") == 1


def test_markers_that_a_newer_coordinator_has_fenced_stay_unwritten(all_: Coordinators) -> None:
    producer = all_.ongoing(A0)
    all_.end(*producer)
    assert all_.write_markers(E.TRANSACTION_COORDINATOR_FENCED) == 1
    all_.runtime.advance(60)
    assert all_.asked() == []
    assert all_.state() == S.PREPARE_COMMIT


@pytest.mark.slow
def test_a_transaction_of_many_partitions_is_completed_in_short_turns() -> None:
    all_ = Coordinators()
    partitions = [("large", index) for index in range(5000)]
    all_.metadata.leaders |= dict.fromkeys(partitions, 2)
    image = all_.metadata.image
    all_.all[1].markers._image = lambda: image  # made once
    producer = all_.ongoing(*partitions)
    all_.end(*producer)
    assert all_.write_markers() == 2
    assert all_.state() == S.COMPLETE_COMMIT


# -- timeouts


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_transaction_is_aborted_after_its_timeout(all_: Coordinators, level: int) -> None:
    all_.metadata.features["transaction.version"] = level
    producer = all_.ongoing(A0, timeout_ms=25_000)
    all_.runtime.advance(24)
    all_.add(*producer, A1)  # does not extend it
    assert all_.state() == S.ONGOING
    all_.runtime.advance(10)
    assert all_.state() == S.PREPARE_ABORT
    assert markers_of(all_.asked())[A1] == (1000, 1, False, 0, 2 if level == 2 else 0, 2)
    assert all_.end(*producer) == [(E.PRODUCER_FENCED, -1, -1)]


def test_an_id_cannot_break_a_line_of_the_log(all_: Coordinators, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "barnabas.transactions")
    all_.ongoing(A0, name="line\nbreak" + "x" * 1000, timeout_ms=1000)
    all_.runtime.advance(11)
    (line,) = (entry.getMessage() for entry in caplog.records if "is aborted" in entry.getMessage())
    assert line.startswith("'line\\nbreakxxx")
    assert len(line) < 400
    assert "\n" not in line


def test_an_abort_that_fails_is_tried_again(all_: Coordinators) -> None:
    all_.ongoing(A0, timeout_ms=1000)
    all_.log.errors = [E.NOT_ENOUGH_REPLICAS]
    all_.runtime.advance(10.1)
    assert all_.state() == S.ONGOING
    all_.runtime.advance(10.1)
    assert markers_of(all_.asked())[A0][1] == 1


def test_transactions_that_are_not_open_do_not_time_out(all_: Coordinators) -> None:
    all_.initialize(timeout_ms=1000)
    producer = all_.ongoing(A0, name="ended", timeout_ms=1000)
    all_.end(*producer, name="ended")
    all_.write_markers()
    all_.runtime.advance(60)
    assert (all_.state(), all_.state("ended")) == (S.EMPTY, S.COMPLETE_COMMIT)


# -- expiry


def test_ids_expire_in_batches() -> None:
    all_ = Coordinators(transaction_abort_timed_out_transaction_cleanup_interval_ms="900000")
    count = 2 * EXPIRED_IDS_MAX + 1
    for number in range(count):
        all_.initialize(f"many-{number}")
    before = len(all_.log.partitions[0].batches)
    all_.runtime.advance(7 * DAY_S - 10)
    producer = all_.ongoing(A0, timeout_ms=900_000)
    all_.runtime.advance(3600)
    all_.end(*producer)
    assert all_.leader.transactions() == [all_.transaction()]
    assert len(all_.log.partitions[0].batches) - before < 10
    assert sum(each.data is None for each in all_.log.records()) == count
    assert all_.initialize("many-1")[0][1:] == (all_.next_id - 1, 0)


@pytest.mark.slow
def test_long_ids_expire_in_batches_that_fit_into_the_log() -> None:
    all_ = Coordinators()
    for number in range(20):
        all_.initialize(f"{number}-{'x' * 30_000}")
    before = len(all_.log.partitions[0].batches)
    all_.runtime.advance(7 * DAY_S + 3600)
    assert all_.leader.transactions() == []
    batches = all_.log.partitions[0].batches[before:]
    assert all(len(each) < 500_000 for each in batches)


@pytest.mark.slow
def test_an_expiry_that_fails_leaves_the_ids_usable(all_: Coordinators) -> None:
    all_.initialize()
    all_.runtime.advance(7 * DAY_S - 10)
    all_.log.errors = [E.NOT_ENOUGH_REPLICAS]
    all_.runtime.advance(3600)
    assert all_.log.errors == []
    assert all_.initialize() == [(NONE, 1000, 1)]


@pytest.mark.slow
def test_ids_do_not_expire_by_a_clock_that_is_not_trusted(
    all_: Coordinators, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_.initialize()
    monkeypatch.setattr(Coordinators, "deletion_time_ms", lambda _: None)
    all_.runtime.advance(8 * DAY_S)
    assert all_.state() == S.EMPTY


@pytest.mark.slow
def test_an_id_that_is_being_removed_cannot_be_used(all_: Coordinators) -> None:
    all_.initialize()
    all_.log.holds = True
    all_.runtime.advance(7 * DAY_S + 3600)
    assert all_.initialize() == [(CONCURRENT, -1, -1)]
    all_.log.partitions[0].commit()
    assert all_.leader.describe("id") == E.TRANSACTIONAL_ID_NOT_FOUND


# -- settings


def test_settings_are_kafkas() -> None:
    all_ = Coordinators(
        transaction_max_timeout_ms="5000",
        transactional_id_expiration_ms="60000",
        transaction_remove_expired_transaction_cleanup_interval_ms="1000",
        transaction_abort_timed_out_transaction_cleanup_interval_ms="500",
    )
    assert all_.initialize(timeout_ms=5001) == [(E.INVALID_TRANSACTION_TIMEOUT, -1, -1)]
    all_.ongoing(A0, timeout_ms=5000)
    all_.runtime.advance(5.6)
    assert all_.write_markers() == 1
    all_.runtime.advance(62)
    assert all_.leader.describe("id") == E.TRANSACTIONAL_ID_NOT_FOUND
