"""Generates the byte layouts of the fast path (broker/fastpath) from the schema.

A layout describes the usual form of a message: one topic with one partition, other arrays empty, other strings null or
empty, and no tagged fields but those that the layout names. Then every part of the message but the topic's name and the
records has a fixed size, and one struct reads or writes it. The parts are
- head: what comes before the topics,
- topic: the number of topics, and the topic,
- partition: the number of partitions, and the partition; with the topic the key of a partition, which has the same bytes in
  Produce and Fetch, requests and responses,
- rest: what follows, up to the records or, where there are none, to the end of the message,
- end: what follows the records.

Bytes that are the same in each usual message appear in the struct as `B`, or as `Ns` where there are several; `..._FIXED`
has their values, in order. A layout for writing has pad bytes where they are 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from barnabas.wire.codegen import SIZES, split_fields
from barnabas.wire.primitives import uvarint
from barnabas.wire.schema_parser import FIXED, Field, Message, Schema, SchemaError, Struct, Versions

HEAD, TOPIC, PARTITION, REST, END = "head", "topic", "partition", "rest", "end"
READ, WRITE = "read", "write"
_ARRAYS_OF_ONE: Final = {  # arrays with one element
    "TopicData", "PartitionData", "Topics", "Partitions", "Responses", "PartitionResponses",
}  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """One generated struct."""

    name: str
    message: str
    versions: Versions  # all of which have this layout
    parts: tuple[str, ...]
    use: str
    tagged: str = ""  # the one tagged field that is present
    zero: frozenset[str] = frozenset()  # fields that are always written as 0, or are skipped in reading


_ZERO: Final = frozenset({"ErrorCode", "ThrottleTimeMs", "IsolationLevel"})
LAYOUTS: Final = (
    Layout("ID_KEY", "ProduceRequest", Versions(13, 13), (TOPIC, PARTITION), READ),
    Layout("NAME_KEY_TOPIC", "ProduceRequest", Versions(9, 12), (TOPIC,), READ),
    Layout("KEY_PARTITION", "ProduceRequest", Versions(9, 13), (PARTITION,), READ),
    Layout("PRODUCE_REQUEST_HEAD", "ProduceRequest", Versions(9, 13), (HEAD,), READ),
    Layout("PRODUCE_REQUEST_END", "ProduceRequest", Versions(9, 13), (END,), READ),
    Layout("PRODUCE_RESPONSE_REST", "ProduceResponse", Versions(9, 13), (REST,), WRITE, zero=_ZERO),
    Layout("FETCH_REQUEST_HEAD_12", "FetchRequest", Versions(12, 14), (HEAD,), READ),
    Layout("FETCH_REQUEST_HEAD_15", "FetchRequest", Versions(15, 18), (HEAD,), READ),
    Layout("FETCH_REQUEST_REST", "FetchRequest", Versions(12, 18), (REST,), READ),
    Layout("FOLLOWER_FETCH_REST", "FetchRequest", Versions(15, 18), (REST,), READ, "ReplicaState"),
    Layout("FETCH_RESPONSE_HEAD", "FetchResponse", Versions(12, 18), (HEAD,), WRITE, zero=_ZERO),
    Layout("FETCH_RESPONSE_REST", "FetchResponse", Versions(12, 18), (REST,), WRITE, zero=_ZERO),
    Layout("FETCH_RESPONSE_END", "FetchResponse", Versions(12, 18), (END,), READ),
    Layout(
        "FOLLOWER_FETCH_REQUEST", "FetchRequest", Versions(18, 18), (HEAD, TOPIC, PARTITION, REST),
        WRITE, "ReplicaState", _ZERO,
    ),
    Layout(
        "FOLLOWER_FETCH_RESPONSE", "FetchResponse", Versions(18, 18), (HEAD, TOPIC, PARTITION, REST), READ,
        zero=frozenset({"ThrottleTimeMs"}),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Atom:
    """A field of fixed size (`code`), bytes that are always the same (`same`), or a part of variable size (neither)."""

    name: str
    code: str = ""
    same: bytes = b""


@dataclass
class _Form:
    """The usual form of one message in one version."""

    tagged: str
    parts: dict[str, list[Atom]] = field(
        default_factory=lambda: {part: [] for part in (HEAD, TOPIC, PARTITION, REST, END)}
    )
    part: str = HEAD

    def add(self, atom: Atom) -> None:
        self.parts[self.part].append(atom)

    def struct(self, struct: Struct, version: int) -> None:
        plain, tagged = split_fields(struct, version, compact=True)
        for each in plain:
            self.field(each, version)
            if self.part == PARTITION and not each.is_array:
                self.part = REST  # behind the partition's index
        present = [each for each in tagged if each.name == self.tagged]
        self.add(Atom("tags", same=uvarint(len(present))))
        for each in present:
            assert each.struct is not None
            self.add(Atom("tag", same=uvarint(each.tag or 0) + uvarint(_fixed_size(each.struct, version))))
            self.struct(each.struct, version)

    def field(self, each: Field, version: int) -> None:
        if each.is_array and each.name in _ARRAYS_OF_ONE:
            self.part = TOPIC if self.part == HEAD else PARTITION
            self.add(_ONE)
            assert each.struct is not None
            self.struct(each.struct, version)
        elif each.is_array or (each.type == "string" and self.part != TOPIC):
            nothing = 0 if version in each.nullable else 1  # null, or a length plus one
            self.add(Atom(each.name, same=uvarint(nothing)))
        elif each.type == "records":
            self.add(Atom(each.name))
            self.part = END
        elif each.type == "string":
            self.add(Atom(each.name))
        else:
            self.add(Atom(each.name, code=FIXED[each.type][0]))


_ONE: Final = Atom("count", same=uvarint(1 + 1))


def _fixed_size(struct: Struct, version: int) -> int:
    """Bytes of a struct of fixed-size fields, with its own tagged section."""
    return sum(FIXED[each.type][1] for each in struct.fields if version in each.versions) + 1


def generate_layouts(schemas: Iterable[Schema]) -> str | None:
    """The source of fast_layouts.py; None when there are no such messages."""
    messages = {message.name: message for schema in schemas for message in schema.messages}
    if not all(layout.message in messages for layout in LAYOUTS):
        return None
    lines = [
        '"""Layouts of the usual form of Produce and Fetch, which the fast path reads and writes: see wire/codegen_layouts.py.',
        "",
        "Generated by wire/compiler.py from the files in wire/schema; do not edit.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        "from struct import Struct",
    ]
    for layout in LAYOUTS:
        lines += _source(layout, messages[layout.message])
    _check_keys(messages)
    return "\n".join([*lines, ""])


