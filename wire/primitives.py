"""The smallest pieces of the Kafka protocol, shared by all generated message modules.

Generated code reads each run of fixed-size fields with one struct call. This module has the rest: varints, tagged-field
sections, arrays of numbers, and the two error types.

Rules for every reader, because the bytes come from outside:
- `DecodeError` is the only exception that leaves a decoder.
- A length is compared with the bytes that remain before anything of that size is allocated; an array of n
  elements needs n times the smallest encoding of one element (at least one byte each).
- At most MAX_ARRAY_ELEMENTS elements and MAX_TAGGED_FIELDS tagged fields, as Kafka limits them.

Source: Kafka protocol guide, "Protocol Primitive Types"; KIP-482 for the compact and tagged encodings.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Protocol, TypeAlias

MAX_ARRAY_ELEMENTS = 1_000_000
MAX_TAGGED_FIELDS = 10_000
MAX_STRING_BYTES = 32767
MAX_ERROR_MESSAGE_CHARACTERS = 1000

ZERO_UUID = bytes(16)


class Part(Protocol):
    """One piece of an encoded message: bytes, a memoryview, or a stand-in that knows its length in bytes."""

    def __len__(self) -> int: ...


Buffer: TypeAlias = "bytes | memoryview"
Parts: TypeAlias = "tuple[Part, ...]"  # value of a records field made of several pieces
Records: TypeAlias = "Part | Parts | None"
Append: TypeAlias = Callable[[Part], None]


class DecodeError(ValueError):
    """The bytes are not a valid message."""


class EncodeError(ValueError):
    """The message has no encoding: a null where none is allowed, a number out of range, a string too long."""


# What straight-line decoding of damaged bytes can raise; each reader turns these into DecodeError.
MALFORMED = (struct.error, IndexError, UnicodeDecodeError)
# What encoding a wrongly filled message can raise; each writer turns these into EncodeError.
UNENCODABLE = (struct.error, AttributeError, TypeError, UnicodeEncodeError)


def malformed(message: str, error: Exception) -> DecodeError:
    if isinstance(error, UnicodeDecodeError):
        return DecodeError(f"{message}: a string is not valid UTF-8")
    return DecodeError(f"{message}: the bytes end too early")


def overrun(message: str) -> DecodeError:
    return DecodeError(f"{message}: a length points past the end of the bytes")


def unexpected_null(field: str) -> DecodeError:
    return DecodeError(f"{field} is null, which this version does not allow")


def bad_length(field: str, length: int, remaining: int) -> DecodeError:
    return DecodeError(f"{field} claims length {length} with {remaining} bytes left")


def bad_tag_size(field: str) -> DecodeError:
    return DecodeError(f"{field}: the size of the tagged field does not match its content")


def unencodable(message: str, error: Exception) -> EncodeError:
    return EncodeError(f"{message} cannot be encoded: {error}")


def null_field(field: str) -> EncodeError:
    return EncodeError(f"{field} must not be null in this version")


# -- varints ------------------------------------------------------------------------------------------------


def read_uvarint(buffer: Buffer, pos: int) -> tuple[int, int]:
    """Reads an unsigned varint of at most 31 bits; returns it with the position behind it."""
    byte = buffer[pos]
    if byte < 128:
        return byte, pos + 1
    return long_uvarint(byte, buffer, pos + 1)


def long_uvarint(first: int, buffer: Buffer, pos: int) -> tuple[int, int]:
    """The rest of an unsigned varint whose first byte, `first`, has its continuation bit set."""
    byte = buffer[pos]
    value = first & 0x7F | (byte & 0x7F) << 7
    pos += 1
    if byte < 128:  # up to 16,383: most that are longer than one byte
        return value, pos
    for shift in (14, 21, 28):
        byte = buffer[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            if value > 0x7FFFFFFF:
                break
            return value, pos
    raise DecodeError("an unsigned varint is longer than 31 bits")


def long_string_size(first: int, buffer: Buffer, pos: int) -> tuple[int, int]:
    """As long_uvarint, for the length-plus-one of a compact string."""
    value, pos = long_uvarint(first, buffer, pos)
    if value > MAX_STRING_BYTES + 1:
        raise DecodeError(f"a string of {value - 1} bytes is longer than {MAX_STRING_BYTES}")
    return value, pos


def uvarint(value: int) -> bytes:
    """Encodes an unsigned varint."""
    if value < 128:
        return BYTES[value]
    if value < 16384:
        return bytes((value & 0x7F | 0x80, value >> 7))
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def varint(value: int) -> bytes:
    """Encodes a zigzag varint of up to 64 bits."""
    return uvarint((value << 1) ^ (value >> 63))


BYTES = tuple(bytes((value,)) for value in range(256))  # one-byte varints, without a call


def string_size(length: int) -> bytes:
    """The length-plus-one prefix of a compact string of `length` bytes."""
    if length > MAX_STRING_BYTES:
        raise EncodeError(f"a string of {length} bytes is longer than {MAX_STRING_BYTES}")
    return uvarint(length + 1)


def encode_error_message(text: str) -> bytes:
    """Encodes an error message. It may quote names and values of any length from the request, so it is shortened: a string
    holds at most MAX_STRING_BYTES."""
    if len(text) > MAX_ERROR_MESSAGE_CHARACTERS:
        text = text[: MAX_ERROR_MESSAGE_CHARACTERS - 3] + "..."
    return text.encode()


# -- arrays and tagged fields -------------------------------------------------------------------------------


def check_array(field: str, count: int, element_size: int, remaining: int) -> None:
    """Refuses an array that is null, larger than the limit, or larger than the bytes that remain."""
    if count < 0:
        raise unexpected_null(field) if count == -1 else bad_length(field, count, remaining)
    if count > MAX_ARRAY_ELEMENTS:
        raise DecodeError(f"{field} has {count} elements, more than {MAX_ARRAY_ELEMENTS}")
    if count * element_size > remaining:
        raise bad_length(field, count, remaining)


def read_uuids(buffer: Buffer, pos: int, count: int) -> list[bytes]:
    raw = bytes(buffer[pos : pos + 16 * count])
    return [raw[at : at + 16] for at in range(0, 16 * count, 16)]


def skip_tagged_fields(buffer: Buffer, pos: int, end: int, count: int) -> int:
    """Steps over `count` unknown tagged fields; `count` is the section's first byte, read already. Raises DecodeError."""
    try:
        if count > 127:
            count, pos = long_uvarint(count, buffer, pos)
        check_tagged_fields(count)
        for _ in range(count):
            _, pos, size = read_tag(buffer, pos, end)
            pos += size
    except IndexError:
        raise DecodeError("the bytes end inside the tagged fields") from None
    if pos > end:
        raise overrun("tagged fields")
    return pos


def check_tagged_fields(count: int) -> None:
    if count > MAX_TAGGED_FIELDS:
        raise DecodeError(f"{count} tagged fields, more than {MAX_TAGGED_FIELDS}")


def read_tag(buffer: Buffer, pos: int, end: int) -> tuple[int, int, int]:
    """Reads the head of one tagged field: (tag, position of its value, size of its value)."""
    tag, pos = read_uvarint(buffer, pos)
    size, pos = read_uvarint(buffer, pos)
    if size > end - pos:
        raise bad_length(f"tagged field {tag}", size, end - pos)
    return tag, pos, size


def append_records(append: Append, records: Part | Parts) -> None:
    """Appends the pieces of a records field as they are; nothing is copied."""
    if isinstance(records, (tuple, list)):
        for piece in records:
            append(piece)
    else:
        append(records)


def records_size(records: Part | Parts) -> int:
    """Size in bytes of a records field."""
    if isinstance(records, (tuple, list)):
        return sum(map(len, records))
    return len(records)
