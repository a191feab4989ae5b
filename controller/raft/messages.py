"""Messages between voters: one byte of version, then msgpack of one of the structs below. No pickle.

Most of them are pysyncobj's own messages in a strict form, with the term that it leaves out in its answers. The
others (AskSupport, Support, Alive, StaleTerm) are ours: see election.py, outbox.py and transport.py.
Indexes count entries of the Raft log from 1, terms from 0.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from barnabas.controller.metadata.errors import UNREADABLE

VERSION: Final = 1
LARGEST: Final = 1 << 53

Number = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]


class BadMessage(Exception):
    """Bytes that are not a message of this version."""


class Entry(msgspec.Struct, array_like=True, frozen=True):
    """One entry of the log. `command` is a byte of kind (0 ours, 1 the library's no-op), then a command."""

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
    """Entries that follow the one at `previous_index`; none as a sign of life."""

    term: Number
    commit_index: Number
    previous_index: Number
    previous_term: Number
    entries: list[Entry]


class Chunk(msgspec.Struct, array_like=True, frozen=True, tag=4):
    """`data` at `position` of a snapshot file of `size` bytes, which covers all entries up to `index`."""

    term: Number
    index: Number
    index_term: Number
    position: Number
    size: Number
    data: bytes


class Progress(msgspec.Struct, array_like=True, frozen=True, tag=5):
    """A follower's answer, in the leader's term: with `success` it holds all entries before `next_index` on disk;
    with `reset` it needs them from there. With neither it only confirms that it is alive."""

    term: Number
    next_index: Number
    success: bool
    reset: bool


class TakeOver(msgspec.Struct, array_like=True, frozen=True, tag=6):
    """The leader of this term asks the receiver to follow it as leader."""

    term: Number


class AskSupport(msgspec.Struct, array_like=True, frozen=True, tag=7):
    """Pre-vote: whether the receiver would vote for the sender in `term`. Asking changes no state."""

    term: Number
    last_index: Number
    last_term: Number
    round: Number


class Support(msgspec.Struct, array_like=True, frozen=True, tag=8):
    """The answer to the question of this round; `term` is the answering voter's own."""

    term: Number
    round: Number
    granted: bool


class Alive(msgspec.Struct, array_like=True, frozen=True, tag=9):
    """The leader of this term is alive, and waits for its disk."""

    term: Number


class StaleTerm(msgspec.Struct, array_like=True, frozen=True, tag=10):
    """To a leader of an old term: the sender's term."""

    term: Number


Message = RequestVote | Vote | Append | Chunk | Progress | TakeOver | AskSupport | Support | Alive | StaleTerm

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[Message]] = msgspec.msgpack.Decoder(Message)
_PREFIX: Final = bytes([VERSION])


def encode_message(message: Message) -> bytes:
    return _PREFIX + _encoder.encode(message)


def decode_message(data: bytes) -> Message:
    """BadMessage for anything that `encode_message` of this version can't have made."""
    if not data.startswith(_PREFIX):
        raise BadMessage(f"version {data[0]}" if data else "no bytes")
    try:
        message = _decoder.decode(memoryview(data)[1:])
    except UNREADABLE as error:
        raise BadMessage(str(error)) from None
    if isinstance(message, Append):
        _check_entries(message)
    elif isinstance(message, Chunk) and message.position + len(message.data) > message.size:
        raise BadMessage("a chunk behind the end of its snapshot")
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
    """Only the kinds of entry that this use of the library makes: never membership or code versions."""
    if command != b"\x01" and not command.startswith(b"\x00"):
        raise BadMessage("an entry of unknown kind")
