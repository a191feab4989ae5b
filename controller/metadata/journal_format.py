"""Bytes of the metadata journal and snapshot. All integers big-endian; checksums are CRC-32C.

Journal:   magic 8 | base index u64 | base offset u64 | crc u32 of the 24 bytes before
           then entries: length u32 of the rest | crc u32 of the rest | index u64 | records
Snapshot:  magic 8 | index u64 | offset i64 | records | crc u32 of everything before
Records:   count u32, then for each: length u32 | bytes (see records.py)

An entry's index is one above its predecessor's. A group counts once its entry is whole. What follows the
last whole entry was never acknowledged and is cut off; if a whole entry with a higher index stands behind a
damaged one, then acknowledged changes are damaged, and starting without them would quietly lose topics.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from barnabas.controller.metadata.errors import MetadataError
from barnabas.wire.checksum import crc32c

JOURNAL_MAGIC: Final = b"BARNJNL1"
SNAPSHOT_MAGIC: Final = b"BARNSNP1"

_HEADER: Final = struct.Struct(">8sQQ")
_ENTRY: Final = struct.Struct(">IIQ")
_SNAPSHOT: Final = struct.Struct(">8sQq")
_U32: Final = struct.Struct(">I")
_HEADER_SIZE: Final = _HEADER.size + _U32.size
_INDEX_SIZE: Final = 8


class Entry(msgspec.Struct, frozen=True):
    """One group of records, committed together."""

    index: int
    records: Sequence[bytes]


class Journal(msgspec.Struct, frozen=True):
    """What a journal file holds. `end` is the position behind the last whole entry."""

    base_index: int
    base_offset: int
    entries: list[Entry]
    end: int


class Snapshot(msgspec.Struct, frozen=True):
    """The state after the group `index`, whose last record has `offset`, as records that lead to it."""

    index: int
    offset: int
    records: list[bytes]


def journal_header(base_index: int, base_offset: int) -> bytes:
    header = _HEADER.pack(JOURNAL_MAGIC, base_index, base_offset)
    return header + _U32.pack(crc32c(header))


def encode_entry(entry: Entry) -> bytes:
    rest = entry.index.to_bytes(_INDEX_SIZE, "big") + _encode_records(entry.records)
    return _U32.pack(len(rest)) + _U32.pack(crc32c(rest)) + rest


def encode_snapshot(snapshot: Snapshot) -> bytes:
    head = _SNAPSHOT.pack(SNAPSHOT_MAGIC, snapshot.index, snapshot.offset)
    content = head + _encode_records(snapshot.records)
    return content + _U32.pack(crc32c(content))


def decode_snapshot(content: bytes, path: str) -> Snapshot:
    """MetadataError unless the whole file is as it was written: it was replaced in one step, so damage is
    never a torn write."""
    body = content[: -_U32.size]
    if (
        len(content) < _SNAPSHOT.size + 2 * _U32.size
        or _U32.unpack(content[-_U32.size :])[0] != crc32c(body)
        or not body.startswith(SNAPSHOT_MAGIC)
    ):
        raise MetadataError(
            f"{path} is damaged (its checksum does not match). Restore it from a backup together with the "
            f"journal beside it, or move both away to start with empty metadata."
        )
    _, index, offset = _SNAPSHOT.unpack_from(body)
    return Snapshot(index, offset, _decode_records(body, _SNAPSHOT.size))


def read_journal(content: bytes, path: str) -> Journal:
    """Every whole entry. MetadataError when one that had been acknowledged is damaged."""
    head = content[: _HEADER.size]
    if (
        len(content) < _HEADER_SIZE
        or _U32.unpack_from(content, _HEADER.size)[0] != crc32c(head)
        or not head.startswith(JOURNAL_MAGIC)
    ):
        raise _damaged(path, 0, "its header is damaged")
    _, base_index, base_offset = _HEADER.unpack(head)
    entries: list[Entry] = []
    position = _HEADER_SIZE
    while position < len(content):
        expected = base_index + len(entries)
        end = _entry_end(content, position, expected)
        if end is None:
            following = _whole_entry_behind(content, position, expected)
            if following is not None:
                raise _damaged(
                    path, position, f"the entry there is damaged, and a whole one follows at byte {following}"
                )
            break
        entries.append(Entry(expected, _decode_records(content, position + _ENTRY.size)))
        position = end
    return Journal(base_index, base_offset, entries, position)


def _damaged(path: str, position: int, what: str) -> MetadataError:
    return MetadataError(
        f"{path} is damaged at byte {position}: {what}. Changes that were acknowledged can't be read, so "
        f"nothing is started. Restore the file from a backup, or, to go on with the metadata as it was before "
        f"the damage and lose what came after, cut the file to {position} bytes."
        if position
        else f"{path} is damaged: {what}. Restore it from a backup, or move it and the snapshot beside it away "
        f"to start with empty metadata."
    )


def _entry_end(content: bytes, position: int, index: int) -> int | None:
    """Where the entry at `position` ends; None when there is no whole entry with this index."""
    if position + _ENTRY.size > len(content):
        return None
    length, crc, found = _ENTRY.unpack_from(content, position)
    start = position + 2 * _U32.size
    if found != index or length < _INDEX_SIZE + _U32.size or start + length > len(content):
        return None
    if crc32c(memoryview(content)[start : start + length]) != crc:
        return None
    return int(start + length)


def _whole_entry_behind(content: bytes, position: int, index: int) -> int | None:
    """The first whole entry behind a damaged one, wherever the damage has left it."""
    size_min = _ENTRY.size + _U32.size
    index_max = index + (len(content) - position) // size_min
    for start in range(position + 1, len(content) - size_min + 1):
        candidate = int.from_bytes(content[start + 8 : start + 16], "big")
        if index < candidate <= index_max and _entry_end(content, start, candidate) is not None:
            return start
    return None


def _encode_records(records: Sequence[bytes]) -> bytes:
    parts = [_U32.pack(len(records))]
    for record in records:
        parts.append(_U32.pack(len(record)))
        parts.append(record)
    return b"".join(parts)


def _decode_records(content: bytes, position: int) -> list[bytes]:
    """Covered by a checksum that has been verified: the lengths are as they were written."""
    (count,) = _U32.unpack_from(content, position)
    position += _U32.size
    records = []
    for _ in range(count):
        (length,) = _U32.unpack_from(content, position)
        position += _U32.size
        records.append(content[position : position + length])
        position += length
    return records
