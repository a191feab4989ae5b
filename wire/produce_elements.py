"""Counts the topics and partitions of a Produce request without decoding it.

Decoding a partition takes ten times as much time and memory as skipping it, and a request of some megabytes can name hundreds
of thousands.
"""

from __future__ import annotations

import struct
from typing import Final

from barnabas.wire.primitives import MALFORMED, Buffer, DecodeError, read_uvarint, skip_tagged_fields

_ID_VERSION: Final = 13  # topics by id
_FLEXIBLE_VERSION: Final = 9
_ID_SIZE: Final = 16
_INDEX_SIZE: Final = 4
_ACKS_AND_TIMEOUT_SIZE: Final = 6
_read_length = struct.Struct(">h").unpack_from
_read_count = struct.Struct(">i").unpack_from


def names_more_than(limit: int, body: Buffer, start: int, end: int, version: int) -> bool:
    """Whether the Produce in body[start:end] has more topics and partitions than `limit`; unknown tagged fields count too. In
    a malformed request the elements before the error count, as decoding ends there."""
    walk = _flexible_elements if version >= _FLEXIBLE_VERSION else _elements
    try:
        return walk(body, start, end, limit, version) < 0
    except (*MALFORMED, DecodeError):
        return False


def _elements(body: Buffer, pos: int, end: int, left: int, _version: int) -> int:
    """`left` without the elements of the request; negative as soon as there are more."""
    (size,) = _read_length(body, pos)
    pos += 2 + max(size, 0) + _ACKS_AND_TIMEOUT_SIZE
    (topics,) = _read_count(body, pos)
    pos += 4
    for _ in range(topics):
        (size,) = _read_length(body, pos)
        pos += 2 + max(size, 0)
        (partitions,) = _read_count(body, pos)
        pos += 4
        left -= 1
        for _ in range(partitions):
            left -= 1
            if left < 0 or pos >= end:
                return left
            (size,) = _read_count(body, pos + _INDEX_SIZE)
            pos += _INDEX_SIZE + 4 + max(size, 0)
        if left < 0 or pos >= end:
            break
    return left


def _flexible_elements(body: Buffer, pos: int, end: int, left: int, version: int) -> int:
    size, pos = read_uvarint(body, pos)
    pos += max(size - 1, 0) + _ACKS_AND_TIMEOUT_SIZE
    topics, pos = read_uvarint(body, pos)
    for _ in range(topics - 1):
        if version >= _ID_VERSION:
            pos += _ID_SIZE
        else:
            size, pos = read_uvarint(body, pos)
            pos += max(size - 1, 0)
        partitions, pos = read_uvarint(body, pos)
        left -= 1
        for _ in range(partitions - 1):
            left -= 1
            if left < 0 or pos >= end:
                return left
            size, pos = read_uvarint(body, pos + _INDEX_SIZE)
            left, pos = _without_tags(body, pos + max(size - 1, 0), end, left)
        left, pos = _without_tags(body, pos, end, left)
        if left < 0 or pos >= end:
            break
    return left


def _without_tags(body: Buffer, pos: int, end: int, left: int) -> tuple[int, int]:
    """`left` without the tagged fields at `pos`, and the position behind them."""
    first = body[pos]
    if first:
        left -= read_uvarint(body, pos)[0]
        if left >= 0:
            return left, skip_tagged_fields(body, pos + 1, end, first)
    return left, pos + 1
