"""Counts without bytes, and requests full of empty tagged fields: no memory, no time, and no one else waits.

Kafka's own: CVE-2022-34917 and what followed, arrays and tagged fields whose counts are believed.
"""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Iterator

import pytest

from barnabas.broker.requests.registry import REGISTRATIONS
from barnabas.wire.headers import API_VERSIONS
from barnabas.wire.primitives import MAX_TAGGED_FIELDS, DecodeError, skip_tagged_fields, uvarint
from barnabas.wire.registry import request_type

SASL_AUTHENTICATE = 36
LARGEST = uvarint(2**31 - 1)
SECONDS_MAX = 0.5  # of the processor, traced; it takes milliseconds


def flexible() -> Iterator[tuple[int, int]]:
    for key in REGISTRATIONS:
        for version in range(REGISTRATIONS[key].min_version, REGISTRATIONS[key].max_version + 1):
            if request_type(key).flexible(version):
                yield key, version


def refused_at_once(key: int, version: int, body: bytes) -> None:
    """The body may be one, or is refused; it takes little either way."""
    decode = request_type(key).decode  # the first time it is imported, which takes memory of its own
    tracemalloc.start()
    began = time.process_time()
    try:
        decode(version, body)
    except DecodeError:
        pass
    finally:
        taken_s = time.process_time() - began
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 256 * 1024
    assert taken_s < SECONDS_MAX


@pytest.mark.parametrize(("key", "version"), list(flexible()))
def test_a_count_is_not_believed(key: int, version: int) -> None:
    request_type(key)  # its module is loaded
    for zeros in range(0, 40, 3):
        refused_at_once(key, version, bytes(zeros) + LARGEST + bytes(1000))
        refused_at_once(key, version, b"\x02" * zeros + LARGEST + bytes(1000))


@pytest.mark.parametrize("count", [2**31 - 1, 2**32 - 1, MAX_TAGGED_FIELDS + 1])
def test_more_tagged_fields_than_the_limit_are_refused_before_they_are_read(count: int) -> None:
    encoded = uvarint(count)
    with pytest.raises(DecodeError):
        skip_tagged_fields(encoded[1:] + bytes(10), 0, len(encoded) + 9, encoded[0])


def test_a_request_full_of_empty_tags_holds_no_object_for_each() -> None:
    tags = b"".join(uvarint(tag) + b"\0" for tag in range(MAX_TAGGED_FIELDS))
    body = b"\x02a\x02b" + uvarint(MAX_TAGGED_FIELDS) + tags
    refused_at_once(API_VERSIONS, 3, body)
    assert request_type(API_VERSIONS).decode(3, body)[1] == len(body), "and is a request"


def test_a_token_with_empty_tags_before_authentication() -> None:
    tags = b"".join(uvarint(tag) + b"\0" for tag in range(MAX_TAGGED_FIELDS))
    refused_at_once(SASL_AUTHENTICATE, 2, b"\x01" + uvarint(MAX_TAGGED_FIELDS) + tags)
    refused_at_once(SASL_AUTHENTICATE, 2, b"\x01" + LARGEST + bytes(1000))


def test_an_array_of_elements_that_are_all_tags_takes_little() -> None:
    element = b"\x02t" + uvarint(40) + b"".join(uvarint(100 + tag) + b"\0" for tag in range(40))
    body = uvarint(1001) + element * 1000 + bytes(4)
    request_type(3)
    tracemalloc.start()
    try:
        request_type(3).decode(12, body)
    except DecodeError:
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10 * len(body)


def test_the_header_of_a_request_is_bounded_alike() -> None:
    """dispatch.py reads its tagged fields with the same function."""
    header = struct.pack(">hhih", API_VERSIONS, 3, 1, -1) + LARGEST
    with pytest.raises(DecodeError):
        skip_tagged_fields(header, len(header) - len(LARGEST) + 1, len(header), LARGEST[0])
