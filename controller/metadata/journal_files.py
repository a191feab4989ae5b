"""The journal's two files from outside: where they end, and other content in their place. Never while a
LocalMetadataLog is open on them."""

from __future__ import annotations

from barnabas.controller.metadata.journal_format import (
    Snapshot,
    decode_snapshot,
    encode_snapshot,
    journal_header,
    read_journal,
)
from barnabas.controller.metadata.local_log import JOURNAL, SNAPSHOT
from barnabas.storage.disk.disk import Disk


def journal_end_offset(disk: Disk, directory: str) -> int:
    """The offset behind the last record; 0 when there is none. MetadataError when the files can't be read."""
    index, offset = -1, -1
    path = f"{directory}/{SNAPSHOT}"
    if disk.exists(path):
        snapshot = decode_snapshot(disk.read_file(path), path)
        index, offset = snapshot.index, snapshot.offset
    path = f"{directory}/{JOURNAL}"
    if disk.exists(path):
        for entry in read_journal(disk.read_file(path), path).entries:
            if entry.index > index:
                offset += len(entry.records)
    return offset + 1


def replace_journal(disk: Disk, directory: str, records: list[bytes], end_offset: int) -> None:
    """Begin anew with the state that `records` lead to, the last of which counts as `end_offset` - 1. Each
    file is replaced in one step, one after the other: until this has returned, call it again after a crash.
    """
    disk.write_file(
        f"{directory}/{SNAPSHOT}", encode_snapshot(Snapshot(0, end_offset - 1, records)), secret=True
    )
    disk.write_file(f"{directory}/{JOURNAL}", journal_header(1, end_offset), secret=True)
