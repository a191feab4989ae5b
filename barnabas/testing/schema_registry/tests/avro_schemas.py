"""Avro schemas for properties: schemas, what they become when they evolve, and data that shows all of what one allows."""

from __future__ import annotations

import json
import struct
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from barnabas.testing.schema_registry.avro import AvroSchema, Schema
from barnabas.testing.schema_registry.errors import InvalidSchema

Json = Any

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
FIELDS = ("a", "b", "c", "d")
SYMBOLS = ("X", "Y", "Z")
DEFAULTS: dict[str, Json] = {
    "null": None,
    "boolean": True,
    "int": 1,
    "long": 2,
    "float": 1.5,
    "double": 2.5,
    "bytes": "b",
    "string": "s",
}


class Builder:
    """Builds one schema. Records may be used again by their name, enums and fixed are used once each: fastavro does not look at
    the size of a fixed that is named."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.names: set[str] = set()
        self.open: set[str] = set()  # records that are being built

    def pick(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def schema(self, depth: int, *, is_guarded: bool = False) -> Json:
        """`is_guarded`: data can end here, in an empty array or with a null."""
        kinds = ["primitive"] * 3
        if depth > 0:
            kinds += ["record", "record", "enum", "fixed", "array", "map", "union"]
        kind = self.pick(*kinds)
        if kind == "array":
            return {"type": "array", "items": self.schema(depth - 1, is_guarded=True)}
        if kind == "map":
            return {"type": "map", "values": self.schema(depth - 1, is_guarded=True)}
        if kind == "union":
            return self.union(depth)
        if kind == "record":
            return self.record(depth, is_guarded=is_guarded)
        if kind in ("enum", "fixed"):
            return self.once(kind)
        return self.pick(*PRIMITIVES)

    def record(self, depth: int, *, is_guarded: bool) -> Json:
        name = self.pick("n.R1", "n.R2", "m.R3")
        if name in self.names:
            return name if is_guarded or name not in self.open else "int"
        self.names.add(name)
        self.open.add(name)
        names = self.draw(st.lists(st.sampled_from(FIELDS), max_size=3, unique=True))
        fields = [self.field(each, depth - 1) for each in names]
        self.open.remove(name)
        return {"type": "record", "name": name, "fields": fields}

    def field(self, name: str, depth: int) -> Json:
        found = {"name": name, "type": self.schema(depth)}
        if isinstance(found["type"], str) and found["type"] in DEFAULTS and self.draw(st.booleans()):
            found["default"] = DEFAULTS[found["type"]]
        return found

    def once(self, kind: str) -> Json:
        name = self.pick("n.E1", "m.E2") if kind == "enum" else self.pick("n.F1", "m.F2")
        if name in self.names:
            return "string"
        self.names.add(name)
        if kind == "fixed":
            return {"type": "fixed", "name": name, "size": self.pick(1, 2)}
        symbols = self.draw(st.lists(st.sampled_from(SYMBOLS), min_size=1, unique=True))
        found = {"type": "enum", "name": name, "symbols": symbols}
        return {**found, "default": symbols[0]} if self.draw(st.booleans()) else found

    def union(self, depth: int) -> Json:
        branches: list[Json] = ["null"]
        kinds = {"null"}
        for _ in range(self.draw(st.integers(1, 3))):
            each = self.schema(depth - 1, is_guarded=True)
            kind = each if isinstance(each, str) else "union" if isinstance(each, list) else each["type"]
            key = each["name"] if isinstance(each, dict) and "name" in each else kind
            if kind != "union" and key not in kinds:
                kinds.add(key)
                branches.append(each)
        return branches


@st.composite
def schemas(draw: Any) -> str:
    """The text of a schema."""
    text = json.dumps(Builder(draw).schema(3))
    assume(is_schema(text))  # a union may have left out the branch that defines a record
    return text


def is_schema(text: str) -> bool:
    try:
        AvroSchema(text, [])
    except InvalidSchema:
        return False
    return True


@st.composite
def evolved(draw: Any, text: str) -> str:
    """The text of a schema that was made from another one by a few changes; the same one where they made none of it."""
    changed = json.dumps(Evolution(draw).change(json.loads(text)))
    return changed if is_schema(changed) else text


class Evolution:
    """Changes a schema, here and there."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.renamed: dict[str, str] = {}

    def happens(self) -> bool:
        return bool(self.draw(st.integers(0, 5)) == 0)

    def pick(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def change(self, given: Json) -> Json:
        if isinstance(given, str):
            changed = self.pick(*PRIMITIVES) if given in PRIMITIVES and self.happens() else given
            changed = self.renamed.get(changed, changed)
        elif isinstance(given, list):
            changed = [self.change(each) for each in given]
            if self.happens():
                changed = changed[:-1] or changed
            return changed[1] if len(changed) == 2 and self.happens() else changed
        else:
            changed = self.complex(dict(given))
        return ["null", changed] if changed != "null" and self.happens() else changed

    def complex(self, given: dict[str, Json]) -> Json:
        for key in ("items", "values"):
            if key in given:
                return {**given, key: self.change(given[key])}
        if self.happens():
            old = given["name"]
            given["name"] = self.renamed[old] = f"{old}x"
            if not self.happens():
                given["aliases"] = [old]
        if given["type"] == "fixed":
            return {**given, "size": 3} if self.happens() else given
        if given["type"] == "enum":
            if self.happens():
                given["symbols"] = self.draw(st.lists(st.sampled_from(SYMBOLS), min_size=1, unique=True))
                given.pop("default", None)
                if self.draw(st.booleans()):
                    given["default"] = given["symbols"][-1]
            return given
        given["fields"] = self.fields(given["fields"])
        return given

    def fields(self, fields: list[Json]) -> list[Json]:
        changed = []
        for each in fields:
            if self.happens():
                continue
            field = {"name": each["name"], "type": self.change(each["type"])}
            if self.happens():
                field["name"] += "x"
                if not self.happens():
                    field["aliases"] = [each["name"]]
            changed.append(field)
        if self.happens():
            new = {"name": "new", "type": self.pick(*PRIMITIVES)}
            changed.append({**new, "default": DEFAULTS[new["type"]]} if self.draw(st.booleans()) else new)
        if self.happens():
            changed.reverse()
        return changed


# -- data


def samples(schema: Schema, depth: int = 4) -> list[bytes]:
    """Encoded values of a type: together they have each branch, each symbol, and elements. Those that would be deeper are left
    out, so a type that has no end has no samples."""
    kind = schema.kind
    if kind in ENCODED:
        return [ENCODED[kind]]
    if depth == 0:
        return []
    if kind == "fixed":
        return [b"f" * schema.size]
    if kind == "enum":
        return [number(index) for index in range(len(schema.symbols))]
    if schema.items is not None:
        elements = samples(schema.items, depth - 1)
        key = b"" if kind == "array" else number(1) + b"k"
        return [b"\0", *(number(1) + key + each + b"\0" for each in elements)]
    if kind == "union":
        return [
            number(index) + each
            for index, branch in enumerate(schema.branches)
            for each in samples(branch, depth - 1)
        ]
    parts = [samples(each.type, depth - 1) for each in schema.fields]
    if not all(parts):
        return []
    first = [each[0] for each in parts]
    return [b"".join(first)] + [
        b"".join([*first[:index], other, *first[index + 1 :]])
        for index, several in enumerate(parts)
        for other in several[1:]
    ]


def number(value: int) -> bytes:
    """An int or a long, up to 63."""
    assert 0 <= value < 64
    return bytes([value * 2])


ENCODED = {
    "null": b"",
    "boolean": b"\1",
    "int": number(1),
    "long": number(2),
    "float": struct.pack("<f", 1.5),
    "double": struct.pack("<d", 2.5),
    "bytes": number(1) + b"b",
    "string": number(1) + b"s",
}
