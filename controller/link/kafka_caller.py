"""A Kafka client that has called a controller listener: it is told in its own protocol that it finds nothing here.

It asks which APIs there are (KIP-511), and learns of ApiVersions alone; so it says to its user that this node does not
support what it wants, instead of trying again without a word. Anything else it asks ends the connection.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from barnabas.controller.link.messages import MalformedMessage

API_VERSIONS: Final = 18
REQUEST_BYTES_MAX: Final = 4096

_UNSUPPORTED_VERSION: Final = 35
_HEAD: Final = struct.Struct(">ihhi")  # length, API key, version, correlation id
_ANSWER: Final = struct.Struct(
    ">iihihhh"
)  # length, correlation id, error, one API: key, lowest, highest version


def asks_for_api_versions(first: bytes) -> bool:
    """Whether a connection that begins so is a Kafka client's."""
    if len(first) < _HEAD.size:
        return False
    length: int
    api_key: int
    version: int
    length, api_key, version, _ = _HEAD.unpack_from(first)
    return api_key == API_VERSIONS and 8 <= length <= REQUEST_BYTES_MAX and 0 <= version < 32


class KafkaCaller:
    """Takes the place of a FrameReader. `send(bytes)` writes."""

    def __init__(self, send: Callable[[bytes], object]) -> None:
        self._send = send
        self._buffer = bytearray()
        self._is_stopped = False

    def stop(self) -> None:
        self._is_stopped = True

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """MalformedMessage when it asks for anything else."""
        buffer = self._buffer
        buffer += data
        while not self._is_stopped and len(buffer) >= _HEAD.size:
            length, _, version, correlation_id = _HEAD.unpack_from(buffer)
            if not asks_for_api_versions(bytes(buffer[: _HEAD.size])):
                raise MalformedMessage("a Kafka client asks for something else than ApiVersions")
            if len(buffer) < 4 + length:
                return
            del buffer[: 4 + length]
            error = _UNSUPPORTED_VERSION if version else 0  # then it asks again, for version 0
            self._send(_ANSWER.pack(_ANSWER.size - 4, correlation_id, error, 1, API_VERSIONS, 0, 0))
