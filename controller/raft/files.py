"""A voter's two files, `raft.journal` and `raft.snapshot`.

Journal:   a frame log (storage/frame_log.py): header: magic 8; a frame's payload is a JournalFrame
Snapshot:  magic 8 | crc u32 of the payload (CRC-32C) | payload: a Snapshot

A snapshot that names voters has another magic, so that an earlier release does not take it for one without.
Payloads are msgpack. A frame has the changes that were synced together: the voter's term and vote, the commit index that it knew,
the index up to which earlier entries are kept, and the entries after that index. So each frame, whole or missing, leaves a state
that the voter was in.

A start compares the two files and rewrites the journal: after a failed sync, its content may be in the system's cache alone, and
the voter would act on it. The journal must reach back to the entry that the snapshot ends with. When it ends before that, or has
another entry in that place, the leader had sent the snapshot and the process ended before it replaced the journal: the journal
begins again after the snapshot. Anything else is refused.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from barnabas.controller.metadata.errors import UNREADABLE, MetadataError
from barnabas.controller.raft.messages import NO_OP, BadMessage, Entry, Number, check_command
from barnabas.controller.raft.voters import Voter
from barnabas.storage.disk.disk import Disk
from barnabas.storage.frame_log import FrameFormat, FrameLog, FrameLogDamaged, read_frames
from barnabas.wire.checksum import crc32c

JOURNAL: Final = "raft.journal"
SNAPSHOT: Final = "raft.snapshot"
JOURNAL_MAGIC: Final = b"BARNRFJ1"
SNAPSHOT_MAGIC: Final = b"BARNRFS1"
VOTERS_SNAPSHOT_MAGIC: Final = b"BARNRFS2"  # with voters
JOURNAL_FORMAT: Final = FrameFormat(len(JOURNAL_MAGIC))
NOT_VOTED: Final = -1  # voted_for
GENESIS_INDEX: Final = 2  # the library needs two entries to begin with

_U32: Final = struct.Struct(">I")
_encoder: Final = msgspec.msgpack.Encoder()

log = logging.getLogger("barnabas.raft")

Genesis = tuple[Sequence[bytes], int]  # records, and the offset of the last


class JournalFrame(msgspec.Struct, array_like=True, frozen=True):
    """Changes that were synced together; see the module."""

    term: Number
    voted_for: int
    commit_index: Number
    kept_index: Number  # of the last entry in earlier frames that is kept
    entries: list[Entry]


class Snapshot(msgspec.Struct, array_like=True, frozen=True):
    """The metadata after the entry `last`: records that lead to it, the last of which has `offset`. `previous` is the entry
    before, which the library needs as well. `state_term`: see commands.CommittedState. `voters`: those that the log names up to
    `last`; None where it names none."""

    previous: Entry
    last: Entry
    state_term: Number
    offset: int
    records: list[bytes]
    voters: list[Voter] | None = None


class JournalContent:
    """The state that a journal leads to. `sequence`: number of the next frame; `end`: its position."""

    def __init__(self) -> None:
        self.term = 0
        self.voted_for = NOT_VOTED
        self.commit_index = 0
        self.entries: list[Entry] = []
        self.sequence = 0
        self.end = JOURNAL_FORMAT.header_bytes

    def replay(self, frame: JournalFrame) -> None:
        self.term, self.voted_for = frame.term, frame.voted_for
        self.commit_index = frame.commit_index
        if self.entries:
            del self.entries[max(0, frame.kept_index + 1 - self.entries[0].index) :]
        self.entries.extend(frame.entries)


class Changes(NamedTuple):
    """Changes that are written together, in this order: the snapshot, then the frame, which is appended to the journal or
    (`replaces`) becomes its only one. `number`: of the last change in it."""

    number: int
    snapshot: Snapshot | None
    frame: JournalFrame | None
    replaces: bool


class Loaded(NamedTuple):
    """The files of a voter that starts. The journal must be rewritten before the voter sends anything. `encoded`: the
    snapshot's file. `is_blank`: it has nothing yet but a term and a vote, and waits for its first snapshot."""

    content: JournalContent
    snapshot: Snapshot
    encoded: bytes
    is_blank: bool = False


