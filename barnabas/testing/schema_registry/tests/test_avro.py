"""The canonical form of Avro schemas, and texts that are none."""

from __future__ import annotations

import json

import pytest

from barnabas.testing.schema_registry.avro import AvroSchema
from barnabas.testing.schema_registry.errors import InvalidSchema


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ('{ "type" : "string" }', '"string"'),
        ('"string"', '"string"'),
        ('{"logicalType": "date", "type": "int"}', '{"type":"int","logicalType":"date"}'),
        ('[ "null", {"type": "int"} ]', '["null","int"]'),
        (
            '{"items": {"type": "map", "values": "int"}, "type": "array"}',
            '{"type":"array","items":{"type":"map","values":"int"}}',
        ),
        (
            '{"fields": [{"default": 1, "type": "int", "doc": "d", "name": "f", "aliases": ["g"], "x": 1, "order": "ignore"}], '
            '"doc": "D", "name": "n.R", "type": "record", "y": {"b": 1, "a": 2}, "aliases": ["m.S", "T"]}',
            '{"type":"record","name":"R","namespace":"n","doc":"D","fields":[{"name":"f","type":"int","doc":"d","default":1,'
            '"order":"ignore","aliases":["g"],"x":1}],"y":{"b":1,"a":2},"aliases":["m.S","T"]}',
        ),
        (  # a name in the same namespace loses it
            '{"type": "record", "name": "R", "namespace": "n", "fields": [{"name": "e", "type": {"type": "enum", "name": "n.E", '
            '"symbols": ["X"], "default": "X"}}, {"name": "f", "type": "n.E"}, {"name": "r", "type": ["null", "R"]}]}',
            '{"type":"record","name":"R","namespace":"n","fields":[{"name":"e","type":{"type":"enum","name":"E","symbols":["X"],'
            '"default":"X"}},{"name":"f","type":"E"},{"name":"r","type":["null","R"]}]}',
        ),
        (
            '{"type": "fixed", "name": "F", "size": 4, "doc": "ü"}',
            '{"type":"fixed","name":"F","doc":"ü","size":4}',
        ),
    ],
)
def test_canonical_form(text: str, canonical: str) -> None:
    assert AvroSchema(text, []).canonical() == canonical


def test_normalizing_sorts_properties_only() -> None:
    text = '{"type": "record", "name": "R", "fields": [], "z": {"b": 1, "a": 2}, "k": 1}'
    normalized = AvroSchema(text, []).canonical(normalize=True)
    assert normalized == '{"type":"record","name":"R","fields":[],"k":1,"z":{"a":2,"b":1}}'


def test_types_of_references_stay_there() -> None:
    currency = AvroSchema('{"type":"enum","name":"n.Currency","symbols":["EUR"]}', [])
    price = AvroSchema(
        '{"type":"record","name":"n.Price","fields":[{"name":"in","type":"n.Currency"}]}', [currency]
    )
    assert price.canonical() == (
        '{"type":"record","name":"Price","namespace":"n","fields":[{"name":"in","type":"Currency"}]}'
    )
    order = AvroSchema('["n.Price","n.Currency"]', [price])
    assert order.canonical() == '["n.Price","n.Currency"]'
    assert order.resolved() == (
        '[{"type":"record","name":"Price","namespace":"n","fields":[{"name":"in","type":{"type":"enum","name":"Currency",'
        '"symbols":["EUR"]}}]},"n.Currency"]'
    )


def field(field_type: object, **attributes: object) -> dict[str, object]:
    return {"type": "record", "name": "R", "fields": [{"name": "f", "type": field_type, **attributes}]}


@pytest.mark.parametrize(
    "schema",
    [
        "str",
        {},
        {"type": "record"},
        {"type": "record", "name": "R"},
        {"type": "record", "name": "R", "fields": {}},
        {"type": "record", "name": "R", "fields": ["f"]},
        {"type": "record", "name": "1R", "fields": []},
        {"type": "record", "name": "int", "fields": []},
        {"type": "record", "name": "R", "namespace": "n-n", "fields": []},
        {"type": "record", "name": "R", "fields": [], "aliases": "A"},
        {"type": "enum", "name": "E", "symbols": ["X", "X"]},
        {"type": "enum", "name": "E", "symbols": ["X-Y"]},
        {"type": "enum", "name": "E", "symbols": ["X"], "default": "Y"},
        {"type": "fixed", "name": "F", "size": -1},
        {"type": "fixed", "name": "F", "size": True},
        {"type": "array"},
        {"type": "map"},
        ["int", "int"],
        ["int", ["string"]],
        7,
        field("R2"),
        field("int", order="up"),
        field("int", name=1),
        field("string", default=None),
        field("int", default=2**31),
        field("int", default=True),
        field("long", default=1.5),
        field("bytes", default="€"),
        field({"type": "fixed", "name": "F", "size": 2}, default="a"),
        field({"type": "array", "items": "int"}, default=["a"]),
        field({"type": "map", "values": "int"}, default=[]),
        field(["null", "int"], default="a"),
        field({"type": "record", "name": "S", "fields": [{"name": "a", "type": "int"}]}, default={}),
    ],
)
def test_what_is_no_schema(schema: object) -> None:
    with pytest.raises(InvalidSchema):
        AvroSchema(json.dumps(schema), [])


@pytest.mark.parametrize(
    ("field_type", "default"),
    [
        (["null", "int"], 1),  # of any branch, as from Avro 1.12 on
        ("float", 1),
        ({"type": "fixed", "name": "F", "size": 2}, "ab"),
        ({"type": "enum", "name": "E", "symbols": ["X"]}, "X"),
        ({"type": "map", "values": "int"}, {"a": 1}),
        (
            {
                "type": "record",
                "name": "S",
                "fields": [{"name": "a", "type": "int", "default": 1}, {"name": "b", "type": "int"}],
            },
            {"b": 2},
        ),
        (["null", "R"], None),
    ],
)
def test_defaults(field_type: object, default: object) -> None:
    AvroSchema(json.dumps(field(field_type, default=default)), [])


@pytest.mark.parametrize(
    "text",
    ["{", "NaN", '{"type":"int"', "", "[" * 100]
    + [f'{{"type":"int","x":{each}}}' for each in ("1e400", "-Infinity", "1" * 5000, '"\\ud800"')],
)
def test_what_is_no_json(text: str) -> None:
    with pytest.raises(InvalidSchema):
        AvroSchema(text, []).canonical()
