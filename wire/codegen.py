"""What the reader and the writer generators share: names, sizes, defaults, and a list of source lines."""

from __future__ import annotations

from barnabas.wire.schema_parser import FIXED, Field, Message, Struct

_LETTERS = {"16s": "u", "?": "o"}


class Source:
    """Python lines under construction, with the current indentation."""

    def __init__(self, structs: dict[str, str]) -> None:
        self.lines: list[str] = []
        self.depth = 2
        self._structs = structs  # name of a bound struct method -> its definition, shared by a module
        self._taken: set[str] = set()

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def unique(self, name: str) -> str:
        """A local variable of this name, numbered when the name is taken."""
        candidate, number = name, 2
        while candidate in self._taken or candidate in _RESERVED:
            candidate, number = f"{name}_{number}", number + 1
        self._taken.add(candidate)
        return candidate

    def bound(self, method: str, codes: list[str]) -> str:
        """The module-level name of `method` (pack or unpack_from) of the struct with these codes."""
        letters = "".join(_LETTERS.get(code, code) for code in codes)
        name = f"{'unpack' if method == 'unpack_from' else 'pack'}_{letters}"
        self._structs[name] = f'Struct(">{"".join(codes)}").{method}'
        return name


_RESERVED = {
    *(
        "buffer",
        "pos",
        "end",
        "n",
        "stop",
        "tag",
        "size",
        "error",
        "message",
        "append",
        "data",
        "view",
    ),
    *("str", "bytes", "list", "len", "range", "memoryview", "sum", "map", "pack", "unpack_from", "Struct"),
    *("from", "in", "is", "not", "class", "global", "lambda", "pass", "raise", "import", "None"),
}

SIZES = {"16s": 16, "?": 1, "b": 1, "B": 1, "x": 1, "h": 2, "H": 2, "i": 4, "q": 8, "d": 8}


def flexible(message: Message, version: int) -> bool:
    return message.flexible_since is not None and version >= message.flexible_since


def minimal_size(field: Field, version: int, compact: bool) -> int:
    """Bytes of the smallest encoding of one field, or of one element when it is an array's."""
    if field.type in FIXED:
        return FIXED[field.type][1]
    if field.type in ("string", "bytes", "records"):
        return 1 if compact else (2 if field.type == "string" else 4)
    assert field.struct is not None
    return max(1, struct_size(field.struct, version, compact))


def struct_size(struct: Struct, version: int, compact: bool) -> int:
    """Bytes of the smallest encoding of a struct in one version."""
    total = 1 if compact else 0
    for field in struct.fields:
        if version not in field.versions or (compact and field.tag is not None):
            continue
        if field.is_array:
            total += 1 if compact else 4
        elif field.struct is not None and version in field.nullable:
            total += 1
        else:
            total += minimal_size(field, version, compact)
    return total


def split_fields(struct: Struct, version: int, compact: bool) -> tuple[list[Field], list[Field]]:
    """The fields of one version: plain ones in order, tagged ones by tag."""
    present = [field for field in struct.fields if version in field.versions]
    plain = [field for field in present if field.tag is None or not compact]
    tagged = [field for field in present if field.tag is not None and compact]
    return plain, sorted(tagged, key=lambda field: field.tag or 0)


def is_plain(struct: Struct) -> bool:
    """Whether a struct holds nothing that could be changed inside, so that all messages may share its default."""
    return all(
        not field.is_array and field.type != "records" and (field.struct is None or is_plain(field.struct))
        for field in struct.fields
    )


def default_of(field: Field) -> str:
    """The Python expression of a field's default; containers and what holds one are made anew each time."""
    if field.default == "null" or field.type == "records":
        return "None"
    if field.is_array:
        return "[]"
    if field.struct is not None:
        name = field.struct.class_name
        return f"DEFAULT_{name}" if is_plain(field.struct) else f"{name}()"
    match field.type:
        case "string":
            return repr(field.default or "").replace("'", '"')
        case "bytes":
            return 'b""'
        case "uuid":
            return "ZERO_UUID"
        case "bool":
            return "True" if field.default == "true" else "False"
        case "float64":
            return repr(float(field.default or 0))
        case _:
            return str(int(field.default or 0))


def element_annotation(field: Field, request: bool) -> str:
    """The Python type of a field, or of one element when it is an array."""
    if field.struct is not None:
        return field.struct.class_name
    match field.type:
        case "string":
            return "str"
        case "bytes" | "uuid":
            return "bytes"
        case "records":
            return "memoryview | bytes" if request else "Records"
        case "bool":
            return "bool"
        case "float64":
            return "float"
        case _:
            return "int"


def annotation(field: Field, request: bool) -> str:
    """The Python type of a field in its message class."""
    text = element_annotation(field, request)
    if field.is_array:
        text = f"list[{text}]"
    nullable = field.nullable.first <= field.nullable.last or field.default == "null"
    if field.type == "records":
        return text if text == "Records" else f"{text} | None"
    return f"{text} | None" if nullable else text
