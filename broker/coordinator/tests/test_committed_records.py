"""Partitions of coordinators' logs with transactions."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.coordinator.compacted_records import CommittedRecords, CompactedRecords
from barnabas.storage.segment.transaction_marker import build_marker
from barnabas.wire.records import Record, build_batch

Step = tuple[str, int, int]  # what, producer (0: none), key


def batches(steps: list[Step]) -> list[bytes]:
    """One batch for each step, the value of a record is its offset."""
    made = []
    for offset, (what, producer, key) in enumerate(steps):
        if what in ("commit", "abort"):
            if producer:
                marker = build_marker(producer, 0, commit=what == "commit", coordinator_epoch=0, timestamp=0)
                made.append(offset.to_bytes(8, "big") + marker[8:])
            continue
        record = Record(offset, 0, b"%d" % key, None if what == "remove" else b"%d" % offset)
        inside: dict[str, Any] = {}
        if producer:
            inside = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
        made.append(build_batch([record], base_offset=offset, **inside))
    return made


def model(steps: list[Step]) -> tuple[dict[int, int], set[tuple[int, int, int]]]:
    """Kafka's rules, as its coordinator replays a log. Key -> offset of the record that stands at the end; and of what is pending
    (producer, key, offset)."""
    state: dict[int, int] = {}
    pending: set[tuple[int, int, int]] = set()
    for offset, (what, producer, key) in enumerate(steps):
        if what == "remove":
            state.pop(key, None)
            pending = {each for each in pending if each[1] != key}
        elif what == "write" and producer:
            pending = {each for each in pending if each[:2] != (producer, key)} | {(producer, key, offset)}
        elif what == "write":
            state[key] = offset
        elif producer:
            for each in [each for each in pending if each[0] == producer]:
                pending.remove(each)
                if what == "commit" and state.get(each[1], -1) < each[2]:
                    state[each[1]] = each[2]
    return state, pending


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "remove", "commit", "abort"]), st.integers(0, 2), st.integers(0, 2)
    ),
    max_size=14,
)


@given(steps=STEPS)
def test_committed_records_equal_those_of_a_simple_reader(steps: list[Step]) -> None:
    records = CommittedRecords()
    state: dict[int, int] = {}
    for batch in batches(steps):
        for record in records.of(batch):
            key = int(record.key or b"")
            state.pop(key, None)
            if record.value is not None:
                state[key] = int(record.value)
    found = [(write, int(key or b"")) for key, writes in records.pending for write in writes]
    pending = {(write.producer_id, key, write.value.offset) for write, key in found}
    assert (state, pending) == model(steps)
    for write, key in found:
        assert write.is_superseded == (state.get(key, -1) > write.value.offset)


def test_pending_writes_are_replayed_at_the_end() -> None:
    steps: list[Step] = [("write", 1, 0), ("write", 0, 0), ("write", 2, 0), ("write", 1, 1)]
    replayed: list[object] = []
    records = CompactedRecords(
        "p-0",
        lambda key, value: replayed.append((key, value)),
        replay_pending=lambda *write: replayed.append(write),
    )
    for _ in chain(records.take(b"".join(batches(steps))), records.finish()):
        pass
    assert replayed == [
        (b"0", b"1"),
        (b"0", b"0", 1, True),
        (b"0", b"2", 2, False),
        (b"1", b"3", 1, False),
    ]


def test_an_open_transaction_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    steps: list[Step] = [("write", 1, 0), ("write", 1, 1), ("write", 0, 2)]
    values: list[bytes | None] = []
    records = CompactedRecords("p-0", lambda _, value: values.append(value))
    for _ in chain(records.take(b"".join(batches(steps))), records.finish()):
        pass
    assert values == [b"2"]
    assert [record.message for record in caplog.records] == [
        "p-0: 2 records of transactions that have not ended are passed over"
    ]
