"""Recovery of a voter's metadata without its quorum (barnabas leave-quorum).

It is for a quorum that has lost the disks of a majority, or of one voter that is to be replaced. The metadata of one survivor
becomes that of a single node, from which a new quorum can form. All entries of the survivor count, committed or not. Entries that
only other voters had are lost, so it must be the survivor with the highest offset, and no old voter may start again with the
files of the old quorum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.controller.metadata.errors import MetadataError
from barnabas.controller.metadata.image import MetadataDelta, MetadataImage
from barnabas.controller.metadata.local_journal import read_local_metadata, replace_local_metadata
from barnabas.controller.metadata.records import decode_record, encode_record
from barnabas.controller.raft.commands import CommittedState, Group, Voters, command_in
from barnabas.controller.raft.files import RaftFiles

if TYPE_CHECKING:
    from barnabas.storage.disk.disk import Disk


def leave_quorum(disk: Disk, directory: str, quorum_state: str) -> int:
    """Blocking: turn Raft's files in `directory` into a single node's journal, and remove them and the file `quorum_state`.
    Returns the end offset. After a crash call it again. MetadataError, OSError; then nothing has changed."""
    files = RaftFiles(disk, directory)
    if not disk.exists(files.journal_path):
        if not disk.exists(files.snapshot_path) or disk.exists(f"{directory}/{quorum_state}"):
            raise MetadataError(
                f"{directory} holds no metadata of a voter: this node has left its quorum before, or was in none"
            )
        disk.remove(files.snapshot_path)  # an earlier call was interrupted before its last step
        disk.sync_directory(directory)
        return read_local_metadata(disk, directory).end_offset
    image = _image_of(files)
    records = [encode_record(record) for record in image.records()]
    replace_local_metadata(disk, directory, records, image.offset + 1)
    # In this order: without quorum.state no node starts on Raft's files, and without the journal the snapshot is not used.
    for path in (f"{directory}/{quorum_state}", files.journal_path, files.snapshot_path):
        if disk.exists(path):
            disk.remove(path)
            disk.sync_directory(directory)
    return image.offset + 1


def offset_in_quorum(disk: Disk, directory: str) -> int:
    """The offset that `leave_quorum` would return; changes nothing. MetadataError, OSError."""
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
        command = command_in(entry.command) if entry.index > snapshot.last.index else None
        if command is None or isinstance(command, Voters):
            continue
        if state.apply(command) and isinstance(command, Group):
            for record in command.records:
                image.replay(decode_record(record), delta)
    image.offset = state.offset
    return image
