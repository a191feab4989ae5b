"""The parts of a Kafka record made from a NATS message, as bytes.

A record's *tail* is the part behind its offset delta:

    key length, key | value length, value | header count, then each header: name length, name, value length, value

with zigzag varints; the length of null is -1. The tail depends on the message only, not on where and when it is stored, so
two brokers make the same tail from one message.

The headers of a record, in this order:

    nats.subject     always
    nats.reply       when the message had a reply subject (except that of a JetStream delivery)
    nats.stream, nats.seq, nats.timestamp    from JetStream: name, sequence and nanoseconds since 1970 in decimal
    nats.status      the status in the first line of the header block, as in `503 No Responders`
    the message's own headers, unchanged
    nats.headers.raw     in their place, when the header block is malformed: the whole block
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from barnabas.nats.client.headers import MalformedHeaders, Pairs, parse_headers, read_status
from barnabas.wire.primitives import varint

SUBJECT_HEADER: Final = b"nats.subject"
REPLY_HEADER: Final = b"nats.reply"
STREAM_HEADER: Final = b"nats.stream"
SEQUENCE_HEADER: Final = b"nats.seq"
TIMESTAMP_HEADER: Final = b"nats.timestamp"
STATUS_HEADER: Final = b"nats.status"
RAW_HEADER: Final = b"nats.headers.raw"

VARINTS: Final = tuple(map(varint, range(16_384)))  # a table instead of calls
VARINT_COUNT: Final = len(VARINTS)
NULL_PART: Final = varint(-1)

NAMES_KEPT_MAX: Final = 4096
NAME_KEPT_BYTES_MAX: Final = 256
_FIRST_LINE: Final = b"NATS/1.0"

# Appends a block's headers to a record's parts, three parts each, and returns the special ones.
AddHeaders: TypeAlias = Callable[[bytes, list[bytes]], Pairs | None]
IsSpecial: TypeAlias = Callable[[bytes], bool]  # of a header's name
NOTHING_SPECIAL: Final[IsSpecial] = frozenset[bytes]().__contains__


def sized(text: bytes | None) -> bytes:
    """A key, value, header name or header value, preceded by its length."""
    if text is None:
        return NULL_PART
    size = len(text)
    return (VARINTS[size] if size < VARINT_COUNT else varint(size)) + text


def header_parts(name: bytes, value: bytes) -> tuple[bytes, bytes, bytes]:
    """The three parts of one header."""
    return sized(name), varint(len(value)), value


def make_header_adder(is_special: IsSpecial = NOTHING_SPECIAL) -> AddHeaders:
    """A function that appends the headers of a block to a list of record parts, three parts a header.

    It returns the headers whose name `is_special` (called once a name); None without any. A malformed block becomes one
    header, nats.headers.raw, which is always special. A bounded number of names is kept encoded.
    """
    usual: dict[bytes, bytes] = {}  # name -> its part
    special: dict[bytes, bytes] = {}

    def learn(name: bytes) -> bytes | None:
        """Encodes and keeps a name; None for a name that the general way must check each time."""
        if b":" in name or not _is_text(name) or len(name) > NAME_KEPT_BYTES_MAX:
            return None
        kept = special if is_special(name) else usual
        if len(kept) >= NAMES_KEPT_MAX:
            kept.clear()
        part = kept[name] = sized(name)
        return part

    def add_headers(block: bytes, parts: list[bytes]) -> Pairs | None:
        found: Pairs | None = None
        start = len(parts)
        lines = block.split(b"\r\n")
        if lines[0] != _FIRST_LINE or lines[-1] or lines[-2]:  # a status, or not ended by an empty line
            return _add_any(block, parts, is_special)
        try:
            for line in lines[1:-2]:
                name, colon, value = line.partition(b": ")
                part = usual.get(name)
                if part is None or not colon:
                    part = (special.get(name) or learn(name)) if colon else None
                    if part is None:
                        raise ValueError
                    if name in special:
                        if found is None:
                            found = []
                        found.append((name, value))
                parts += part, VARINTS[len(value)], value
        except (ValueError, IndexError):  # no ": ", or a value too long for the table
            del parts[start:]
            return _add_any(block, parts, is_special)
        return found

    return add_headers


def _add_any(block: bytes, parts: list[bytes], is_special: IsSpecial) -> Pairs | None:
    """The general way, for any block."""
    try:
        status = read_status(block)
        pairs = parse_headers(block)
    except MalformedHeaders:
        pairs = None
    if pairs is None or not all(_is_text(name) for name, _ in pairs):  # Kafka's names are UTF-8
        parts += header_parts(RAW_HEADER, block)
        return [(RAW_HEADER, block)]
    if status:
        parts += header_parts(STATUS_HEADER, status)
    for name, value in pairs:
        parts += header_parts(name, value)
    return [(name, value) for name, value in pairs if is_special(name)] or None


def _is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True
