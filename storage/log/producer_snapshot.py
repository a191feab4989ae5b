"""Kafka's `.snapshot` files: the producers of one partition as of the offset that the file is named after.

Layout, big-endian (ProducerSnapshot.json of Kafka's storage jar, version 1):

    0 version i16 = 1 | 2 CRC-32C u32 (over everything from 6) | 6 entry count i32 | 10 entries, 46 bytes each:
    producer id i64 | epoch i16 | last sequence i32 | last offset i64 | offset delta i32 | timestamp i64
    coordinator epoch i32 | first offset of the open transaction i64

Of each producer it holds the last batch alone. A file of another form counts as none: the log's batches hold
the same facts.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable

from barnabas.storage.disk.disk import Disk
from barnabas.storage.log.producers import BATCHES_REMEMBERED, BatchMetadata, ProducerEntry
from barnabas.wire.checksum import crc32c
from barnabas.wire.compression import Bytes
from barnabas.wire.record_batch import NO_SEQUENCE

SNAPSHOT_SUFFIX = ".snapshot"
SNAPSHOT_VERSION = 1

_CRC_OFFSET = 2
_COUNT_OFFSET = 6
_HEADER = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")


class CorruptSnapshot(ValueError):
    """Not a snapshot of this version, or its CRC differs."""


def snapshot_path(directory: str, offset: int) -> str:
    return f"{directory}/{offset:020d}{SNAPSHOT_SUFFIX}"


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """The file's content; 10 bytes when there are no producers."""
    out = bytearray(_HEADER.size)
    count = 0
    for entry in entries:
        count += 1
        last = entry.batches[-1] if entry.batches else _NO_BATCH
        out += _ENTRY.pack(
            entry.producer_id,
            entry.producer_epoch,
            last.last_sequence,
            last.last_offset,
            last.last_offset - last.base_offset,
            entry.last_timestamp,
            entry.coordinator_epoch,
            entry.current_transaction_first_offset,
        )
    _HEADER.pack_into(out, 0, SNAPSHOT_VERSION, 0, count)
    struct.pack_into(">I", out, _CRC_OFFSET, crc32c(memoryview(out)[_COUNT_OFFSET:]))
    return bytes(out)


def decode_snapshot(content: Bytes) -> list[ProducerEntry]:
    """The producers, each with the last of its batches. Raises CorruptSnapshot."""
    if len(content) < _HEADER.size:
        raise CorruptSnapshot(f"{len(content)} bytes are no snapshot")
    version, crc, count = _HEADER.unpack_from(content)
    if version != SNAPSHOT_VERSION:
        raise CorruptSnapshot(f"unknown version {version}")
    computed = crc32c(memoryview(content)[_COUNT_OFFSET:])
    if computed != crc:
        raise CorruptSnapshot(f"stored crc = {crc}, computed crc = {computed}")
    if count < 0 or len(content) != _HEADER.size + count * _ENTRY.size:
        raise CorruptSnapshot(f"{count} producers in {len(content)} bytes")
    return [_entry(*fields) for fields in _ENTRY.iter_unpack(memoryview(content)[_HEADER.size :])]


def read_snapshot(disk: Disk, directory: str, offset: int) -> list[ProducerEntry]:
    """As `decode_snapshot`; OSError when there is no such file."""
    return decode_snapshot(disk.read_file(snapshot_path(directory, offset)))


def _entry(
    producer_id: int,
    epoch: int,
    last_sequence: int,
    last_offset: int,
    offset_delta: int,
    timestamp: int,
    coordinator_epoch: int,
    first_offset: int,
) -> ProducerEntry:
    batches: deque[BatchMetadata] = deque(maxlen=BATCHES_REMEMBERED)
    if last_offset >= 0:
        # sequences wrap from 2^31-1 to 0; a batch of the group coordinator's has none
        base = (last_sequence - offset_delta) & 0x7FFFFFFF if last_sequence >= 0 else NO_SEQUENCE
        batches.append(BatchMetadata(base, last_sequence, last_offset - offset_delta, last_offset, timestamp))
    return ProducerEntry(producer_id, epoch, batches, timestamp, coordinator_epoch, first_offset)


_NO_BATCH = BatchMetadata(NO_SEQUENCE, NO_SEQUENCE, -1, -1, -1)
