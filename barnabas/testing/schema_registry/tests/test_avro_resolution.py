"""Compatibility of Avro schemas, held against fastavro, which reads data, and the check of Apache's own library."""

from __future__ import annotations

import io
import json
from typing import Any

import avro.compatibility
import avro.schema
import fastavro
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from barnabas.testing.schema_registry.avro import AvroSchema
from barnabas.testing.schema_registry.compatibility import find_incompatibilities
from barnabas.testing.schema_registry.errors import InvalidSchema
from barnabas.testing.schema_registry.tests.avro_schemas import evolved, samples, schemas


def reasons(reader: object, writer: object) -> list[tuple[str, str]]:
    found = find_incompatibilities(
        AvroSchema(json.dumps(reader), []).root, AvroSchema(json.dumps(writer), []).root
    )
    return [(each.kind, each.path) for each in found]


def fastavro_reads(reader: str, writer: str) -> bool:
    """Whether it reads all samples of the writer's schema."""
    written, read = json.loads(writer), json.loads(reader)
    for data in samples(AvroSchema(writer, []).root):
        fastavro.schemaless_reader(
            io.BytesIO(data), written, None
        )  # the data is what the writer's schema says
        try:
            fastavro.schemaless_reader(io.BytesIO(data), written, read)
        except Exception:  # noqa: BLE001 - whatever it makes of what it does not expect
            return False
    return True


def apache_says(reader: str, writer: str) -> bool:
    checker = avro.compatibility.ReaderWriterCompatibilityChecker()
    found = checker.get_compatibility(avro.schema.parse(reader), avro.schema.parse(writer))
    return bool(found.compatibility is avro.compatibility.SchemaCompatibilityType.compatible)


def test_types_that_are_used_again_and_again() -> None:
    """Each record has the one before it in two fields: their reasons are not counted for every way that leads to them."""

    def chain(first: str) -> Any:
        found: Any = record("R0", a=first)
        for index in range(1, 40):
            found = record(f"R{index}", a=found, b=f"R{index - 1}")
        return found

    assert len(reasons(chain("int"), chain("string"))) == 40


def test_schemas_that_are_too_large_to_be_compared() -> None:
    def union(doc: str) -> Any:
        return [{**record(f"R{index}"), "doc": doc} for index in range(1200)]

    with pytest.raises(InvalidSchema, match="too large to be compared"):
        reasons(union("a"), union("b"))


def record(name: str, **fields: Any) -> dict[str, Any]:
    """Fields are a type, or a type with more attributes."""
    entries = [
        {"name": key, **(value if isinstance(value, dict) and "name" not in value else {"type": value})}
        for key, value in fields.items()
    ]
    return {"type": "record", "name": name, "fields": entries}


def enum(*symbols: str, **attributes: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **attributes}


@pytest.mark.parametrize(
    ("reader", "writer", "expected"),
    [
        ("long", "int", []),
        ("int", "long", [("TYPE_MISMATCH", "/")]),
        ("string", "bytes", []),
        (["null", "string"], "string", []),
        ("string", ["null", "string"], [("TYPE_MISMATCH", "/")]),
        (["int", "string"], ["int", "boolean"], [("MISSING_UNION_BRANCH", "/1")]),
        (record("R", a="int"), record("R"), [("READER_FIELD_MISSING_DEFAULT_VALUE", "/fields/0")]),
        (record("R", a={"type": "int", "default": 1}), record("R"), []),
        (record("R"), record("R", a="int"), []),
        (record("R", b={"type": "int", "aliases": ["a"]}), record("R", a="int"), []),
        (
            record("R", a="int", b={"type": "int", "aliases": ["a"]}),
            record("R", a="int"),
            [("READER_FIELD_MISSING_DEFAULT_VALUE", "/fields/1")],
        ),
        (record("n.R"), record("m.R"), []),  # names without namespace count
        (record("S"), record("R"), [("NAME_MISMATCH", "/name")]),
        ({**record("S"), "aliases": ["R"]}, record("R"), []),
        (
            record("R", a=enum("X")),
            record("R", a=enum("X", "Y")),
            [("MISSING_ENUM_SYMBOLS", "/fields/0/type/symbols")],
        ),
        (enum("X", default="X"), enum("Y"), []),
        (
            {"type": "fixed", "name": "F", "size": 1},
            {"type": "fixed", "name": "F", "size": 2},
            [("FIXED_SIZE_MISMATCH", "/size")],
        ),
        (
            {"type": "array", "items": "int"},
            {"type": "array", "items": "string"},
            [("TYPE_MISMATCH", "/items")],
        ),
        (
            {"type": "map", "values": "int"},
            {"type": "map", "values": "string"},
            [("TYPE_MISMATCH", "/values")],
        ),
    ],
)
def test_a_reader_and_a_writer(reader: object, writer: object, expected: list[tuple[str, str]]) -> None:
    assert reasons(reader, writer) == expected


def test_what_relied_on_an_incompatible_pair_is_looked_at_again() -> None:
    """The types R of both refer to A, and A to R. While R is tried as the first branch of x, A counts as compatible because R is
    being tried; then R turns out not to be."""

    def top(v: str) -> Any:
        return record("R", a=record("A", r=["null", "R"]), v=v)

    writer = record("Top", x=top("string"), y="A")
    other = {**record("S", v="string"), "aliases": ["R"]}
    reader = record("Top", x=[top("int"), other], y="A")
    assert reasons(reader, writer) == [("MISSING_UNION_BRANCH", "/fields/1/type/fields/0/type/1")]


@given(st.data())
def test_what_is_compatible_is_read_and_nothing_else(data: Any) -> None:
    writer = data.draw(schemas())
    reader = data.draw(st.one_of(evolved(writer), schemas()))
    found = find_incompatibilities(AvroSchema(reader, []).root, AvroSchema(writer, []).root)
    event("compatible" if not found else found[0].kind)
    assert fastavro_reads(reader, writer) == (not found), found
    assert apache_says(reader, writer) == (not found), found


@given(schemas())
def test_the_canonical_form_is_the_same_schema(text: str) -> None:
    schema = AvroSchema(text, [])
    canonical = schema.canonical()
    again = AvroSchema(canonical, [])
    assert again.canonical() == canonical
    assert not find_incompatibilities(schema.root, again.root)
    assert not find_incompatibilities(again.root, schema.root)
    assert fastavro.schema.to_parsing_canonical_form(
        json.loads(canonical)
    ) == fastavro.schema.to_parsing_canonical_form(json.loads(text))
