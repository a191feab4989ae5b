"""Old message formats: clients can not write them, but a log that holds them opens, is served and loses nothing."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.storage.segment.legacy_format import read_legacy_header
from barnabas.storage.tests.workshop import offset_for_timestamp
from barnabas.wire.record_batch import CorruptBatch


def message(magic: int, offset: int, value: bytes, timestamp: int = -1) -> bytes:
    body = struct.pack(">bb", magic, 0) + (struct.pack(">q", timestamp) if magic else b"")
    body += struct.pack(">i", -1) + struct.pack(">i", len(value)) + value
    entry = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(entry)) + entry


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_of_older_formats_opens_and_takes_appends(workshop: Any, clean: bool) -> None:
    entries = [message(0, offset, b"v" * offset) for offset in range(20)]
    entries += [message(1, offset, b"v", workshop.now + offset) for offset in range(20, 40)]
    entries.append(message(1, 42, b"", workshop.now + 42))  # compacted, and the shortest there is
    path = "/logs/t-0/00000000000000000000.log"
    workshop.disk.write_file(path, b"".join(entries))
    log = workshop.log(clean=clean, index_interval_bytes=100)
    assert (log.log_end_offset, log.size) == (43, sum(map(len, entries)))
    log.append_as_leader(workshop.batch(2, timestamp=workshop.now + 100), 0)
    log.close()
    again = workshop.log(clean=clean, recovery_point=log.log_end_offset)
    assert again.log_end_offset == 45
    stored = b"".join(region.read() for region in again.read(0, 1 << 20).regions)
    assert stored.startswith(b"".join(entries))
    read = again.read(5, 1)
    assert b"".join(region.read() for region in read.regions) == entries[5]
    found = offset_for_timestamp(again, workshop.now + 25)
    assert (found.offset, found.timestamp) == (25, workshop.now + 25)


def test_a_torn_end_is_cut(workshop: Any) -> None:
    entries = [message(1, offset, b"value", workshop.now) for offset in range(5)]
    damaged = bytearray(b"".join(entries))
    damaged[-1] ^= 1
    workshop.disk.write_file("/logs/t-0/00000000000000000000.log", bytes(damaged) + entries[0][:20])
    log = workshop.log(clean=False)
    assert (log.log_end_offset, log.size) == (4, len(damaged) - len(entries[-1]))


@given(st.binary(max_size=80))
def test_bytes_from_outside(data: bytes) -> None:
    try:
        read_legacy_header(data, 0)
    except CorruptBatch:
        pass
