"""HTTP/1.1 without I/O: parses one request, in pieces of any size, and encodes one response.

Scrapers of metrics, the console's page and clients of the test broker's controls need no more: a connection serves one request,
and a body has a Content-Length. The size of a request is bounded, and a claimed length allocates nothing.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final

import msgspec

_END_OF_HEAD: Final = re.compile(rb"\r?\n\r?\n")
_END_BYTES_MAX: Final = 4


class HttpError(Exception):
    """A request that is answered by an error: its status, and the reason for a person to read."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Head(msgspec.Struct, frozen=True):
    """The head of a request."""

    method: str
    target: str
    headers: dict[str, str]  # names in lower case; a repeated one has its last value


class RequestParser:
    """Parses one request. `head` is set as soon as it has arrived, `body` is complete once `feed` has returned true."""

    def __init__(self, head_bytes_max: int, body_bytes_max: int | None = None) -> None:
        """`body_bytes_max` None: requests have no body, and bytes behind the head are ignored."""
        self.head: Head | None = None
        self.body = bytearray()
        self._head_bytes_max = head_bytes_max
        self._body_bytes_max = body_bytes_max
        self._body_bytes = 0
        self._received = bytearray()  # of the head

    def feed(self, data: bytes) -> bool:
        """Add received bytes; whether the request is complete. HttpError."""
        if self.head is None:
            searched = max(0, len(self._received) + 1 - _END_BYTES_MAX)
            self._received += data
            end = _END_OF_HEAD.search(self._received, searched)
            if (end.start() if end else len(self._received)) > self._head_bytes_max:
                raise HttpError(431, f"a head of more than {self._head_bytes_max} bytes")
            if end is None:
                return False
            self.head = parse_head(self._received[: end.start()])
            self._body_bytes = self._content_length(self.head)
            data = bytes(self._received[end.end() :])
            self._received.clear()
        self.body += data[: self._body_bytes - len(self.body)]
        return len(self.body) == self._body_bytes

    def _content_length(self, head: Head) -> int:
        if self._body_bytes_max is None:
            return 0
        if "transfer-encoding" in head.headers:
            raise HttpError(400, "HTTP/1.1 with a Content-Length is understood")
        text = head.headers.get("content-length") or "0"
        if not (text.isascii() and text.isdigit()):
            raise HttpError(400, "this is not HTTP/1.1")
        if len(text) > 18 or int(text) > self._body_bytes_max:
            raise HttpError(413, f"a body of at most {self._body_bytes_max} bytes is taken")
        return int(text)


def parse_head(data: bytes | bytearray) -> Head:
    """The head of a request, without the empty line behind it. HttpError."""
    first, *lines = data.replace(b"\r\n", b"\n").decode("latin-1").split("\n")
    parts = first.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise HttpError(400, "this is not HTTP/1.1")
    fields = (line.partition(":") for line in lines)
    return Head(parts[0], parts[1], {name.strip().lower(): value.strip() for name, _, value in fields})


def encode_response(status: int, content_type: str, body: bytes, headers: str = "") -> bytes:
    """A response behind which the connection is closed. `headers` are lines that each end in CRLF."""
    return encode_head(status, content_type, f"Content-Length: {len(body)}\r\n{headers}") + body


def encode_head(status: int, content_type: str, headers: str = "") -> bytes:
    """The head of a response whose body ends with the connection, unless `headers` say how long it is."""
    head = (
        f"HTTP/1.1 {status} {reason(status)}\r\nContent-Type: {content_type}\r\n"
        f"{headers}Connection: close\r\n\r\n"
    )
    return head.encode("latin-1")


def host_of(header: str) -> str:
    """The name in a Host header: `name`, `name:port` or `[address]:port`."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    name, _, port = header.rpartition(":")
    return (name if name and port.isdigit() else header).rstrip(".").lower()


def is_address(host: str) -> bool:
    """Whether it is an IP address, which no DNS server can make lead to another machine."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether it is an address or the name of this machine's loopback."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    return is_address(host) and ip_address(host).is_loopback


def reason(status: int) -> str:
    """The reason phrase, as "Not Found" for 404."""
    return _NEWER_REASONS.get(status) or HTTPStatus(status).phrase


# Python 3.13 has these phrases of RFC 9110, too.
_NEWER_REASONS: Final = {413: "Content Too Large"}
