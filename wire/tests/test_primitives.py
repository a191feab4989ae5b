"""Varints, UUID text, error codes and headers."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.request_header.v1.header import RequestHeader as KioHeader1
from kio.schema.request_header.v2.header import RequestHeader as KioHeader2
from kio.serial import entity_reader

from barnabas.wire import primitives, records
from barnabas.wire.errors import ErrorCode
from barnabas.wire.headers import (
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request_header,
    encode_response_header,
    request_header_version,
    response_header_version,
)
from barnabas.wire.primitives import DecodeError
from barnabas.wire.record_batch import InvalidBatch
from barnabas.wire.registry import API_NAMES, request_type, response_type
from barnabas.wire.uuids import uuid_from_string, uuid_to_string


@given(st.integers(0, 2**31 - 1), st.binary(max_size=3))
def test_an_unsigned_varint_reads_back(value: int, tail: bytes) -> None:
    encoded = primitives.uvarint(value)
    assert len(encoded) == max(1, -(-value.bit_length() // 7))
    assert primitives.read_uvarint(encoded + tail, 0) == (value, len(encoded))


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1))
def test_a_zigzag_varint_reads_back(small: int, large: int) -> None:
    for read, value in ((records._read_varint, small), (records._read_varlong, large)):
        encoded = primitives.varint(value)
        assert read(encoded, 0, len(encoded)) == (value, len(encoded))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "00"), (-1, "01"), (1, "02"), (-2, "03"), (300, "d804"), (-(2**31), "ffffffff0f")],
)
def test_zigzag_golden_bytes(value: int, encoded: str) -> None:
    assert primitives.varint(value).hex() == encoded


@given(st.binary(max_size=12))
def test_any_bytes_read_as_a_varint_or_raise_invalid_batch(raw: bytes) -> None:
    for read, bits in ((records._read_varint, 32), (records._read_varlong, 64)):
        try:
            value, end = read(raw, 0, len(raw))
        except InvalidBatch:
            continue
        assert -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)
        assert end <= len(raw)


@pytest.mark.parametrize("raw", [b"\xff\xff\xff\xff\xff\x01", b"\xff\xff\xff\xff\x08", b"\x80" * 10])
def test_an_unsigned_varint_of_more_than_31_bits_is_refused(raw: bytes) -> None:
    with pytest.raises(DecodeError, match="31 bits"):
        primitives.read_uvarint(raw, 0)


@given(st.binary(min_size=16, max_size=16))
def test_a_uuid_reads_back_from_its_text(uuid: bytes) -> None:
    text = uuid_to_string(uuid)
    assert len(text) == 22
    assert "=" not in text
    assert uuid_from_string(text) == uuid


def test_uuid_text_golden_values_and_wrong_ones() -> None:
    assert uuid_to_string(primitives.ZERO_UUID) == "AAAAAAAAAAAAAAAAAAAAAA"
    assert uuid_to_string(bytes([0xFB, 0xFF] * 8)) == "-__7__v_-__7__v_-__7_w"
    for text in ("", "AAAA", "A" * 21, "A" * 25, "é" * 22):
        with pytest.raises(ValueError, match=r"UUID|base64|padded|characters|ASCII"):
            uuid_from_string(text)


def test_error_codes_agree_with_kio_where_it_has_them() -> None:
    assert len(ErrorCode) == 135
    for theirs in KioErrorCode:
        mine = ErrorCode(theirs.value)
        assert mine.name.lower() == theirs.name.lower().rstrip("_")
        assert mine.retriable == theirs.retriable, mine
        assert mine.message
    assert ErrorCode.of(9999) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert ErrorCode.of(-1) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert ErrorCode.of(3) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@given(
    st.sampled_from([(0, 3), (0, 9), (18, 3), (18, 99), (3, 0), (17, 1), (71, 0)]),
    st.integers(-(2**31), 2**31 - 1),
    st.none() | st.text(max_size=200),
)
def test_a_request_header_reads_as_in_kio(
    api: tuple[int, int], correlation_id: int, client_id: str | None
) -> None:
    key, version = api
    header = RequestHeader(key, version, correlation_id, client_id)
    encoded = encode_request_header(header)
    assert decode_request_header(encoded + b"body") == (header, len(encoded))
    kio_class: Any = {1: KioHeader1, 2: KioHeader2}[request_header_version(key, version)]
    theirs, size = entity_reader(kio_class)(encoded, 0)
    assert size == len(encoded)
    assert (theirs.request_api_key, theirs.request_api_version) == api
    assert (theirs.correlation_id, theirs.client_id) == (correlation_id, client_id)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_header_or_raise_decode_error(raw: bytes) -> None:
    try:
        _, end = decode_request_header(memoryview(raw))
    except DecodeError:
        return
    assert end <= len(raw)


def test_header_versions() -> None:
    assert [request_header_version(0, version) for version in (3, 8, 9, 13)] == [1, 1, 2, 2]
    assert [response_header_version(0, version) for version in (3, 8, 9, 13)] == [0, 0, 1, 1]
    assert request_header_version(18, 3) == 2
    assert response_header_version(18, 3) == 0
    assert request_header_version(17, 1) == 1  # SaslHandshake never became flexible
    assert encode_response_header(18, 4, 7) == b"\0\0\0\7"
    assert encode_response_header(0, 9, 7) == b"\0\0\0\7\0"
    for key, version in ((18, 4), (0, 9), (0, 3)):
        encoded = encode_response_header(key, version, 7)
        assert decode_response_header(key, version, encoded + b"body") == (7, len(encoded))


@pytest.mark.sockets
def test_the_registry_finds_all_apis_and_imports_each_on_first_use() -> None:
    for key, name in API_NAMES.items():
        request, response = request_type(key), response_type(key)
        assert (request.name, response.name) == (f"{name}Request", f"{name}Response")
        assert request.api_key == response.api_key == key
        assert (request.min_version, request.max_version) == (response.min_version, response.max_version)
        assert request_type(key) is request
    code = (
        "import sys, barnabas.wire.registry, barnabas.wire.headers\n"
        "print(*sorted(name for name in sys.modules if name.startswith('barnabas.wire.messages.')))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.split() == ["barnabas.wire.messages.index"]


@given(st.binary(max_size=12), st.integers(0, 255), st.integers(0, 12))
def test_any_bytes_are_skipped_as_tagged_fields_or_raise_decode_error(
    raw: bytes, count: int, end: int
) -> None:
    """`end` is where the frame ends: bytes of the next one may lie behind it."""
    end = min(end, len(raw))
    try:
        position = primitives.skip_tagged_fields(memoryview(raw), 0, end, count)
    except DecodeError:
        return
    assert position <= end


@given(st.sampled_from(sorted(API_NAMES)), st.integers(-1, 20), st.binary(max_size=24), st.integers(0, 34))
def test_any_bytes_read_as_a_request_header_or_raise_decode_error(
    api_key: int, version: int, raw: bytes, end: int
) -> None:
    framed = api_key.to_bytes(2, "big") + version.to_bytes(2, "big", signed=True) + raw
    end = min(end, len(framed))
    try:
        header, position = decode_request_header(memoryview(framed), 0, end)
    except DecodeError:
        return
    assert header.api_key == api_key
    assert position <= end


@given(st.sampled_from(sorted(API_NAMES)), st.integers(-1, 20), st.binary(max_size=12))
def test_any_bytes_read_as_a_response_header_or_raise_decode_error(
    api_key: int, version: int, raw: bytes
) -> None:
    try:
        _, position = decode_response_header(api_key, version, memoryview(raw))
    except DecodeError:
        return
    assert position <= len(raw)
