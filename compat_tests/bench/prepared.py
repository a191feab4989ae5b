"""Requests and record batches as prepared bytes, so that a measurement times the broker and not its driver.

Encoded field by field, in the last versions that have topic names: Produce 12 and Fetch 12 (flexible); and Metadata 4.
Sizes are in bytes, offsets count records.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

from compat_tests.harness.raw import STARTED_MS

CLIENT_ID = b"bench"
# Where a response's body starts: behind its size and, in flexible versions, the correlation id and no tags.
_BODY = 4 + 4 + 1
_PRODUCE, _FETCH, _METADATA, _API_VERSIONS = 0, 1, 3, 18


def batch(records: int, value_size: int, *, zeros: bool = False) -> bytes:
    """One uncompressed v2 batch of `records` records without keys, each value `value_size` bytes."""
    value = bytes(value_size) if zeros else bytes(i * 31 % 251 for i in range(value_size))
    body = b"".join(_record(delta, value) for delta in range(records))
    checked = struct.pack(">hiqqqhii", 0, records - 1, STARTED_MS, STARTED_MS, -1, -1, -1, records)
    checked += body
    return struct.pack(">qiibI", 0, 9 + len(checked), -1, 2, crc32c(checked)) + checked


def produce(topic: str, records: bytes, acks: int = 1, version: int = 12) -> bytes:
    """A Produce request with one batch for partition 0. Versions 9 to 12 have the same fields."""
    partition = struct.pack(">i", 0) + compact(records) + b"\0"
    topics = _one(compact(topic.encode()) + _one(partition) + b"\0")
    return _flexible_request(_PRODUCE, version, b"\0" + struct.pack(">hi", acks, 30_000) + topics + b"\0")


def produced(topic: str, response: bytes | bytearray | memoryview) -> tuple[int, int]:
    """The error code and base offset of a whole response (its size included) to `produce`."""
    start = _BODY + 1 + 1 + len(topic) + 1 + 4
    error, offset = struct.unpack_from(">hq", response, start)
    return int(error), int(offset)


def fetch(topic: str, offset: int, max_bytes: int, max_wait_ms: int = 500, isolation: int = 0) -> bytes:
    """A Fetch request for partition 0 from `offset`, at least 1 and at most about `max_bytes` bytes. `isolation`: 1 is
    read_committed."""
    partition = struct.pack(">iiqiqi", 0, -1, offset, -1, -1, max_bytes) + b"\0"
    topics = _one(compact(topic.encode()) + _one(partition) + b"\0")
    limits = struct.pack(">iiiibii", -1, max_wait_ms, 1, max(max_bytes, 1 << 20), isolation, 0, -1)
    return _flexible_request(_FETCH, 12, limits + topics + b"\1" + b"\1" + b"\0")


def fetched_error(topic: str, response: bytes | bytearray | memoryview) -> int:
    """The error code of a response to `fetch`: the request's own, or else the partition's."""
    (error,) = struct.unpack_from(">h", response, _BODY + 4)
    if error:
        return int(error)
    (error,) = struct.unpack_from(">h", response, _BODY + 4 + 2 + 4 + 1 + 1 + len(topic) + 1 + 4)
    return int(error)


def metadata(topic: str) -> bytes:
    """A Metadata request that lets the broker create the topic."""
    name = topic.encode()
    body = struct.pack(f">ih{len(name)}s?", 1, len(name), name, True)
    return _frame(_header(_METADATA, 4) + body)


def api_versions() -> bytes:
    """An ApiVersions request (version 0), the smallest there is."""
    return _frame(_header(_API_VERSIONS, 0))


def _record(offset_delta: int, value: bytes) -> bytes:
    inner = (
        b"\0" + _varint(0) + _varint(offset_delta) + _varint(-1) + _varint(len(value)) + value + _varint(0)
    )
    return _varint(len(inner)) + inner


def _varint(number: int) -> bytes:
    return unsigned_varint(number << 1 if number >= 0 else (-number << 1) - 1)


def unsigned_varint(number: int) -> bytes:
    """UNSIGNED_VARINT."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def compact(data: bytes) -> bytes:
    """COMPACT_BYTES or COMPACT_STRING."""
    return unsigned_varint(len(data) + 1) + data


def _one(element: bytes) -> bytes:
    """A compact array of one element."""
    return b"\2" + element


def _header(api_key: int, version: int) -> bytes:
    return struct.pack(f">hhih{len(CLIENT_ID)}s", api_key, version, 1, len(CLIENT_ID), CLIENT_ID)


def _flexible_request(api_key: int, version: int, body: bytes) -> bytes:
    return _frame(_header(api_key, version) + b"\0" + body)


def _frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload
