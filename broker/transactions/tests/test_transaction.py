"""The decisions: Kafka's tables row by row."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.broker.transactions.state import PREDECESSORS, STATES_BY_LABEL
from barnabas.broker.transactions.state import TransactionState as S
from barnabas.broker.transactions.transaction import (
    ACCEPTED,
    NEEDS_PRODUCER_ID,
    Accepted,
    Transaction,
    Transition,
)
from barnabas.wire.errors import ErrorCode as E

PID = 1000
PREVIOUS_PID = 999
T0, T1 = ("t", 0), ("t", 1)
NOW = 1_700_000_000_000


def make(state: S, **fields: Any) -> Transaction:
    """An id in this state, with epoch 5."""
    is_open = state in (S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT)
    values: dict[str, Any] = {
        "producer_id": PID,
        "previous_producer_id": PID,
        "producer_epoch": 5,
        "timeout_ms": 60_000,
        "partitions": frozenset({T0}) if is_open else frozenset(),
        "start_timestamp": -1 if state == S.EMPTY else NOW - 10,
        "last_update_timestamp": NOW - 5,
        **fields,
    }
    return Transaction("id", Transition(state=state, **values))


def initialize(transaction: Transaction, producer_id: int = -1, epoch: int = -1, **options: Any) -> Any:
    arguments: dict[str, Any] = {"timeout_ms": 30_000, "now_ms": NOW, "transaction_version": 2, **options}
    return transaction.initialize(producer_id=producer_id, producer_epoch=epoch, **arguments)


def written(transaction: Transaction, transition: Any) -> Transition:
    assert isinstance(transition, Transition), transition
    transaction.begin(transition)
    return transaction.apply()


def test_the_states_are_kafkas() -> None:
    """As TransactionState of Apache Kafka 4.3.1 prints them."""
    names = "Empty Ongoing PrepareCommit PrepareAbort CompleteCommit CompleteAbort Dead PrepareEpochFence"
    assert [state.label for state in S] == names.split()
    assert list(S) == list(range(8))
    assert all(STATES_BY_LABEL[state.label] is state for state in S)
    idle = {S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT}
    assert {
        S.EMPTY: idle,
        S.ONGOING: idle | {S.ONGOING},
        S.PREPARE_COMMIT: {S.ONGOING},
        S.PREPARE_ABORT: idle | {S.ONGOING, S.PREPARE_EPOCH_FENCE},
        S.COMPLETE_COMMIT: {S.PREPARE_COMMIT},
        S.COMPLETE_ABORT: {S.PREPARE_ABORT},
        S.DEAD: idle,
        S.PREPARE_EPOCH_FENCE: {S.ONGOING},
    } == PREDECESSORS


def test_an_unlisted_transition_is_an_error() -> None:
    with pytest.raises(AssertionError):
        make(S.ONGOING).expire()
    with pytest.raises(AssertionError):
        make(S.EMPTY).complete(NOW)


# -- InitProducerId


def test_a_new_id_begins_with_epoch_0() -> None:
    transaction = Transaction.new("id", PID, 30_000, NOW)
    data = written(transaction, initialize(transaction))
    assert (data.producer_id, data.producer_epoch, data.last_producer_epoch) == (PID, 0, -1)
    assert (data.state, data.timeout_ms, data.start_timestamp) == (S.EMPTY, 30_000, -1)


IDLE_STATES = [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT]


@pytest.mark.parametrize("state", IDLE_STATES)
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((-1, -1), (6, -1)),
        ((PID, 5), (6, 5)),
        ((PID, 4), (5, 4)),  # a retry: the last epoch was 4
        ((PID, 3), E.PRODUCER_FENCED),
        ((PID, 6), E.PRODUCER_FENCED),
        ((7, 5), E.PRODUCER_FENCED),
        ((PREVIOUS_PID, 5), E.PRODUCER_FENCED),
        ((PREVIOUS_PID, 32766), E.PRODUCER_FENCED),  # the id matches, the epoch does not
    ],
)
def test_initialize_while_no_transaction_is_open(state: S, given: tuple[int, int], expected: Any) -> None:
    transaction = make(state, last_producer_epoch=4, previous_producer_id=PREVIOUS_PID)
    decided = initialize(transaction, *given)
    if isinstance(expected, E):
        assert decided is expected
    else:
        data = written(transaction, decided)
        assert (data.producer_id, data.producer_epoch, data.last_producer_epoch) == (PID, *expected)
        assert (data.state, data.partitions, data.timeout_ms) == (S.EMPTY, frozenset(), 30_000)


@pytest.mark.parametrize("epoch", [32766, 32767])
def test_epochs_are_exhausted(epoch: int) -> None:
    transaction = make(S.COMPLETE_ABORT, producer_epoch=epoch)
    assert initialize(transaction) is NEEDS_PRODUCER_ID
    assert initialize(transaction, PID, epoch) is NEEDS_PRODUCER_ID
    assert initialize(transaction, PID, epoch - 1) is E.PRODUCER_FENCED
    data = written(transaction, initialize(transaction, PID, epoch, new_producer_id=2000))
    assert (data.producer_id, data.producer_epoch, data.last_producer_epoch) == (2000, 0, epoch)
    assert data.previous_producer_id == PID
    retried = written(transaction, initialize(transaction, PID, epoch))
    assert (retried.producer_id, retried.producer_epoch) == (2000, 0)


@pytest.mark.parametrize("state", [S.PREPARE_COMMIT, S.PREPARE_ABORT])
def test_initialize_while_markers_are_written(state: S) -> None:
    assert initialize(make(state)) is E.CONCURRENT_TRANSACTIONS
    assert initialize(make(state), 7, 5) is E.PRODUCER_FENCED


@pytest.mark.parametrize(("version", "marker_version"), [(0, 0), (1, 0), (2, 2)])
def test_initialize_fences_an_open_transaction(version: int, marker_version: int) -> None:
    transaction = make(S.ONGOING)
    data = written(transaction, initialize(transaction, transaction_version=version))
    assert (data.state, data.producer_epoch, data.is_fence) == (S.PREPARE_ABORT, 6, True)
    assert (data.client_transaction_version, set(data.partitions)) == (marker_version, {T0})
    assert data.last_producer_epoch == (5 if version == 2 else -1)
    completed = written(transaction, transaction.complete(NOW))
    assert (completed.state, completed.producer_epoch) == (S.COMPLETE_ABORT, 6)
    assert written(transaction, initialize(transaction)).producer_epoch == 7


def test_a_failed_fence_of_version_1_raises_the_epoch_once() -> None:
    transaction = make(S.ONGOING)
    for _ in range(3):
        transaction.begin(transaction.fence(NOW, 1))
        assert transaction.data.producer_epoch == 6, "the producer is fenced at once"
        transaction.drop()
        assert transaction.has_failed_epoch_fence
        assert transaction.end(PID, 5, commit=True, now_ms=NOW) is E.PRODUCER_FENCED
    assert written(transaction, transaction.fence(NOW, 1)).producer_epoch == 6
    assert not transaction.has_failed_epoch_fence


def test_a_failed_fence_of_version_2_leaves_the_epoch() -> None:
    transaction = make(S.ONGOING)
    transaction.begin(transaction.fence(NOW, 2))
    transaction.drop()
    assert (transaction.data.producer_epoch, transaction.has_failed_epoch_fence) == (5, False)
    assert written(transaction, transaction.fence(NOW, 2)).producer_epoch == 6


def test_a_fence_that_failed_before_the_version_was_raised_raises_the_epoch_once() -> None:
    transaction = make(S.ONGOING)
    transaction.begin(transaction.fence(NOW, 1))
    transaction.drop()
    data = written(transaction, transaction.fence(NOW, 2))
    assert (data.producer_epoch, data.client_transaction_version) == (6, 0)


def test_a_failed_abort_of_a_client_is_no_failed_fence() -> None:
    transaction = make(S.ONGOING)
    ended = transaction.end(PID, 5, commit=False, now_ms=NOW)
    assert isinstance(ended, Transition)
    transaction.begin(ended)
    transaction.drop()
    assert not transaction.has_failed_epoch_fence


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("epoch", [32766, 32767])
def test_a_fence_takes_the_last_epoch(version: int, epoch: int) -> None:
    transaction = make(S.ONGOING, producer_epoch=epoch)
    assert written(transaction, transaction.fence(NOW, version)).producer_epoch == 32767
    assert written(transaction, transaction.complete(NOW)).producer_epoch == 32767
    assert initialize(transaction) is NEEDS_PRODUCER_ID


# -- AddPartitionsToTxn


@pytest.mark.parametrize("state", [S.EMPTY, S.ONGOING, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
@pytest.mark.parametrize("supports_epoch_bump", [False, True])
def test_partitions_are_added(state: S, supports_epoch_bump: bool) -> None:
    transaction = make(state)
    start = transaction.data.start_timestamp
    added = transaction.add_partitions(PID, 5, {T0, T1}, supports_epoch_bump=supports_epoch_bump, now_ms=NOW)
    data = written(transaction, added)
    assert (data.state, set(data.partitions)) == (S.ONGOING, {T0, T1})
    assert data.start_timestamp == (start if state == S.ONGOING else NOW)
    assert data.client_transaction_version == (2 if supports_epoch_bump else 0)
    again = transaction.add_partitions(PID, 5, {T1}, supports_epoch_bump=False, now_ms=NOW)
    assert again is ACCEPTED


@pytest.mark.parametrize(
    ("state", "producer_id", "epoch", "error"),
    [
        (S.EMPTY, 7, 5, E.INVALID_PRODUCER_ID_MAPPING),
        (S.PREPARE_COMMIT, 7, 5, E.INVALID_PRODUCER_ID_MAPPING),
        (S.ONGOING, PID, 4, E.PRODUCER_FENCED),
        (S.ONGOING, PID, 6, E.PRODUCER_FENCED),
        (S.PREPARE_ABORT, PID, 4, E.PRODUCER_FENCED),
        (S.PREPARE_COMMIT, PID, 5, E.CONCURRENT_TRANSACTIONS),
        (S.PREPARE_ABORT, PID, 5, E.CONCURRENT_TRANSACTIONS),
    ],
)
def test_who_may_not_add_or_verify(state: S, producer_id: int, epoch: int, error: E) -> None:
    transaction = make(state)
    added = transaction.add_partitions(producer_id, epoch, {T0}, supports_epoch_bump=True, now_ms=NOW)
    assert added is error
    assert transaction.verify_partitions(producer_id, epoch, {T0, T1}) == {T0: error, T1: error}


@pytest.mark.parametrize("state", [S.EMPTY, S.ONGOING, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_verification(state: S) -> None:
    first = E.NONE if state == S.ONGOING else E.TRANSACTION_ABORTABLE
    transaction = make(state)
    expected = {T0: first, T1: E.TRANSACTION_ABORTABLE}
    assert transaction.verify_partitions(PID, 5, {T0, T1}) == expected
    added = transaction.add_partitions(PID, 5, {T1}, supports_epoch_bump=True, now_ms=NOW)
    assert isinstance(added, Transition)
    transaction.begin(added)
    assert transaction.verify_partitions(PID, 5, {T0, T1}) == expected, "what is pending does not count"


# -- EndTxn

PREPARES = "prepares"
CT, ITS, FENCED, NONE = E.CONCURRENT_TRANSACTIONS, E.INVALID_TXN_STATE, E.PRODUCER_FENCED, E.NONE


@pytest.mark.parametrize(
    ("state", "commit", "abort"),
    [
        (S.ONGOING, PREPARES, PREPARES),
        (S.EMPTY, ITS, ITS),
        (S.COMPLETE_COMMIT, NONE, ITS),
        (S.COMPLETE_ABORT, ITS, NONE),
        (S.PREPARE_COMMIT, CT, ITS),
        (S.PREPARE_ABORT, ITS, CT),
    ],
)
def test_end_without_a_new_epoch(state: S, commit: Any, abort: Any) -> None:
    for is_commit, expected in ((True, commit), (False, abort)):
        transaction = make(state)
        for epoch in (4, 6):
            assert transaction.end(PID, epoch, commit=is_commit, now_ms=NOW) is FENCED
        mapping = transaction.end(7, 5, commit=is_commit, now_ms=NOW)
        assert mapping is E.INVALID_PRODUCER_ID_MAPPING
        ended = transaction.end(PID, 5, commit=is_commit, now_ms=NOW)
        if expected is PREPARES:
            data = written(transaction, ended)
            assert data.state == (S.PREPARE_COMMIT if is_commit else S.PREPARE_ABORT)
            assert (data.producer_epoch, data.client_transaction_version) == (5, 0)
            assert written(transaction, transaction.complete(NOW)).producer_epoch == 5
        else:
            assert ended == (ACCEPTED if expected is NONE else expected)


BUMPING = [
    # state, sender's epoch, commit, abort
    (S.ONGOING, 5, PREPARES, PREPARES),
    (S.ONGOING, 4, FENCED, FENCED),
    (S.EMPTY, 5, ITS, PREPARES),
    (S.EMPTY, 4, FENCED, FENCED),
    (S.COMPLETE_COMMIT, 5, ITS, PREPARES),
    (S.COMPLETE_COMMIT, 4, NONE, ITS),
    (S.COMPLETE_ABORT, 5, ITS, PREPARES),
    (S.COMPLETE_ABORT, 4, ITS, NONE),
    (S.PREPARE_COMMIT, 4, CT, ITS),
    (S.PREPARE_COMMIT, 5, FENCED, FENCED),
    (S.PREPARE_ABORT, 4, ITS, CT),
    (S.PREPARE_ABORT, 5, FENCED, FENCED),
]


@pytest.mark.parametrize(("state", "epoch", "commit", "abort"), BUMPING)
def test_end_with_a_new_epoch(state: S, epoch: int, commit: Any, abort: Any) -> None:
    for is_commit, expected in ((True, commit), (False, abort)):
        transaction = make(state, client_transaction_version=2)
        for other in (3, 6):
            assert transaction.end_bumping(PID, other, commit=is_commit, now_ms=NOW) is FENCED
        mapping = transaction.end_bumping(7, epoch, commit=is_commit, now_ms=NOW)
        assert mapping is E.INVALID_PRODUCER_ID_MAPPING
        ended = transaction.end_bumping(PID, epoch, commit=is_commit, now_ms=NOW)
        if expected is PREPARES:
            data = written(transaction, ended)
            assert data.state == (S.PREPARE_COMMIT if is_commit else S.PREPARE_ABORT)
            assert (data.producer_epoch, data.last_producer_epoch) == (6, 5)
            assert (data.client_transaction_version, data.next_identity) == (2, (PID, 6))
            assert data.start_timestamp == (NOW - 10 if state == S.ONGOING else NOW)
            assert written(transaction, transaction.complete(NOW)).producer_epoch == 6
        else:
            assert ended == (Accepted(PID, 5) if expected is NONE else expected)


@pytest.mark.parametrize("commit", [False, True])
def test_a_fenced_producer_does_not_repeat_the_end_of_its_successor(commit: bool) -> None:
    """The successor keeps its epoch, so that the one before it is not that of its end."""
    transaction = make(S.EMPTY, producer_epoch=4)
    assert written(transaction, initialize(transaction)).producer_epoch == 5
    added = transaction.add_partitions(PID, 5, {T0}, supports_epoch_bump=False, now_ms=NOW)
    written(transaction, added)
    written(transaction, transaction.end(PID, 5, commit=commit, now_ms=NOW))
    written(transaction, transaction.complete(NOW))
    assert transaction.end_bumping(PID, 4, commit=commit, now_ms=NOW) is FENCED


def test_a_producer_that_was_fenced_at_the_last_epoch_gets_none() -> None:
    """Its end is no repetition: it would get epoch 32767, which no fence can follow."""
    transaction = make(S.ONGOING, producer_epoch=32766)
    written(transaction, transaction.fence(NOW, 2))
    assert transaction.end_bumping(PID, 32766, commit=False, now_ms=NOW) is CT
    written(transaction, transaction.complete(NOW))
    assert transaction.end_bumping(PID, 32766, commit=True, now_ms=NOW) is ITS
    assert transaction.end_bumping(PID, 32766, commit=False, now_ms=NOW) is E.PRODUCER_FENCED


def test_the_producer_id_changes_after_the_last_epoch() -> None:
    transaction = make(S.ONGOING, producer_epoch=32766)
    arguments: dict[str, Any] = {"commit": True, "now_ms": NOW}
    assert transaction.end_bumping(PID, 32766, **arguments) is NEEDS_PRODUCER_ID
    data = written(transaction, transaction.end_bumping(PID, 32766, **arguments, new_producer_id=2000))
    assert (data.producer_id, data.producer_epoch, data.next_producer_id) == (PID, 32767, 2000)
    assert data.next_identity == (2000, 0)
    assert transaction.end_bumping(PID, 32766, **arguments) is CT
    completed = written(transaction, transaction.complete(NOW))
    assert (completed.producer_id, completed.producer_epoch, completed.next_producer_id) == (2000, 0, -1)
    assert (completed.previous_producer_id, completed.last_producer_epoch) == (PID, 32766)
    assert transaction.end_bumping(PID, 32766, **arguments) == Accepted(2000, 0)
    assert transaction.end_bumping(PID, 32766, commit=False, now_ms=NOW) is ITS
    assert transaction.end_bumping(PID, 32765, **arguments) is E.INVALID_PRODUCER_ID_MAPPING


# -- what is pending


def test_only_verification_is_answered_while_a_transition_is_pending() -> None:
    transaction = make(S.ONGOING)
    transaction.begin(transaction.fence(NOW, 2))
    assert initialize(transaction) is CT
    assert initialize(transaction, 7, 5) is CT
    added = transaction.add_partitions(7, 4, {T0}, supports_epoch_bump=False, now_ms=NOW)
    assert added is CT
    assert transaction.end_bumping(7, 4, commit=True, now_ms=NOW) is CT
    assert transaction.end(PID, 5, commit=True, now_ms=NOW) is CT
    assert transaction.end(7, 5, commit=True, now_ms=NOW) is E.INVALID_PRODUCER_ID_MAPPING
    assert transaction.end(PID, 4, commit=True, now_ms=NOW) is FENCED
    assert transaction.verify_partitions(PID, 5, [T0]) == {T0: NONE}
    assert not transaction.is_timed_out(NOW + 10**9)
    assert not transaction.is_expired(NOW + 10**9, 1)


def test_partitions_leave_as_their_markers_are_written() -> None:
    transaction = make(S.PREPARE_COMMIT, partitions=frozenset({T0, T1}))
    transaction.begin(transaction.complete(NOW))
    transaction.remove_partitions([T0])
    assert transaction.data.partitions == {T1}
    transaction.remove_partitions([T1, T0])
    assert transaction.apply().partitions == frozenset()


# -- timers


def test_timeout() -> None:
    transaction = make(S.ONGOING, start_timestamp=NOW)
    assert not transaction.is_timed_out(NOW + 60_000)
    assert transaction.is_timed_out(NOW + 60_001)
    assert not make(S.ONGOING, start_timestamp=NOW, timeout_ms=2**31 - 1).is_timed_out(NOW + 2**32)
    assert not make(S.PREPARE_ABORT, start_timestamp=NOW).is_timed_out(NOW + 60_001)


@pytest.mark.parametrize("state", [state for state in S if state != S.PREPARE_EPOCH_FENCE])
def test_expiry(state: S) -> None:
    transaction = make(state, last_update_timestamp=NOW)
    is_idle = state in IDLE_STATES
    assert not transaction.is_expired(NOW + 999, 1000)
    assert transaction.is_expired(NOW + 1000, 1000) == is_idle
    if is_idle:
        assert transaction.expire().state == S.DEAD


def test_an_id_whose_first_write_failed_expires() -> None:
    transaction = Transaction.new("id", PID, 30_000, NOW)
    transaction.begin(initialize(transaction))
    transaction.drop()
    assert transaction.is_expired(NOW + 1000, 1000)
    assert transaction.expire().producer_epoch == -1


@pytest.mark.parametrize("version", [1, 2])
def test_no_client_gets_the_epoch_of_a_fence(version: int) -> None:
    """The holder of the last epoch fences its own open transaction, and asks again with the epoch it had."""
    transaction = make(S.ONGOING, producer_epoch=32766)
    fence = initialize(transaction, PID, 32766, transaction_version=version)
    assert written(transaction, fence).producer_epoch == 32767
    written(transaction, transaction.complete(NOW))
    if version == 2:
        assert initialize(transaction, PID, 32766) is NEEDS_PRODUCER_ID
        data = written(transaction, initialize(transaction, PID, 32766, new_producer_id=2000))
        assert (data.producer_id, data.producer_epoch) == (2000, 0)
        again = written(transaction, initialize(transaction, PID, 32766))
        assert (again.producer_id, again.producer_epoch) == (2000, 0)
    else:
        assert initialize(transaction, PID, 32766) == E.PRODUCER_FENCED
