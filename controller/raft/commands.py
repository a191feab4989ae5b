"""The content of an entry of the Raft log: a group of metadata records, the barrier of a new leader, or a set of voters.

A version byte, then msgpack. An older release recognizes the version of a newer command and refuses it: it would count majorities
over other voters.

Every group names the term in which it was decided and the offset that it was decided for. Groups are applied to the state (term
of the last barrier, last offset), which is the same on every node at the same entry. So all nodes agree whether a group fits; one
that was decided on another state changes nothing. By node and sequence the proposer recognizes its own groups.
"""

from __future__ import annotations

from typing import Final

import msgspec

from barnabas.controller.metadata.errors import UNREADABLE, MetadataError
from barnabas.controller.raft.messages import COMMAND_KIND, Number
from barnabas.controller.raft.voters import Voter

VERSION: Final = 1
VOTERS_VERSION: Final = 2  # of Voters; the others stay readable for older releases


class Group(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """Records that are committed together; the first has `base_offset`."""

    term: Number
    base_offset: Number
    node_id: Number
    sequence: Number
    records: list[bytes]


class Barrier(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """The first command of a leader: when it is applied, everything committed in earlier terms has been applied."""

    term: Number
    node_id: Number


class Voters(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """The voters from this entry on; see voters.py."""

    term: Number
    voters: list[Voter]


Command = Group | Barrier | Voters

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[Command]] = msgspec.msgpack.Decoder(Command)
_PREFIX: Final = bytes([VERSION])
_VOTERS_PREFIX: Final = bytes([VOTERS_VERSION])
_VOTERS_ENTRY: Final = COMMAND_KIND + _VOTERS_PREFIX


class NoCommand(Exception):
    """Bytes that are no command of any version."""


def encode_command(command: Command) -> bytes:
    prefix = _VOTERS_PREFIX if isinstance(command, Voters) else _PREFIX
    return prefix + _encoder.encode(command)


def voters_in(entry: bytes) -> list[Voter] | None:
    """The voters that an entry of the log names; None where it names none. It is quick for all other entries."""
    if not entry.startswith(_VOTERS_ENTRY):
        return None
    try:
        command = decode_command(entry[len(COMMAND_KIND) :])
    except NoCommand:
        return None
    return command.voters if isinstance(command, Voters) and command.voters else None


def command_in(entry: bytes) -> Command | None:
    """The command in an entry of the log; None where it holds none. MetadataError for one of a newer version."""
    if not entry.startswith(COMMAND_KIND):
        return None
    try:
        return decode_command(entry[len(COMMAND_KIND) :])
    except NoCommand:
        return None


def decode_command(payload: bytes) -> Command:
    """NoCommand, or MetadataError for a command of a newer version."""
    if not payload:
        raise NoCommand("no bytes")
    if payload[0] > VOTERS_VERSION:
        raise MetadataError(
            f"the cluster's metadata log holds a command of version {payload[0]}, this software knows version {VOTERS_VERSION}: "
            f"start this node with the software of the others"
        )
    try:
        return _decoder.decode(memoryview(payload)[1:])
    except UNREADABLE as error:
        raise NoCommand(str(error)) from None


class CommittedState:
    """The state that groups must fit: term of the last barrier, offset of the last record (-1: none)."""

    __slots__ = ("offset", "term")

    def __init__(self, term: int, offset: int) -> None:
        self.term = term
        self.offset = offset

    def apply(self, command: Group | Barrier) -> bool:
        """Whether the command fits; only then it changes the state."""
        if isinstance(command, Barrier):
            if command.term <= self.term:
                return False
            self.term = command.term
            return True
        if command.term != self.term or command.base_offset != self.offset + 1:
            return False
        self.offset += len(command.records)
        return True
