"""The pieces that a Kafka record of a NATS message is put together from, as bytes.

A record's *tail* is all of it behind its offset delta:

    key length, key | value length, value | header count, then each header: name length, name, value length, value

with zigzag varints, and -1 as the length of null. The tail holds everything that was in the message and nothing of where
and when it is stored, so the records that two brokers make of one message have the same tail.

The headers of a record, in this order:

    nats.subject     always
    nats.reply       when the message had a reply subject (not that of a JetStream delivery, which is for the consumer)
    nats.stream, nats.seq, nats.timestamp    from JetStream: name, sequence and nanoseconds since 1970 in decimal
    nats.status      when the first line of the header block said more than its version, as in `503 No Responders`
    the message's own, all of them, as they were sent
    nats.headers.raw     in their place, when the header block is none: the whole of it
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

VARINTS: Final = tuple(map(varint, range(16_384)))  # what takes one or two bytes mostly, without a call
VARINT_COUNT: Final = len(VARINTS)
NULL_PART: Final = varint(-1)

NAMES_KEPT_MAX: Final = 4096
NAME_KEPT_BYTES_MAX: Final = 256
_FIRST_LINE: Final = b"NATS/1.0"

# Appends a block's headers to a record's parts, three parts each, and returns the special ones: names and values.
AddHeaders: TypeAlias = Callable[[bytes, list[bytes]], Pairs | None]
IsSpecial: TypeAlias = Callable[[bytes], bool]  # of a header's name
NOTHING_SPECIAL: Final[IsSpecial] = frozenset[bytes]().__contains__


def sized(text: bytes | None) -> bytes:
    """A key, value, header name or header value with its length in front."""
    if text is None:
        return NULL_PART
    size = len(text)
    return (VARINTS[size] if size < VARINT_COUNT else varint(size)) + text


def header_parts(name: bytes, value: bytes) -> tuple[bytes, bytes, bytes]:
    """One header."""
    return sized(name), varint(len(value)), value


def make_header_adder(is_special: IsSpecial = NOTHING_SPECIAL) -> AddHeaders:
    """A function that appends all the headers of a block to a list of record parts, three parts a header.

    It returns those whose name `is_special` (asked once a name), None when there is none. A block that is no header
    block becomes one header, nats.headers.raw, which is always special. Names that are met again and again are kept
    encoded, a bounded number of them.
    """
    usual: dict[bytes, bytes] = {}  # name -> its part
    special: dict[bytes, bytes] = {}

    def learn(name: bytes) -> bytes | None:
        """The name's part, kept; None when the name needs a closer look each time."""
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
        if lines[0] != _FIRST_LINE or lines[-1] or lines[-2]:  # the last line is empty, and ended
            return _add_carefully(block, parts, is_special)
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
            return _add_carefully(block, parts, is_special)
        return found

    return add_headers


def _add_carefully(block: bytes, parts: list[bytes], is_special: IsSpecial) -> Pairs | None:
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
