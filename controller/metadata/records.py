"""Metadata records as bytes, framed as KRaft frames them in `__cluster_metadata`.

A record is: unsigned varint frame version (1) | unsigned varint API key of the record type | unsigned varint version of the
record | the message. Kafka's dump tools read this as the value of a record.
Source: KIP-631, "Record Formats".
"""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec

from barnabas.controller.metadata.errors import MetadataError
from barnabas.wire.message_type import MessageType
from barnabas.wire.messages.metadata_records import RECORD_TYPES
from barnabas.wire.primitives import DecodeError, read_uvarint, uvarint

FRAME_VERSION: Final = 1

_BY_STRUCT: Final[dict[type, tuple[bytes, MessageType[Any]]]] = {
    kind.message_class: (uvarint(FRAME_VERSION) + uvarint(kind.api_key) + uvarint(kind.max_version), kind)
    for kind in RECORD_TYPES.values()
}


def encode_record(record: msgspec.Struct) -> bytes:
    """The record in the newest version of its type, which is what metadata.version 4.3-IV0 writes."""
    frame, kind = _BY_STRUCT[type(record)]
    return frame + b"".join(cast("list[bytes]", kind.encode(kind.max_version, record)))


def decode_record(content: bytes) -> msgspec.Struct:
    """MetadataError when the bytes are no record that this version knows."""
    try:
        frame_version, position = read_uvarint(content, 0)
        api_key, position = read_uvarint(content, position)
        version, position = read_uvarint(content, position)
    except (DecodeError, IndexError) as error:
        raise MetadataError(f"a metadata record has no readable frame: {error}") from error
    if frame_version != FRAME_VERSION:
        raise MetadataError(
            f"a metadata record has frame version {frame_version}; this version reads {FRAME_VERSION}"
        )
    kind = RECORD_TYPES.get(api_key)
    if kind is None or not kind.min_version <= version <= kind.max_version:
        raise MetadataError(
            f"metadata records of type {api_key} version {version} are not known to this version"
        )
    try:
        record, end = kind.decode(version, content, position)
    except DecodeError as error:
        raise MetadataError(f"a {kind.name} does not decode: {error}") from error
    if end != len(content):
        raise MetadataError(f"a {kind.name} has {len(content) - end} bytes too many")
    assert isinstance(record, msgspec.Struct)
    return record