class RaftFiles:
    """The files in `directory`, which is made when missing. `load` first; `write` from one thread at a time."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self.journal_path = f"{directory}/{JOURNAL}"
        self.snapshot_path = f"{directory}/{SNAPSHOT}"
        self._journal = FrameLog(disk, self.journal_path, JOURNAL_FORMAT)

    @property
    def journal_size(self) -> int:
        return self._journal.size

    def load(self, genesis: Genesis | None, *, joins: bool = False) -> Loaded:
        """Blocking. Without files the log begins with `genesis`; `joins`: without a snapshot it begins with the one that a leader
        will send. MetadataError, OSError."""
        disk = self._disk
        if not disk.exists(self._directory):
            disk.make_directory(self._directory, parents=True)
        if not disk.exists(self.journal_path):
            if disk.exists(self.snapshot_path):
                raise MetadataError(
                    f"{self.journal_path} is missing next to {self.snapshot_path}, and with it what this node has "
                    f"promised to the other controllers. Take the node out of service and bring it back as a new one"
                )
            self._begin_journal(([], -1) if joins else genesis)
        encoded_journal = disk.read_file(self.journal_path)
        content = decode_journal(encoded_journal, self.journal_path)
        if joins and not disk.exists(self.snapshot_path) and content.entries[-1].index == GENESIS_INDEX:
            self._journal.next_number = content.sequence
            previous, last = content.entries
            return Loaded(content, Snapshot(previous, last, 0, -1, []), b"", is_blank=True)
        if not disk.exists(self.snapshot_path):
            self._begin_snapshot(genesis, content)
        encoded = disk.read_file(self.snapshot_path)
        snapshot = decode_snapshot(encoded, self.snapshot_path)
        self._reconcile(content, snapshot)
        self._journal.next_number = content.sequence
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
                f"{self.journal_path} is missing: this node has been a controller of the cluster, or has never got the "
                f"initial metadata. With nothing it could vote a second time, so it does not start. Take it out of "
                f"service and bring it back as a new one"
            )
        entries = [Entry(index, 0, NO_OP) for index in range(1, GENESIS_INDEX + 1)]
        self._journal.replace(
            JOURNAL_MAGIC, _encoder.encode(JournalFrame(0, NOT_VOTED, GENESIS_INDEX, 0, entries))
        )

    def _begin_snapshot(self, genesis: Genesis | None, content: JournalContent) -> None:
        """Write the first snapshot. Only an interrupted first start leaves a journal without a snapshot."""
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

    def _reconcile(self, content: JournalContent, snapshot: Snapshot) -> None:
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
            "%s ends with entry %d, before the end of a snapshot up to entry %d: it begins again after the snapshot",
            self.journal_path,
            last,
            end.index,
        )
        content.entries = [snapshot.previous, end]
        content.term = max(content.term, end.term)

    def write(self, changes: Changes) -> bytes | None:
        """Blocking: the changes are on disk when this returns. Returns the encoded snapshot, if there is one. After an OSError
        it is unknown what is on disk: rewrite the journal."""
        encoded = None
        if changes.snapshot is not None:
            encoded = encode_snapshot(changes.snapshot)
            self._disk.write_file(self.snapshot_path, encoded, secret=True)
        if changes.frame is not None:
            payload = _encoder.encode(changes.frame)
            if changes.replaces:
                self._journal.replace(JOURNAL_MAGIC, payload)
            else:
                self._journal.append(payload)
        return encoded


def decode_journal(content: bytes, path: str) -> JournalContent:
    """MetadataError when a part that other voters rely on can't be read."""
    if not content.startswith(JOURNAL_MAGIC):
        raise MetadataError(f"{path} is damaged: it does not start as a journal. {_ADVICE}")
    try:
        journal = read_frames(content, JOURNAL_FORMAT, None)
    except FrameLogDamaged as damaged:
        raise MetadataError(f"{path} is {damaged}. {_ADVICE}") from None
    found = JournalContent()
    for frame in journal.frames:
        found.replay(_decode_frame(frame.payload, path, frame.position))
        found.sequence = frame.number + 1
    found.end = journal.end
    if not journal.frames:
        raise MetadataError(f"{path} is damaged at byte {found.end}. {_ADVICE}")
    if not _is_gapless(found.entries):
        raise MetadataError(f"{path} is damaged: its entries do not follow each other. {_ADVICE}")
    return found


_frame_decoder: Final = msgspec.msgpack.Decoder(JournalFrame)
_snapshot_decoder: Final = msgspec.msgpack.Decoder(Snapshot)
_ADVICE: Final = (
    "What this node has promised to the other controllers can't be read, so it does not start. Restore nothing from a "
    "backup: an older journal breaks those promises. Take the node out of service and bring it back as a new one"
)


def _is_gapless(entries: Sequence[Entry]) -> bool:
    return bool(entries) and all(
        after.index == before.index + 1 and after.term >= before.term for before, after in pairwise(entries)
    )


def _decode_frame(payload: bytes, path: str, position: int) -> JournalFrame:
    """MetadataError for a frame of another release: its checksum is right, so it is not damaged."""
    try:
        frame = _frame_decoder.decode(payload)
        for entry in frame.entries:
            check_command(entry.command)
    except (*UNREADABLE, BadMessage) as error:
        raise MetadataError(
            f"{path} holds something at byte {position} that this software does not know: {error}"
        ) from None
    return frame


def encode_snapshot(snapshot: Snapshot) -> bytes:
    magic, content = VOTERS_SNAPSHOT_MAGIC, msgspec.structs.astuple(snapshot)
    if snapshot.voters is None:
        magic, content = SNAPSHOT_MAGIC, content[:-1]
    payload = _encoder.encode(content)
    return magic + _U32.pack(crc32c(payload)) + payload


def decode_snapshot(content: bytes, path: str) -> Snapshot:
    """MetadataError when the file is damaged. It was replaced in one step, so damage is never a torn write."""
    start = len(SNAPSHOT_MAGIC) + _U32.size
    payload = memoryview(content)[start:]
    if (
        len(content) < start
        or not content.startswith((SNAPSHOT_MAGIC, VOTERS_SNAPSHOT_MAGIC))
        or _U32.unpack_from(content, len(SNAPSHOT_MAGIC))[0] != crc32c(payload)
    ):
        raise MetadataError(f"{path} is damaged (its checksum does not match). {_ADVICE}")
    try:
        return _snapshot_decoder.decode(payload)
    except UNREADABLE as error:
        raise MetadataError(f"{path} holds something that this software does not know: {error}") from None
