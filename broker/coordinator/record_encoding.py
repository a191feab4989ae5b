"""The encoding of a coordinator's records, as Kafka's coordinators share it.

A key is the type of the record (int16) and the fields of version 0 of its message; a value is a version (int16) and the fields
of that version, or null, which removes the key.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from barnabas.wire.message_type import MessageType
from barnabas.wire.primitives import DecodeError

M = TypeVar("M", bound=msgspec.Struct)


class UnknownRecord(ValueError):
    """A record this broker can't read; it is skipped, as Kafka does."""


class UnknownValue(UnknownRecord):
    """The key is a known one: its earlier value counts."""


def encode_key(record_type: int, message_type: MessageType[M], message: M) -> bytes:
    """EncodeError for a field that is too long, as in `encode_value`."""
    return _encode(record_type, message_type, 0, message)


def encode_value(version: int, message_type: MessageType[M], message: M) -> bytes:
    return _encode(version, message_type, version, message)


def _encode(prefix: int, message_type: MessageType[M], version: int, message: M) -> bytes:
    parts = message_type.encode(version, message)
    return prefix.to_bytes(2, "big") + b"".join(parts)  # type: ignore[arg-type]  # bytes: these messages hold no records


def record_type(key: bytes | None) -> int:
    """UnknownRecord when there is none."""
    if key is None or len(key) < 2:
        raise UnknownRecord("a record without a key")
    return int.from_bytes(key[:2], "big")


def decode_key(message_type: MessageType[M], key: bytes | None) -> M:
    """The fields behind the type. UnknownRecord when they are damaged."""
    try:
        return message_type.decode(0, key or b"", 2)[0]
    except DecodeError as error:
        raise UnknownRecord(str(error)) from None


def decode_value(message_type: MessageType[M], value: bytes) -> M:
    """UnknownValue for later versions and damaged values."""
    version = int.from_bytes(value[:2], "big", signed=True)
    if len(value) < 2 or not message_type.supports(version):
        raise UnknownValue(f"{message_type.name} version {version}")
    try:
        return message_type.decode(version, value, 2)[0]
    except DecodeError as error:
        raise UnknownValue(str(error)) from None
