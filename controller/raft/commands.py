"""The content of an entry of the Raft log: a group of metadata records, or the barrier of a new leader.

A byte of version, then msgpack, so that a newer command is known as such by software that can't carry it out.

Every group names the term in which it was decided and the offset it was decided for. The state that they are
applied to is (term of the last barrier, last offset), the same on every node at the same entry, so every node
decides alike whether a group still fits: one that was decided on another state than it meets changes nothing. Node
and sequence let the proposer know its own.
"""

from __future__ import annotations

from typing import Final

import msgspec

from barnabas.controller.metadata.errors import UNREADABLE, MetadataError
from barnabas.controller.raft.messages import Number

VERSION: Final = 1


class Group(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """Records that are committed together; the first of them gets `base_offset`."""

    term: Number
    base_offset: Number
    node_id: Number
    sequence: Number
    records: list[bytes]


class Barrier(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """The first command of a leader: when it is applied, so is all that was committed before its term."""

    term: Number
    node_id: Number


Command = Group | Barrier

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[Command]] = msgspec.msgpack.Decoder(Command)
_PREFIX: Final = bytes([VERSION])


class NoCommand(Exception):
    """Bytes that no version of this software has written."""


def encode_command(command: Command) -> bytes:
    return _PREFIX + _encoder.encode(command)


def decode_command(payload: bytes) -> Command:
    """NoCommand, or MetadataError for a command of a newer version."""
    if not payload:
        raise NoCommand("no bytes")
    if payload[0] > VERSION:
        raise MetadataError(
            f"the cluster's metadata log holds a command of version {payload[0]}, this software knows version {VERSION}: "
            f"start this node with the software of the others"
        )
    try:
        return _decoder.decode(memoryview(payload)[1:])
    except UNREADABLE as error:
        raise NoCommand(str(error)) from None


class CommittedState:
    """What groups are measured by: the term of the last barrier, and the offset of the last record (-1: none)."""

    __slots__ = ("offset", "term")

    def __init__(self, term: int, offset: int) -> None:
        self.term = term
        self.offset = offset

    def takes(self, command: Command) -> bool:
        """Whether the command still fits; if so it has been counted."""
        if isinstance(command, Barrier):
            if command.term <= self.term:
                return False
            self.term = command.term
            return True
        if command.term != self.term or command.base_offset != self.offset + 1:
            return False
        self.offset += len(command.records)
        return True
