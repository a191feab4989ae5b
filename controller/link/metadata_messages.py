"""How committed metadata gets to brokers that do not vote, as msgpack.

A broker says Follow once on a link; the voter sends what is committed as it comes, bounded by what the broker has not
yet said to have Taken. `subscription` is the broker's number for its Follow, which the answers carry; what
carries an older one is dropped.
"""

from __future__ import annotations

from typing import Final

import msgspec

from barnabas.controller.link.messages import MalformedMessage

WINDOW_BYTES: Final = 2 * 1024 * 1024  # on the way to one broker
PIECE_BYTES: Final = 256 * 1024  # in one message, about


class Follow(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """Send everything behind the record `offset` (-1: from the beginning)."""

    subscription: int
    offset: int


class Cease(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """Send nothing more: another voter does."""

    subscription: int


class Taken(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """So many bytes, as the messages have counted them, have been taken since Follow."""

    subscription: int
    total: int


class Groups(msgspec.Struct, array_like=True, frozen=True, tag=4):
    """Groups of records, each applied whole, the first record of the first at `base_offset`. `end_offset`: behind the
    last record that the voter knew to be committed. `cost`: bytes that this counts in Taken."""

    subscription: int
    base_offset: int
    groups: list[list[bytes]]
    end_offset: int
    cost: int


class SnapshotPart(msgspec.Struct, array_like=True, frozen=True, tag=5):
    """A piece of a snapshot (metadata/local_journal.py) of `size` bytes; what was followed before counts no more."""

    subscription: int
    position: int
    size: int
    data: bytes


MetadataMessage = Follow | Cease | Taken | Groups | SnapshotPart

_decoder: Final[msgspec.msgpack.Decoder[MetadataMessage]] = msgspec.msgpack.Decoder(MetadataMessage)


def decode_metadata(payload: bytes) -> MetadataMessage:
    """MalformedMessage when it is none."""
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, ValueError) as error:
        raise MalformedMessage(f"a message about metadata can't be read: {error}") from None
