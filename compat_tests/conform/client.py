"""A blocking Kafka connection for the comparison: one socket, one request at a time.

It sends and receives frames, without topics or retries. Besides an answer there are three outcomes: the broker closed
the connection, did not answer in time, or sent an answer that does not decode.
"""

from __future__ import annotations

import socket
import struct
from typing import Any

from barnabas.wire import registry
from barnabas.wire.headers import request_header_version, response_header_version
from compat_tests.conform.apis import APIS

CLIENT_ID = "conform"
ANSWER_SECONDS = 4.0
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36  # API keys


class ConnectionClosed(Exception):
    """The broker closed the connection instead of answering."""


class NoAnswer(Exception):
    """The broker neither answered nor closed within the time allowed."""


class BadAnswer(Exception):
    """The broker's answer does not decode, or leaves bytes over."""


def api_key_of(request: object) -> int:
    """The API key of a request message, by its class name (``FetchRequest`` -> 1)."""
    return APIS[type(request).__name__.removesuffix("Request")].key


def request_header(
    api_key: int, version: int, correlation_id: int, client_id: str | None = CLIENT_ID
) -> bytes:
    """A request header as any client writes it: v1, or v2 (with an empty tag section) for flexible requests."""
    name = b"" if client_id is None else client_id.encode()
    header = (
        struct.pack(">hhih", api_key, version, correlation_id, -1 if client_id is None else len(name)) + name
    )
    return header + (b"\x00" if request_header_version(api_key, version) >= 2 else b"")


def encode_request(request: object, version: int, correlation_id: int = 1) -> bytes:
    """Header and body of `request`, without the frame's length."""
    api_key = api_key_of(request)
    parts = registry.request_type(api_key).encode(version, request)
    return request_header(api_key, version, correlation_id) + b"".join(
        part for part in parts if isinstance(part, bytes | memoryview)
    )


class Connection:
    """One connection to one broker. Every method raises ConnectionClosed if the broker has closed it."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=ANSWER_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def close(self) -> None:
        self._socket.close()

    def log_in(self, user: str, password: str) -> None:
        """Authenticate with PLAIN."""
        token = f"\0{user}\0{password}".encode()
        for header, body in (
            (request_header(SASL_HANDSHAKE, 1, 0), struct.pack(">h5s", 5, b"PLAIN")),
            (request_header(SASL_AUTHENTICATE, 0, 0), struct.pack(">i", len(token)) + token),
        ):
            self.send_frame(header + body)
            (error,) = struct.unpack_from(">h", self.receive_frame(), 4)
            assert not error, f"{user} can't log in: {error}"

    def send_bytes(self, data: bytes) -> None:
        """Send raw bytes, frame length included by the caller."""
        try:
            self._socket.sendall(data)
        except (ConnectionResetError, BrokenPipeError) as error:
            raise ConnectionClosed from error

    def send_frame(self, payload: bytes) -> None:
        """Send `payload` behind its 4-byte length."""
        self.send_bytes(struct.pack(">i", len(payload)) + payload)

    def receive_frame(self, seconds: float = ANSWER_SECONDS) -> bytes:
        """The next response frame, without its length."""
        self._socket.settimeout(seconds)
        (size,) = struct.unpack(">i", self._receive_exactly(4))
        return self._receive_exactly(size)

    def _receive_exactly(self, size: int) -> bytes:
        chunks = bytearray()
        while len(chunks) < size:
            try:
                chunk = self._socket.recv(min(size - len(chunks), 1 << 20))
            except TimeoutError as error:
                raise NoAnswer from error
            except ConnectionResetError as error:
                raise ConnectionClosed from error
            if not chunk:
                raise ConnectionClosed
            chunks += chunk
        return bytes(chunks)

    def send(self, request: object, version: int) -> int:
        """Send `request` and return its correlation id."""
        self._correlation_id += 1
        self.send_frame(encode_request(request, version, self._correlation_id))
        return self._correlation_id

    def receive(
        self, api_key: int, version: int, correlation_id: int, seconds: float = ANSWER_SECONDS
    ) -> Any:
        """The decoded answer to the request with `correlation_id`."""
        return decode_response(api_key, version, correlation_id, self.receive_frame(seconds))

    def ask(self, request: object, version: int, seconds: float = ANSWER_SECONDS) -> Any:
        """Send `request`, wait, and return the decoded answer."""
        return self.receive(api_key_of(request), version, self.send(request, version), seconds)


def decode_response(api_key: int, version: int, correlation_id: int, frame: bytes) -> Any:
    """Decode a response frame; ApiVersions falls back to v0 when the broker says UNSUPPORTED_VERSION."""
    (answered,) = struct.unpack_from(">i", frame)
    if answered != correlation_id:
        raise BadAnswer(f"correlation id {answered}, expected {correlation_id}")
    position = 4
    if api_key == APIS["ApiVersions"].key and frame[4:6] == b"\x00\x23":
        version = 0
    elif response_header_version(api_key, version) >= 1:
        if frame[4] != 0:
            raise BadAnswer("tagged fields in the response header")
        position = 5
    try:
        message, end = registry.response_type(api_key).decode(version, frame, position)
    except ValueError as error:
        raise BadAnswer(f"does not decode: {error}") from error
    if end != len(frame):
        raise BadAnswer(f"{len(frame) - end} bytes left over")
    return message
