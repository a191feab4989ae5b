"""Partitions of coordinators' logs that Kafka wrote, with transactions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.broker.coordinator.compacted_records import CommittedRecords
from barnabas.storage.segment.transaction_marker import build_marker
from barnabas.wire.record_batch import Record, build_batch

Step = tuple[str, int, int]  # what, producer (0: none), key


def batches(steps: list[Step]) -> list[bytes]:
    """One batch for each step, the value of a record is its offset."""
    made = []
    for offset, (what, producer, key) in enumerate(steps):
        if what in ("commit", "abort"):
            if producer:
                made.append(
                    build_marker(producer, 0, commit=what == "commit", coordinator_epoch=0, timestamp=0)
                )
            continue
        record = Record(offset, 0, b"%d" % key, None if what == "remove" else b"%d" % offset)
        inside: dict[str, Any] = {}
        if producer:
            inside = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
        made.append(build_batch([record], base_offset=offset, **inside))
    return made


def model(steps: list[Step]) -> dict[int, int]:
    """Key -> offset of the record that stands at the end; slow and obvious: at each end of a transaction all
    steps before are looked through again."""
    state: dict[int, int] = {}

    def count(offset: int) -> None:
        what, _, key = steps[offset]
        if state.get(key, -1) < offset:
            state[key] = offset
            if what == "remove":
                del state[key]

    for offset, (what, producer, _) in enumerate(steps):
        if what in ("write", "remove") and not producer:
            count(offset)
        elif what == "commit" and producer:
            ends = [
                at for at in range(offset) if steps[at][0] in ("commit", "abort") and steps[at][1] == producer
            ]
            begin = max(ends, default=-1)
            for at in range(begin + 1, offset):
                if steps[at][0] in ("write", "remove") and steps[at][1] == producer:
                    count(at)
    return state


def count(name: str, batches: list[bytes]) -> list[Record]:
    records = CommittedRecords()
    counted = [record for batch in batches for record in records.of(batch)]
    records.end(name)
    return counted


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "remove", "commit", "abort"]), st.integers(0, 2), st.integers(0, 2)
    ),
    max_size=14,
)


@settings(max_examples=400)
@given(steps=STEPS)
def test_what_counts_is_what_was_committed(steps: list[Step]) -> None:
    state: dict[int, int] = {}
    for record in count("p", batches(steps)):
        key = int(record.key or b"")
        state.pop(key, None)
        if record.value is not None:
            state[key] = int(record.value)
    assert state == model(steps)


def test_an_open_transaction_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    steps: list[Step] = [("write", 1, 0), ("write", 1, 1), ("write", 0, 2)]
    assert [record.value for record in count("p-0", batches(steps))] == [b"2"]
    assert [record.message for record in caplog.records] == [
        "p-0: 2 records of transactions that have not ended are passed over"
    ]
