"""What voters say to each other while they form a quorum, as msgpack; formation.py says when."""

from __future__ import annotations

from typing import Final

import msgspec

from barnabas.controller.link.messages import MalformedMessage, Voter

PART_BYTES: Final = 512 * 1024


class Standing(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """How far the sender has come (quorum_state.py); said on every new link and after every step."""

    stage: int
    attempt: bytes
    has_metadata: bool


class Prepare(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """The seed's proposal."""

    attempt: bytes
    cluster_id: str
    voters: list[Voter]
    genesis: int
    genesis_bytes: int


class Prepared(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """The sender holds what the attempt begins with, on disk."""

    attempt: bytes


class GetPart(msgspec.Struct, array_like=True, frozen=True, tag=4):
    """Asks for the part of the genesis that begins at `position`."""

    attempt: bytes
    position: int


class Part(msgspec.Struct, array_like=True, frozen=True, tag=5):
    attempt: bytes
    position: int
    data: bytes


FormationMessage = Standing | Prepare | Prepared | GetPart | Part

_decoder: Final[msgspec.msgpack.Decoder[FormationMessage]] = msgspec.msgpack.Decoder(FormationMessage)


def decode_formation(payload: bytes) -> FormationMessage:
    """MalformedMessage when it is none."""
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, ValueError) as error:
        raise MalformedMessage(f"a message of the forming can't be read: {error}") from None
