"""Compatibility: which earlier versions a new schema is held against by a level, and whether one Avro schema reads what was written
with another, by the schema resolution of Avro's specification.

The answer is about all data that the writer's schema allows: each branch of a union and each symbol of an enum counts, and the
elements of an array, though it may be empty. `avro.compatibility` on PyPI does the same, but is no dependency worth having for it;
fastavro has no such check. Tests hold this module against both.

Only Avro schemas are checked. Of other types a schema counts as compatible with itself alone: everything else is NotChecked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.testing.schema_registry.avro import NAMED, Field, Schema
from barnabas.testing.schema_registry.errors import InvalidSchema

if TYPE_CHECKING:
    from barnabas.testing.schema_registry.formats import Parsed

NONE: Final = "NONE"
BACKWARD: Final = "BACKWARD"
LEVELS: Final = (
    NONE,
    BACKWARD,
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
)


class NotChecked(Exception):
    """Whether they are compatible can't be said: there is no check for schemas of this type."""


def check(level: str, new: Parsed, earlier: Sequence[tuple[int, Parsed]]) -> list[str]:
    """Why a schema can't follow earlier versions, (number, schema) from the first to the last; nothing where it can. Without
    _TRANSITIVE it is held against the last of them. NotChecked."""
    if level == NONE:
        return []
    for number, old in reversed(earlier if level.endswith("_TRANSITIVE") else earlier[-1:]):
        messages = _check_pair(level, new, old)
        if messages:
            return [
                *messages,
                f"{{oldSchemaVersion: {number}}}",
                f"{{oldSchema: '{old.text}'}}",
                f"{{validateFields: 'false', compatibility: '{level}'}}",
            ]
    return []


def _check_pair(level: str, new: Parsed, old: Parsed) -> list[str]:
    if new.type != old.type:
        return [
            f"{{errorType:'SCHEMA_TYPE_MISMATCH', description:'The new schema is {new.type}, and the old one {old.type}', "
            f"additionalInfo:''}}"
        ]
    if new.avro is None or old.avro is None:
        if new.identity == old.identity:
            return []
        raise NotChecked(new.type)
    found: list[str] = []
    if level.startswith(("BACKWARD", "FULL")):
        reasons = find_incompatibilities(new.avro.root, old.avro.root)
        found += [_message(each, reader="new", writer="old") for each in reasons]
    if level.startswith(("FORWARD", "FULL")):
        reasons = find_incompatibilities(old.avro.root, new.avro.root)
        found += [_message(each, reader="old", writer="new") for each in reasons]
    return found


def _message(found: Incompatibility, *, reader: str, writer: str) -> str:
    """As Confluent's registry writes it, so that clients which look into the text find what they know."""
    description = {
        "FIXED_SIZE_MISMATCH": f"The size of FIXED type field at path '{found.path}' in the {reader} schema does not match with "
        f"the {writer} schema",
        "TYPE_MISMATCH": f"The type (path '{found.path}') of a field in the {reader} schema does not match with the {writer} "
        f"schema",
        "NAME_MISMATCH": f"The name of the schema has changed (path '{found.path}')",
        "MISSING_ENUM_SYMBOLS": f"The {reader} schema is missing enum symbols '{found.info}' at path '{found.path}' in the "
        f"{writer} schema",
        "MISSING_UNION_BRANCH": f"The {reader} schema is missing a type inside a union field at path '{found.path}' in the "
        f"{writer} schema",
        "READER_FIELD_MISSING_DEFAULT_VALUE": f"The field '{found.info}' at path '{found.path}' in the {reader} schema has no "
        f"default value and is missing in the {writer} schema",
    }[found.kind]
    return f"{{errorType:'{found.kind}', description:'{description}', additionalInfo:'{found.info}'}}"


# -- schema resolution

STEPS_MAX: Final = 1_000_000  # pairs of types that are compared; a second or two
_PROMOTIONS: Final = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}


class Incompatibility(msgspec.Struct, frozen=True):
    """One reason, with Avro's name of it. `path` leads through the reader's schema, as in a JSON pointer."""

    kind: str
    path: str
    info: str


def find_incompatibilities(reader: Schema, writer: Schema) -> list[Incompatibility]:
    """Why the reader can't read it; nothing where it can. InvalidSchema where the two are too large to be compared."""
    return _Resolution().check(reader, writer, "")


