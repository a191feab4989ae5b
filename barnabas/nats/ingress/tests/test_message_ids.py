"""Ids read in a flat loop, against the records as records.py reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.nats.ingress.dedup import kept_id
from barnabas.nats.ingress.message_ids import ids_of
from barnabas.wire.compression import Codec
from barnabas.wire.record_batch import RecordBatchError, read_header
from barnabas.wire.records import Record, build_batch, iterate_records

_TEXTS = st.one_of(
    st.sampled_from(["Nats-Msg-Id", "nats.subject", "Nats-Msg-Id2", "", "x" * 200]), st.text(max_size=12)
)
_BYTES = st.one_of(
    st.none(),
    st.binary(max_size=20),
    st.sampled_from([b"", b"\x16Nats-Msg-Id\x02a", b" \x16Nats-Msg-Id", b"v" * 63, b"v" * 64, b"v" * 9000]),
)
_RECORDS = st.lists(
    st.builds(
        Record,
        offset=st.just(0),
        timestamp=st.integers(0, 1 << 41),
        key=_BYTES,
        value=_BYTES,
        headers=st.lists(st.tuples(_TEXTS, _BYTES), max_size=4),
    ),
    min_size=1,
    max_size=8,
)


def slowly(batch: bytes) -> list[tuple[int, int, bytes]]:
    return [
        (
            record.offset,
            record.timestamp,
            kept_id(next((value for name, value in record.headers if name == "Nats-Msg-Id"), None) or b""),
        )
        for record in iterate_records(batch)
    ]


@given(
    _RECORDS, st.lists(st.integers(1, 300), min_size=8, max_size=8), st.sampled_from([Codec.NONE, Codec.GZIP])
)
def test_they_are_those_of_the_records(records: list[Record], gaps: list[int], codec: Codec) -> None:
    offset = 1 << 40
    for record, gap in zip(records, gaps, strict=False):
        record.offset = offset = offset + gap
    batch = build_batch(records, base_offset=records[0].offset, codec=codec)
    assert list(ids_of(batch, read_header(batch))) == slowly(batch)


@given(_RECORDS, st.data())
def test_damage_raises_one_family_of_errors(records: list[Record], data: st.DataObject) -> None:
    for number, record in enumerate(records):
        record.offset = number
    damaged = bytearray(build_batch(records))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(61, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    batch = bytes(damaged)
    try:
        found = list(ids_of(batch, read_header(batch)))
    except RecordBatchError:
        with pytest.raises(RecordBatchError):
            slowly(batch)
    else:
        assert len(found) == len(records)
