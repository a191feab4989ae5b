"""Mutations of a message, with knowledge of its structure and without.

Each returns what it did, for the story of a failing case. `room` bounds the bytes that one mutation may add.
"""

from __future__ import annotations

import random
import struct

from barnabas.wire.tests.message_tokens import (
    Array,
    Node,
    Sized,
    TaggedFields,
    Token,
    encode,
    unsigned_varint,
    walk,
)

_FIXED = {
    "bool": (">B", (0, 1, 2, 255)),
    "int8": (">b", (-128, -2, -1, 0, 1, 2, 3, 9, 127)),
    "int16": (">h", (-32768, -2, -1, 0, 1, 3, 99, 32767)),
    "uint16": (">H", (0, 1, 65535)),
    "int32": (">i", (-(2**31), -2, -1, 0, 1, 100, 65536, 2**31 - 1)),
    "int64": (">q", (-(2**63), -3, -2, -1, 0, 1, 2**31, 4_000_000_000_000, 2**62, 2**63 - 1)),
    "float64": (">d", (float("nan"), float("inf"), float("-inf"), -1.0, 0.0, 1e308)),
}
# too long, not canonical, negative, beyond the limit of arrays
_VARINTS = (
    b"\x00",
    b"\x01",
    b"\x7f",
    b"\x80",
    b"\x80\x00",
    b"\x80\x80\x00",
    b"\xff\xff\x03",
    b"\xc2\x84\x3d",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\x0f",
    b"\xff" * 6,
    b"\xff" * 11,
)
_INT16_SIZES = (-32768, -2, -1, 0, 1, 32767)
_INT32_SIZES = (-(2**31), -2, -1, 0, 1, 1_000_000, 1_000_001, 2**31 - 1)
_TEXTS = (b"", b"\x00", b"\xff\xfe", b"\xed\xa0\x80", "\u202e😀".encode(), b"..", b"a/../b", b"%s{0}\n\r")


def mutate(nodes: list[Node], rng: random.Random, room: int) -> str:
    """One mutation of a tree, in place."""
    found = list(walk(nodes))
    arrays = [node for node in found if isinstance(node, Array)]
    sections = [node for node in found if isinstance(node, TaggedFields)]
    if arrays and rng.random() < 0.3:
        return _array(rng.choice(arrays), rng, room)
    if sections and rng.random() < 0.2:
        return _tagged(rng.choice(sections), rng, room)
    if not found:
        return "an empty message, left as it is"
    node = rng.choice(found)
    if isinstance(node, Token):
        return _token(node, rng)
    if isinstance(node, Sized):
        return _sized(node, rng, room)
    if isinstance(node, Array):
        return _array(node, rng, room)
    return _tagged(node, rng, room)


