"""The three types of schemas: what is valid, what is stored, and when two texts are the same schema."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from barnabas.testing.schema_registry.avro import AvroSchema, dump_json, load_json, sort_keys
from barnabas.testing.schema_registry.errors import InvalidSchema

AVRO: Final = "AVRO"
JSON: Final = "JSON"
PROTOBUF: Final = "PROTOBUF"
TYPES: Final = (AVRO, JSON, PROTOBUF)


class Parsed(msgspec.Struct, frozen=True):
    """A valid schema. Two with the same `identity` are the same one; `text` is what clients get. `avro`: of Avro schemas alone."""

    type: str
    text: str
    identity: str
    avro: AvroSchema | None = None


def parse(schema_type: str, text: str, references: Sequence[Parsed], *, normalize: bool) -> Parsed:
    """InvalidSchema."""
    if not text.strip():
        raise InvalidSchema("Empty schema")
    try:
        if schema_type == AVRO:
            avro = AvroSchema(text, [each.avro for each in references if each.avro is not None])
            canonical = avro.canonical(normalize=normalize)
            return Parsed(AVRO, canonical, canonical, avro)
        if schema_type == JSON:
            canonical = _canonical_json(text, normalize=normalize)
            return Parsed(JSON, canonical, canonical)
        if schema_type == PROTOBUF:
            return Parsed(PROTOBUF, text, _protobuf_identity(text))
    except RecursionError:
        raise InvalidSchema("it is nested too deeply") from None
    raise InvalidSchema(f"Invalid schema type {schema_type}")


# -- JSON Schema: an object or a boolean; what its keywords say is not looked at


def _canonical_json(text: str, *, normalize: bool) -> str:
    value = load_json(text)
    if not isinstance(value, dict | bool):
        raise InvalidSchema("a JSON schema is an object or a boolean")
    return dump_json(sort_keys(value) if normalize else value)


# -- Protobuf: a .proto file, or a FileDescriptorProto in base64 as Python's serializer sends it

_TOKENS: Final = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/            # nothing
    |(?P<token>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|[\w.]+|[^\w\s"'])""",
    re.VERBOSE | re.DOTALL,
)
_PAIRS: Final = {"}": "{", "]": "[", ")": "("}
_STATEMENTS: Final = frozenset(
    {"syntax", "edition", "import", "package", "option", "message", "enum", "service", "extend", ";"}
)


def _protobuf_identity(text: str) -> str:
    """The tokens of a file, without comments and white space. InvalidSchema where it can't be a .proto file; what the statements
    say is not looked at."""
    descriptor = _descriptor(text)
    if descriptor is not None:
        return text
    tokens = list(_tokens(text))
    open_ones: list[str] = []
    begins = True  # a statement of the file
    for each in tokens:
        if begins and each not in _STATEMENTS:
            raise InvalidSchema(f"no statement of a .proto file begins with {each[:100]!r}")
        begins = False
        if each in _PAIRS.values():
            open_ones.append(each)
        elif each in _PAIRS and (not open_ones or open_ones.pop() != _PAIRS[each]):
            raise InvalidSchema(f"{each!r} closes nothing")
        if not open_ones and each in (";", "}"):
            begins = True
    if open_ones or not begins:
        raise InvalidSchema("the .proto file ends within a statement")
    return " ".join(tokens)


def _tokens(text: str) -> Iterator[str]:
    position = 0
    while position < len(text):
        found = _TOKENS.match(text, position)
        if found is None:
            raise InvalidSchema(f"not a token of a .proto file: {text[position : position + 20]!r}")
        if found["token"]:
            yield found["token"]
        position = found.end()


def _descriptor(text: str) -> bytes | None:
    """A serialized FileDescriptorProto, as far as its outermost fields show it; None where the text is none."""
    try:
        data = base64.b64decode(text, validate=True)
        fields = set(_wire_fields(data))
    except (binascii.Error, ValueError, IndexError):
        return None
    return data if fields and fields <= _DESCRIPTOR_FIELDS else None


# (number, wire type) in descriptor.proto: name, package, dependencies, messages, enums, services, extensions, options, source
# information, public and weak dependencies, syntax, edition, option dependencies
_DESCRIPTOR_FIELDS: Final = {*((number, 2) for number in (*range(1, 10), 12, 15)), (10, 0), (11, 0), (14, 0)}


def _wire_fields(data: bytes) -> Iterator[tuple[int, int]]:
    """Number and wire type of each field of a message. ValueError, IndexError where the bytes are none."""
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise ValueError

    while position < len(data):
        tag = varint()
        length = varint()  # or the value itself
        if tag & 7 == 2:
            position += length
        elif tag & 7 != 0:
            raise ValueError
        if position > len(data):
            raise ValueError
        yield tag >> 3, tag & 7


def is_descriptor(text: str) -> bool:
    """Whether a Protobuf schema is stored as a FileDescriptorProto."""
    return _descriptor(text) is not None


def as_value(data: Any) -> str:
    """JSON beside a schema as part of its identity."""
    return json.dumps(sort_keys(data), separators=(",", ":")) if data else ""
