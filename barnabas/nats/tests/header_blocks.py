"""Header blocks as publishers write them, and parts of records as the bridge does, the long way."""

from __future__ import annotations

from collections.abc import Iterable

from barnabas.nats.client.headers import VERSION
from barnabas.nats.records.parts import (
    SEQUENCE_HEADER,
    STREAM_HEADER,
    TIMESTAMP_HEADER,
    header_parts,
)


def format_headers(pairs: Iterable[tuple[bytes, bytes]], status: bytes = b"") -> bytes:
    """The block that `parse_headers` reads as these pairs.

    ValueError when a pair can't be written: a colon in a name, or a line end in either.
    """
    lines = [VERSION + b" " + status if status else VERSION]
    for name, value in pairs:
        if b":" in name:
            raise ValueError(f"the name of a header can't hold a colon: {name!r}")
        lines.append(name + b": " + value)
    block = b"\r\n".join(lines) + b"\r\n\r\n"
    if block.count(b"\r\n") != len(lines) + 1:
        raise ValueError("a header can't hold a line end")
    return block


def stream_parts(stream: bytes, sequence: bytes, timestamp_ns: bytes) -> tuple[bytes, ...]:
    """The three headers of a message that a stream has stored; the numbers as decimal text."""
    return (
        *header_parts(STREAM_HEADER, stream),
        *header_parts(SEQUENCE_HEADER, sequence),
        *header_parts(TIMESTAMP_HEADER, timestamp_ns),
    )
