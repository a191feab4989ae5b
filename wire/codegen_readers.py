"""Generates the function that reads one message in one version.

The function is straight-line code: nested structs and array loops stand inline, each run of fixed-size fields
(together with the length or tag count behind it) is one struct call. A string's length is not compared with
the remaining bytes, because a slice cannot allocate more than the buffer holds: a position that runs past the
end is caught by the next read or by the check at the very end. Everything else is checked before it is read.
"""

from __future__ import annotations

from barnabas.wire.codegen import (
    SIZES,
    Source,
    default_of,
    element_annotation,
    flexible,
    minimal_size,
    split_fields,
)
from barnabas.wire.schema_parser import FIXED, Field, Message, Struct


def generate_reader(message: Message, version: int, structs: dict[str, str]) -> list[str]:
    """The body of the reader, without its `def` line, so that equal bodies can be recognised."""
    return _ReaderGenerator(message, version, structs).body()


class _ReaderGenerator:
    def __init__(self, message: Message, version: int, structs: dict[str, str]) -> None:
        self._message = message
        self._version = version
        self._flexible = flexible(message, version)
        self._source = Source(structs)
        self._run: list[tuple[str, str]] = []  # (struct code, variable) of fixed fields not yet read

    def body(self) -> list[str]:
        result = self._struct(self._message.root)
        emit = self._source.emit
        self._flush()
        emit("if pos > end:")
        emit(f'    raise overrun("{self._message.name}")')
        emit(f"return {result}, pos")
        if any("view[" in line for line in self._source.lines):
            self._source.lines.insert(
                0, "        view = buffer if type(buffer) is memoryview else memoryview(buffer)"
            )
        return [
            "    try:",
            *self._source.lines,
            "    except MALFORMED as error:",
            f'        raise malformed("{self._message.name}", error) from None',
        ]

    # -- structs and tagged fields ----------------------------------------------------------------------

    def _struct(self, struct: Struct) -> str:
        """Emits the reading of one struct; returns the expression that makes it."""
        plain, tagged = split_fields(struct, self._version, self._flexible)
        values: dict[str, str] = {}
        for field in plain:
            values[field.name] = self._source.unique(field.python_name)
            self._field(field, values[field.name], f"{struct.name}.{field.name}")
        if self._flexible:
            self._tagged(struct, tagged, values)
        arguments = [values.get(field.name) or default_of(field) for field in struct.fields]
        return f"{struct.class_name}({', '.join(arguments)})"

    def _tagged(self, struct: Struct, tagged: list[Field], values: dict[str, str]) -> None:
        emit = self._source.emit
        self._run.append(("B", "n"))
        self._flush()
        for field in tagged:
            values[field.name] = variable = self._source.unique(field.python_name)
            emit(f"{variable}: {self._local_type(field)} = {default_of(field)}")
        emit("if n:")
        self._source.depth += 1
        if not tagged:
            emit("pos = skip_tagged_fields(buffer, pos, end, n)")
        else:
            self._tag_loop(struct, tagged, values)
        self._source.depth -= 1

    def _tag_loop(self, struct: Struct, tagged: list[Field], values: dict[str, str]) -> None:
        emit = self._source.emit
        self._long_length("long_uvarint")
        emit("check_tagged_fields(n)")
        emit("for _ in range(n):")
        self._source.depth += 1
        after = self._source.unique("after")
        emit("tag, pos, size = read_tag(buffer, pos, end)")
        emit(f"{after} = pos + size")
        keyword = "if"
        for field in tagged:
            emit(f"{keyword} tag == {field.tag}:")
            self._source.depth += 1
            self._field(field, values[field.name], f"{struct.name}.{field.name}", declare=False)
            self._flush()
            self._source.depth -= 1
            keyword = "elif"
        emit("else:")
        emit(f"    pos = {after}")
        emit(f"if pos != {after}:")
        emit(f'    raise bad_tag_size("{struct.name}")')
        self._source.depth -= 1

    # -- fields -----------------------------------------------------------------------------------------

    def _field(self, field: Field, variable: str, path: str, declare: bool = True) -> None:
        nullable = self._version in field.nullable
        compact = self._flexible and not field.old_encoding
        if field.is_array:
            self._array(field, variable, path, nullable, compact, declare)
        elif field.type in FIXED:
            self._run.append((FIXED[field.type][0], variable))
        elif field.struct is not None:
            self._nested(field, variable, nullable, declare)
        else:
            self._sized(field.type, variable, path, nullable, compact, declare)

    def _nested(self, field: Field, variable: str, nullable: bool, declare: bool) -> None:
        assert field.struct is not None
        emit = self._source.emit
        if not nullable:
            expression = self._struct(field.struct)
            self._flush()
            emit(f"{variable} = {expression}")
            return
        self._run.append(("b", "n"))
        self._flush()
        if declare:
            emit(f"{variable}: {self._local_type(field)}")
        emit("if n < 0:")
        emit(f"    {variable} = None")
        emit("else:")
        self._source.depth += 1
        expression = self._struct(field.struct)
        self._flush()
        emit(f"{variable} = {expression}")
        self._source.depth -= 1

    def _sized(
        self, kind: str, variable: str, path: str, nullable: bool, compact: bool, declare: bool = True
    ) -> None:
        """A string, bytes or records."""
        emit = self._source.emit
        if compact:
            self._run.append(("B", "n"))
            self._flush()
            self._long_length("long_string_size" if kind == "string" else "long_uvarint")
        else:
            self._run.append(("h" if kind == "string" else "i", "n"))
            self._flush()
        null = "n == 0" if compact else "n < 0"
        emit(f"if {null}:")
        if nullable:
            if declare:
                self._source.lines.insert(
                    len(self._source.lines) - 1,
                    "    " * self._source.depth + f"{variable}: {_PYTHON_TYPES[kind]} | None",
                )
            emit(f"    {variable} = None")
            emit("else:")
            self._source.depth += 1
        else:
            emit(f'    raise unexpected_null("{path}")')
        emit(f"stop = pos + n{' - 1' if compact else ''}")
        if kind != "string":
            emit("if stop > end:")
            emit(f'    raise bad_length("{path}", stop - pos, end - pos)')
        emit(f"{variable} = {_SLICES[kind]}")
        emit("pos = stop")
        if nullable:
            self._source.depth -= 1

    def _array(
        self, field: Field, variable: str, path: str, nullable: bool, compact: bool, declare: bool
    ) -> None:
        emit = self._source.emit
        if compact:
            self._run.append(("B", "n"))
            self._flush()
            self._long_length("long_uvarint")
            emit("n -= 1")
        else:
            self._run.append(("i", "n"))
            self._flush()
        if declare and (nullable or not _is_numeric(field)):
            emit(f"{variable}: {self._local_type(field, nullable)}")
        if nullable:
            emit("if n < 0:")
            emit(f"    {variable} = None")
            emit("else:")
            self._source.depth += 1
        minimum = minimal_size(field, self._version, self._flexible)
        product = f"n * {minimum}" if minimum > 1 else "n"
        emit(f"if n < 0 or n > 1000000 or {product} > end - pos:")
        emit(f'    check_array("{path}", n, {minimum}, end - pos)')
        self._elements(field, variable, path, compact)
        if nullable:
            self._source.depth -= 1

    def _elements(self, field: Field, variable: str, path: str, compact: bool) -> None:
        emit = self._source.emit
        if field.type == "uuid":
            emit(f"{variable} = read_uuids(buffer, pos, n)")
            emit("pos += n * 16")
        elif field.type in FIXED:
            code, size = FIXED[field.type]
            emit(f'{variable} = list(unpack_from(f">{{n}}{code}", buffer, pos))')
            emit(f"pos += n * {size}" if size > 1 else "pos += n")
        else:
            emit(f"{variable} = []")
            emit("for _ in range(n):")
            self._source.depth += 1
            if field.struct is not None:
                expression = self._struct(field.struct)
            else:
                expression = self._source.unique("item")
                self._sized(field.type, expression, path, False, compact)
            self._flush()
            emit(f"{variable}.append({expression})")
            self._source.depth -= 1

    # -- runs -------------------------------------------------------------------------------------------

    def _long_length(self, function: str) -> None:
        self._source.emit("if n > 127:")
        self._source.emit(f"    n, pos = {function}(n, buffer, pos)")

    def _flush(self) -> None:
        """Emits one struct call for the pending run of fixed-size fields."""
        if not self._run:
            return
        codes = [code for code, _ in self._run]
        variables = [variable for _, variable in self._run]
        self._run = []
        if codes == ["B"]:
            self._source.emit(f"{variables[0]} = buffer[pos]")
        else:
            targets = ", ".join(variables) if len(variables) > 1 else f"({variables[0]},)"
            self._source.emit(f"{targets} = {self._source.bound('unpack_from', codes)}(buffer, pos)")
        self._source.emit(f"pos += {sum(SIZES[code] for code in codes)}")

    def _local_type(self, field: Field, nullable: bool | None = None) -> str:
        text = element_annotation(field, True)
        if field.is_array:
            text = f"list[{text}]"
        if nullable is None:
            nullable = self._version in field.nullable or field.default == "null" or field.type == "records"
        return f"{text} | None" if nullable else text


_PYTHON_TYPES = {"string": "str", "bytes": "bytes", "records": "memoryview"}
_SLICES = {
    "string": 'str(buffer[pos:stop], "utf-8")',
    "bytes": "bytes(buffer[pos:stop])",
    "records": "view[pos:stop]",
}


def _is_numeric(field: Field) -> bool:
    return field.type in FIXED
