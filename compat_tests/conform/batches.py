"""Record batches for the comparison, written independently of the broker's own builder.

`batch` builds a correct magic 2 batch; its keyword arguments override single header fields, so a case can choose the
wrong one. The CRC is computed over the resulting header, unless `crc` overrides it too.
`message_set` builds the old formats (magic 0 and 1) that Kafka refuses.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Sequence

import crc32c

TIME = 1_700_000_000_000
"""The timestamp (ms) of the first record of every batch; record n is TIME + n."""

LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20


def varint(value: int) -> bytes:
    """A zigzag varint, as record fields use it."""
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _field(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def record(
    index: int,
    value: bytes | None,
    key: bytes | None = None,
    headers: Sequence[tuple[str, bytes]] = (),
    delta: int | None = None,
) -> bytes:
    """One record with offset delta `index` and timestamp delta `delta` (default `index`)."""
    body = b"\x00" + varint(index if delta is None else delta) + varint(index) + _field(key) + _field(value)
    body += varint(len(headers)) + b"".join(_field(name.encode()) + _field(data) for name, data in headers)
    return varint(len(body)) + body


def batch(
    values: Sequence[bytes | None] = (b"a",),
    *,
    keys: Sequence[bytes | None] | None = None,
    base_offset: int = 0,
    leader_epoch: int = -1,
    magic: int = 2,
    attributes: int = 0,
    timestamp: int = TIME,
    max_timestamp: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    count: int | None = None,
    last_offset_delta: int | None = None,
    crc: int | None = None,
    batch_length: int | None = None,
    payload: bytes | None = None,
    use_gzip: bool = False,
) -> bytes:
    """A magic 2 batch of `values`; every keyword overrides the right value of a field."""
    if payload is None:
        payload = b"".join(record(i, value, keys[i] if keys else None) for i, value in enumerate(values))
    if use_gzip:
        payload, attributes = gzip.compress(payload, mtime=0), attributes | 1
    body = struct.pack(
        ">hiqqqhii",
        attributes,
        len(values) - 1 if last_offset_delta is None else last_offset_delta,
        timestamp,
        timestamp + max(len(values) - 1, 0) if max_timestamp is None else max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(values) if count is None else count,
    )
    body += payload
    checksum = crc32c.crc32c(body) if crc is None else crc
    length = 9 + len(body) if batch_length is None else batch_length
    return struct.pack(">qiibI", base_offset, length, leader_epoch, magic, checksum) + body


def message_set(magic: int, value: bytes = b"a") -> bytes:
    """A one-message set of the old format `magic` (0 or 1)."""
    head = struct.pack(">bb", magic, 0) + (struct.pack(">q", TIME) if magic == 1 else b"")
    body = head + struct.pack(">i", -1) + struct.pack(">i", len(value)) + value
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", 0, len(message)) + message
