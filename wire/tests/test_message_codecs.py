"""Every message in every version: a round trip, damaged bytes, and what an encoder refuses."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.wire.message_type import MessageType
from barnabas.wire.messages.fetch import FETCH_RESPONSE, FetchResponse
from barnabas.wire.messages.metadata import METADATA_REQUEST, MetadataRequest, MetadataRequestTopic
from barnabas.wire.messages.produce import (
    PRODUCE_REQUEST,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from barnabas.wire.primitives import DecodeError, EncodeError, uvarint
from barnabas.wire.schema_parser import Message, parse_file

SCHEMAS = sorted((Path(__file__).resolve().parents[1] / "schema").glob("*.txt"))
SAMPLES_PER_VERSION = 3
DAMAGES_PER_SAMPLE = 12


def joined(parts: list[Any]) -> bytes:
    return b"".join(bytes(part) for part in parts)


def every_version() -> Iterator[tuple[Message, int]]:
    for path in SCHEMAS:
        for message in parse_file(path).messages:
            for version in range(message.versions.first, message.versions.last + 1):
                yield message, version


def test_what_is_encoded_decodes_to_the_same_message(
    message_samples: Any, message_types: dict[str, MessageType[Any]]
) -> None:
    rng = random.Random(2)
    for message, version in every_version():
        kind = message_types[message.name]
        for _ in range(SAMPLES_PER_VERSION):
            value = message_samples(message, version, rng)
            encoded = joined(kind.encode(version, value))
            for buffer in (encoded, memoryview(encoded)):
                decoded, end = kind.decode(version, buffer)
                assert decoded == value, f"{message.name} {version}"
                assert end == len(encoded)
            framed = memoryview(b"??" + encoded + b"next frame")
            decoded, end = kind.readers[version](framed, 2, 2 + len(encoded))
            assert (decoded, end) == (value, 2 + len(encoded))


def test_a_default_message_encodes_in_every_version(message_types: dict[str, MessageType[Any]]) -> None:
    for kind in message_types.values():
        for version in range(kind.min_version, kind.max_version + 1):
            encoded = joined(kind.encode(version, kind.message_class()))
            assert kind.decode(version, encoded) == (kind.message_class(), len(encoded))


RETRIES = 3


@pytest.mark.slow
def test_damaged_bytes_raise_decode_errors_and_allocate_little(
    message_samples: Any, message_types: dict[str, MessageType[Any]]
) -> None:
    rng = random.Random(3)
    refused = accepted = 0
    tracemalloc.start()
    try:
        for message, version in every_version():
            kind = message_types[message.name]
            encoded = joined(kind.encode(version, message_samples(message, version, rng)))
            for _ in range(DAMAGES_PER_SAMPLE):
                damaged = damage(encoded, rng)
                limit = 20_000 + 200 * len(damaged)
                allocated, is_accepted = decoded_with(kind, version, damaged)
                for _ in range(
                    RETRIES
                ):  # a thread of another test in this process may have allocated meanwhile
                    if allocated >= limit:
                        allocated, _ = decoded_with(kind, version, damaged)
                assert allocated < limit, f"{message.name} {version} {damaged.hex()}"
                accepted += is_accepted
                refused += not is_accepted
    finally:
        tracemalloc.stop()
    assert refused > 1000
    assert accepted > 1000


def decoded_with(kind: MessageType[Any], version: int, data: bytes) -> tuple[int, bool]:
    """How many bytes were allocated at most while `data` was decoded, and whether that is a message."""
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    try:
        decoded, end = kind.decode(version, data)
        assert 0 <= end <= len(data)
        del decoded
        is_accepted = True
    except DecodeError:
        is_accepted = False
    return tracemalloc.get_traced_memory()[1] - before, is_accepted


def damage(encoded: bytes, rng: random.Random) -> bytes:
    """Truncated, with a bit flipped, with a length inflated, or replaced by noise."""
    raw = bytearray(encoded)
    match rng.randrange(4):
        case 0:
            return bytes(raw[: rng.randrange(len(raw) + 1)])
        case 1:
            for _ in range(rng.randint(1, 3)):
                if raw:
                    raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        case 2:
            at = rng.randrange(len(raw) + 1)
            huge = rng.choice(
                (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\x7f\xff", b"\xff" * 6, b"\x80" * 6)
            )
            raw[at : at + len(huge)] = huge
        case _:
            raw = bytearray(rng.randbytes(rng.randrange(40)))
    return bytes(raw)


@pytest.mark.parametrize(("version", "count"), [(4, b"\x00\x0f\x42\x41"), (12, uvarint(1_000_002))])
def test_an_array_longer_than_the_limit_is_refused_even_when_its_bytes_are_there(
    version: int, count: bytes
) -> None:
    topics = 1_000_001
    body = b"\x00\x00" * topics if version == 4 else (bytes(16) + b"\x00\x00") * topics
    with pytest.raises(DecodeError, match="1000001 elements"):
        METADATA_REQUEST.decode(version, count + body + b"\x00\x00\x00\x00")


def test_more_than_ten_thousand_tagged_fields_are_refused() -> None:
    head = joined(METADATA_REQUEST.encode(12, MetadataRequest()))[:-1]
    fields = b"".join(uvarint(tag) + b"\x00" for tag in range(10_001))
    assert METADATA_REQUEST.decode(12, head + uvarint(10_000) + fields)[0] == MetadataRequest()
    with pytest.raises(DecodeError, match="10001 tagged fields"):
        METADATA_REQUEST.decode(12, head + uvarint(10_001) + fields)


def test_unknown_tagged_fields_are_skipped() -> None:
    plain = joined(METADATA_REQUEST.encode(12, MetadataRequest(topics=None)))
    extended = plain[:-1] + b"\x02" + b"\x05\x03abc" + b"\xff\x01\x00"
    assert METADATA_REQUEST.decode(12, extended) == (MetadataRequest(topics=None), len(extended))


def test_a_tagged_field_must_fill_its_size() -> None:
    response = FetchResponse()
    encoded = joined(FETCH_RESPONSE.encode(16, response))
    assert encoded.endswith(b"\x00")
    tagged = (
        encoded[:-1] + b"\x01\x00\x05\x01" + b"zzzz"
    )  # node endpoints: an empty array takes one byte, not five
    with pytest.raises(DecodeError, match="size of the tagged field"):
        FETCH_RESPONSE.decode(16, tagged)


def test_strings_must_be_utf8_and_must_not_be_null_where_the_version_forbids_it() -> None:
    with pytest.raises(DecodeError, match="UTF-8"):
        METADATA_REQUEST.decode(4, b"\x00\x00\x00\x01\x00\x02\xff\xfe\x01")
    with pytest.raises(DecodeError, match="null"):
        METADATA_REQUEST.decode(4, b"\x00\x00\x00\x01\xff\xff\x01")
    with pytest.raises(EncodeError, match=r"MetadataRequestTopic\.Name must not be null"):
        METADATA_REQUEST.encode(9, MetadataRequest(topics=[MetadataRequestTopic(name=None)]))


def test_numbers_out_of_range_and_overlong_strings_are_refused_on_encoding() -> None:
    with pytest.raises(EncodeError, match="ProduceRequest"):
        PRODUCE_REQUEST.encode(3, ProduceRequest(acks=40_000))
    for version in (3, 9):
        with pytest.raises(EncodeError):
            PRODUCE_REQUEST.encode(version, ProduceRequest(transactional_id="x" * 32_768))
        PRODUCE_REQUEST.encode(version, ProduceRequest(transactional_id="x" * 32_767))


def test_versions_outside_the_range_are_refused() -> None:
    for version in (-1, 2, 14):
        with pytest.raises(DecodeError, match="no version"):
            PRODUCE_REQUEST.decode(version, b"")
        with pytest.raises(EncodeError, match="no version"):
            PRODUCE_REQUEST.encode(version, ProduceRequest())
    with pytest.raises(DecodeError):
        PRODUCE_REQUEST.readers[0](b"", 0, 0)


class Region:
    """Stands for a range of a file: a length, and no bytes to look at."""

    def __len__(self) -> int:
        return 70_000


@pytest.mark.parametrize("version", [3, 9, 13])
def test_records_pass_by_reference_in_both_directions(version: int) -> None:
    records = b"r" * 1000
    request = ProduceRequest(topic_data=[TopicProduceData(partition_data=[PartitionProduceData(0, records)])])
    parts = PRODUCE_REQUEST.encode(version, request)
    assert any(part is records for part in parts)
    encoded = joined(parts)
    decoded, _ = PRODUCE_REQUEST.decode(version, encoded)
    view = decoded.topic_data[0].partition_data[0].records
    assert isinstance(view, memoryview)
    assert view.obj is encoded


def test_a_fetch_response_takes_regions_it_cannot_read() -> None:
    from barnabas.wire.messages.fetch import FetchableTopicResponse, PartitionData

    region, tail = Region(), b"tail"
    for records, size in ((region, 70_000), ((region, tail), 70_004)):
        response = FetchResponse(
            responses=[FetchableTopicResponse(topic="t", partitions=[PartitionData(records=records)])]
        )
        parts: list[Any] = list(FETCH_RESPONSE.encode(11, response))
        at = next(index for index, part in enumerate(parts) if part is region)
        assert bytes(parts[at - 1])[-4:] == size.to_bytes(4, "big")
