"""Counting what a Produce names: the same as decoding it does, and no further than the limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.wire.messages.produce import (
    PRODUCE_REQUEST,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from barnabas.wire.primitives import uvarint
from barnabas.wire.produce_elements import names_more_than

VERSIONS = (3, 8, 9, 12, 13)
partitions = st.builds(
    PartitionProduceData,
    st.integers(0, 1 << 20),
    st.one_of(st.none(), st.integers(0, 300).map(bytes)),
)
topics = st.builds(
    TopicProduceData,
    st.text(max_size=200),
    st.binary(min_size=16, max_size=16),
    st.lists(partitions, max_size=4),
)
requests = st.builds(
    ProduceRequest,
    st.one_of(st.none(), st.text(max_size=5)),
    st.just(1),
    st.just(1000),
    st.lists(topics, max_size=5),
)


def body(request: ProduceRequest, version: int) -> bytes:
    return b"".join(bytes(part) for part in PRODUCE_REQUEST.encode(version, request))  # type: ignore[call-overload]


@pytest.mark.parametrize("version", VERSIONS)
@given(request=requests)
def test_topics_and_partitions_are_counted(version: int, request: ProduceRequest) -> None:
    count = sum(1 + len(topic.partition_data) for topic in request.topic_data)
    data = b"before" + body(request, version)
    assert not names_more_than(count, data + b"behind", 6, len(data), version)
    assert names_more_than(count - 1, data + b"behind", 6, len(data), version)


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.binary(max_size=200), request=requests, cut=st.integers(0, 300))
def test_what_cannot_be_read_is_left_to_the_reader(
    version: int, data: bytes, request: ProduceRequest, cut: int
) -> None:
    for wrong in (data, body(request, version)[:cut], body(request, version)[:cut] + data):
        names_more_than(100, wrong, 0, len(wrong), version)


def test_tagged_fields_count() -> None:
    data = body(
        ProduceRequest(topic_data=[TopicProduceData("t", partition_data=[PartitionProduceData()])]), 9
    )
    tags = uvarint(9000) + b"".join(uvarint(tag) + b"\0" for tag in range(9000))
    tagged = data[:-3] + tags + data[-2:]
    assert PRODUCE_REQUEST.decode(9, tagged)[1] == len(tagged)
    assert names_more_than(9001, tagged, 0, len(tagged), 9)
    assert not names_more_than(9002, tagged, 0, len(tagged), 9)


@pytest.mark.parametrize("version", VERSIONS)
def test_no_more_is_looked_at_than_the_limit(version: int) -> None:
    """What stands behind may be anything."""
    many = [PartitionProduceData(index, b"") for index in range(200)]
    data = body(ProduceRequest(topic_data=[TopicProduceData("t", partition_data=many)]), version)[:1000]
    assert names_more_than(50, data, 0, len(data), version)
    topic = TopicProduceData("t", partition_data=[])
    data = body(ProduceRequest(topic_data=[topic] * 200), version)[:500]
    assert names_more_than(10, data, 0, len(data), version)
