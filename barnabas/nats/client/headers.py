"""NATS message headers, without loss: all pairs in their order, names and values byte for byte.

A header block is the text in front of the payload of HPUB and HMSG:

    NATS/1.0[ status[ description]]\\r\\n
    name: value\\r\\n        any number of times; the same name may come again
    \\r\\n

Names are case-sensitive. One space behind the colon belongs to the colon, the rest of the line is the value; most clients
strip further leading blanks. A lone CR or LF is part of the name or value: only the pair ends a line.

Servers pass blocks on as the publisher wrote them, so a block may hold any bytes. A malformed one raises MalformedHeaders;
a record of its message keeps the whole block.

Source: NATS protocol, HPUB and HMSG; ADR-4 (message headers).
"""

from __future__ import annotations

VERSION = b"NATS/1.0"

Pairs = list[tuple[bytes, bytes]]


class MalformedHeaders(ValueError):
    """The bytes are not a header block; the text says why."""


def parse_headers(block: bytes) -> Pairs:
    """The pairs of a whole header block, in order. An empty list when there are none. Raises MalformedHeaders."""
    return [_pair(line) for line in _lines(block)[1:]]


def read_status(block: bytes) -> bytes:
    """The text behind the version in the first line, as in `503 No Responders`; b"" in most blocks. Raises
    MalformedHeaders."""
    return _lines(block)[0][len(VERSION) :].strip(b" ")


def find_header(block: bytes, name: bytes) -> bytes | None:
    """The value of the first pair with this name (case-sensitive), or None. It checks nothing else of the block, so it never
    raises, and may find a pair in a malformed block."""
    start = block.find(b"\r\n" + name + b":")
    if start < 0:
        return None
    start += len(name) + 3
    end = block.find(b"\r\n", start)
    value = block[start:] if end < 0 else block[start:end]
    return value[1:] if value[:1] == b" " else value


def _lines(block: bytes) -> list[bytes]:
    if not block.startswith(VERSION):
        raise MalformedHeaders("the headers do not begin with NATS/1.0")
    if not block.endswith(b"\r\n\r\n"):
        raise MalformedHeaders("the headers do not end with an empty line")
    return block[:-4].split(b"\r\n")


def _pair(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon:
        raise MalformedHeaders(f"a header line without a colon: {line[:80]!r}")
    return name, value[1:] if value[:1] == b" " else value
