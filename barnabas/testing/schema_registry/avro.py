"""Avro schemas: parsed, validated and written in the canonical form of Avro's Java library, whose texts Confluent's registry returns.

The canonical form has no white space and one order of attributes; doc, defaults, aliases and properties of one's own stay. It is
not the Parsing Canonical Form of the specification, which drops them.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final, TypeAlias

import msgspec

from barnabas.testing.schema_registry.errors import InvalidSchema

Json: TypeAlias = Any

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED: Final = frozenset(
    {"type", "name", "namespace", "doc", "aliases", "fields", "symbols", "default", "size", "items", "values"}
)
_FIELD_RESERVED: Final = frozenset({"name", "type", "doc", "default", "order", "aliases"})
_INT_BITS: Final = {"int": 31, "long": 63}


class Field(msgspec.Struct, eq=False):
    """A field of a record."""

    name: str
    type: Schema
    doc: str | None
    default: Json  # UNSET: it has none
    order: str
    aliases: list[str]
    properties: dict[str, Json]

    @property
    def has_default(self) -> bool:
        return self.default is not msgspec.UNSET


class Schema(msgspec.Struct, eq=False):
    """A type. Compared by identity: named types are one object each, and may contain themselves."""

    kind: str  # a primitive, one of NAMED, array, map or union
    name: str = ""  # full, of named types
    doc: str | None = None
    aliases: list[str] = []  # full names
    fields: list[Field] = []
    symbols: list[str] = []
    default: str | None = None  # of an enum
    size: int = 0  # of a fixed
    items: Schema | None = None  # of an array, and the values of a map
    branches: list[Schema] = []  # of a union
    properties: dict[str, Json] = {}

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def namespace(self) -> str:
        return self.name.rpartition(".")[0]


class AvroSchema:
    """A parsed schema. `references` are schemas whose named types it may use."""

    def __init__(self, text: str, references: list[AvroSchema]) -> None:
        """InvalidSchema."""
        self.names: dict[str, Schema] = {}
        for each in references:
            self.names |= each.names
        self._borrowed = frozenset(self.names)
        self.root = _Parser(self.names).parse(load_json(text), "")

    def canonical(self, *, normalize: bool = False) -> str:
        """The text that stands for it; types of references by name. `normalize` also sorts the keys of properties."""
        return dump_json(_Writer(self._borrowed, normalize=normalize).write(self.root, ""))

    def resolved(self) -> str:
        """The canonical text with the types of references in it."""
        return dump_json(_Writer(frozenset(), normalize=True).write(self.root, ""))


def load_json(text: str) -> Json:
    """InvalidSchema where it is none, or has a number that is none."""
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except ValueError as error:
        raise InvalidSchema(str(error)) from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no number of JSON")
    return value


def dump_json(value: Json) -> str:
    """Without white space. InvalidSchema where a text in it can't be sent."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidSchema("half of a surrogate pair") from None
    return text


# -- parsing


