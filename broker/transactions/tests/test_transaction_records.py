"""The records against bytes of Apache Kafka 4.3.1's TransactionLog, and what is done with those that can't be read."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.coordinator.record_encoding import UnknownRecord
from barnabas.broker.transactions.records import (
    TransactionRecord,
    decode_record,
    encode_batch,
    encode_key,
    encode_value,
)
from barnabas.broker.transactions.state import TransactionState as S
from barnabas.broker.transactions.transaction import Transition
from barnabas.wire.records import iterate_records

PARTITIONS = frozenset({("t", 0), ("t", 7), ("__consumer_offsets", 3)})
EMPTY = Transition(
    producer_id=1000,
    producer_epoch=0,
    timeout_ms=60000,
    state=S.EMPTY,
    last_update_timestamp=1795237703970,
)
ONGOING = msgspec.structs.replace(
    EMPTY,
    previous_producer_id=1000,
    producer_epoch=4,
    state=S.ONGOING,
    partitions=PARTITIONS,
    start_timestamp=1795237703971,
    last_update_timestamp=1795237703972,
    client_transaction_version=2,
)
PREPARED = msgspec.structs.replace(
    ONGOING,
    producer_epoch=32767,
    next_producer_id=2000,
    state=S.PREPARE_COMMIT,
    last_update_timestamp=1795237703973,
)
COMPLETE = msgspec.structs.replace(
    ONGOING,
    producer_id=2000,
    producer_epoch=0,
    state=S.COMPLETE_COMMIT,
    partitions=frozenset(),
    last_update_timestamp=1795237703974,
)

# (data, finalized transaction.version, bytes). Kafka orders topics as a HashMap does: here it is "t" first.
GOLDEN: dict[str, tuple[Transition, int, str]] = {
    "empty, version 0": (
        EMPTY,
        0,
        "000000000000000003e800000000ea6000ffffffff000001a1fc817122ffffffffffffffff",
    ),
    "empty": (EMPTY, 1, "000100000000000003e800000000ea600000000001a1fc817122ffffffffffffffff00"),
    "ongoing": (
        ONGOING,
        2,
        "000100000000000003e800040000ea600103027403000000000000000700135f5f636f6e73756d65725f6f666673657473020000"
        "000300000001a1fc817124000001a1fc81712302000800000000000003e802020002",
    ),
    "prepared, the last epoch": (
        PREPARED,
        2,
        "000100000000000003e87fff0000ea600203027403000000000000000700135f5f636f6e73756d65725f6f666673657473020000"
        "000300000001a1fc817125000001a1fc81712303000800000000000003e8010800000000000007d002020002",
    ),
    "complete": (
        COMPLETE,
        1,
        "000100000000000007d000000000ea600401000001a1fc817126000001a1fc81712302000800000000000003e802020002",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_reads_what_kafka_writes(name: str) -> None:
    data, _, value = GOLDEN[name]
    assert decode_record(encode_key("tid"), bytes.fromhex(value)) == TransactionRecord("tid", data)


@pytest.mark.parametrize("name", GOLDEN)
def test_same_bytes_as_kafka_but_for_the_order_of_topics(name: str) -> None:
    data, version, value = GOLDEN[name]
    kafkas = bytes.fromhex(value)
    ours = encode_value(data, version)
    assert ours is not None
    assert sorted(ours) == sorted(kafkas)
    if not data.partitions:
        assert ours == kafkas
    assert decode_record(encode_key("tid"), ours).data == data


def test_same_key_as_kafka() -> None:
    assert encode_key("my-id-é") == bytes.fromhex("000000086d792d69642dc3a9")


def test_tombstone() -> None:
    record = TransactionRecord("x", None)
    assert encode_value(None, 2) is None
    assert decode_record(encode_key("x"), None) == record


def test_a_transaction_of_version_2_keeps_its_tags_while_version_0_is_finalized() -> None:
    value = encode_value(PREPARED, 0)
    assert decode_record(encode_key("x"), value).data == PREPARED


def test_version_0_does_not_hold_the_previous_producer_id() -> None:
    data = msgspec.structs.replace(EMPTY, previous_producer_id=7)
    assert decode_record(encode_key("x"), encode_value(data, 0)).data == EMPTY
    assert decode_record(encode_key("x"), encode_value(data, 1)).data == data


def test_a_batch_holds_the_records_in_order() -> None:
    records = [TransactionRecord("a", EMPTY), TransactionRecord("b", None), TransactionRecord("c", ONGOING)]
    stored = list(iterate_records(encode_batch(records, 123, 2)))
    assert [(each.offset, each.timestamp) for each in stored] == [(0, 123), (1, 123), (2, 123)]
    assert [decode_record(each.key, each.value) for each in stored] == records


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, None),
        (b"", None),
        (b"\x00\x05\x00\x00", None),
        (b"\x00\x00\x00\x05a", None),
        (b"\x00\x00\x00\x01a", b""),
        (b"\x00\x00\x00\x01a", b"\x00\x09\x00\x00"),
        (b"\x00\x00\x00\x01a", b"\x00\x01\x00\x00"),
        *(
            (
                b"\x00\x00\x00\x01a",
                bytes.fromhex(f"000100000000000003e800000000ea60{state}00000001a1fc817122ffffffffffffffff00"),
            )
            for state in ("06", "07", "08", "ff")
        ),
    ],
)
def test_records_that_cannot_be_read_are_unknown(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(UnknownRecord):
        decode_record(key, value)


@given(st.binary(max_size=40), st.one_of(st.none(), st.binary(max_size=80)))
def test_arbitrary_bytes_give_a_record_or_unknown(key: bytes, value: bytes | None) -> None:
    for prefix in (b"", b"\x00\x00", b"\x00\x00\x00\x00"):
        for version in (b"", b"\x00\x00", b"\x00\x01"):
            try:
                decode_record(prefix + key, None if value is None else version + value)
            except UnknownRecord:
                pass


states = st.sampled_from([state for state in S if state not in (S.DEAD, S.PREPARE_EPOCH_FENCE, S.EMPTY)])
i64 = st.integers(-1, 2**63 - 1)


@given(
    st.builds(
        Transition,
        producer_id=i64,
        previous_producer_id=i64,
        next_producer_id=i64,
        producer_epoch=st.integers(-1, 32767),
        last_producer_epoch=st.just(-1),
        timeout_ms=st.integers(1, 2**31 - 1),
        state=states,
        partitions=st.frozensets(st.tuples(st.text(max_size=20), st.integers(0, 2**31 - 1)), max_size=6),
        start_timestamp=i64,
        last_update_timestamp=i64,
        client_transaction_version=st.sampled_from([0, 2]),
        is_fence=st.just(False),
    ),
    st.sampled_from([1, 2]),
    st.text(max_size=50),
)
def test_a_record_is_read_as_it_was_written(data: Transition, version: int, name: str) -> None:
    assert decode_record(encode_key(name), encode_value(data, version)) == TransactionRecord(name, data)
