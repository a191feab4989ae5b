"""Messages as trees of tokens, straight from the schema text: what a mutation changes is known to be a length, a count,
a tag or a value.

The encoder here is independent of the generated writers. `build` makes a valid message; `encode` turns a tree, mutated
or not, into bytes.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from barnabas.wire.schema_parser import FIXED, Field, Message, Struct


class Token:
    """A value of fixed size, or a length, in its encoding."""

    __slots__ = ("data", "kind")

    def __init__(self, kind: str, data: bytes) -> None:
        self.kind = kind
        self.data = data


class Sized:
    """A string, bytes or records: a size and as many bytes. The size follows the content unless a mutation sets it."""

    __slots__ = ("compact", "content", "kind", "size")

    def __init__(self, kind: str, content: bytes | None, compact: bool) -> None:
        self.kind = kind
        self.compact = compact
        self.content = content
        self.size: bytes | None = None

    def encoded_size(self) -> bytes:
        length = -1 if self.content is None else len(self.content)
        if self.compact:
            return unsigned_varint(length + 1)
        if self.kind == "string":
            return struct.pack(">h", min(length, 32767))
        return struct.pack(">i", length)


class Array:
    """A count and the elements behind it; the count follows the elements unless a mutation sets it."""

    __slots__ = ("compact", "count", "elements")

    def __init__(self, elements: list[list[Node]] | None, compact: bool) -> None:
        self.compact = compact
        self.elements = elements
        self.count: bytes | None = None

    def encoded_count(self) -> bytes:
        count = -1 if self.elements is None else len(self.elements)
        return unsigned_varint(count + 1) if self.compact else struct.pack(">i", count)


class TaggedFields:
    """A section of tagged fields: (tag, size or None for the true one, content)."""

    __slots__ = ("count", "fields")

    def __init__(self, fields: list[tuple[int, bytes | None, list[Node]]]) -> None:
        self.fields = fields
        self.count: bytes | None = None


Node: TypeAlias = "Token | Sized | Array | TaggedFields"
Values: TypeAlias = Callable[[Field, Struct], Any]  # a value of a field's (element's) type, None for null


def unsigned_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode(nodes: list[Node]) -> bytes:
    out: list[bytes] = []
    _append(nodes, out)
    return b"".join(out)


def walk(nodes: list[Node]) -> Iterator[Node]:
    """Every node of a tree, each before what it holds."""
    for node in nodes:
        yield node
        if isinstance(node, Array):
            for element in node.elements or ():
                yield from walk(element)
        elif isinstance(node, TaggedFields):
            for _, _, content in node.fields:
                yield from walk(content)


def _append(nodes: list[Node], out: list[bytes]) -> None:
    for node in nodes:
        if isinstance(node, Token):
            out.append(node.data)
        elif isinstance(node, Sized):
            out.append(node.encoded_size() if node.size is None else node.size)
            out.append(node.content or b"")
        elif isinstance(node, Array):
            out.append(node.encoded_count() if node.count is None else node.count)
            for element in node.elements or ():
                _append(element, out)
        else:
            out.append(unsigned_varint(len(node.fields)) if node.count is None else node.count)
            for tag, size, fields in node.fields:
                content = encode(fields)
                out.append(unsigned_varint(tag) + (unsigned_varint(len(content)) if size is None else size))
                out.append(content)


def build(message: Message, version: int, values: Values, rng: random.Random) -> list[Node]:
    """A valid message of this version."""
    flexible = message.flexible_since is not None and version >= message.flexible_since
    return _Builder(version, flexible, values, rng).struct(message.root)


class _Builder:
    def __init__(self, version: int, flexible: bool, values: Values, rng: random.Random) -> None:
        self._version = version
        self._flexible = flexible
        self._values = values
        self._rng = rng

    def struct(self, struct: Struct) -> list[Node]:
        nodes: list[Node] = []
        tagged: list[tuple[int, bytes | None, list[Node]]] = []
        for field in struct.fields:
            if self._version not in field.versions:
                continue
            if field.tag is None or not self._flexible:
                nodes += self._field(field, struct)
            elif self._rng.random() < 0.5:
                tagged.append((field.tag, None, self._field(field, struct)))
        if self._flexible:
            nodes.append(TaggedFields(sorted(tagged, key=lambda one: one[0])))
        return nodes

    def _field(self, field: Field, owner: Struct) -> list[Node]:
        nullable = self._version in field.nullable
        compact = self._flexible and not field.old_encoding
        if field.is_array:
            if nullable and self._rng.random() < 0.2:
                return [Array(None, compact)]
            count = self._rng.choice((0, 1, 1, 1, 2, 3))
            return [Array([self._element(field, owner, compact) for _ in range(count)], compact)]
        if field.struct is None or not nullable:
            return self._element(field, owner, compact, nullable=nullable)
        if self._rng.random() < 0.3:
            return [Token("presence", b"\xff")]
        return [Token("presence", b"\x01"), *self.struct(field.struct)]

    def _element(self, field: Field, owner: Struct, compact: bool, *, nullable: bool = False) -> list[Node]:
        if field.struct is not None:
            return self.struct(field.struct)
        value = self._values(field, owner)
        if field.type in FIXED:
            return [Token(field.type, struct.pack(f">{FIXED[field.type][0]}", value))]
        if value is None and not nullable:
            value = b""
        content = value.encode() if isinstance(value, str) else value
        return [Sized(field.type, content, compact)]
