"""Callers of a controller listener that speak another protocol.

A Kafka client gets an ApiVersions response (KIP-511) that lists ApiVersions only. So the client reports that this node does not
support what it needs, instead of retrying silently. Any other request ends the connection.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from barnabas.controller.link.messages import MalformedMessage
from barnabas.wire.registry import API_NAMES

_HTTP: Final = (b"GET ", b"POST ", b"PUT ", b"HEAD ", b"OPTIONS ", b"DELETE ", b"PRI * HTTP")
_KAFKA_FRAME_BYTES_MAX: Final = 100 * 1024 * 1024


def describe_caller(first: bytes) -> str:
    """What a caller seems to be, from its first bytes; it completes "refused a connection from ...: "."""
    if len(first) >= 3 and first[0] == 0x16 and first[1] == 3:
        return "it begins with a TLS handshake, and this listener speaks plain text: its security protocol differs"
    if first.startswith(_HTTP):
        return "it is an HTTP client, and this is a controller listener"
    if len(first) >= 8:
        length = int.from_bytes(first[:4], "big")
        api_key, version = int.from_bytes(first[4:6], "big"), int.from_bytes(first[6:8], "big")
        if 8 <= length <= _KAFKA_FRAME_BYTES_MAX and api_key in API_NAMES and version < 32:
            return (
                f"it is a Kafka client (its first request is {API_NAMES[api_key]} version {version}), and this "
                f"listener is for the nodes of the cluster alone; give it the address of a broker's listener"
            )
    return f"it does not speak the protocol of controller listeners (it begins with {first[:16]!r})"


API_VERSIONS: Final = 18
REQUEST_BYTES_MAX: Final = 4096

_UNSUPPORTED_VERSION: Final = 35
_HEAD: Final = struct.Struct(">ihhi")  # length, API key, version, correlation id
_ANSWER: Final = struct.Struct(
    ">iihihhh"
)  # length, correlation id, error, one API: key, lowest, highest version


def asks_for_api_versions(first: bytes) -> bool:
    """Whether the first bytes of a connection are an ApiVersions request."""
    if len(first) < _HEAD.size:
        return False
    length: int
    api_key: int
    version: int
    length, api_key, version, _ = _HEAD.unpack_from(first)
    return api_key == API_VERSIONS and 8 <= length <= REQUEST_BYTES_MAX and 0 <= version < 32


class KafkaCaller:
    """Answers a Kafka client, in place of a FrameReader. `send(bytes)` writes."""

    def __init__(self, send: Callable[[bytes], object]) -> None:
        self._send = send
        self._buffer = bytearray()
        self._is_stopped = False

    def stop(self) -> None:
        self._is_stopped = True

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """MalformedMessage for other requests."""
        buffer = self._buffer
        buffer += data
        while not self._is_stopped and len(buffer) >= _HEAD.size:
            length, _, version, correlation_id = _HEAD.unpack_from(buffer)
            if not asks_for_api_versions(bytes(buffer[: _HEAD.size])):
                raise MalformedMessage("a Kafka client asks for something else than ApiVersions")
            if len(buffer) < 4 + length:
                return
            del buffer[: 4 + length]
            error = _UNSUPPORTED_VERSION if version else 0  # the client retries with version 0
            self._send(_ANSWER.pack(_ANSWER.size - 4, correlation_id, error, 1, API_VERSIONS, 0, 0))
