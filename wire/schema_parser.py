"""Reads the schema text in wire/schema/ into plain objects. Tooling: the broker never imports this.

The text is one file per API, named by its key, and one file per family of internal records. Fields stand
one a line, nested structs indented by two more spaces:

    request FetchRequest key=1 versions=4-18 flexible=12+ listeners=broker,controller
      ClusterId: string? 12+ tag=0 default=null
      Topics: []FetchTopic
        Topic: string 4-12

- after the type stand the versions that carry the field; none written means all of the message's versions;
- `?` after the type: null is allowed; `nullable=7+` restricts that to some versions;
- `tag=N`: a tagged field (KIP-482) in all versions of the field;
- `default=X`: the value of a field that is absent, when it is not 0, false, "" or empty;
- `flexible=none` keeps one field in its old encoding within a flexible message;
- `struct Name` as a line of its own inside a message declares a struct that several fields share.

Lines starting with `#` are comments; those at the head of the file say what the API is for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

FIXED = {  # type -> (struct code, size in bytes)
    "bool": ("?", 1),
    "int8": ("b", 1),
    "int16": ("h", 2),
    "uint16": ("H", 2),
    "int32": ("i", 4),
    "int64": ("q", 8),
    "float64": ("d", 8),
    "uuid": ("16s", 16),
}
VARIABLE = {"string", "bytes", "records"}


class SchemaError(Exception):
    """The schema text is wrong."""


@dataclass(frozen=True)
class Versions:
    """An inclusive range of versions; empty when first > last."""

    first: int
    last: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    def intersect(self, other: Versions) -> Versions:
        return Versions(max(self.first, other.first), min(self.last, other.last))

    @staticmethod
    def parse(text: str, last: int) -> Versions:
        """`4-18`, `7`, `12+` (up to `last`) or `none`."""
        if text == "none":
            return Versions(1, 0)
        if text.endswith("+"):
            return Versions(int(text[:-1]), last)
        low, _, high = text.partition("-")
        return Versions(int(low), int(high or low))


@dataclass
class Field:
    name: str  # Kafka's spelling
    type: str  # element type for arrays
    is_array: bool
    versions: Versions
    nullable: Versions
    tag: int | None
    default: str | None
    old_encoding: bool  # stays non-flexible in flexible versions
    struct: Struct | None = None  # when `type` is a struct

    @property
    def python_name(self) -> str:
        return snake_case(self.name)


@dataclass
class Struct:
    name: str  # Kafka's spelling
    class_name: str  # unique in its module
    fields: list[Field] = field(default_factory=list)


@dataclass
class Message:
    kind: str  # request, response, key, value, record or data
    name: str
    api_key: int
    versions: Versions
    flexible_since: int | None
    listeners: tuple[str, ...]
    unstable: bool
    root: Struct
    structs: list[Struct]  # nested before those that use them, the root last


@dataclass
class Schema:
    """One schema file, which becomes one module."""

    path: Path
    module: str
    comments: list[str]
    messages: list[Message]


def snake_case(name: str) -> str:
    """Kafka's field or API name in Python: `ThrottleTimeMs` and `throttleTimeMs` -> `throttle_time_ms`."""
    name = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()


def parse_file(path: Path) -> Schema:
    """Reads one schema file. Raises SchemaError with the file's name and the line."""
    comments: list[str] = []
    blocks: list[list[tuple[int, str]]] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("#"):
            comments.append(line[1:].strip())
        elif line.strip() and not line.startswith(" "):
            blocks.append([(number, line)])
        elif line.strip():
            blocks[-1].append((number, line))
    names: set[str] = set()
    messages = [_Parser(path, block, names).message() for block in blocks]
    module = re.sub(r"^\d+_", "", path.stem)
    return Schema(path, module, comments, messages)


class _Parser:
    """Parses the lines of one message. `names` holds the class names the module has given out already."""

    def __init__(self, path: Path, lines: list[tuple[int, str]], names: set[str]) -> None:
        self._path = path
        self._lines = lines
        self._names = names
        self._at = 0
        self._by_name: dict[str, Struct] = {}
        self._ordered: list[Struct] = []

    def message(self) -> Message:
        kind, name, *options = self._lines[0][1].split()
        option = dict(part.partition("=")[::2] for part in options)
        self._versions = Versions.parse(option["versions"], 0)
        self._prefix = {"response": "Response"}.get(kind, name.removesuffix("Record"))
        flexible = Versions.parse(option["flexible"], self._versions.last)
        root = Struct(name, name)
        self._names.add(name)
        self._at = 1
        root.fields = self._fields(2)
        self._resolve(root)
        return Message(
            kind=kind,
            name=name,
            api_key=int(option.get("key", -1)),
            versions=self._versions,
            flexible_since=flexible.first if flexible.first <= flexible.last else None,
            listeners=tuple(option["listeners"].split(",")) if "listeners" in option else (),
            unstable="unstable" in option,
            root=root,
            structs=self._ordered,
        )

    def _fields(self, indent: int) -> list[Field]:
        fields: list[Field] = []
        while self._at < len(self._lines):
            number, line = self._lines[self._at]
            depth = len(line) - len(line.lstrip())
            if depth < indent:
                break
            if depth > indent:
                raise SchemaError(f"{self._path}:{number}: unexpected indentation")
            self._at += 1
            if line.startswith("  struct "):
                self._declare(line.split()[1], 4)
            else:
                fields.append(self._field(number, line.strip(), indent))
        return fields

    def _field(self, number: int, line: str, indent: int) -> Field:
        name, _, rest = line.partition(": ")
        type_name, *words = rest.split()
        always_nullable = type_name.endswith("?")
        type_name = type_name.rstrip("?")
        is_array = type_name.startswith("[]")
        type_name = type_name.removeprefix("[]")
        versions = self._versions
        if words and "=" not in words[0]:
            versions = Versions.parse(words.pop(0), self._versions.last).intersect(self._versions)
        option = dict(word.split("=", 1) for word in words)
        if unknown := option.keys() - {"nullable", "tag", "default", "flexible"}:
            raise SchemaError(f"{self._path}:{number}: unknown options {sorted(unknown)}")
        nullable = (
            versions if always_nullable else Versions.parse(option.get("nullable", "none"), versions.last)
        )
        result = Field(
            name=name,
            type=type_name,
            is_array=is_array,
            versions=versions,
            nullable=nullable.intersect(versions),
            tag=int(option["tag"]) if "tag" in option else None,
            default=option.get("default"),
            old_encoding="flexible" in option,
        )
        if self._at < len(self._lines) and self._depth(self._at) > indent:
            self._declare(type_name, indent + 2)
        return result

    def _depth(self, at: int) -> int:
        line = self._lines[at][1]
        return len(line) - len(line.lstrip())

    def _declare(self, name: str, indent: int) -> None:
        class_name = name if name not in self._names else self._prefix + name
        self._names.add(class_name)
        struct = self._by_name[name] = Struct(name, class_name)
        struct.fields = self._fields(indent)

    def _resolve(self, struct: Struct) -> None:
        for entry in struct.fields:
            if entry.type in FIXED or entry.type in VARIABLE:
                continue
            if entry.type not in self._by_name:
                raise SchemaError(f"{self._path}: {struct.name}.{entry.name} has unknown type {entry.type}")
            entry.struct = self._by_name[entry.type]
            self._resolve(entry.struct)
        if struct not in self._ordered:
            self._ordered.append(struct)
