"""Bytes of a voter's two files. Integers big-endian, checksums CRC-32C, the rest msgpack of the structs below.

Journal:   magic 8, then frames: length u32 of the payload | crc u32 of sequence and payload | sequence u64 | payload
Snapshot:  magic 8 | crc u32 of the payload | payload

A frame is what was synced together: the voter's term and vote, how far it knew the log to be committed, up to which
index the entries before it stand, and the entries that follow that one. So each frame, whole or missing, leaves a
state that the voter was in. What follows the last whole frame was never synced, nothing that was sent depended on
it, and it is cut off. A whole frame behind a damaged one means that something was damaged on which others rely.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec

from barnabas.controller.metadata.errors import MetadataError
from barnabas.controller.raft.messages import BadMessage, Entry, Number, check_command
from barnabas.wire.checksum import crc32c

JOURNAL_MAGIC: Final = b"BARNRFJ1"
SNAPSHOT_MAGIC: Final = b"BARNRFS1"
NOBODY: Final = -1  # voted_for

_FRAME: Final = struct.Struct(">IIQ")
_U32: Final = struct.Struct(">I")
_SEQUENCE_AT: Final = 8
_encoder: Final = msgspec.msgpack.Encoder()


class Frame(msgspec.Struct, array_like=True, frozen=True):
    """See the module."""

    term: Number
    voted_for: int
    commit_index: Number
    kept_index: Number  # the last of the entries before that still stands
    entries: list[Entry]


class Snapshot(msgspec.Struct, array_like=True, frozen=True):
    """The metadata after the entry `last`: the records that lead to it, the last of which has `offset`. The library
    wants the entry before as well. `state_term`: see commands.CommittedState."""

    previous: Entry
    last: Entry
    state_term: Number
    offset: int
    records: list[bytes]


class JournalContent:
    """What a journal leads to; `sequence` is the next frame's and `end` its position."""

    def __init__(self) -> None:
        self.term = 0
        self.voted_for = NOBODY
        self.commit_index = 0
        self.entries: list[Entry] = []
        self.sequence = 0
        self.end = len(JOURNAL_MAGIC)

    def take(self, frame: Frame) -> None:
        self.term, self.voted_for = frame.term, frame.voted_for
        self.commit_index = frame.commit_index
        if self.entries:
            del self.entries[max(0, frame.kept_index + 1 - self.entries[0].index) :]
        self.entries.extend(frame.entries)


_frame_decoder: Final = msgspec.msgpack.Decoder(Frame)
_snapshot_decoder: Final = msgspec.msgpack.Decoder(Snapshot)


def encode_frame(sequence: int, frame: Frame) -> bytes:
    checked = sequence.to_bytes(8, "big") + _encoder.encode(frame)
    return _U32.pack(len(checked) - 8) + _U32.pack(crc32c(checked)) + checked


def encode_journal(sequence: int, frame: Frame) -> bytes:
    """A journal that starts anew with all that is known."""
    return JOURNAL_MAGIC + encode_frame(sequence, frame)


def decode_journal(content: bytes, path: str) -> JournalContent:
    """MetadataError when something that others rely on can't be read."""
    if not content.startswith(JOURNAL_MAGIC):
        raise MetadataError(f"{path} is damaged: it does not start as a journal. {_ADVICE}")
    found = JournalContent()
    while found.end < len(content):
        end = _frame_end(content, found.end, found.sequence if found.entries else None)
        if end is None:
            following = _whole_frame_behind(content, found.end, found.sequence)
            if following is not None or not found.entries:
                detail = f", and a whole one follows at byte {following}" if following is not None else ""
                raise MetadataError(f"{path} is damaged at byte {found.end}{detail}. {_ADVICE}")
            break
        sequence = int.from_bytes(content[found.end + _SEQUENCE_AT : found.end + _FRAME.size], "big")
        found.take(_decode_frame(content[found.end + _FRAME.size : end], path, found.end))
        found.sequence, found.end = sequence + 1, end
    if not _is_gapless(found.entries):
        raise MetadataError(f"{path} is damaged: its entries do not follow each other. {_ADVICE}")
    return found


_ADVICE: Final = (
    "What this node has promised to the other controllers can't be read, so it does not start. Restore nothing from a "
    "backup: an older journal breaks those promises. Take the node out of service and bring it back as a new one"
)


def _is_gapless(entries: Sequence[Entry]) -> bool:
    return bool(entries) and all(
        after.index == before.index + 1 and after.term >= before.term for before, after in pairwise(entries)
    )


def _decode_frame(payload: bytes, path: str, position: int) -> Frame:
    """Its checksum is right, so other bytes mean other software."""
    try:
        frame = _frame_decoder.decode(payload)
        for entry in frame.entries:
            check_command(entry.command)
    except (msgspec.DecodeError, BadMessage) as error:
        raise MetadataError(
            f"{path} holds something at byte {position} that this software does not know: {error}"
        ) from None
    return frame


def _frame_end(content: bytes, position: int, sequence: int | None) -> int | None:
    """Where the frame at `position` ends; None when there is no whole one with this sequence (None: any)."""
    if position + _FRAME.size > len(content):
        return None
    length, crc, found = _FRAME.unpack_from(content, position)
    end = position + _FRAME.size + length
    if end > len(content) or (sequence is not None and found != sequence):
        return None
    if crc32c(memoryview(content)[position + _SEQUENCE_AT : end]) != crc:
        return None
    return int(end)


def _whole_frame_behind(content: bytes, position: int, sequence: int) -> int | None:
    """The first whole frame behind a damaged one, wherever the damage has left it."""
    sequence_max = sequence + (len(content) - position) // _FRAME.size
    for start in range(position + 1, len(content) - _FRAME.size + 1):
        candidate = int.from_bytes(content[start + _SEQUENCE_AT : start + _FRAME.size], "big")
        if sequence < candidate <= sequence_max and _frame_end(content, start, candidate) is not None:
            return start
    return None


def encode_snapshot(snapshot: Snapshot) -> bytes:
    payload = _encoder.encode(snapshot)
    return SNAPSHOT_MAGIC + _U32.pack(crc32c(payload)) + payload


def decode_snapshot(content: bytes, path: str) -> Snapshot:
    """MetadataError unless it is as it was written: it was put there in one step, so damage is no torn write."""
    start = len(SNAPSHOT_MAGIC) + _U32.size
    payload = memoryview(content)[start:]
    if (
        len(content) < start
        or not content.startswith(SNAPSHOT_MAGIC)
        or _U32.unpack_from(content, len(SNAPSHOT_MAGIC))[0] != crc32c(payload)
    ):
        raise MetadataError(f"{path} is damaged (its checksum does not match). {_ADVICE}")
    try:
        return _snapshot_decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise MetadataError(f"{path} holds something that this software does not know: {error}") from None
