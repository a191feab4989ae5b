"""A voter's metadata without its quorum: when so many voters have lost their disks that they can't be a quorum again, or one
has and shall be replaced, the best survivor's metadata becomes that of a single node, from which a new quorum may grow.

All entries of the survivor count, committed or not. Entries that only others had are lost, so it must be the one with the
highest offset, and no old voter may start again with its part of the old quorum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.controller.metadata.errors import MetadataError
from barnabas.controller.metadata.image import MetadataDelta, MetadataImage
from barnabas.controller.metadata.local_journal import read_local_metadata, replace_local_metadata
from barnabas.controller.metadata.records import decode_record, encode_record
from barnabas.controller.raft.commands import Barrier, CommittedState, NoCommand, decode_command
from barnabas.controller.raft.files import RaftFiles

if TYPE_CHECKING:
    from barnabas.storage.disk.disk import Disk

COMMAND = 0  # the kind of entry that holds a command; the library's own are empty


def leave_quorum(disk: Disk, directory: str, quorum_state: str) -> int:
    """Blocking: turn Raft's files in `directory` into a single node's journal, and remove them and the file
    `quorum_state`. The offset behind the last record. After a crash call it again. MetadataError, OSError; nothing has
    changed then."""
    files = RaftFiles(disk, directory)
    if not disk.exists(files.journal_path):
        if not disk.exists(files.snapshot_path) or disk.exists(f"{directory}/{quorum_state}"):
            raise MetadataError(
                f"{directory} holds no metadata of a voter: this node has left its quorum before, or was in none"
            )
        disk.remove(files.snapshot_path)  # cut short right before the end
        disk.sync_directory(directory)
        return read_local_metadata(disk, directory).end_offset
    image = _image_of(files)
    records = [encode_record(record) for record in image.records()]
    replace_local_metadata(disk, directory, records, image.offset + 1)
    # In this order: without quorum.state no node starts on Raft's files, and without the journal the snapshot is nothing.
    for path in (f"{directory}/{quorum_state}", files.journal_path, files.snapshot_path):
        if disk.exists(path):
            disk.remove(path)
            disk.sync_directory(directory)
    return image.offset + 1


def offset_in_quorum(disk: Disk, directory: str) -> int:
    """What `leave_quorum` would return; nothing is changed. MetadataError, OSError."""
    files = RaftFiles(disk, directory)
    if not disk.exists(files.journal_path):
        raise MetadataError(f"{directory} holds no metadata of a voter")
    return _image_of(files).offset + 1


def _image_of(files: RaftFiles) -> MetadataImage:
    loaded = files.load(None)
    snapshot = loaded.snapshot
    image = MetadataImage()
    delta = MetadataDelta()
    for record in snapshot.records:
        image.replay(decode_record(record), delta)
    state = CommittedState(snapshot.state_term, snapshot.offset)
    for entry in loaded.content.entries:
        if entry.index <= snapshot.last.index or entry.command[:1] != bytes([COMMAND]):
            continue
        try:
            command = decode_command(entry.command[1:])
        except NoCommand:
            continue
        if state.takes(command) and not isinstance(command, Barrier):
            for record in command.records:
                image.replay(decode_record(record), delta)
    image.offset = state.offset
    return image
