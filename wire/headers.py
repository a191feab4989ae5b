"""Request and response headers.

Request header 1: api_key int16, api_version int16, correlation_id int32, client_id nullable string.
Request header 2: the same with a tagged-field section; client_id keeps its old int16 length, because a broker
must be able to read the header of an ApiVersions request of any version (KIP-482, KIP-511).
Request header 0, without the client_id, belonged to ControlledShutdown version 0 alone and is gone.
Response header 0: correlation_id. Response header 1: correlation_id and a tagged-field section.
"""

from __future__ import annotations

from struct import Struct

import msgspec

from barnabas.wire.messages.index import APIS
from barnabas.wire.primitives import (
    MALFORMED,
    Buffer,
    DecodeError,
    EncodeError,
    malformed,
    overrun,
    skip_tagged_fields,
)

API_VERSIONS = 18

_unpack_head = Struct(">hhih").unpack_from
_pack_head = Struct(">hhih").pack
_pack_correlation = Struct(">i").pack
_pack_flexible_correlation = Struct(">ix").pack
_unpack_correlation = Struct(">i").unpack_from

_NEVER = 1 << 16
# By API key: the first version with a flexible header. Headers of unknown keys and versions are read as non-flexible ones; the
# dispatcher rejects them.
_FLEXIBLE = {key: _NEVER if entry[4] is None else entry[4] for key, entry in APIS.items()}


class RequestHeader(msgspec.Struct, gc=False):
    """The header of a request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None = None


def request_header_version(api_key: int, api_version: int) -> int:
    """2 for flexible versions, else 1."""
    return 2 if api_version >= _FLEXIBLE.get(api_key, _NEVER) else 1


def response_header_version(api_key: int, api_version: int) -> int:
    """1 for flexible versions, else 0; always 0 for ApiVersions, whose client knows no versions yet."""
    return 1 if api_key != API_VERSIONS and api_version >= _FLEXIBLE.get(api_key, _NEVER) else 0


def decode_request_header(buffer: Buffer, pos: int = 0, end: int = -1) -> tuple[RequestHeader, int]:
    """Reads the header at `pos`; returns it and the position of the body. Raises DecodeError.

    `end` is where the frame ends; -1 means where the buffer does.
    """
    if end < 0:
        end = len(buffer)
    try:
        api_key, api_version, correlation_id, size = _unpack_head(buffer, pos)
        pos += 10
        client_id = None
        if size >= 0:
            stop = pos + size
            client_id = str(buffer[pos:stop], "utf-8")
            pos = stop
        if api_version >= _FLEXIBLE.get(api_key, _NEVER):
            count = buffer[pos]
            pos += 1
            if count:
                pos = skip_tagged_fields(buffer, pos, end, count)
        if pos > end:
            raise overrun("RequestHeader")
        return RequestHeader(api_key, api_version, correlation_id, client_id), pos
    except MALFORMED as error:
        raise malformed("RequestHeader", error) from None


def encode_request_header(header: RequestHeader) -> bytes:
    """Encodes a header in the version its API and version ask for. Raises EncodeError."""
    client_id = b"" if header.client_id is None else header.client_id.encode()
    if len(client_id) > 32767:
        raise EncodeError("client_id is longer than 32767 bytes")
    size = -1 if header.client_id is None else len(client_id)
    encoded = _pack_head(header.api_key, header.api_version, header.correlation_id, size) + client_id
    if request_header_version(header.api_key, header.api_version) == 2:
        return encoded + b"\0"
    return encoded


def encode_response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """Encodes the header that answers a request of this API and version."""
    if api_version >= _FLEXIBLE.get(api_key, _NEVER) and api_key != API_VERSIONS:
        return _pack_flexible_correlation(correlation_id)
    return _pack_correlation(correlation_id)


def decode_response_header(api_key: int, api_version: int, buffer: Buffer, pos: int = 0) -> tuple[int, int]:
    """Returns the correlation id and the position of the body. Raises DecodeError."""
    try:
        (correlation_id,) = _unpack_correlation(buffer, pos)
        pos += 4
        if response_header_version(api_key, api_version):
            count = buffer[pos]
            pos = skip_tagged_fields(buffer, pos + 1, len(buffer), count)
        if pos > len(buffer):
            raise DecodeError("ResponseHeader: the bytes end too early")
        return correlation_id, pos
    except MALFORMED as error:
        raise malformed("ResponseHeader", error) from None
