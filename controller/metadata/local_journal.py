"""The two files of a single node's metadata, `metadata.journal` and `metadata.snapshot`.

Journal:   a frame log (storage/frame_log.py): header: magic 8 | base index u64 | base offset u64 | crc u32 of the 24 bytes before
           a frame's number is the group's index, its payload the records
Snapshot:  magic 8 | index u64 | offset i64 | records | crc u32 of everything before
Records:   count u32, then for each: length u32 | bytes (see records.py)

The journal has the groups that were committed since the snapshot. After a crash between the writes of the two files it also has
groups that the snapshot covers; these are skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from barnabas.controller.metadata.errors import MetadataError
from barnabas.storage.disk.disk import Disk
from barnabas.storage.frame_log import FrameFormat, FrameLogDamaged, read_frames
from barnabas.wire.checksum import crc32c

JOURNAL: Final = "metadata.journal"
SNAPSHOT: Final = "metadata.snapshot"

JOURNAL_MAGIC: Final = b"BARNJNL1"
SNAPSHOT_MAGIC: Final = b"BARNSNP1"

_HEADER: Final = struct.Struct(">8sQQ")
_SNAPSHOT: Final = struct.Struct(">8sQq")
_U32: Final = struct.Struct(">I")

JOURNAL_FORMAT: Final = FrameFormat(_HEADER.size + _U32.size, length_counts_number=True)


class Snapshot(msgspec.Struct, frozen=True):
    """The state after the group `index`, whose last record has `offset`, as records that lead to it."""

    index: int
    offset: int
    records: list[bytes]


NO_SNAPSHOT: Final = Snapshot(-1, -1, [])


class LocalMetadata(msgspec.Struct, frozen=True):
    """The content of the two files: the snapshot and the groups after it. `journal_end`: end of the journal's last whole frame;
    `dropped_bytes` follow it. `snapshot_bytes`: size of the snapshot's file."""

    snapshot: Snapshot
    groups: list[list[bytes]]
    next_index: int
    journal_end: int = 0
    dropped_bytes: int = 0
    snapshot_bytes: int = 0

    @property
    def end_offset(self) -> int:
        """One past the last record."""
        return self.snapshot.offset + 1 + sum(len(group) for group in self.groups)

    @property
    def records(self) -> list[bytes]:
        """Records that lead to the state."""
        return self.snapshot.records + [record for group in self.groups for record in group]


def has_local_metadata(disk: Disk, directory: str) -> bool:
    """Whether the directory has metadata of a single node. OSError."""
    return disk.exists(f"{directory}/{JOURNAL}") or disk.exists(f"{directory}/{SNAPSHOT}")


def read_local_metadata(disk: Disk, directory: str) -> LocalMetadata:
    """Blocking: read the files; empty when there are none. MetadataError, OSError."""
    snapshot, snapshot_bytes = NO_SNAPSHOT, 0
    snapshot_path, journal_path = f"{directory}/{SNAPSHOT}", f"{directory}/{JOURNAL}"
    if disk.exists(snapshot_path):
        content = disk.read_file(snapshot_path)
        snapshot, snapshot_bytes = decode_snapshot(content, snapshot_path), len(content)
    next_index = snapshot.index + 1
    if not disk.exists(journal_path):
        return LocalMetadata(snapshot, [], next_index, snapshot_bytes=snapshot_bytes)
    content = disk.read_file(journal_path)
    base_index = _read_header(content, journal_path)
    if base_index > next_index:
        raise MetadataError(
            f"{journal_path} starts at group {base_index}, but {snapshot_path} "
            f"{'ends before group ' + str(next_index) if next_index else 'is missing'}: groups between "
            f"them are lost. Restore the two files from the same time."
        )
    try:
        journal = read_frames(content, JOURNAL_FORMAT, base_index)
    except FrameLogDamaged as damaged:
        raise _damaged(
            journal_path,
            damaged.position,
            f"the entry there is damaged, and a whole one follows at byte {damaged.following}",
        ) from None
    return LocalMetadata(
        snapshot,
        [_decode_records(frame.payload, 0) for frame in journal.frames if frame.number >= next_index],
        max(next_index, base_index + len(journal.frames)),
        journal.end,
        len(content) - journal.end,
        snapshot_bytes,
    )


def replace_local_metadata(disk: Disk, directory: str, records: list[bytes], end_offset: int) -> None:
    """Blocking: replace the files by the state that `records` lead to, the last of which gets `end_offset` - 1. Each file is
    replaced in one step, one after the other; after a crash call this again. Not while a LocalMetadataLog is open on them."""
    disk.write_file(
        f"{directory}/{SNAPSHOT}", encode_snapshot(Snapshot(0, end_offset - 1, records)), secret=True
    )
    disk.write_file(f"{directory}/{JOURNAL}", encode_journal_header(1, end_offset), secret=True)


# Bytes


def encode_journal_header(base_index: int, base_offset: int) -> bytes:
    header = _HEADER.pack(JOURNAL_MAGIC, base_index, base_offset)
    return header + _U32.pack(crc32c(header))


def _read_header(content: bytes, path: str) -> int:
    """The base index."""
    head = content[: _HEADER.size]
    if (
        len(content) < JOURNAL_FORMAT.header_bytes
        or _U32.unpack_from(content, _HEADER.size)[0] != crc32c(head)
        or not head.startswith(JOURNAL_MAGIC)
    ):
        raise _damaged(path, 0, "its header is damaged")
    base_index: int
    _, base_index, _ = _HEADER.unpack(head)
    return base_index


def encode_records(records: Sequence[bytes]) -> bytes:
    parts = [_U32.pack(len(records))]
    for record in records:
        parts.append(_U32.pack(len(record)))
        parts.append(record)
    return b"".join(parts)


def _decode_records(content: bytes, position: int) -> list[bytes]:
    """The checksum of the content has been verified, so the lengths are correct."""
    (count,) = _U32.unpack_from(content, position)
    position += _U32.size
    records = []
    for _ in range(count):
        (length,) = _U32.unpack_from(content, position)
        position += _U32.size
        records.append(content[position : position + length])
        position += length
    return records


def encode_snapshot(snapshot: Snapshot) -> bytes:
    head = _SNAPSHOT.pack(SNAPSHOT_MAGIC, snapshot.index, snapshot.offset)
    content = head + encode_records(snapshot.records)
    return content + _U32.pack(crc32c(content))


def decode_snapshot(content: bytes, path: str) -> Snapshot:
    """MetadataError when the file is damaged. It was replaced in one step, so damage is never a torn write."""
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


def _damaged(path: str, position: int, what: str) -> MetadataError:
    return MetadataError(
        f"{path} is damaged at byte {position}: {what}. Changes that were acknowledged can't be read, so "
        f"nothing is started. Restore the file from a backup, or, to go on with the metadata as it was before "
        f"the damage and lose what came after, cut the file to {position} bytes."
        if position
        else f"{path} is damaged: {what}. Restore it from a backup, or move it and the snapshot beside it away "
        f"to start with empty metadata."
    )
