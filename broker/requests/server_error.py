"""Turns a response that cannot be encoded into UNKNOWN_SERVER_ERROR.

Such a response is a bug of the handler: a string longer than the protocol allows, for example. The client must get a response
nevertheless, because it repeats a request without one for ever.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec

from barnabas.wire.errors import ErrorCode
from barnabas.wire.primitives import MAX_STRING_BYTES, EncodeError
from barnabas.wire.registry import API_NAMES

if TYPE_CHECKING:
    from barnabas.wire.message_type import Writer
    from barnabas.wire.primitives import Part

log = logging.getLogger("barnabas.connection")

_ERROR_CODES = ("error_code", "partition_error_code")


def encode_or_server_error(api_key: int, write: Writer[Any], response: msgspec.Struct) -> list[Part]:
    """The encoded response; if it cannot be encoded, the same response with UNKNOWN_SERVER_ERROR in all its error codes.
    EncodeError if that cannot be encoded either."""
    parts: list[Part] = []
    try:
        write(response, parts.append)
    except EncodeError as error:
        log.error("the response to %s is an error: %s", API_NAMES[api_key], error)
        parts.clear()
        _fail(response)
        write(response, parts.append)
    return parts


def _fail(message: msgspec.Struct) -> None:
    """Set the error code of the message and of every struct in it, and cut strings to the longest that can be encoded."""
    for name in message.__struct_fields__:
        value = getattr(message, name)
        if name in _ERROR_CODES:
            setattr(message, name, ErrorCode.UNKNOWN_SERVER_ERROR)
        elif name == "error_message":
            message.error_message = ErrorCode.UNKNOWN_SERVER_ERROR.message  # type: ignore[attr-defined]  # it has one
        elif isinstance(value, str):
            _cut(message, name, value)
        elif isinstance(value, list):
            for each in value:
                if isinstance(each, msgspec.Struct):
                    _fail(each)


def _cut(message: msgspec.Struct, name: str, text: str) -> None:
    encoded = text.encode(errors="replace")
    if len(encoded) > MAX_STRING_BYTES:
        setattr(message, name, encoded[:MAX_STRING_BYTES].decode(errors="ignore"))
