"""What nodes say to each other about tunnels: a tunnel carries the bytes of one connection between two nodes that can't reach
each other, over the links of a third one with both.

Either side of a link opens tunnels by numbers of its own: odd ones where it has made the link's connection, even ones
elsewhere; a number is used once. Each end may have WINDOW_BYTES on their way that the other end has not taken; the other
end says when it has (TUNNEL_CREDIT). So that much, and no more, waits anywhere between.

TUNNEL_DATA is the number as u32 and the bytes; the others are msgpack, as in messages.py.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from barnabas.controller.link.messages import MalformedMessage

WINDOW_BYTES: Final = 256 * 1024
PIECE_BYTES: Final = 32 * 1024  # of one frame: the link's own messages go between
CREDIT_BYTES: Final = WINDOW_BYTES // 4  # taken, before it is said
NUMBER_MAX: Final = (1 << 32) - 1
REASON_LENGTH_MAX: Final = 200

_NUMBER: Final = struct.Struct(">I")


class TunnelOpen(msgspec.Struct, array_like=True, frozen=True):
    """To the node between, and from there to the target. `source_id`: who wants it."""

    number: int
    source_id: int
    target_id: int


class TunnelCredit(msgspec.Struct, array_like=True, frozen=True):
    """So many bytes more have been taken."""

    number: int
    count: int


class TunnelClose(msgspec.Struct, array_like=True, frozen=True):
    """Nothing comes any more. `reason`: empty where an end has closed it in peace."""

    number: int
    reason: str = ""


def encode_data(number: int, data: bytes) -> bytes:
    return _NUMBER.pack(number) + data


def decode_data(payload: bytes) -> tuple[int, bytes]:
    """MalformedMessage when it is none."""
    if len(payload) < _NUMBER.size:
        raise MalformedMessage("bytes of a tunnel without its number")
    return _NUMBER.unpack_from(payload)[0], payload[_NUMBER.size :]
