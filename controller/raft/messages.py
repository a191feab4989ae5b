"""Messages between voters: one byte of version, then msgpack of one of the structs below. No pickle.

Most of them are pysyncobj's messages in a strict form, with the term that it leaves out in its answers. RequestPreVote, PreVote,
Heartbeat and StaleTerm are additions: see election.py, outbox.py and transport.py.
Indexes count entries of the Raft log from 1, terms from 0.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from barnabas.controller.metadata.errors import UNREADABLE

VERSION: Final = 1
LARGEST: Final = 1 << 53

COMMAND_KIND: Final = b"\0"  # the first byte of an entry that holds a command (commands.py)
NO_OP: Final = b"\1"  # the library's empty entry

Number = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]


class BadMessage(Exception):
    """Bytes that are not a message of this version."""


class Entry(msgspec.Struct, array_like=True, frozen=True):
    """One entry of the log. `command` is COMMAND_KIND and a command, or NO_OP."""

    index: Number
    term: Number
    command: bytes


class RequestVote(msgspec.Struct, array_like=True, frozen=True, tag=1):
    term: Number
    last_index: Number
    last_term: Number


class Vote(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """A vote for the receiver in this term."""

    term: Number


class Append(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """Entries that follow the one at `previous_index`; none as a heartbeat."""

    term: Number
    commit_index: Number
    previous_index: Number
    previous_term: Number
    entries: list[Entry]


class SnapshotChunk(msgspec.Struct, array_like=True, frozen=True, tag=4):
    """`data` at `position` of a snapshot file of `size` bytes, which covers all entries up to `index`."""

    term: Number
    index: Number
    index_term: Number
    position: Number
    size: Number
    data: bytes


class AppendResponse(msgspec.Struct, array_like=True, frozen=True, tag=5):
    """A follower's answer, in the leader's term. With `success`: it has all entries before `next_index` on disk. With `reset`: it
    needs the entries from there on. With neither: it is alive."""

    term: Number
    next_index: Number
    success: bool
    reset: bool


class TimeoutNow(msgspec.Struct, array_like=True, frozen=True, tag=6):
    """The leader of this term asks the receiver to start an election (transfer of leadership)."""

    term: Number


class RequestPreVote(msgspec.Struct, array_like=True, frozen=True, tag=7):
    """Asks whether the receiver would vote for the sender in `term`. Changes no state."""

    term: Number
    last_index: Number
    last_term: Number
    round: Number


class PreVote(msgspec.Struct, array_like=True, frozen=True, tag=8):
    """Answers the request of this round; `term` is that of the answering voter."""

    term: Number
    round: Number
    granted: bool


class Heartbeat(msgspec.Struct, array_like=True, frozen=True, tag=9):
    """The leader of this term is alive; its other messages wait for its disk."""

    term: Number


class StaleTerm(msgspec.Struct, array_like=True, frozen=True, tag=10):
    """Tells a leader of an earlier term the sender's term."""

    term: Number


Message = (
    RequestVote
    | Vote
    | Append
    | SnapshotChunk
    | AppendResponse
    | TimeoutNow
    | RequestPreVote
    | PreVote
    | Heartbeat
    | StaleTerm
)

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[Message]] = msgspec.msgpack.Decoder(Message)
_PREFIX: Final = bytes([VERSION])


def encode_message(message: Message) -> bytes:
    return _PREFIX + _encoder.encode(message)


def decode_message(data: bytes) -> Message:
    """BadMessage for anything that `encode_message` of this version can't produce."""
    if not data.startswith(_PREFIX):
        raise BadMessage(f"version {data[0]}" if data else "no bytes")
    try:
        message = _decoder.decode(memoryview(data)[1:])
    except UNREADABLE as error:
        raise BadMessage(str(error)) from None
    if isinstance(message, Append):
        _check_entries(message)
    elif isinstance(message, SnapshotChunk) and message.position + len(message.data) > message.size:
        raise BadMessage("a chunk past the end of its snapshot")
    return message


def _check_entries(message: Append) -> None:
    index, term = message.previous_index, message.previous_term
    for entry in message.entries:
        index += 1
        if entry.index != index or not term <= entry.term <= message.term:
            raise BadMessage(f"entry {entry.index} of term {entry.term} does not follow its predecessor")
        term = entry.term
        check_command(entry.command)


def check_command(command: bytes) -> None:
    """BadMessage for other kinds of entries, such as the library's for changes of membership."""
    if command != NO_OP and not command.startswith(COMMAND_KIND):
        raise BadMessage("an entry of unknown kind")
