"""A client for tests that speaks frames: what it sends and when is up to the test, which no library allows."""

from __future__ import annotations

import socket
import struct
from typing import Any

from barnabas.wire.headers import API_VERSIONS
from barnabas.wire.registry import request_type, response_type


class RawClient:
    """A blocking socket that speaks frames."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection((host, port), timeout=60)
        self._correlation_id = 0

    def frame(self, key: int, version: int, message: Any) -> bytes:
        self._correlation_id += 1
        kind = request_type(key)
        body = b"".join(bytes(part) for part in kind.encode(version, message))  # type: ignore[call-overload]
        header = struct.pack(">hhih", key, version, self._correlation_id, 1) + b"c"
        header += b"\0" if kind.flexible(version) else b""
        return struct.pack(">i", len(header) + len(body)) + header + body

    def receive_bytes(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise EOFError
            data += more
        return bytes(data)

    def receive(self, key: int, version: int) -> tuple[int, Any]:
        """(correlation id, response)"""
        frame = self.receive_bytes(*struct.unpack(">i", self.receive_bytes(4)))
        kind = response_type(key)
        start = 5 if kind.flexible(version) and key != API_VERSIONS else 4
        return int.from_bytes(frame[:4], "big"), kind.decode(version, frame, start)[0]

    def ask(self, key: int, version: int, message: Any) -> Any:
        self.socket.sendall(self.frame(key, version, message))
        return self.receive(key, version)[1]

    def is_closed(self) -> bool:
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True
