"""A voter's two files: `raft.journal` and `raft.snapshot` (journal_bytes.py says what is in them).

A start compares the two, and writes the journal anew: what was read may stand in the system's cache alone, when a
sync has failed before, and would be promised again. The journal must reach back to the entry that the snapshot ends with; one that ends before
it, or has another entry in its place, was overtaken by a snapshot from the leader and not replaced before the end
came, and starts anew behind it. Anything else is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from barnabas.controller.metadata.errors import MetadataError
from barnabas.controller.raft.journal import Changes
from barnabas.controller.raft.journal_bytes import (
    NOBODY,
    Frame,
    JournalContent,
    Snapshot,
    decode_journal,
    decode_snapshot,
    encode_frame,
    encode_journal,
    encode_snapshot,
)
from barnabas.controller.raft.messages import Entry
from barnabas.storage.disk.disk import Disk, File, write_rest

JOURNAL: Final = "raft.journal"
SNAPSHOT: Final = "raft.snapshot"
NO_OP: Final = b"\x01"  # the library's entry that says nothing
GENESIS_INDEX: Final = 2  # the library wants two entries to begin with

log = logging.getLogger("barnabas.raft")

Genesis = tuple[Sequence[bytes], int]  # records, and the offset of the last


class Loaded(NamedTuple):
    """What a voter starts from: it must be written anew before anything is promised. `encoded` is the snapshot's
    file."""

    content: JournalContent
    snapshot: Snapshot
    encoded: bytes


class Written(NamedTuple):
    """What a job has put on disk; `encoded` where that was a snapshot."""

    changes: Changes
    encoded: bytes | None


class RaftFiles:
    """The files in `directory`, which is made when missing. `load` first; `write` from one thread at a time."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self.journal_path = f"{directory}/{JOURNAL}"
        self.snapshot_path = f"{directory}/{SNAPSHOT}"
        self._file: File | None = None
        self._sequence = 0
        self._position = 0

    @property
    def journal_size(self) -> int:
        return self._position

    def load(self, genesis: Genesis | None) -> Loaded:
        """Blocking. Without files the log begins with `genesis`. MetadataError, OSError."""
        disk = self._disk
        if not disk.exists(self._directory):
            disk.make_directory(self._directory, parents=True)
        if not disk.exists(self.journal_path):
            if disk.exists(self.snapshot_path):
                raise MetadataError(
                    f"{self.journal_path} is missing next to {self.snapshot_path}, and with it what this node has "
                    f"promised to the other controllers. Take the node out of service and bring it back as a new one"
                )
            self._begin_journal(genesis)
        encoded_journal = disk.read_file(self.journal_path)
        content = decode_journal(encoded_journal, self.journal_path)
        if not disk.exists(self.snapshot_path):
            self._begin_snapshot(genesis, content)
        encoded = disk.read_file(self.snapshot_path)
        snapshot = decode_snapshot(encoded, self.snapshot_path)
        self._meet(content, snapshot)
        self._sequence = content.sequence
        if content.end < len(encoded_journal):
            log.warning(
                "%s: the last %d bytes, from %d, were not completely written; they are dropped",
                self.journal_path,
                len(encoded_journal) - content.end,
                content.end,
            )
        return Loaded(content, snapshot, encoded)

    def _begin_journal(self, genesis: Genesis | None) -> None:
        if genesis is None:
            raise MetadataError(
                f"{self.journal_path} is missing: this node has been a controller of the cluster, or has never been told "
                f"how the cluster begins. With nothing it could vote a second time, so it does not start. Take it out of "
                f"service and bring it back as a new one"
            )
        entries = [Entry(index, 0, NO_OP) for index in range(1, GENESIS_INDEX + 1)]
        frame = Frame(0, NOBODY, GENESIS_INDEX, 0, entries)
        self._disk.write_file(self.journal_path, encode_journal(0, frame), secret=True)

    def _begin_snapshot(self, genesis: Genesis | None, content: JournalContent) -> None:
        """The journal is there, the snapshot is not: right in the middle of a beginning, and never else."""
        is_new = content.term == 0 and content.entries[-1].index == GENESIS_INDEX
        if genesis is None or not is_new:
            raise MetadataError(
                f"{self.snapshot_path} is missing next to {self.journal_path}, and with it the metadata before the "
                f"journal's first entry. Take the node out of service and bring it back as a new one"
            )
        records, offset = genesis
        previous, last = content.entries[-2:]
        self._disk.write_file(
            self.snapshot_path,
            encode_snapshot(Snapshot(previous, last, 0, offset, list(records))),
            secret=True,
        )

    def _meet(self, content: JournalContent, snapshot: Snapshot) -> None:
        """Bring the journal's content into line with the snapshot."""
        first, last = content.entries[0].index, content.entries[-1].index
        end = snapshot.last
        if first > end.index:
            raise MetadataError(
                f"{self.journal_path} starts at entry {first}, but {self.snapshot_path} ends with entry {end.index}: what "
                f"lies between them is lost. Take the node out of service and bring it back as a new one"
            )
        if last >= end.index and content.entries[end.index - first].term == end.term:
            return
        log.warning(
            "%s ends with entry %d and was overtaken by a snapshot up to entry %d: it starts anew behind that",
            self.journal_path,
            last,
            end.index,
        )
        content.entries = [snapshot.previous, end]
        content.term = max(content.term, end.term)

    def write(self, changes: Changes) -> Written:
        """Blocking: all of it is on disk when this returns. After an OSError nothing is known: write anew."""
        encoded = None
        if changes.snapshot is not None:
            encoded = encode_snapshot(changes.snapshot)
            self._disk.write_file(self.snapshot_path, encoded, secret=True)
        if changes.frame is not None:
            if changes.anew:
                self._write_anew(changes.frame)
            else:
                self._append(changes.frame)
        return Written(changes, encoded)

    def _append(self, frame: Frame) -> None:
        assert self._file is not None, "the first frame starts the file anew"
        data = encode_frame(self._sequence, frame)
        write_rest(self._file, data, 0, self._position)
        self._file.sync()
        self._position += len(data)
        self._sequence += 1

    def _write_anew(self, frame: Frame) -> None:
        data = encode_journal(self._sequence, frame)
        self._disk.write_file(self.journal_path, data, secret=True)
        self._file = self._disk.open(self.journal_path, writable=True)
        self._position = len(data)
        self._sequence += 1