def _source(layout: Layout, message: Message) -> list[str]:
    versions = range(layout.versions.first, layout.versions.last + 1)
    forms = [_layout_of(layout, message, version) for version in versions]
    if any(form != forms[0] for form in forms):
        raise SchemaError(f"{layout.message} {layout.versions} has no layout {layout.name} of its own")
    first, last = layout.versions.first, layout.versions.last
    asked = f"{first}-{last}" if first < last else str(first)
    names, codes, fixed = [], [], []
    for name, code, same in forms[0]:
        names.append(name)
        codes.append(code)
        if same:
            fixed.append(str(same[0]) if code == "B" else repr(same).replace("'", '"'))
    lines = ["", f"# {layout.message} {asked}, {', '.join(layout.parts)}: {', '.join(names)}"]
    lines.append(f'{layout.name} = Struct(">{"".join(codes)}")')
    if fixed:
        values = ", ".join(fixed)
        lines.append(f"{layout.name}_FIXED = ({values}{',' if len(fixed) == 1 else ''})")
    return lines


def _layout_of(layout: Layout, message: Message, version: int) -> list[tuple[str, str, bytes]]:
    """(names for the comment, struct code, the bytes that are always there) of each element of the struct."""
    form = _Form(layout.tagged)
    form.struct(message.root, version)
    atoms = [atom for part in layout.parts for atom in form.parts[part]]
    elements: list[tuple[str, str, bytes]] = []
    names: list[str] = []
    run = b""
    for atom in atoms:
        same = atom.same
        if atom.code and layout.use == WRITE and atom.name in layout.zero:
            same = bytes(SIZES[atom.code])
        if same:
            names.append(atom.name)
            run += same
            continue
        elements += _run(names, run, layout.use)
        names, run = [], b""
        if atom.code and atom.name in layout.zero:
            elements.append((atom.name, f"{SIZES[atom.code]}x", b""))
        elif atom.code:
            elements.append((atom.name, atom.code, b""))
        elif layout.use == READ and atom is atoms[-1]:
            elements.append((f"first byte of the size of {atom.name}", "B", b""))
    return elements + list(_run(names, run, layout.use))


def _run(names: list[str], run: bytes, use: str) -> Iterator[tuple[str, str, bytes]]:
    """The elements for bytes that are always the same."""
    name = " + ".join(names)
    if use == WRITE:
        kept = run.strip(b"\0")
        before = len(run) - len(run.lstrip(b"\0")) if kept else len(run)
        behind = len(run) - before - len(kept)
        if before:
            yield name, "x" if before == 1 else f"{before}x", b""
            name = "..."
        if kept:
            yield name, "B" if len(kept) == 1 else f"{len(kept)}s", kept
            name = "..."
        if behind:
            yield name, "x" if behind == 1 else f"{behind}x", b""
    elif run:
        yield name, "B" if len(run) == 1 else f"{len(run)}s", run


def _check_keys(messages: dict[str, Message]) -> None:
    """Check that a partition's key has the same bytes in all four messages."""
    for version_of in ({"Produce": 12, "Fetch": 12}, {"Produce": 13, "Fetch": 13}):
        keys = []
        for name, version in version_of.items():
            for kind in ("Request", "Response"):
                form = _Form("")
                form.struct(messages[name + kind].root, version)
                keys.append(
                    [(atom.code, atom.same) for part in (TOPIC, PARTITION) for atom in form.parts[part]]
                )
        if any(key != keys[0] for key in keys):
            raise SchemaError(f"Produce and Fetch name a partition differently: {keys}")