class _Resolution:
    """The check of one pair of schemas. A pair of types that is being checked counts as compatible where it recurs."""

    def __init__(self) -> None:
        self._compatible: dict[
            tuple[int, int], None
        ] = {}  # or being checked, in the order of their beginning
        self._incompatible: dict[tuple[int, int], list[Incompatibility]] = {}
        self._steps = 0

    def check(self, reader: Schema, writer: Schema, path: str) -> list[Incompatibility]:
        pair = (id(reader), id(writer))
        if reader is writer or pair in self._compatible:
            return []
        if pair in self._incompatible:
            return self._incompatible[pair][:1]  # the others have been reported where it was first
        self._count(1)
        before = len(self._compatible)
        self._compatible[pair] = None
        found = self._resolve(reader, writer, path)
        if found:
            # What was found compatible since then may have relied on this pair.
            while len(self._compatible) > before:
                self._compatible.popitem()
            self._incompatible[pair] = found
        return found

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > STEPS_MAX:
            raise InvalidSchema("it is too large to be compared with an earlier version")

    def _resolve(self, reader: Schema, writer: Schema, path: str) -> list[Incompatibility]:
        if writer.kind == "union":
            return self._writer_union(reader, writer, path)
        if reader.kind == "union":
            return self._reader_union(reader, writer, path)
        if reader.kind != writer.kind:
            if reader.kind in _PROMOTIONS.get(writer.kind, ()):
                return []
            info = (
                f"reader type: {reader.kind.upper()} not compatible with writer type: {writer.kind.upper()}"
            )
            return [Incompatibility("TYPE_MISMATCH", path or "/", info)]
        if reader.kind in NAMED:
            if not _have_one_name(reader, writer):
                return [Incompatibility("NAME_MISMATCH", f"{path}/name", f"expected: {writer.name}")]
            return self._named(reader, writer, path)
        if reader.items is not None and writer.items is not None:
            return self.check(
                reader.items, writer.items, f"{path}/{'items' if reader.kind == 'array' else 'values'}"
            )
        return []

    def _reader_union(self, reader: Schema, writer: Schema, path: str) -> list[Incompatibility]:
        self._count(len(reader.branches))
        for index, each in enumerate(reader.branches):
            is_other = writer.kind in NAMED and not (
                each.kind == writer.kind and _have_one_name(each, writer)
            )
            if not is_other and not self.check(each, writer, f"{path}/{index}"):
                return []
        info = f"reader union lacking writer type: {writer.kind.upper()}"
        return [Incompatibility("MISSING_UNION_BRANCH", path or "/", info)]

    def _writer_union(self, reader: Schema, writer: Schema, path: str) -> list[Incompatibility]:
        found = []
        for index, each in enumerate(writer.branches):
            reasons = self.check(reader, each, path)
            if reasons and reader.kind == "union":
                info = f"reader union lacking writer type: {each.kind.upper()}"
                reasons = [Incompatibility("MISSING_UNION_BRANCH", f"{path}/{index}", info)]
            found += reasons
        return found

    def _named(self, reader: Schema, writer: Schema, path: str) -> list[Incompatibility]:
        if reader.kind == "fixed":
            if reader.size == writer.size:
                return []
            info = f"expected: {writer.size}, found: {reader.size}"
            return [Incompatibility("FIXED_SIZE_MISMATCH", f"{path}/size", info)]
        if reader.kind == "enum":
            missing = [each for each in writer.symbols if each not in reader.symbols]
            if not missing or reader.default is not None:
                return []
            return [Incompatibility("MISSING_ENUM_SYMBOLS", f"{path}/symbols", f"[{', '.join(missing)}]")]
        return self._fields(reader, writer, path)

    def _fields(self, reader: Schema, writer: Schema, path: str) -> list[Incompatibility]:
        written = {each.name: each for each in writer.fields}
        read = {each.name for each in reader.fields}
        found = []
        for index, each in enumerate(reader.fields):
            source = written.get(each.name) or _by_alias(each, written, read)
            here = f"{path}/fields/{index}"
            if source is not None:
                found += self.check(each.type, source.type, f"{here}/type")
            elif not each.has_default:
                found.append(Incompatibility("READER_FIELD_MISSING_DEFAULT_VALUE", here, each.name))
        return found


def _have_one_name(reader: Schema, writer: Schema) -> bool:
    """Without namespaces, or by an alias of the reader."""
    return reader.short_name == writer.short_name or writer.name in reader.aliases


def _by_alias(field: Field, written: dict[str, Field], read: set[str]) -> Field | None:
    """The writer's field that the reader's knows by an alias, unless a field of the reader has that name."""
    names = (each for each in field.aliases if each not in read)
    return next((written[each] for each in names if each in written), None)