class _Parser:
    """Parses one schema; `names` has the named types that it may use, and gets those that it defines."""

    def __init__(self, names: dict[str, Schema]) -> None:
        self.names = names

    def parse(self, given: Json, namespace: str) -> Schema:
        if isinstance(given, str):
            return self._by_name(given, namespace)
        if isinstance(given, list):
            return self._union(given, namespace)
        if not isinstance(given, dict):
            raise InvalidSchema(f"No type: {given!r}")
        kind = given.get("type")
        if kind in NAMED:
            return self._named(given, kind, namespace)
        if kind == "array":
            items = self.parse(_required(given, "items"), namespace)
            return Schema("array", items=items, properties=_properties(given, _RESERVED))
        if kind == "map":
            values = self.parse(_required(given, "values"), namespace)
            return Schema("map", items=values, properties=_properties(given, _RESERVED))
        if kind in PRIMITIVES:
            return Schema(str(kind), properties=_properties(given, _RESERVED))
        return self.parse(_required(given, "type"), namespace)  # {"type": {...}}, {"type": [...]} or a name

    def _by_name(self, name: str, namespace: str) -> Schema:
        if name in PRIMITIVES:
            return Schema(name)
        for full in (f"{namespace}.{name}",) if namespace and "." not in name else ():
            if full in self.names:
                return self.names[full]
        if name not in self.names:
            raise InvalidSchema(f'Undefined name: "{name}"')
        return self.names[name]

    def _union(self, given: list[Json], namespace: str) -> Schema:
        branches = [self.parse(each, namespace) for each in given]
        seen = set()
        for each in branches:
            if each.kind == "union":
                raise InvalidSchema("Nested union")
            key = each.name or each.kind
            if key in seen:
                raise InvalidSchema(f"Duplicate in union: {key}")
            seen.add(key)
        return Schema("union", branches=branches)

    def _named(self, given: dict[str, Json], kind: str, namespace: str) -> Schema:
        name = _full_name(_required(given, "name"), given.get("namespace"), namespace)
        if name in self.names:
            raise InvalidSchema(f"Can't redefine: {name}")
        found = Schema(
            kind, name=name, doc=_optional_text(given, "doc"), properties=_properties(given, _RESERVED)
        )
        space = found.namespace
        found.aliases = [_full_name(each, None, space) for each in _texts(given, "aliases")]
        self.names[name] = found
        if kind == "fixed":
            found.size = _required(given, "size")
            if type(found.size) is not int or found.size < 0:
                raise InvalidSchema(f"Invalid or no size of {name}")
        elif kind == "enum":
            self._enum(found, given)
        else:
            fields = _required(given, "fields")
            if not isinstance(fields, list):
                raise InvalidSchema(f"Fields of {name} are no list")
            found.fields = [self._field(each, space) for each in fields]
            _no_repetition((each.name for each in found.fields), f"field in record {name}")
            self._check_defaults(found)
        return found

    def _enum(self, found: Schema, given: dict[str, Json]) -> None:
        _required(given, "symbols")
        found.symbols = [_checked_name(each) for each in _texts(given, "symbols")]
        _no_repetition(found.symbols, f"symbol in enum {found.name}")
        found.default = _optional_text(given, "default")
        if found.default is not None and found.default not in found.symbols:
            raise InvalidSchema(f"The enum default {found.default} is not in the symbols of {found.name}")

    def _field(self, given: Json, namespace: str) -> Field:
        if not isinstance(given, dict):
            raise InvalidSchema(f"Not a field: {given!r}")
        order = _optional_text(given, "order") or "ascending"
        if order not in ("ascending", "descending", "ignore"):
            raise InvalidSchema(f"Not an order: {order}")
        return Field(
            name=_checked_name(_required(given, "name")),
            type=self.parse(_required(given, "type"), namespace),
            doc=_optional_text(given, "doc"),
            default=given.get("default", msgspec.UNSET),
            order=order,
            aliases=[_checked_name(each) for each in _texts(given, "aliases")],
            properties=_properties(given, _FIELD_RESERVED),
        )

    def _check_defaults(self, record: Schema) -> None:
        """Once the record is whole: a default may be of the record's own type."""
        for each in record.fields:
            if each.has_default and not is_value(each.type, each.default):
                raise InvalidSchema(
                    f"Invalid default for field {each.name}: {dump_json(each.default)} not a {each.type.kind}"
                )


def is_value(schema: Schema, value: Json) -> bool:
    """Whether JSON is a default of this type. One of a union may be of any branch, as from Avro 1.12 on."""
    kind = schema.kind
    if kind == "null":
        return value is None
    if kind == "boolean":
        return isinstance(value, bool)
    if kind in _INT_BITS:
        limit = 1 << _INT_BITS[kind]
        return type(value) is int and -limit <= value < limit
    if kind in ("float", "double"):
        return type(value) in (int, float)
    if kind == "string":
        return isinstance(value, str)
    if kind in ("bytes", "fixed"):
        is_fitting = isinstance(value, str) and all(ord(each) < 256 for each in value)
        return is_fitting and (kind == "bytes" or len(value) == schema.size)
    if kind == "enum":
        return value in schema.symbols
    if kind == "array":
        assert schema.items is not None
        return isinstance(value, list) and all(is_value(schema.items, each) for each in value)
    if kind == "map":
        assert schema.items is not None
        return isinstance(value, dict) and all(is_value(schema.items, each) for each in value.values())
    if kind == "union":
        return any(is_value(each, value) for each in schema.branches)
    return isinstance(value, dict) and all(
        is_value(each.type, value[each.name]) if each.name in value else each.has_default
        for each in schema.fields
    )


