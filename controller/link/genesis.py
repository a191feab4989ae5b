"""What a quorum begins with: the metadata of the node that brings some, or none, the same on every voter."""

from __future__ import annotations

from typing import NamedTuple

from barnabas.controller.metadata.local_journal import (
    Snapshot,
    decode_snapshot,
    encode_snapshot,
    read_local_metadata,
)
from barnabas.controller.raft.files import RaftFiles
from barnabas.storage.disk.disk import Disk
from barnabas.wire.checksum import crc32c


class Genesis(NamedTuple):
    """Encoded for its way to the other voters. `fingerprint` is a CRC-32C of it."""

    content: bytes
    fingerprint: int


def read_genesis(disk: Disk, directory: str) -> Genesis:
    """Blocking: what a single node's journal in this directory holds, nothing where there is none. MetadataError, OSError."""
    found = read_local_metadata(disk, directory)
    content = encode_snapshot(Snapshot(0, found.end_offset - 1, found.records))
    return Genesis(content, crc32c(content))


def has_raft_files(disk: Disk, directory: str) -> bool:
    files = RaftFiles(disk, directory)
    return disk.exists(files.journal_path) or disk.exists(files.snapshot_path)


def install_genesis(disk: Disk, directory: str, content: bytes) -> None:
    """Blocking: Raft's files begin with this. Only while quorum.state says that they are not to be believed: what
    stands there goes. MetadataError when the content is damaged; OSError."""
    snapshot = decode_snapshot(content, "the metadata that the seed has sent")
    if not disk.exists(directory):
        disk.make_directory(directory, parents=True)
    files = RaftFiles(disk, directory)
    disk.remove(files.snapshot_path)
    disk.remove(files.journal_path)
    files.load((snapshot.records, snapshot.offset))
