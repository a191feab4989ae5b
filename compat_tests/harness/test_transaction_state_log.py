"""The checks of __transaction_state find what they are for: good records pass, and each change of them that breaks a rule is named."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.broker.transactions.records import encode_key, encode_value
from barnabas.broker.transactions.state import TransactionState
from barnabas.broker.transactions.transaction import Transition
from compat_tests.harness.transaction_history import ABORT, COMMIT, LogBatch, TransactionViolation
from compat_tests.harness.transaction_state_log import (
    REMOVED,
    StateRecord,
    check_markers,
    check_memory,
    check_sequence,
    decode,
)

T0, T1 = ("a", 0), ("a", 1)
BOTH = frozenset({T0, T1})


def _record(state: str, epoch: int, **fields: Any) -> StateRecord:
    known = {"producer_id": 7, "previous_producer_id": 7, "timeout_ms": 1000, **fields}
    return StateRecord("t", state, epoch=epoch, **known)


def _records() -> list[StateRecord]:
    """A client of version 2 commits, one of version 0 aborts, a fence aborts, the producer id changes, and the id expires."""
    first = {"partitions": frozenset({T0})}
    both = {"partitions": BOTH}
    raising = {"client_version": 2}
    last = {"client_version": 2, "next_producer_id": 9}
    return [
        _record("Empty", 0),
        _record("Ongoing", 0, **first, **raising),
        _record("Ongoing", 0, **both, **raising),
        _record("PrepareCommit", 1, **both, **raising),
        _record("CompleteCommit", 1, **raising),
        _record("Empty", 2),
        _record("Ongoing", 2, **both),
        _record("PrepareAbort", 2, **both),
        _record("CompleteAbort", 2),
        _record("Ongoing", 2, **both),
        _record("PrepareAbort", 3, **both, **raising),
        _record("CompleteAbort", 3, **raising),
        _record("Empty", 4),
        _record("PrepareAbort", 5, **last),
        _record("CompleteAbort", 0, producer_id=9, client_version=2),
        _record("Empty", 0, producer_id=11, previous_producer_id=9),
        StateRecord("t", REMOVED),
        _record("Empty", 0, producer_id=12, previous_producer_id=12),
    ]


def _logs() -> dict[tuple[str, int], list[LogBatch]]:
    def log() -> list[LogBatch]:
        return [
            LogBatch(0, 0, (7, 0), is_transactional=True, values=(b"1",), base_sequence=0),
            LogBatch(1, 1, (7, 1), is_transactional=True, marker=COMMIT),
            LogBatch(2, 2, (7, 2), is_transactional=True, values=(b"2",), base_sequence=0),
            LogBatch(3, 3, (7, 2), is_transactional=True, marker=ABORT),
            LogBatch(4, 4, (7, 2), is_transactional=True, values=(b"3",), base_sequence=1),
            LogBatch(5, 5, (7, 3), is_transactional=True, marker=ABORT),
        ]

    return {T0: log(), T1: log()}


def test_good_records_pass() -> None:
    records = _records()
    check_sequence(records)
    check_memory(records, {"t": records[-1]})
    check_markers(records, _logs())


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("state", [TransactionState.EMPTY, TransactionState.PREPARE_COMMIT])
def test_values_are_decoded(version: int, state: TransactionState) -> None:
    partitions = (
        frozenset() if state == TransactionState.EMPTY else frozenset({T0, T1, ("b" * 200, 2**31 - 1)})
    )
    data = Transition(
        producer_id=2**40,
        previous_producer_id=5,
        next_producer_id=6,
        producer_epoch=32_767,
        timeout_ms=60_000,
        state=state,
        partitions=partitions,
        start_timestamp=-1,
        last_update_timestamp=17,
        client_transaction_version=2 if version else 0,
    )
    value = encode_value(data, version)
    tags = (5, 6, 2) if version else (-1, -1, 0)
    expected = StateRecord(
        "id", "Empty" if state == TransactionState.EMPTY else "PrepareCommit", 2**40, 32_767, 60_000, partitions, 17, -1, *tags,
        version=min(version, 1),
    )  # fmt: skip
    assert decode(encode_key("id"), value) == expected
    assert decode(encode_key("id"), None) == StateRecord("id", REMOVED)


def _remove(index: int) -> Callable[[list[StateRecord]], None]:
    return lambda records: records.__delitem__(index)


def _repeat(index: int) -> Callable[[list[StateRecord]], None]:
    return lambda records: records.insert(index, records[index])


def _change(index: int, **fields: Any) -> Callable[[list[StateRecord]], None]:
    def change(records: list[StateRecord]) -> None:
        records[index] = dataclasses.replace(records[index], **fields)

    return change


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_repeat(4), "CompleteCommit"),  # a completion twice
        (_remove(3), "CompleteCommit"),  # ... without an end
        (_remove(4), "Empty"),  # an id is used before its completion
        (_change(0, epoch=1), "identity"),
        (_change(5, epoch=3), "identity"),  # a fence raises twice
        (_change(2, epoch=1), "identity"),
        (_change(3, epoch=0), "identity"),  # version 2 does not raise
        (_change(3, partitions=frozenset({T0})), "identity"),  # a commit forgets a partition
        (_change(7, epoch=1), "identity"),
        (_change(11, epoch=4), "identity"),
        (_change(14, producer_id=7, epoch=5), "identity"),  # the next producer id is lost
        (_change(14, epoch=1), "identity"),
        (_change(15, epoch=1), "identity"),
        (_change(8, previous_producer_id=8), "previous"),
        (_remove(16), "previous"),
    ],
)
def test_records_that_do_not_follow_are_named(change: Callable[[list[StateRecord]], None], text: str) -> None:
    records = _records()
    change(records)
    with pytest.raises(TransactionViolation, match=text):
        check_sequence(records)


def test_the_last_epoch_is_that_of_a_fence() -> None:
    records = _records()
    with pytest.raises(TransactionViolation, match="identity"):
        check_sequence(records, max_epoch=4)
    check_sequence(records, max_epoch=5)


@pytest.mark.parametrize(
    "fields",
    [
        {"state": "Ongoing"}, {"producer_id": 13}, {"epoch": 1}, {"timeout_ms": 1}, {"partitions": BOTH}, {"last_update_ms": 1},
        {"start_ms": 1}, {"previous_producer_id": 1}, {"next_producer_id": 1}, {"client_version": 2},
    ],
)  # fmt: skip
def test_memory_that_differs_is_named(fields: dict[str, Any]) -> None:
    records = _records()
    with pytest.raises(TransactionViolation, match="replay"):
        check_memory(records, {"t": dataclasses.replace(records[-1], **fields)})


def test_ids_that_are_missing_or_unknown_are_named() -> None:
    records = _records()
    with pytest.raises(TransactionViolation, match="replay"):
        check_memory(records, {})
    with pytest.raises(TransactionViolation, match="replay"):
        check_memory(records, {"t": records[-1], "u": dataclasses.replace(records[-1], transactional_id="u")})


def test_what_version_0_does_not_hold_is_not_compared() -> None:
    records = [dataclasses.replace(_record("Empty", 0), version=0, previous_producer_id=-1)]
    check_memory(records, {"t": _record("Empty", 0)})


def test_an_end_without_a_marker_is_named() -> None:
    for index in (1, 3, 5):
        logs = _logs()
        del logs[T1][index]
        with pytest.raises(TransactionViolation, match="there are 1 ends"):
            check_markers(_records(), logs)


def test_a_marker_without_an_end_is_named() -> None:
    logs = _logs()
    logs[T0].append(LogBatch(6, 6, (7, 4), is_transactional=True, marker=COMMIT))
    with pytest.raises(TransactionViolation, match="no such end"):
        check_markers(_records(), logs)


def test_a_marker_of_the_epoch_of_its_data_is_named() -> None:
    logs = _logs()
    logs[T0][0] = dataclasses.replace(logs[T0][0], identity=(7, 1))
    with pytest.raises(TransactionViolation, match="epoch of its data"):
        check_markers(_records(), logs)