def _required(given: dict[str, Json], key: str) -> Json:
    if given.get(key) is None:
        raise InvalidSchema(f"No {key}: {dump_json(given)}")
    return given[key]


def _optional_text(given: dict[str, Json], key: str) -> str | None:
    value = given.get(key)
    if value is not None and not isinstance(value, str):
        raise InvalidSchema(f"{key} is no text: {value!r}")
    return value


def _texts(given: dict[str, Json], key: str) -> list[str]:
    values = given.get(key, [])
    if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
        raise InvalidSchema(f"{key} is no list of names: {values!r}")
    return values


def _checked_name(name: Json) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidSchema(f"Illegal name: {name!r}")
    return name


def _full_name(name: Json, namespace: Json, enclosing: str) -> str:
    """As the specification has it: dots in the name, else the namespace beside it, else the one around it."""
    if isinstance(name, str) and "." in name:
        parts = name.split(".")
    else:
        space = namespace if isinstance(namespace, str) else enclosing
        parts = [*(space.split(".") if space else []), name]
    full = ".".join(_checked_name(each) for each in parts)
    if full in PRIMITIVES:
        raise InvalidSchema(f"Illegal name: {full!r}")
    return full


def _no_repetition(names: Any, what: str) -> None:
    seen = set()
    for each in names:
        if each in seen:
            raise InvalidSchema(f"Duplicate {what}: {each}")
        seen.add(each)


def _properties(given: dict[str, Json], reserved: frozenset[str]) -> dict[str, Json]:
    return {key: value for key, value in given.items() if key not in reserved}


# -- writing


class _Writer:
    """Writes one schema as JSON. A named type is written once, and in `known` not at all: its name stands for it."""

    def __init__(self, known: frozenset[str], *, normalize: bool) -> None:
        self._known = set(known)
        self._normalize = normalize

    def write(self, schema: Schema, namespace: str) -> Json:
        properties = self._sorted(schema.properties)
        if schema.kind == "union":
            return [self.write(each, namespace) for each in schema.branches]
        if schema.items is not None:
            items = "items" if schema.kind == "array" else "values"
            return {"type": schema.kind, items: self.write(schema.items, namespace), **properties}
        if schema.kind in PRIMITIVES:
            return {"type": schema.kind, **properties} if properties else schema.kind
        if schema.name in self._known:
            return _short(schema.name, namespace)
        self._known.add(schema.name)
        return {**self._named(schema, namespace), **properties, **_aliases(schema)}

    def _named(self, schema: Schema, namespace: str) -> dict[str, Json]:
        found: dict[str, Json] = {"type": schema.kind, "name": schema.short_name}
        if schema.namespace != namespace:
            found["namespace"] = schema.namespace
        if schema.doc is not None:
            found["doc"] = schema.doc
        if schema.kind == "fixed":
            found["size"] = schema.size
        elif schema.kind == "enum":
            found["symbols"] = schema.symbols
            if schema.default is not None:
                found["default"] = schema.default
        else:
            found["fields"] = [self._field(each, schema.namespace) for each in schema.fields]
        return found

    def _field(self, field: Field, namespace: str) -> dict[str, Json]:
        found: dict[str, Json] = {"name": field.name, "type": self.write(field.type, namespace)}
        if field.doc is not None:
            found["doc"] = field.doc
        if field.has_default:
            found["default"] = field.default
        if field.order != "ascending":
            found["order"] = field.order
        if field.aliases:
            found["aliases"] = field.aliases
        return {**found, **self._sorted(field.properties)}

    def _sorted(self, properties: dict[str, Json]) -> dict[str, Json]:
        return sort_keys(properties) if self._normalize else properties


def sort_keys(value: Json) -> Json:
    """JSON with the keys of all objects sorted."""
    if isinstance(value, dict):
        return {key: sort_keys(value[key]) for key in sorted(value)}
    return [sort_keys(each) for each in value] if isinstance(value, list) else value


def _short(name: str, namespace: str) -> str:
    """As it is written in this namespace. Without a namespace of its own it has no longer form."""
    space, _, short = name.rpartition(".")
    return short if space == namespace else name


def _aliases(schema: Schema) -> dict[str, Json]:
    return {"aliases": [_short(each, schema.namespace) for each in schema.aliases]} if schema.aliases else {}