def damage(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    """Bytes cut, flipped, put in, doubled or appended, wherever that is."""
    raw = bytearray(data)
    at = rng.randrange(len(raw) + 1)
    match rng.randrange(5):
        case 0:
            return bytes(raw[:at]), f"cut at {at}"
        case 1:
            for _ in range(rng.randint(1, 4)):
                if raw:
                    raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
            return bytes(raw), "bits flipped"
        case 2:
            put = rng.choice(_VARINTS) if rng.random() < 0.5 else struct.pack(">i", rng.choice(_INT32_SIZES))
            raw[at : at + len(put)] = put
            return bytes(raw), f"{put.hex()} written at {at}"
        case 3:
            end = min(len(raw), at + rng.randint(1, 200))
            return bytes(raw[:end] + raw[at:]), f"bytes {at} to {end} doubled"
        case _:
            return bytes(raw) + rng.randbytes(rng.randint(1, 200)), "bytes appended"


def _token(token: Token, rng: random.Random) -> str:
    if token.kind in _FIXED:
        code, values = _FIXED[token.kind]
        token.data = struct.pack(code, rng.choice(values))
    elif token.kind == "uuid":
        token.data = rng.choice((bytes(16), b"\xff" * 16, bytes(15) + b"\x01", rng.randbytes(16)))
    else:  # whether a nullable struct is there
        token.data = rng.choice((b"\xff", b"\x00", b"\x01", b"\x80"))
    return f"{token.kind} set to {token.data.hex()}"


def _sized(node: Sized, rng: random.Random, room: int) -> str:
    if rng.random() < 0.5:
        if node.compact:
            node.size = rng.choice(_VARINTS)
        elif node.kind == "string":
            node.size = struct.pack(">h", rng.choice(_INT16_SIZES))
        else:
            node.size = struct.pack(">i", rng.choice(_INT32_SIZES))
        return f"size of a {node.kind} set to {node.size.hex()}"
    if rng.random() < 0.2:
        node.content = None
        return f"a {node.kind} set to null"
    if node.kind == "string":
        longest = b"x" * min(room, rng.choice((249, 250, 32766, 32767)))
        node.content = rng.choice((*_TEXTS, longest))
        return f"a string set to {node.content[:20]!r} ({len(node.content)} bytes)"
    content = node.content or b""
    match rng.randrange(3):
        case 0:
            node.content = rng.randbytes(rng.randrange(300))
        case 1:
            node.content, _ = damage(content, rng)
        case _:
            node.content = (content or b"\0") * max(1, min(room, 1 << 20) // max(1, len(content)))
    return f"{node.kind} set to {len(node.content)} other bytes"


def _array(array: Array, rng: random.Random, room: int) -> str:
    choice = rng.random()
    if array.elements and choice < 0.4:
        return repeat(array, rng, rng.choice((2, 100, 10_000)), room)
    if array.elements and choice < 0.5:
        array.elements.reverse()
        array.elements.append(array.elements[0])
        return "an array reversed, its first element twice"
    if choice < 0.6:
        array.elements = None
        return "an array set to null"
    if choice < 0.7:
        array.elements = []
        return "an array emptied"
    array.count = rng.choice(_VARINTS) if array.compact else struct.pack(">i", rng.choice(_INT32_SIZES))
    return f"count of an array set to {array.count.hex()}"


def repeat(array: Array, rng: random.Random, times: int, room: int) -> str:
    """One element many times, with the true count."""
    assert array.elements
    element = rng.choice(array.elements)
    encoded = encode(element)
    times = max(2, min(times, room // max(1, len(encoded))))
    # as bytes: a later mutation must not multiply
    array.elements = [element, [Token("repeated", encoded * (times - 1))]]
    array.count = unsigned_varint(times + 1) if array.compact else struct.pack(">i", times)
    return f"an element {times} times"


def _tagged(section: TaggedFields, rng: random.Random, room: int) -> str:
    junk: list[Node] = [Token("junk", rng.randbytes(rng.randrange(20)))]
    match rng.randrange(7):
        case 0:
            section.count = rng.choice(_VARINTS)
            return f"count of tagged fields set to {section.count.hex()}"
        case 1:
            section.fields.append((rng.choice((0, 1, 2, 9, 127, 128, 2**31 - 1)), None, junk))
            return "a tagged field added"
        case 2:
            section.fields.append((rng.randrange(4), rng.choice(_VARINTS), junk))
            return "a tagged field of another size added"
        case 3:
            section.fields = [*section.fields, *section.fields][::-1]
            return "tagged fields repeated and out of order"
        case 4:
            section.fields = [(tag, rng.choice(_VARINTS), content) for tag, _, content in section.fields]
            return "sizes of tagged fields changed"
        case 5:
            times = max(1, min(room // 8, rng.choice((200, 10_000, 10_001))))
            section.fields = [(number, None, []) for number in range(times)]
            return f"{times} unknown tagged fields"
        case _:
            section.fields = [(tag, None, junk) for tag, _, _ in section.fields]
            return "contents of tagged fields changed"
