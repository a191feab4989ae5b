"""The records against bytes that Apache Kafka 4.3.1 wrote, and what is done with those that can't be read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.coordinator.record_encoding import UnknownRecord
from barnabas.broker.coordinator.topic import java_string_hash, partition_for
from barnabas.broker.groups.group import MalformedSubscription, subscribed_topics
from barnabas.broker.groups.offsets import CommittedOffset
from barnabas.broker.groups.records import (
    GroupRecord,
    GroupTombstone,
    GroupWritten,
    OffsetWritten,
    decode_record,
    encode_batch,
    encode_record,
)
from barnabas.wire.messages.consumer_offsets import GroupMetadataValue, MemberMetadata
from barnabas.wire.records import Record, build_batch, iterate_records

MEMBER = "i1-d8c4b114-0a97-43a3-84e4-44462200ed27"

# (record, key and value as they stood in the log of Apache Kafka 4.3.1)
GOLDEN: dict[str, tuple[GroupRecord, str, str | None]] = {
    "commit": (
        OffsetWritten(
            ("", "t", 0),
            CommittedOffset(
                5, -1, "m", 1795237703970, topic_id=bytes.fromhex("3a8a3cf534c84ce080f16f8713ec6621")
            ),
        ),
        "0001000000017400000000",
        "00040000000000000005ffffffff026d000001a1fc8171220100103a8a3cf534c84ce080f16f8713ec6621",
    ),
    "commit with a retention time": (
        OffsetWritten(("simple3", "t", 0), CommittedOffset(5, -1, "m", 1795237704019, 1795242704019)),
        "0001000773696d706c653300017400000000",
        "0001000000000000000500016d000001a1fc817153000001a1fccdbc93",
    ),
    "offset tombstone": (OffsetWritten(("", "t", 0), None), "0001000000017400000000", None),
    "group tombstone": (GroupTombstone(""), "00020000", None),
    "new group": (
        GroupWritten("st", GroupMetadataValue("", 0, None, None, 1795237704074, [])),
        "000200027374",
        "0003000000000000ffffffff000001a1fc81718a00000000",
    ),
    "stable group": (
        GroupWritten(
            "st",
            GroupMetadataValue(
                "consumer",
                1,
                "range",
                MEMBER,
                1795237704075,
                [MemberMetadata(MEMBER, "i1", "cl", "/127.0.0.1", 10000, 10000, b"x", b"as")],
            ),
        ),
        "000200027374",
        "00030008636f6e73756d657200000001000572616e6765002769312d64386334623131342d306139372d343361332d38"
        "3465342d343434363232303065643237000001a1fc81718b00000001002769312d64386334623131342d306139372d34"
        "3361332d383465342d343434363232303065643237000269310002636c000a2f3132372e302e302e3100002710000027"
        "100000000178000000026173",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_same_bytes_as_kafka(name: str) -> None:
    record, key, value = GOLDEN[name]
    assert encode_record(record) == (bytes.fromhex(key), None if value is None else bytes.fromhex(value))


@pytest.mark.parametrize("name", GOLDEN)
def test_reads_what_kafka_wrote(name: str) -> None:
    record, key, value = GOLDEN[name]
    stored = Record(0, 0, bytes.fromhex(key), None if value is None else bytes.fromhex(value))
    assert decode_record(stored.key, stored.value) == record


def test_a_batch_holds_the_records_in_order() -> None:
    records = [record for record, _, _ in GOLDEN.values()]
    stored = list(iterate_records(encode_batch(records, 123)))
    assert [(each.offset, each.timestamp) for each in stored] == [
        (index, 123) for index in range(len(records))
    ]
    assert [decode_record(each.key, each.value) for each in stored] == records


def test_older_value_versions() -> None:
    key = bytes.fromhex(GOLDEN["offset tombstone"][1])
    version_0 = bytes.fromhex("0000000000000000000700026d320000000000000009")
    decoded = decode_record(key, version_0)
    assert decoded == OffsetWritten(("", "t", 0), CommittedOffset(7, -1, "m2", 9))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b""),
        (b"", b""),
        (b"\x00", None),
        (bytes.fromhex("0003000161"), b"\x00\x00"),  # a consumer group's
        (bytes.fromhex("0002000161"), bytes.fromhex("0009")),
        (bytes.fromhex("0002000161"), b""),
        (bytes.fromhex("00020005"), None),
        (bytes.fromhex("0002000161"), bytes.fromhex("000300010a")),
    ],
)
def test_records_that_cannot_be_read_are_unknown(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(UnknownRecord):
        decode_record(key, value)


@given(st.binary(max_size=40), st.one_of(st.none(), st.binary(max_size=80)))
def test_arbitrary_bytes_give_a_record_or_unknown(key: bytes, value: bytes | None) -> None:
    for prefix in (b"", b"\x00\x01", b"\x00\x02"):
        try:
            decode_record(prefix + key, value)
        except UnknownRecord:
            pass


def test_loading_skips_what_it_cannot_read(bench: Any) -> None:
    bench.commit({("t", 0): 1})
    bench.log.batches.insert(0, build_batch([Record(0, 0, b"\x00\x63zz", b"?")]))
    assert bench.restarted().shard.offsets.get("group", "t", 0).offset == 1


# -- partitions and subscriptions


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("group", 98629247),
        ("console-consumer-12345", 158455506),
        ("\U0001f600", 1772899),
    ],
)
def test_hash_is_javas(text: str, expected: int) -> None:
    assert java_string_hash(text) == expected


def test_the_one_hash_without_an_absolute_value() -> None:
    assert java_string_hash("polygenelubricants") == -(1 << 31)
    assert partition_for("polygenelubricants", 50) == 0


@given(st.binary(max_size=60))
def test_a_subscription_is_read_or_refused(data: bytes) -> None:
    try:
        topics = subscribed_topics(data)
    except MalformedSubscription:
        return
    assert sum(len(topic.encode()) for topic in topics) <= len(data)


def test_subscription_of_any_version() -> None:
    body = b"\x00\x00\x00\x02\x00\x01a\x00\x02bb\xff\xff\xff\xff"
    for version in range(4):
        assert subscribed_topics(version.to_bytes(2, "big") + body + b"owned, rack, ...") == {"a", "bb"}
